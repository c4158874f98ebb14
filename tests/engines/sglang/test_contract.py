# SPDX-License-Identifier: Apache-2.0
"""HiCacheFile, SGLang's own, is the reference: the same calls to both have the same answers,
and leave the same bytes in the pools."""
import json
import subprocess

import pytest
import torch
from conftest import transfer
from host_pools import (
    KINDS,
    PAGE,
    content,
    deepseek_v4,
    fill,
    indexer,
    indices_of,
    keys,
    logical,
    make,
    mamba,
    mha,
    mla,
    wipe,
)
from sglang.srt.mem_cache.hicache_storage import (
    HiCacheFile,
    HiCacheStorageExtraInfo,
    PoolHitPolicy,
    PoolName,
    PoolTransfer,
)
from sglang.srt.mem_cache.storage import StorageBackendFactory

KV, MAMBA, SWA, INDEXER = PoolName.KV, PoolName.MAMBA, PoolName.SWA, PoolName.INDEXER
TRAILING = PoolHitPolicy.TRAILING_PAGES
N = 6


class Reference(HiCacheFile):
    """Its v2 calls serve the KV pool, too, which SGLang asks for by v1."""

    def batch_set_v1(self, keys, host_indices, extra_info=None):
        return self.batch_set_v2([transfer(KV, keys, host_indices)])[KV]

    def batch_get_v1(self, keys, host_indices, extra_info=None):
        return self.batch_get_v2([transfer(KV, keys, host_indices)])[KV]


@pytest.fixture
def both(shared_daemon, open_backend, tmp_path):
    def make(kv, side=None, **changes):
        backend = open_backend(shared_daemon, kv, side, **changes)
        reference = Reference(backend._config, str(tmp_path / "pages"))
        reference.register_mem_pool_host(kv)
        for name, pool in {KV: kv, **(side or {})}.items():
            reference.register_mem_host_pool_v2(pool, name)
        return backend, reference

    return make


def answers(both, ask):
    found, expected = map(ask, both)
    assert found == expected
    return found


@pytest.mark.parametrize("allocator", ["default", "shm"])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.startswith("m")])
def test_a_pool_in_every_layout(both, kind, allocator):
    if kind.startswith("mamba"):
        kv, name, pool = mha(), MAMBA, make(kind, allocator)
        pair = both(kv, {MAMBA: pool})
    else:
        name, pool = KV, make(kind, allocator)
        pair = both(pool, is_mla_model=kind.startswith("mla"))
    chain, indices = keys(N), indices_of(pool, [5, 1, 9, 2, 3, 0])
    fill(pool, 1)
    stored = content(pool, indices)

    def write(storage):
        fill(pool, 1)
        return storage.batch_set_v2([transfer(name, chain, indices)])

    def read(storage):
        wipe(pool)
        targets = indices_of(pool, [4, 0, 8, 1, 7, 6])
        done = storage.batch_get_v2([transfer(name, chain, targets)])
        return done, content(pool, targets)

    assert answers(pair, read)[0] == {name: [False] * N}
    assert answers(pair, write) == {name: [True] * N}
    assert answers(pair, write) == {name: [True] * N}
    assert answers(pair, read) == ({name: [True] * N}, stored)


def test_kv_pages_by_v1(both):
    pool = mha()
    pair = both(pool)
    chain, indices = keys(N), indices_of(pool, range(N))
    fill(pool, 2)
    stored = content(pool, indices)
    assert answers(pair, lambda s: s.batch_exists(chain)) == 0
    assert answers(pair, lambda s: s.batch_set_v1(chain[:4], indices[: 4 * PAGE])) == [True] * 4
    assert answers(pair, lambda s: s.batch_exists(chain)) == 4
    assert answers(pair, lambda s: s.batch_exists(chain[2:])) == 2
    assert answers(pair, lambda s: s.batch_exists(keys(2, "other"))) == 0
    assert answers(pair, lambda s: [s.exists(key) for key in chain]) == [True] * 4 + [False] * 2

    def read(storage):
        wipe(pool)
        return storage.batch_get_v1(chain, indices), content(pool, indices)

    done, found = answers(pair, read)
    assert done == [True] * 4 + [False] * 2
    assert found[:4] == stored[:4]


