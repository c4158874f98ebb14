#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""vllm_ttft.py FOLDER BUILD MODEL: vLLM's time to the first token, cold and from each tier.

One engine on the CPU, in this process, over a daemon of its own in FOLDER (BUILD/daemon/kvtierd).
Prompts of 1,024, 4,096 and 16,384 tokens, all different: computed (cold), found in host memory
(host), and on NVMe after the daemon was restarted (nvme). vLLM's own prefix cache is emptied
before each. A prompt has 32 tokens more than are stored, as the last one is computed in any case.
One JSON line a measure, medians; and what of the scheduler's steps a lookup takes.
"""
import json
import os
import random
import statistics
import sys
import time
from pathlib import Path

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.update(
    VLLM_CPU_KVCACHE_SPACE="1",
    VLLM_NO_USAGE_STATS="1",
    VLLM_CPU_OMP_THREADS_BIND="nobind",
    HF_HUB_OFFLINE="1",
)

# What vLLM prints goes where its log goes.
ROWS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

ENGINES = Path(__file__).resolve().parents[2] / "engines"
sys.path[:0] = [str(ENGINES), str(ENGINES / "vllm")]

from kvtierd import Daemon  # noqa: E402
from models import BLOCK, MODELS, make  # noqa: E402

#: Tokens that are stored, and how many prompts of them.
LENGTHS = {1024: 5, 4096: 3, 16384: 2}
REST = 32
#: On top of the shapes of the tests, so that computing takes longer than all else.
LARGER = {
    "qwen3": dict(hidden_size=256, intermediate_size=1024, num_hidden_layers=4, head_dim=64),
    "qwen3_next": dict(hidden_size=256, moe_intermediate_size=256),
}


class Clocks:
    """Time that calls of some methods take, in seconds."""

    def __init__(self):
        self.passed = {}

    def watch(self, owner, method):
        inner, passed = getattr(owner, method), self.passed.setdefault(method, [])

        def watched(*arguments, **options):
            began = time.perf_counter()
            try:
                return inner(*arguments, **options)
            finally:
                passed.append(time.perf_counter() - began)

        setattr(owner, method, watched)

    def take(self, method):
        taken = list(self.passed[method])
        self.passed[method].clear()
        return taken


class Engine:
    def __init__(self, model, socket):
        from vllm import LLM
        from vllm.config import KVTransferConfig

        self.llm = LLM(
            model=model,
            skip_tokenizer_init=True,
            enforce_eager=True,
            max_model_len=max(LENGTHS) + 2 * REST,
            max_num_seqs=4,
            max_num_batched_tokens=2048,
            enable_prefix_caching=True,
            seed=0,
            kv_transfer_config=KVTransferConfig(
                kv_connector="KvtierConnector",
                kv_connector_module_path="kvtier.vllm",
                kv_role="kv_both",
                kv_connector_extra_config=dict(kvtier_socket=socket, kvtier_load_timeout=60),
            ),
        )
        core = self.llm.llm_engine.engine_core.engine_core
        self.clocks = Clocks()
        self.clocks.watch(core.scheduler.connector, "get_num_new_matched_tokens")
        self.clocks.watch(core.scheduler, "schedule")
        self.clocks.watch(core, "step_fn")

    def ask(self, prompt, forget=True):
        """(seconds to the first token, tokens found)."""
        from vllm import SamplingParams

        if forget:
            assert self.llm.reset_prefix_cache()
        sampling = SamplingParams(temperature=0, max_tokens=1, detokenize=False, ignore_eos=True)
        began = time.perf_counter()
        [output] = self.llm.generate([dict(prompt_token_ids=prompt)], sampling, use_tqdm=False)
        return time.perf_counter() - began, output.num_cached_tokens

    def flush(self):
        """A step more, with which vLLM submits the stores of the one before."""
        for _ in range(2):
            self.ask([5, 6, 7], forget=False)


def prompts(tokens):
    source = random.Random(tokens)
    return [
        [source.randrange(2, 500) for _ in range(tokens + REST)] for _ in range(LENGTHS[tokens])
    ]


def emit(name, value, unit, runs, **more):
    print(
        json.dumps({"name": name, "value": round(value, 4), "unit": unit, "runs": runs, **more}),
        file=ROWS,
        flush=True,
    )


def measure(engine, model, tokens, tier):
    seconds = []
    for prompt in prompts(tokens):
        took, found = engine.ask(prompt)
        if found != (0 if tier == "cold" else tokens):
            sys.exit(f"{found} of {tokens} tokens found, {tier}")
        seconds.append(took)
        engine.flush()
    emit(f"ttft_{model}_{tokens}_{tier}", statistics.median(seconds), "s", len(seconds),
         load_average=os.getloadavg()[0])


def step_shares(engine, model, tier):
    """Of the steps since the last call: of schedule() and of whole steps, the lookups' part."""
    lookups, schedule, steps = (
        sum(engine.clocks.take(method))
        for method in ("get_num_new_matched_tokens", "schedule", "step_fn")
    )
    emit(f"lookup_share_{model}_{tier}", 100 * lookups / steps, "% of steps", 1,
         of_schedule=round(100 * lookups / schedule, 2))


def main(folder, build, name):
    config = {**MODELS[name], **LARGER[name], "max_position_embeddings": 32768}
    model = Path(folder) / name
    make(model, config)
    with Daemon(build, folder, host="768MiB", nvme="1GiB") as daemon:
        engine = Engine(str(model), daemon.socket)
        assert engine.llm.llm_engine.vllm_config.cache_config.block_size == BLOCK
        emit(f"shape_{name}", config["hidden_size"], "hidden", 1,
             **{key: config[key] for key in ("num_hidden_layers", "head_dim")})
        engine.ask([3] * 2048)  # the first one pays for what is made on demand
        for tier in ("cold", "host", "nvme"):
            if tier == "nvme":
                daemon.restart()
                time.sleep(5)  # until the session has found the daemon again
                engine.flush()
            for clock in engine.clocks.passed:
                engine.clocks.take(clock)
            for tokens in LENGTHS:
                measure(engine, name, tokens, tier)
            step_shares(engine, name, tier)
        engine.llm.llm_engine.engine_core.shutdown()


main(*sys.argv[1:])
