#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""vllm_lookup.py FOLDER KVTIERD [ROUNDS]: the scheduler's time to find a prompt's blocks.

vLLM's own offloading scheduler, with kvtier's manager beneath it and a daemon of its own in
FOLDER, is asked for a prompt of 1,000 blocks of 16 tokens, of which all are stored, or none.
One JSON line a measure: µs that the calls took, and what the scheduler's thread computed in
them, which a busy machine does not lengthen; p50 and p99; and what vLLM itself takes.
"""
import json
import os
import subprocess
import sys
import time
from types import SimpleNamespace

import torch
from vllm import SamplingParams
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import (
    OffloadingConnectorScheduler,
)
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.kv_offload.base import GPULoadStoreSpec, LookupResult, OffloadingKVEventsConfig
from vllm.v1.request import Request

from kvtier import GroupKind, Session
from kvtier.vllm.engine import Engine, GroupFacts
from kvtier.vllm.manager import KvtierManager
from kvtier.vllm.options import Options
from kvtier.vllm.worker import KvtierWorker, page_tensors

try:
    from kvtier.vllm import searches
except ImportError:  # of before there were searches
    searches = None

BLOCK, BLOCKS, PAGE_BYTES = 16, 1000, 4096


def daemon(folder, kvtierd):
    socket = f"{folder}/lookup.sock"
    settings = {"socket.path": socket, "host.bytes": "64MiB", "host.piece_bytes": "32MiB",
                "metrics.listen": "off"}
    command = [kvtierd, "--config", "/dev/null"]
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    process = subprocess.Popen(command, stderr=open(f"{folder}/lookup.log", "w"))
    while " ready " not in open(f"{folder}/lookup.log").read():
        assert process.poll() is None, open(f"{folder}/lookup.log").read()
        time.sleep(0.01)
    return process, socket


class Clock:
    def __init__(self):
        self.began = time.perf_counter(), time.thread_time()

    def microseconds(self):
        """(passed, computed)"""
        return ((time.perf_counter() - self.began[0]) * 1e6,
                (time.thread_time() - self.began[1]) * 1e6)


class All:
    """A manager that has everything, for what vLLM's own part costs."""

    def __init__(self, manager):
        self.on_new_request = manager.on_new_request

    def lookup(self, key, req_context):
        return LookupResult.HIT


