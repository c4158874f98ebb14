# SPDX-License-Identifier: Apache-2.0
"""kvtier as the tier beneath vLLM's own pool of host memory."""
import hashlib
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import Engine as Process
from conftest import prompt, same
from models import BLOCK, MODELS, make
from vllm.v1.kv_offload.base import LookupResult, ReqContext, make_offload_key
from vllm.v1.kv_offload.tiering.base import TransferJob

from kvtier import GroupKind
from kvtier.vllm import KvtierTier
from kvtier.vllm.engine import ENGINE_KEY, Engine, GroupFacts
from kvtierd import eventually

CHUNK, ROW_BYTES, ROWS = 16, 4096, 16
HIT, MISS = LookupResult.HIT, LookupResult.MISS


def engine():
    return Engine(
        identity=dict(model="tier", engine="vllm", kernel_layout="plain"),
        engine_id=bytes(16),
        groups=(
            GroupFacts(0, GroupKind.ATTENTION, CHUNK, 0, "bfloat16", ("attention",)),
            GroupFacts(2, GroupKind.STATE, CHUNK, 0, "float32", ("state",)),
        ),
        chunk_tokens=CHUNK,
        tokens_per_hash=CHUNK,
        blocks_per_chunk=1,
        rank=0,
        n_ranks=1,
        replicated=False,
    )


class Pool:
    """What vLLM's tiering manager does with a tier, and its pool."""

    def __init__(self, daemon, **options):
        self.rows = np.arange(ROWS * ROW_BYTES, dtype=np.uint32).astype(np.uint8)
        self.rows = self.rows.reshape(ROWS, ROW_BYTES) ^ np.arange(ROWS, dtype=np.uint8)[:, None]
        extra = {"kvtier_socket": daemon.socket, ENGINE_KEY: engine(), **options}
        self.tier = KvtierTier(
            SimpleNamespace(extra_config=extra), memoryview(self.rows), "KvtierTier"
        )
        self.jobs = 0

    def request(self, name, chunks=4, seed="text"):
        """A context with the keys of both groups."""
        context = ReqContext(name)
        for group in (0, 2):
            for i in range(chunks):
                context.set_offload_key_position(key(i, group, seed), (i + 1) * CHUNK)
        self.tier.on_new_request(context)
        return context

    def submit(self, what, context, keys, rows):
        self.jobs += 1
        job = TransferJob(self.jobs, keys, np.array(rows, np.int32), False, context)
        getattr(self.tier, what)(job)
        results = []
        eventually(lambda: results.extend(self.tier.get_finished_jobs()) or results)
        [result] = results
        assert result.job_id == self.jobs
        return result

    def step(self):
        self.tier.on_schedule_end(None)

    def look(self, context, *keys):
        self.step()
        return [self.tier.lookup(each, context) for each in keys]


def key(i, group=0, seed="text"):
    return make_offload_key(hashlib.sha256(f"{seed} {i}".encode()).digest(), group)


@pytest.fixture
def pool(daemon):
    pool = Pool(daemon)
    yield pool
    pool.tier.shutdown()


def test_rows_come_back_from_another_pool(daemon, pool):
    context = pool.request("first")
    keys = [key(0), key(1), key(1, 2)]
    assert pool.look(context, *keys) == [MISS] * 3
    assert pool.submit("submit_store", context, keys, [3, 4, 5]).success
    assert pool.look(context, *keys, key(0, 2), key(2)) == [HIT] * 3 + [MISS] * 2
    other = Pool(daemon)
    other.rows[:] = 0
    context = other.request("second")
    assert other.look(context, *keys) == [HIT] * 3
    result = other.submit("submit_load", context, keys, [7, 1, 2])
    assert (result.success, result.transfer_bytes) == (True, 3 * ROW_BYTES)
    assert (other.rows[[7, 1, 2]] == pool.rows[[3, 4, 5]]).all()
    assert not other.rows[[0, 3, 4, 5, 6]].any()
    other.tier.shutdown()


def test_rows_that_are_gone_are_not_offered_to_that_request_again(pool):
    context = pool.request("one")
    pool.submit("submit_store", context, [key(0)], [3])
    before = pool.rows[9].copy()
    result = pool.submit("submit_load", context, [key(0), key(1)], [8, 9])
    assert not result.success
    assert list(result.successful_keys) == [key(0)]
    assert (pool.rows[8] == pool.rows[3]).all() and (pool.rows[9] == before).all()
    pool.submit("submit_store", context, [key(1)], [4])
    assert pool.look(context, key(0), key(1)) == [HIT, MISS]
    assert pool.look(pool.request("two"), key(0), key(1)) == [HIT, HIT]