def test_pages_in_between_may_be_missing(both):
    pool = mha()
    pair = both(pool)
    chain, indices = keys(4), indices_of(pool, range(4))
    fill(pool, 3)
    for page in (0, 2):
        one = indices[page * PAGE : (page + 1) * PAGE]
        assert answers(pair, lambda s: s.batch_set_v1([chain[page]], one)) == [True]
    assert answers(pair, lambda s: s.batch_exists(chain)) == 1
    assert answers(pair, lambda s: s.batch_get_v1(chain, indices)) == [True, False, True, False]


def test_wrong_indices_store_nothing(both):
    pool = mha()
    pair = both(pool)
    for indices in (None, torch.arange(PAGE), torch.arange(3 * PAGE)):
        assert answers(pair, lambda s: s.batch_set_v2([transfer(KV, keys(2), indices)])) == {
            KV: [False, False]
        }
    assert answers(pair, lambda s: s.batch_exists(keys(2))) == 0


@pytest.mark.parametrize("layout", ["layer_first", "page_first", "page_first_direct"])
def test_calls_with_copies(both, layout):
    """Without interface_v1 SGLang copies pages out and in itself."""
    pool = mha(layout)
    pair = both(pool)
    chain, indices = keys(3), indices_of(pool, range(3))
    fill(pool, 4)
    stored = content(pool, indices)
    pages = [pool.get_data_page(i * PAGE) for i in range(3)]
    assert answers(pair, lambda s: s.batch_set(chain[:2], pages[:2]))
    assert answers(pair, lambda s: s.set(chain[2], pages[2]))

    def read(storage):
        targets = [pool.get_dummy_flat_data_page() for _ in chain]
        found = storage.batch_get(chain, targets)
        return [page.view(torch.uint8).numpy().tobytes() for page in found]

    assert answers(pair, read) == stored
    assert answers(pair, lambda s: s.get(keys(1, "other")[0], pages[0])) is None

    def read_into_pool(storage):
        wipe(pool)
        return storage.batch_get_v1(chain, indices), content(pool, indices)

    assert answers(pair, read_into_pool) == ([True] * 3, stored)


def test_copies_are_whole_pages(shared_daemon, open_backend, caplog):
    pool = mha()
    backend = open_backend(shared_daemon, pool)
    page = pool.get_data_page(0)
    [key] = keys(1)
    assert backend.set(key, page[:8]) is False
    assert backend.set(key, page) is True
    assert backend.get(key, page[:8].clone()) is None
    assert backend.get(key, torch.stack([page, page], 1)[:, 0]) is None
    assert not caplog.records


def test_restorable_lengths_with_states(both):
    kv, states = mha(), mamba()
    pair = both(kv, {MAMBA: states})
    chain = keys(8)
    fill(kv, 5)
    fill(states, 6)
    assert all(answers(pair, lambda s: s.batch_set_v1(chain, indices_of(kv, range(8)))))
    slots = indices_of(states, [7, 3])
    ends = [chain[1], chain[4]]
    assert answers(pair, lambda s: s.batch_set_v2([transfer(MAMBA, ends, slots, TRAILING)])) == {
        MAMBA: [True, True]
    }

    def ask(asked, n_last=1):
        wanted = [transfer(MAMBA, asked[-n_last:], policy=TRAILING)]
        return answers(pair, lambda s: s.batch_exists_v2(asked, wanted))

    found = ask(chain)
    assert (found.kv_hit_pages, found.restorable_prefix_pages) == (5, [2, 5])
    assert found.extra_pool_hit_pages == {KV: 8, MAMBA: 5}
    assert ask(chain[:4]).restorable_prefix_pages == [2]
    assert ask(chain[:1]).kv_hit_pages == 0
    assert ask(chain[:5] + keys(2, "other")).kv_hit_pages == 5
    assert ask(keys(3, "other")).extra_pool_hit_pages == {}
    assert answers(pair, lambda s: s.batch_exists_v2(chain, None)).kv_hit_pages == 8


