# SPDX-License-Identifier: Apache-2.0
"""SGLang's own controllers over its host pools, with their threads that back up and prefetch.
What the scheduler does between them, allocating pages for what was found, is done here."""
import threading
from contextlib import contextmanager

import torch
from conftest import EXTRA
from host_pools import LAYERS, PAGE, indices_of, keys, mamba, mha
from sglang.srt.managers.cache_controller import HiCacheController
from sglang.srt.mem_cache.base_prefix_cache import CacheRequestHandle
from sglang.srt.mem_cache.hicache_storage import PoolHitPolicy, PoolName, PoolTransfer
from sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller import HybridCacheController
from sglang.srt.mem_cache.pool_host.group import HostPoolGroup, PoolEntry
from sglang.srt.runtime_context import get_parallel

KV, MAMBA = PoolName.KV, PoolName.MAMBA
N = 160  # more than one batch
SECONDS = 30


@contextmanager
def ranks(store, rank=0, n=1):
    """The process group of an engine of n ranks."""
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=n)
    facts = dict(tp_rank=rank, tp_size=n, pp_rank=0, pp_size=1, attn_dcp_size=1, attn_dcp_rank=0)
    try:
        with get_parallel().override(**facts):
            yield torch.distributed.group.WORLD
    finally:
        torch.distributed.destroy_process_group()


class DevicePools:
    """What the storage threads ask of the device's side: nothing but its shape."""

    device, layer_num = "cpu", LAYERS

    def register_layer_transfer_counter(self, counter):
        pass

    def get_kvcache(self):
        return self


def tokens(n):
    """Of the prompt whose pages `keys` names."""
    first = sum(b"prompt")
    return list(range(first, first + n * PAGE))


class Engine:
    def __init__(self, socket, tp_group, weights, states=False, **extra):
        pages = 2 * N * PAGE
        self.kv, self.states = mha(tokens=pages), mamba() if states else None
        pool, kind = self.kv, HiCacheController
        if states:
            entries = [
                PoolEntry(KV, self.kv, DevicePools(), lambda layer: layer, True),
                PoolEntry(MAMBA, self.states, DevicePools(), lambda layer: layer),
            ]
            pool, kind = HostPoolGroup(entries), HybridCacheController
        self.controller = kind(
            DevicePools(),
            pool,
            PAGE,
            tp_group,
            threading.Event(),
            write_policy="write_through",
            io_backend="direct",
            storage_backend="dynamic",
            prefetch_threshold=PAGE,
            model_name="test/model",
            storage_backend_extra_config={
                **EXTRA,
                "kvtier_socket": socket,
                "kvtier_weights": weights,
                **extra,
            },
        )

    def close(self):
        self.controller.detach_storage_backend()

    def back_up(self, n, state_at=None):
        """The first n pages; how many tokens of them were stored."""
        chain, indices = keys(n), indices_of(self.kv, range(n))
        more = {}
        if state_at:
            more["extra_pools"] = [self.state(chain[state_at - 1], [3])]
        self.controller.write_storage(indices, tokens(n), chain, prefix_keys=[], **more)
        return self.controller.ack_backup_queue.get(timeout=SECONDS).completed_tokens

    @staticmethod
    def state(key, slots):
        return PoolTransfer(
            MAMBA,
            host_indices=torch.tensor(slots),
            keys=[key],
            hit_policy=PoolHitPolicy.TRAILING_PAGES,
        )

    def query(self, n, state_slot=None):
        """The operation, with what was found of the first n pages."""
        more, handle = {}, "request"
        if self.states:
            handle = CacheRequestHandle("request", 0)
        if state_slot is not None:
            more["extra_pools"] = [self.state(keys(n)[-1], [state_slot])]
        self.controller.prefetch(handle, tokens(n), **more)
        return self.controller.prefetch_hit_queue.get(timeout=SECONDS)

    def fetch(self, operation, first_page):
        """(tokens that have come, what was acknowledged of the side pools)"""
        n = operation.storage_hit_count // PAGE
        operation.host_indices = indices_of(self.kv, range(first_page, first_page + n))
        self.controller.prefetch_buffer.put(operation)
        completed, pools = 0, {}
        while True:
            ack = self.controller.ack_prefetch_queue.get(timeout=SECONDS)
            if ack.completed_tokens is not None:
                completed = ack.completed_tokens
            pools.update(getattr(ack, "pool_hits", None) or {})
            if ack.completed_req:
                return completed, pools
