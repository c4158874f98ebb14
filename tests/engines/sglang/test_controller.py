# SPDX-License-Identifier: Apache-2.0
"""SGLang's own controllers, with their threads that back up and prefetch. What the scheduler
does between them, allocating pages for what was found, is done here."""
import signal
import threading
from contextlib import ExitStack

import pytest
import torch
from conftest import EXTRA
from host_pools import LAYERS, PAGE, content, fill, indices_of, keys, mamba, mha, wipe
from sglang.srt.managers.cache_controller import HiCacheController
from sglang.srt.mem_cache.base_prefix_cache import CacheRequestHandle
from sglang.srt.mem_cache.hicache_storage import PoolHitPolicy, PoolName, PoolTransfer
from sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller import HybridCacheController
from sglang.srt.mem_cache.pool_host.group import HostPoolGroup, PoolEntry
from sglang.srt.runtime_context import get_parallel

KV, MAMBA = PoolName.KV, PoolName.MAMBA
N = 160  # more than one batch
SECONDS = 30


@pytest.fixture(scope="module")
def tp_group():
    """A group of one rank."""
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    ranks = dict(tp_rank=0, tp_size=1, pp_rank=0, pp_size=1, attn_dcp_size=1, attn_dcp_rank=0)
    with get_parallel().override(**ranks):
        yield torch.distributed.group.WORLD
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
    def __init__(self, daemon, tp_group, weights, states=False, **extra):
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
                "kvtier_socket": daemon.socket,
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


@pytest.fixture
def engine_of(request, tp_group):
    with ExitStack() as stack:

        def make(daemon, **options):
            engine = Engine(daemon, tp_group, request.node.name, **options)
            stack.callback(engine.close)
            return engine

        yield make


def test_pages_are_backed_up_and_prefetched(shared_daemon, engine_of):
    engine = engine_of(shared_daemon)
    fill(engine.kv, 1)
    stored = content(engine.kv, indices_of(engine.kv, range(N)))
    assert engine.back_up(N) == N * PAGE
    other = engine_of(shared_daemon)
    assert other.query(8).storage_hit_count == 8 * PAGE
    found = other.query(N)
    assert found.storage_hit_count == N * PAGE
    assert found.hash_value == keys(N)
    wipe(other.kv)
    assert other.fetch(found, first_page=N)[0] == N * PAGE
    assert content(other.kv, indices_of(other.kv, range(N, 2 * N))) == stored


def test_what_is_not_stored_is_no_hit(shared_daemon, engine_of):
    engine = engine_of(shared_daemon)
    assert engine.query(8).storage_hit_count == 0
    engine.back_up(5)
    assert engine.query(8).storage_hit_count == 5 * PAGE


def test_calls_with_copies_serve_the_threads_too(shared_daemon, engine_of):
    engine = engine_of(shared_daemon, interface_v1=0)
    fill(engine.kv, 2)
    stored = content(engine.kv, indices_of(engine.kv, range(8)))
    assert engine.back_up(8) == 8 * PAGE
    wipe(engine.kv)
    assert engine.fetch(engine.query(8), first_page=20)[0] == 8 * PAGE
    assert content(engine.kv, indices_of(engine.kv, range(20, 28))) == stored


def test_a_hybrid_goes_on_where_its_state_is(shared_daemon, engine_of):
    engine = engine_of(shared_daemon, states=True)
    fill(engine.kv, 3)
    fill(engine.states, 4)
    stored = content(engine.kv, indices_of(engine.kv, range(6)))
    [state] = content(engine.states, torch.tensor([3]))
    assert engine.back_up(8, state_at=6) == 8 * PAGE
    other = engine_of(shared_daemon, states=True)
    wipe(other.kv)
    wipe(other.states)
    found = other.query(8, state_slot=9)
    assert found.storage_hit_count == 6 * PAGE
    completed, pools = other.fetch(found, first_page=30)
    assert (completed, pools["mamba"]) == (6 * PAGE, 1)
    assert content(other.kv, indices_of(other.kv, range(30, 36))) == stored
    assert content(other.states, torch.tensor([9])) == [state]


def test_a_clear_is_asked_of_the_backend(shared_daemon, engine_of):
    engine = engine_of(shared_daemon, states=True)
    engine.back_up(4)
    assert engine.query(4).storage_hit_count == 4 * PAGE
    assert engine.controller.clear_storage_backend()
    assert engine.query(4).storage_hit_count == 0


def test_the_threads_outlive_the_daemon(daemon, engine_of):
    engine = engine_of(daemon, kvtier_load_timeout=0.5, kvtier_store_timeout=0.5)
    assert engine.back_up(8) == 8 * PAGE
    found = engine.query(8)
    daemon.stop(signal.SIGKILL)
    assert engine.fetch(found, first_page=20)[0] == 0
    assert engine.back_up(8) == 0
    assert engine.query(8).storage_hit_count == 0
    daemon.start()
    session = engine.controller.storage_backend._store._session
    session.wait_attached(20)
    assert engine.back_up(8) == 8 * PAGE
    assert engine.query(8).storage_hit_count == 8 * PAGE


def test_a_backend_can_be_attached_again(shared_daemon, engine_of, request):
    engine = engine_of(shared_daemon)
    engine.back_up(4)
    engine.controller.detach_storage_backend()
    engine.controller.attach_storage_backend(
        "dynamic",
        prefetch_threshold=PAGE,
        model_name="test/model",
        storage_backend_extra_config={
            **EXTRA,
            "kvtier_socket": shared_daemon.socket,
            "kvtier_weights": request.node.name,
        },
    )
    assert engine.query(4).storage_hit_count == 4 * PAGE


def test_a_refused_backend_is_not_attached(shared_daemon, engine_of):
    with pytest.raises(ValueError, match="no option kvtier_sockett"):
        engine_of(shared_daemon, kvtier_sockett="/run/x")