def test_windows_and_indexers_gate_the_kv(both):
    kv, swa, index = mla(), mha(), indexer(anchor=mla())
    pair = both(kv, {SWA: swa, INDEXER: index}, is_mla_model=True)
    chain = keys(8)
    for pool in (kv, swa, index):
        fill(pool, 7)
    assert all(answers(pair, lambda s: s.batch_set_v1(chain, indices_of(kv, range(8)))))
    for name, pool, pages in ((INDEXER, index, range(6)), (SWA, swa, [0, 1, 3, 4, 5, 7])):
        written = [chain[page] for page in pages]
        indices = indices_of(pool, pages)
        done = answers(pair, lambda s: s.batch_set_v2([transfer(name, written, indices)]))
        assert all(done[name])
    for n_last in (1, 2, 3):
        wanted = [transfer(SWA, chain[-n_last:], policy=TRAILING), transfer(INDEXER, chain)]
        found = answers(pair, lambda s: s.batch_exists_v2(chain, wanted))
        assert found.restorable_prefix_pages == {
            1: [1, 2, 4, 5, 6],
            2: [1, 2, 5, 6],
            3: [1, 2, 6],
        }[n_last]


def test_a_pool_that_is_not_registered_serves_nothing(both):
    kv = mha()
    pair = both(kv)
    chain = keys(2)
    fill(kv, 8)
    assert all(answers(pair, lambda s: s.batch_set_v1(chain, indices_of(kv, range(2)))))
    wanted = [transfer(MAMBA, chain[-1:], policy=TRAILING)]
    assert answers(pair, lambda s: s.batch_exists_v2(chain, wanted)).kv_hit_pages == 0
    read = pair[0].batch_get_v2([transfer(MAMBA, chain, torch.arange(2))])
    assert read == {MAMBA: [False, False]}


def test_a_logical_anchor_leaves_it_to_the_side_pools(shared_daemon, open_backend):
    """DeepSeek V4, whose KV is all in side pools."""
    name, pool = PoolName.DEEPSEEK_V4_C4, deepseek_v4()
    backend = open_backend(shared_daemon, logical(), {name: pool}, is_mla_model=True)
    chain, indices = keys(4), indices_of(pool, range(4))
    fill(pool, 9)
    stored = content(pool, indices)
    assert backend.batch_set_v1(chain, indices) == [True] * 4
    assert backend.batch_exists(chain) == 4
    assert backend.batch_exists_v2(chain, [transfer(name, chain)]).kv_hit_pages == 0
    assert backend.batch_set_v2([transfer(name, chain[:3], indices[: 3 * PAGE])]) == {
        name: [True] * 3
    }
    found = backend.batch_exists_v2(chain, [transfer(name, chain)])
    assert (found.kv_hit_pages, found.restorable_prefix_pages) == (3, [1, 2, 3])
    wipe(pool)
    assert backend.batch_get_v2([transfer(name, chain, indices)]) == {name: [True] * 3 + [False]}
    assert content(pool, indices)[:3] == stored[:3]


def test_groups_of_blocks_report_and_gate_nothing(shared_daemon, open_backend):
    kv, blocks = mha(), mha()
    backend = open_backend(shared_daemon, kv, {PoolName.DRAFT: blocks})
    chain, other = keys(8), keys(4, "blocks")
    assert all(backend.batch_set_v1(chain, indices_of(kv, range(8))))
    wanted = PoolTransfer(
        PoolName.DRAFT,
        keys=other,
        hit_policy=PoolHitPolicy.BLOCK_GROUPS,
        block_pages=4,
        group_pages=2,
    )
    for n, covered in ((1, 0), (2, 4), (3, 4), (4, 8)):
        one = indices_of(blocks, [n - 1])
        assert backend.batch_set_v2([transfer(PoolName.DRAFT, [other[n - 1]], one)])
        found = backend.batch_exists_v2(chain, [wanted])
        assert found.kv_hit_pages == 8
        assert found.extra_pool_hit_pages.get(PoolName.DRAFT, 0) == covered