class Bed:
    def __init__(self, socket):
        facts = GroupFacts(0, GroupKind.ATTENTION, BLOCK, 0, "bfloat16", ("layer",))
        self.engine = Engine(
            identity=dict(model="lookup", engine="vllm"), engine_id=bytes(16), groups=(facts,),
            chunk_tokens=BLOCK, tokens_per_hash=BLOCK, blocks_per_chunk=1,
            rank=0, n_ranks=1, replicated=False)
        options = Options(socket=socket)
        pages = torch.zeros((BLOCKS + 1, PAGE_BYTES), dtype=torch.int8)
        caches = SimpleNamespace(
            tensors=[SimpleNamespace(tensor=pages)],
            group_data_refs=[[SimpleNamespace(tensor_idx=0, page_size_bytes=PAGE_BYTES)]])
        self.sessions = [
            Session(layout, socket=socket, engine_id=bytes(16), partial_layout=True)
            for layout in (self.engine.layout(page_tensors(self.engine, caches)),
                           self.engine.layout())]
        assert all(session.wait_attached(20).name == "OK" for session in self.sessions)
        self.worker = KvtierWorker(self.sessions[0], self.engine, options, caches)
        self.manager = KvtierManager(self.sessions[1], self.engine, options)
        self.scheduler = self.vllm_scheduler(self.manager)
        if searches:
            assert searches.install(self.scheduler, self.manager)
        init_none_hash(sha256)
        self.hasher = get_request_block_hasher(BLOCK, sha256)
        self.requests = 0

    @staticmethod
    def vllm_scheduler(manager):
        spec = FullAttentionSpec(
            block_size=BLOCK, num_kv_heads=1, head_size=64, dtype=torch.bfloat16)
        group = SimpleNamespace(
            kv_cache_spec=spec, is_eagle_group=False, layer_names=["layer"])
        offloading = SimpleNamespace(
            config=SimpleNamespace(
                groups=[SimpleNamespace(group_id=0, tokens_per_block=BLOCK)]),
            blocks_per_chunk=1, tokens_per_hash=BLOCK, tokens_per_block=(BLOCK,),
            offload_prompt_only=True, get_manager=lambda: manager,
            kv_events_config=OffloadingKVEventsConfig(False, False))
        config = SimpleNamespace(
            cache_config=SimpleNamespace(
                prefix_cache_retention_interval=None, enable_prefix_caching=True),
            speculative_config=None,
            parallel_config=SimpleNamespace(world_size=1, decode_context_parallel_size=1))
        caches = SimpleNamespace(kv_cache_groups=[group])
        return OffloadingConnectorScheduler(offloading, config, caches)

    def request(self, seed):
        self.requests += 1
        tokens = [seed] + [i % 50000 for i in range(BLOCK * BLOCKS)]
        return Request(str(self.requests), tokens, SamplingParams(max_tokens=1), None,
                       block_hasher=self.hasher)

    def admit(self, scheduler, request):
        scheduler.on_new_request(request)
        if scheduler.manager is self.manager:
            self.manager.watch(request)
        scheduler._req_status[request.request_id].update_offload_keys()

    def store(self, request):
        status = self.scheduler._req_status[request.request_id]
        keys = status.group_states[0].offload_keys
        spec = self.manager.prepare_store(keys, status.req_context).store_spec
        blocks = GPULoadStoreSpec(list(range(1, BLOCKS + 1)), [BLOCKS], [0])
        self.worker.submit_store(1, blocks, spec)
        self.worker.wait({1})
        self.manager.complete_store(keys, status.req_context)

    def find(self, request):
        """(tokens, (µs, µs computed) of each call until there was an answer)."""
        times = []
        while True:
            clock = Clock()
            tokens, _ = self.manager.match(
                request, 0, lambda: self.scheduler.get_num_new_matched_tokens(request, 0))
            times.append(clock.microseconds())
            if tokens is not None:
                break
            time.sleep(0.002)  # the rest of a step
            self.manager.on_schedule_end(None)
        self.manager.on_request_finished(
            self.scheduler._req_status[request.request_id].req_context)
        self.manager.on_schedule_end(None)
        return tokens, times

    def vllm_alone(self, rounds):
        scheduler = self.vllm_scheduler(All(self.manager))
        times = []
        for _ in range(rounds):
            request = self.request(0)
            self.admit(scheduler, request)
            clock = Clock()
            tokens, _ = scheduler.get_num_new_matched_tokens(request, 0)
            times.append(clock.microseconds())
            assert tokens == BLOCKS * BLOCK
        return times


def emit(name, times, **more):
    for kind, column in zip(("", "_computed"), zip(*times)):
        ordered = sorted(column)
        print(json.dumps({
            "name": name + kind, "unit": "us", "p50": round(ordered[len(ordered) // 2], 1),
            "p99": round(ordered[len(ordered) * 99 // 100], 1), "runs": len(ordered), **more}),
            flush=True)


def main(folder, kvtierd, rounds=200):
    process, socket = daemon(folder, kvtierd)
    try:
        bed = Bed(socket)
        stored = bed.request(0)
        bed.admit(bed.scheduler, stored)
        bed.store(stored)
        for name, seed, expected in (("hits", 0, BLOCKS * BLOCK), ("misses", 1, 0)):
            sums, calls = [], 0
            for _ in range(int(rounds)):
                request = bed.request(seed)
                bed.admit(bed.scheduler, request)
                tokens, times = bed.find(request)
                assert tokens == expected, (tokens, expected)
                sums.append([sum(column) for column in zip(*times)])
                calls += len(times)
            emit(f"lookup_1000_{name}", sums, calls=calls / int(rounds))
        emit("lookup_1000_vllm_key_by_key", bed.vllm_alone(int(rounds)))
    finally:
        process.terminate()
        process.wait()
    print(json.dumps({"name": "load_average", "value": os.getloadavg()[0]}))


main(*sys.argv[1:])
