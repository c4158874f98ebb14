#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""engine.py OPTIONS: a vLLM engine that answers requests of lines of JSON.

Standard input has one request a line, standard output one answer, after a line of its own
that the engine is ready; what vLLM prints goes to standard error. Requests:

  {"prompts": [[ids]...], "salts": [...], "adapters": [[name, id, folder]...], "skip": bool,
   "params": {...}}                 tokens, logprobs, tokens found, and the connector's params
  {"forget": true}                  vLLM's own prefix cache is emptied, and only that
  {"reset": true}                   that, and the connector told that weights are others now
  {"kill_before_load": pid}         the next load finds this process killed
  {"kill_amid_load": pid}           the next load is asked of it, and never answered
  {"stored": true}                  what was stored: (group, tokens up to its end, first bytes)
  {"metrics": true}                 vLLM's metrics that are of kvtier or external hits
  {"page": true}                    the lines of its Prometheus page that are of kvtier
  {"backends": true}                what lays out the pages of each layer
"""
import json
import os
import signal
import sys

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.update(
    VLLM_CPU_KVCACHE_SPACE="1",
    VLLM_NO_USAGE_STATS="1",
    VLLM_CPU_OMP_THREADS_BIND="nobind",
    HF_HUB_OFFLINE="1",
    # Threads sleep while they wait for each other: on a busy machine that is faster.
    OMP_WAIT_POLICY="passive",
)

SEEN_BYTES = 256


class Engine:
    def __init__(self, model, extra=None, connector="KvtierConnector", **options):
        from vllm import LLM
        from vllm.config import KVTransferConfig

        defaults = dict(
            skip_tokenizer_init=True,
            enforce_eager=True,
            max_model_len=2048,
            max_num_seqs=4,
            max_num_batched_tokens=2048,
            enable_prefix_caching=True,
            seed=0,
            disable_log_stats=False,
            kv_transfer_config=KVTransferConfig(
                kv_connector=connector,
                kv_connector_module_path="kvtier.vllm",
                kv_role="kv_both",
                kv_connector_extra_config=extra or {},
            ),
        )
        self.llm = LLM(model=model, **{**defaults, **options})
        self.config = self.llm.llm_engine.vllm_config
        self.stored = []
        self.watch_stores()

    def watch_stores(self):
        from kvtier.vllm.worker import KvtierWorker

        store = KvtierWorker._store

        def watched(worker, items, set_id):
            for item in items:
                tensor = worker._map.groups[item.group].views[0].owner
                first = tensor[item.piece.blocks[0], :SEEN_BYTES].numpy().tobytes()
                self.stored.append((item.group, item.end, first.hex()))
            store(worker, items, set_id)

        KvtierWorker._store = watched

    def generate(self, prompts, salts=None, adapters=None, skip=False, params=None, n=8):
        from vllm import SamplingParams
        from vllm.lora.request import LoRARequest

        sampling = SamplingParams(
            temperature=0,
            max_tokens=n,
            detokenize=False,
            ignore_eos=True,
            logprobs=1,
            skip_reading_prefix_cache=skip,
            extra_args=dict(kv_transfer_params=params) if params else None,
        )
        requests = [dict(prompt_token_ids=ids) for ids in prompts]
        for request, salt in zip(requests, salts or ()):
            if salt:
                request["cache_salt"] = salt
        lora = [LoRARequest(*adapter) if adapter else None for adapter in adapters or ()]
        outputs = self.llm.generate(
            requests, sampling, use_tqdm=False, lora_request=lora or None
        )
        return [
            dict(
                tokens=list(output.outputs[0].token_ids),
                logprobs=[
                    next(iter(step.values())).logprob for step in output.outputs[0].logprobs
                ],
                found=output.num_cached_tokens,
                params=output.kv_transfer_params,
            )
            for output in outputs
        ]

    def kill_at_load(self, pid, before, after):
        """Signals for the process on both sides of the next load's submission."""
        from kvtier.vllm.worker import KvtierWorker

        submit = KvtierWorker.submit_load

        def submit_once(worker, *arguments):
            KvtierWorker.submit_load = submit
            os.kill(pid, before)
            submitted = submit(worker, *arguments)
            os.kill(pid, after)
            return submitted

        KvtierWorker.submit_load = submit_once

    def metrics(self):
        return {
            metric.name: metric.value
            for metric in self.llm.get_metrics()
            if ("kvtier" in metric.name or "external" in metric.name) and hasattr(metric, "value")
        }

    @staticmethod
    def page():
        from prometheus_client import generate_latest

        return [line for line in generate_latest().decode().splitlines() if "kvtier" in line]

    @staticmethod
    def backends():
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        return get_kv_transfer_group().connector_worker.spec.backends

    def answer(self, request):
        if "prompts" in request:
            return self.generate(**request)
        if "kill_before_load" in request:
            return self.kill_at_load(request["kill_before_load"], signal.SIGKILL, 0)
        if "kill_amid_load" in request:
            return self.kill_at_load(request["kill_amid_load"], signal.SIGSTOP, signal.SIGKILL)
        if "stored" in request:
            return self.stored
        if "metrics" in request:
            return self.metrics()
        if "page" in request:
            return self.page()
        if "backends" in request:
            return self.backends()
        return self.llm.reset_prefix_cache(reset_connector="reset" in request)

    def close(self):
        self.llm.llm_engine.engine_core.shutdown()


def main():
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def say(answer):
        print(json.dumps(answer), file=answers, flush=True)

    engine = Engine(**json.loads(sys.argv[1]))
    say({"block_tokens": engine.config.cache_config.block_size})
    for line in sys.stdin:
        say(engine.answer(json.loads(line)))
    engine.close()


if __name__ == "__main__":
    main()
