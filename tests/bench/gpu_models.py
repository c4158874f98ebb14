#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/bench/gpu_models.py BUILD [--small] [MODEL...]: models of transformers go on from stored
caches, on a GPU if there is one: bit for bit as from the cache that never left it, and how long
a load takes against the prefill that it saves.

Each model has layers of a real one, with random weights, fewer of them, and what is said beside
it; bytes and arithmetic of a token shrink alike with the number of layers. For each length:
prefill, save, go on from the same cache object, drop it, load, go on from what was loaded, and
compare the logits and all tensors of the caches. --small: small layers, short prompts, no table:
for tests. The last line says how many models went on bit for bit. Exit 1: one did not; 77: no
torch, no transformers.

BUILD has daemon/kvtierd; the package kvtier has to be in PYTHONPATH.
"""
import argparse
import copy
import gc
import inspect
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "engines"))

try:
    import torch
    import transformers
except ImportError as missing:
    print(f"gpu_models: skipped: {missing}")
    sys.exit(77)

from gpu_model_list import MODELS, VOCABULARY  # noqa: E402
from kvtierd import Daemon  # noqa: E402

from kvtier.cuda import Strategy  # noqa: E402
from kvtier.transformers import CacheStore  # noqa: E402
from kvtier.transformers.shape import describe  # noqa: E402

TOKENS = (8 << 10, 32 << 10, 128 << 10)
SMALL_TOKENS = (1 << 10,)
CHUNK = 256
WARM_UP = 1 << 10
#: Behind the cache: single tokens, then some at once.
STEPS, TAIL = 3, 5
REPEATS = 8
GB = 1e9
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def wait():
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def machine():
    gpu = torch.cuda.get_device_name() if DEVICE.type == "cuda" else "no GPU"
    return f"{gpu}, torch {torch.__version__}, transformers {transformers.__version__}"


def free():
    gc.collect()
    if DEVICE.type == "cuda":
        torch.cuda.empty_cache()


class Timer:
    """Seconds from its making on, of what the GPU has really done."""

    def __init__(self):
        wait()
        self._begin = time.perf_counter()

    def __call__(self):
        wait()
        return time.perf_counter() - self._begin


def build(name, small):
    kind, _, fields, small_fields, _ = MODELS[name]
    fields = {**fields, **small_fields} if small else fields
    config = transformers.AutoConfig.for_model(kind, vocab_size=VOCABULARY, **fields)
    torch.manual_seed(0)
    with DEVICE:
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        scale_up(model)
    return model.to(DEVICE).eval()


def scale_up(model):
    """With small weights a lost state would hardly show in the logits."""
    for name, weights in model.named_parameters():
        if weights.dim() >= 2 and not any(word in name for word in ("embed", "conv", "A_log")):
            weights.data.normal_(std=weights.shape[-1] ** -0.5)


class Run:
    """One model and its store."""

    def __init__(self, name, model, store, small):
        self.model, self.store = model, store
        self.step = CHUNK if small else MODELS[name][1]
        parameters = inspect.signature(model.forward).parameters
        self.cache_name = "cache" if "cache" in parameters else "past_key_values"

    def forward(self, ids, cache, begin, keep):
        positions = torch.arange(begin, begin + ids.shape[1], device=DEVICE)[None]
        caches = {} if cache is None else {self.cache_name: cache}
        with torch.no_grad():
            output = self.model(
                ids, position_ids=positions, use_cache=True, logits_to_keep=keep, **caches
            )
        cache = getattr(output, self.cache_name)
        return output.logits[0], cache

    def prefill(self, ids):
        cache, tokens = None, ids.shape[1]
        step = self.step or tokens
        for begin in range(0, tokens, step):
            _, cache = self.forward(ids[:, begin : begin + step], cache, begin, 1)
        return cache

    def go_on(self, cache, ids, begin):
        """The logits of the tokens behind a cache, which it goes on to fill."""
        found = []
        for first, end in [(begin + i, begin + i + 1) for i in range(STEPS)] + [
            (begin + STEPS, begin + STEPS + TAIL)
        ]:
            logits, cache = self.forward(ids[:, first:end], cache, first, 0)
            found.append(logits)
        return torch.cat(found)

    def measure(self, tokens):
        ids = torch.randint(3, VOCABULARY, (1, tokens + STEPS + TAIL), device=DEVICE)
        timer = Timer()
        cache = self.prefill(ids[:, :tokens])
        row = {"tokens": tokens, "prefill": timer()}
        timer = Timer()
        saved = self.store.save(cache, ids[:, :tokens])
        row["save"], row["bytes"] = timer(), saved.nbytes
        assert saved.tokens == tokens, saved
        kept = copy.deepcopy(cache)
        expected = self.go_on(cache, ids, tokens)
        del cache
        gc.collect()
        timer = Timer()
        loaded = self.store.load(ids)
        row["load"] = timer()
        assert loaded is not None and loaded.tokens == tokens, "not loaded whole"
        row["parts"] = different_parts(kept, loaded.cache)
        found = self.go_on(loaded.cache, ids, tokens)
        row["equal"] = torch.equal(found, expected) and bool(expected.isfinite().all())
        del loaded
        row["repeats"] = row["equal"] or self.repeats(kept, ids, tokens, expected)
        del kept
        free()
        return row


    def repeats(self, cache, ids, tokens, expected):
        """Whether the model computes the same each time, with no store in between."""
        twins = (copy.deepcopy(cache) for _ in range(REPEATS))
        return all(torch.equal(self.go_on(twin, ids, tokens), expected) for twin in twins)


def different_parts(one, other):
    """Tensors of two caches that are not equal bit for bit."""
    parts = describe(one).parts
    return [str(part) for part in parts if not torch.equal(part.get(one), part.get(other))]


def line(name, row):
    ratio = row["prefill"] / row["load"]
    rates = [row["bytes"] / row[way] / GB for way in ("save", "load")]
    equal = "yes" if row["equal"] else "NO" if row["repeats"] else "no, nor without the store"
    equal += f"; cache: {row['parts'][:4]}" if row["parts"] else ""
    return (
        f"| {name} | {row['tokens']:,} | {row['bytes'] / 1e6:,.1f} | {row['prefill']:.3f} |"
        f" {row['save']:.3f} | {row['load']:.3f} | {rates[0]:.1f} | {rates[1]:.1f} |"
        f" {ratio:.1f} | {equal} |"
    )


HEAD = """| model | tokens | MB stored | prefill s | save s | load s | save GB/s | load GB/s |\
 prefill / load | logits equal |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"""


def lengths(run, tokens, seconds):
    """A row for each length, or a text: why there is none."""
    last, growth = None, 8.0
    for n in tokens:
        if last and last["prefill"] * min(growth * 2, (n / last["tokens"]) ** 2) > seconds:
            yield n, f"left out: {last['tokens']:,} took {last['prefill']:.1f} s"
            return
        try:
            row = run.measure(n)
        except torch.OutOfMemoryError:
            free()
            yield n, "its prefill does not fit into the GPU"
            return
        growth = row["prefill"] / last["prefill"] if last else growth
        last = row
        yield n, row


def run_model(name, daemon, arguments):
    """False: some logits differ."""
    timer = Timer()
    model = build(name, arguments.small)
    options = dict(name=name, revision="random", chunk_tokens=CHUNK, socket=daemon.socket)
    if arguments.strategy:
        options["cuda_options"] = dict(strategies=[Strategy[arguments.strategy]])
    all_equal = True
    with CacheStore(model, **options) as store:
        assert bool(store.gpus) == (DEVICE.type == "cuda" and not arguments.through_host)
        assert not store.gpus or store.gpus.wait_registered()
        run = Run(name, model, store, arguments.small)
        run.prefill(torch.randint(3, VOCABULARY, (1, WARM_UP), device=DEVICE))
        print(f"# {name}: {MODELS[name][4]}; ready after {timer():.1f} s", flush=True)
        for n, row in lengths(run, arguments.tokens, arguments.seconds):
            if isinstance(row, str):
                print(f"| {name} | {n:,} | {row} |", flush=True)
                continue
            print(line(name, row), flush=True)
            # What the model itself does not repeat is no fault of the store's.
            all_equal &= not row["parts"] and (row["equal"] or not row["repeats"])
        if store.gpus:
            moved = store.gpus.info().moved.items()
            ways = [f"{way.name} {how.name} {n.nbytes:,}" for (way, how), n in moved if n.nbytes]
            print(f"# {'; '.join(ways)}", flush=True)
    return all_equal


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=Path)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(MODELS))
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--tokens", type=int, nargs="+")
    parser.add_argument("--seconds", type=float, default=20.0, help="of a prefill at most")
    parser.add_argument("--through-host", action="store_true", help="without libkvtier-cuda")
    parser.add_argument("--strategy", choices=[strategy.name for strategy in Strategy])
    parser.add_argument("--host", help="the daemon's host memory")
    arguments = parser.parse_intermixed_args()
    arguments.tokens = arguments.tokens or (SMALL_TOKENS if arguments.small else TOKENS)
    if arguments.through_host:
        os.environ["KVT_CUDA_DRIVER"] = "/none"
    torch.use_deterministic_algorithms(True, warn_only=True)
    host = arguments.host or ("256MiB" if arguments.small else "12GiB")
    if not arguments.small:
        print(HEAD)
        print(f"# {machine()}")
    equal, names = 0, arguments.models or list(MODELS)
    piece = "32MiB" if arguments.small else "1GiB"
    with tempfile.TemporaryDirectory() as folder, Daemon(
        arguments.build, Path(folder), host=host, piece=piece
    ) as daemon:
        for name in names:
            try:
                equal += run_model(name, daemon, arguments)
            except Exception:  # the others are to be seen all the same
                traceback.print_exc()
            free()
    print(f"{equal} of {len(names)} models go on bit for bit on {DEVICE.type}")
    return 0 if equal == len(names) else 1


if __name__ == "__main__":
    sys.exit(main())