def test_what_is_stored_is_not_copied_again(pool):
    context = pool.request("one")
    pool.submit("submit_store", context, [key(0)], [3])
    assert pool.submit("submit_store", context, [key(0)], [4]).success
    pool.submit("submit_load", context, [key(0)], [8])
    assert (pool.rows[8] == pool.rows[3]).all()


def test_jobs_may_be_more_than_a_call_takes(pool, monkeypatch):
    monkeypatch.setattr("kvtier.vllm.tier.OBJECTS_MAX", 2)
    calls, session = [], pool.tier._session
    for name in ("store_pages", "load_pages"):
        monkeypatch.setattr(session, name, counted(getattr(session, name), calls))
    context = pool.request("one", chunks=5)
    keys = [key(i) for i in range(5)]
    assert pool.submit("submit_store", context, keys, [1, 2, 3, 4, 5]).success
    result = pool.submit("submit_load", context, keys, [11, 12, 13, 14, 15])
    assert (result.success, result.transfer_bytes) == (True, 5 * ROW_BYTES)
    assert (pool.rows[11:16] == pool.rows[1:6]).all()
    assert calls == [2, 2, 1] * 2


def counted(move, calls):
    def moved(page_map, objects, **options):
        calls.append(len(objects))
        return move(page_map, objects, **options)

    return moved


def test_tails_of_less_than_a_chunk_are_not_stored(pool, monkeypatch):
    monkeypatch.setattr(pool.tier._session, "store_pages", None)
    context = pool.request("one")
    context.set_offload_key_position(key(9), 9 * CHUNK + 1)
    assert not pool.submit("submit_store", context, [key(9)], [3]).success
    assert pool.look(context, key(9)) == [MISS]


def test_a_reset_finds_nothing_of_before(pool):
    """vLLM drains its tiers for that only."""
    context = pool.request("one")
    pool.submit("submit_store", context, [key(0)], [3])
    pool.tier.drain_jobs()
    assert pool.look(context, key(0)) == [MISS]
    # What the request has was computed before.
    assert not pool.submit("submit_store", context, [key(0)], [3]).success
    later = pool.request("two")
    assert pool.look(later, key(0)) == [MISS]
    assert pool.submit("submit_store", later, [key(0)], [4]).success
    assert pool.look(later, key(0)) == [HIT]


def test_without_a_daemon_jobs_fail_at_once(daemon, pool):
    context = pool.request("one")
    pool.submit("submit_store", context, [key(0)], [3])
    daemon.stop()
    eventually(lambda: not pool.tier._session.info().attached)
    pool.step()
    assert not pool.submit("submit_store", context, [key(1)], [4]).success
    assert not pool.submit("submit_load", context, [key(0)], [8]).success
    daemon.start()
    later = pool.request("two")
    eventually(lambda: pool.look(later, key(0)) == [HIT])


def test_another_connector_does_not_tell_what_the_rows_mean(daemon):
    with pytest.raises(ValueError, match="KvtierTieringConnector"):
        Pool(daemon, **{ENGINE_KEY: None})


@pytest.mark.parametrize("name", ["kvtier_peer", "kvtier_address"])
def test_a_tier_asks_no_peers(daemon, name):
    with pytest.raises(ValueError, match="for KvtierConnector"):
        Pool(daemon, **{name: "10.0.0.1:7428"})


def test_an_engine_finds_what_the_pool_of_another_one_held(daemon, tmp_path):
    name = "qwen3_next"  # which has pages and states
    make(tmp_path / name, MODELS[name])
    options = dict(
        model=str(tmp_path / name),
        connector="KvtierTieringConnector",
        extra=dict(
            kvtier_socket=daemon.socket,
            cpu_bytes_to_use=64 << 20,
            spec_name="CpuTieringSpec",
            spec_module_path="pool",
        ),
    )
    ids = prompt(3 * BLOCK + 7, name)
    first = Process(tmp_path / "log", **options)
    plain = first.generate(ids, skip=True)
    first.close()
    daemon.restart()
    second = Process(tmp_path / "log", **options)
    again = second.generate(ids)
    same(again, plain)
    assert again[0]["found"] == 3 * BLOCK
    assert second.metric("attached") == 1
    assert second.metric("keys_loaded") >= 3
    second.forget()
    daemon.stop()
    # The pool has these still, and stores of others fail without notice.
    kept, other = second.generate(ids, ids[::-1])
    same([kept], plain)
    assert (kept["found"], other["found"]) == (3 * BLOCK, 0)
    second.close()
    third = Process(tmp_path / "log", **options)
    alone = third.generate(ids, ids[::-1])
    same(alone, [plain[0], other])
    assert [answer["found"] for answer in alone] == [0, 0]
    third.close()