def test_a_pool_that_comes_late_is_served(shared_daemon, open_backend):
    kv, draft = mha(), mha("page_first_direct")
    backend = open_backend(shared_daemon, kv)
    backend.register_mem_host_pool_v2(draft, PoolName.DRAFT)
    chain = keys(3)
    for name, pool in ((KV, kv), (PoolName.DRAFT, draft)):
        indices = indices_of(pool, range(3))
        fill(pool, 10)
        stored = content(pool, indices)
        assert backend.batch_set_v2([transfer(name, chain, indices)]) == {name: [True] * 3}
        wipe(pool)
        assert backend.batch_get_v2([transfer(name, chain, indices)]) == {name: [True] * 3}
        assert content(pool, indices) == stored


def test_more_pages_than_may_be_leased_at_once(shared_daemon, open_backend):
    """SGLang's largest batch, of more bytes than an eighth of the host tier."""
    pool = mha(tokens=64 * PAGE, layers=128)
    backend = open_backend(shared_daemon, pool)
    store, sizes = backend._store, []
    room = store._session.info().host_bytes // 8 // store.pool("kv").page_bytes
    objects = store._objects
    store._objects = lambda *a: sizes.append(len(a[3])) or objects(*a)
    chain, indices = keys(128), indices_of(pool, range(128))
    fill(pool, 11)
    stored = content(pool, indices)
    assert all(backend.batch_set_v1(chain, indices))
    wipe(pool)
    assert all(backend.batch_get_v1(chain, indices))
    assert content(pool, indices) == stored
    assert sizes == 2 * [room, 128 - room]


def show(daemon, backend, key):
    """What the daemon knows of the objects of a page."""
    program = daemon.build / "client/kvtierctl/kvtierctl"
    layout = backend._store._session.info().layout_id.hex()
    command = [program, "--json", f"--socket={daemon.socket}", "show", key, f"--layout={layout}"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)["objects"]


def test_what_stands_where_is_told_when_sglang_passes_it(shared_daemon, open_backend):
    pool = mha()
    backend = open_backend(shared_daemon, pool)
    chain, indices = keys(6), indices_of(pool, range(6))
    before = HiCacheStorageExtraInfo(prefix_keys=[])
    assert all(backend.batch_set_v1(chain[:4], indices[: 4 * PAGE], before))
    behind = HiCacheStorageExtraInfo(prefix_keys=chain[:4])
    assert all(backend.batch_set_v1(chain[4:], indices[4 * PAGE :], behind))
    [first] = show(shared_daemon, backend, chain[0])
    assert (first["tokens"], first["parent_unknown"]) == (PAGE, False)
    [last] = show(shared_daemon, backend, chain[5])
    assert (last["tokens"], last["parent"]) == (6 * PAGE, chain[4])


def test_the_factory_makes_it(shared_daemon, open_backend):
    backend = open_backend(shared_daemon, mha())
    assert type(backend).__module__ == "kvtier.sglang.backend"
    assert type(backend).__mro__[1].__name__ == "HiCacheStorage"
    assert not getattr(type(backend), "__abstractmethods__", None)
    assert "dynamic" not in StorageBackendFactory._registry


def test_figures_go_to_sglangs_metrics(shared_daemon, open_backend):
    pool = mha()
    backend = open_backend(shared_daemon, pool, enable_storage_metrics=True)
    chain, indices = keys(3), indices_of(pool, range(3))
    backend.batch_set_v1(chain, indices)
    backend.batch_get_v1(chain, indices)
    stats = backend.get_stats()
    assert (stats.backup_pgs, stats.prefetch_pgs) == ([3], [3])
    assert stats.backup_bandwidth[0] > 0 and stats.prefetch_bandwidth[0] > 0
    assert backend.get_stats().prefetch_pgs == []
    assert open_backend(shared_daemon, mha()).get_stats() is None
