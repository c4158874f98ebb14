# SPDX-License-Identifier: Apache-2.0
"""Who finds whose pages: engines that are configured alike, in any process, and nobody else."""
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import config_of, transfer
from host_pools import PAGE, content, fill, indices_of, keys, mamba, mha, mla, wipe
from sglang.srt.mem_cache.hicache_storage import PoolHitPolicy, PoolName

from kvtier import Group, GroupKind, Layout, Tensor
from kvtier.sglang import identity
from kvtier.sglang.keys import Chain, digest_of, digests_of
from kvtier.sglang.pools import describe

KV, MAMBA = PoolName.KV, PoolName.MAMBA
N = 4
CHAIN = keys(N)
HERE = Path(__file__).parent


def store(backend, name, pool, n=N, seed=1):
    fill(pool, seed)
    indices = indices_of(pool, range(n))
    assert backend.batch_set_v2([transfer(name, CHAIN[:n], indices)]) == {name: [True] * n}
    return content(pool, indices)


def load(backend, name, pool, n=N):
    wipe(pool)
    indices = indices_of(pool, range(n))
    done = backend.batch_get_v2([transfer(name, CHAIN[:n], indices)])[name]
    return content(pool, indices) if all(done) else None


def layout(pool, **changes):
    config = config_of(**changes)
    pools = [(describe("kv", pool), identity.is_sharded(config, "kv", pool))]
    return identity.layout_of(config, "", PAGE, pools)[0]


# ---- golden ----


def test_keys_are_golden():
    assert CHAIN[0] == "d8764e2cebde7609863235c10c3cb70bd00902041d12bc145ad3abcef5bc514d"
    assert digest_of(CHAIN[0]).hex() == CHAIN[0]
    assert digests_of(CHAIN) == bytes.fromhex("".join(CHAIN))
    assert digest_of("page").hex() == (
        "c7b151f5ac53ca3eda3df90c5dac3ccf64bb48bd5d2720c68a60f67cf7e93a7d"
    )
    odd = ["page", CHAIN[0].upper(), " " * 64, "zz" * 32]
    for batch in (odd, CHAIN + odd, *([CHAIN[0], key] for key in odd)):
        assert digests_of(batch) == b"".join(map(digest_of, batch))
    # Only what is written as SGLang writes it is taken for a hash.
    assert digest_of(CHAIN[0].upper()) != digest_of(CHAIN[0])
    assert digest_of("zz" * 32) != digest_of("zy" * 32)


def test_the_layout_is_golden():
    kind = (
        "MHATokenToKVPoolHost page_first pages=16 layer_num=3 target_layer_num=3 start_layer=0 "
        "end_layer=3 head_num=2 head_dim=8 v_head_dim=8 head_group_num=1"
    )
    assert layout(mha(), tp_rank=1, tp_size=2) == Layout(
        model="test/model",
        engine="sglang",
        engine_build="0.5.23",
        kv_dtype="bfloat16",
        kernel_layout=f"pp_rank=0; kv: {kind}",
        chunk_tokens=PAGE,
        tp=2,
        groups=[
            Group(
                name="kv",
                kind=GroupKind.ATTENTION,
                page_tokens=PAGE,
                page_bytes=3072,
                shards=2,
                tensors=(Tensor("0.2x16x3x2x8", "bfloat16", 3072),),
            )
        ],
    )


def test_parents_and_ends_follow_the_prefix():
    digests = digests_of(CHAIN)
    root = Chain([], PAGE)
    assert root.parents(digests) == bytes(32) + digests[:-32]
    assert root.ends(N) == [PAGE, 2 * PAGE, 3 * PAGE, 4 * PAGE]
    later = Chain(CHAIN[:2], PAGE)
    assert later.parents(digests[64:]) == digests[32:-32]
    assert later.ends(2) == [3 * PAGE, 4 * PAGE]
    unknown = Chain(None, PAGE)
    assert unknown.parents(digests) is None and unknown.ends(2) == [0, 0]


# ---- another process ----


def test_another_process_hits_what_this_one_stored(shared_daemon, open_backend):
    """With another hash seed; and it finds what is its own there."""
    pool, states = mha(), mamba()
    backend = open_backend(shared_daemon, pool, {MAMBA: states}, {"kvtier_weights": "shared"})
    stored = {name: store(backend, name, p) for name, p in ((KV, pool), (MAMBA, states))}
    done = subprocess.run(
        [sys.executable, HERE / "second_process.py", shared_daemon.socket],
        env={**os.environ, "PYTHONHASHSEED": "4711"},
        stdout=subprocess.PIPE,
        text=True,
        timeout=120,
        check=True,
    )
    other = json.loads(done.stdout.splitlines()[-1])
    assert other["keys"] == CHAIN
    assert other["layout_id"] == backend._store._session.info().layout_id.hex()
    assert other["restorable"] == [1, 2, 3, 4]
    assert other["found"] == {name.value: [page.hex() for page in stored[name]] for name in stored}


# ---- others ----

OTHERS = {
    "model": dict(model_name="test/other"),
    "ranks": dict(tp_size=2),
    "stages": dict(pp_size=2),
    "stage": dict(pp_rank=1),
    "context ranks": dict(attn_cp_size=2),
    "weights": dict(options={"kvtier_weights": "another"}),
    "dtype": dict(pool=dict(dtype=torch.float16)),
    "memory layout": dict(pool=dict(layout="page_first_direct")),
    "layers": dict(pool=dict(layers=4)),
    "pools": dict(side=True),
}


@pytest.mark.parametrize("what", OTHERS)
def test_an_engine_that_is_another_misses(shared_daemon, open_backend, what):
    changes = dict(OTHERS[what])
    pool, other = mha(), mha(**changes.pop("pool", {}))
    side = {MAMBA: mamba()} if changes.pop("side", False) else None
    backend = open_backend(shared_daemon, pool)
    stored = store(backend, KV, pool)
    stranger = open_backend(shared_daemon, other, side, **changes)
    assert stranger.batch_exists(CHAIN) == 0
    assert load(stranger, KV, other) is None
    twin = open_backend(shared_daemon, mha())
    assert twin.batch_exists(CHAIN) == N
    assert load(twin, KV, twin.mem_pool_host) == stored


def test_what_the_server_was_told_is_part_of_it(monkeypatch):
    plain = layout(mha())

    class Arguments:
        revision = "abc"
        dtype = "bfloat16"
        quantization = "fp8"
        load_format = "dummy"
        json_model_override_args = '{"num_hidden_layers": 3}'
        speculative_num_draft_tokens = 4
        attention_backend = None

    monkeypatch.setattr(identity, "get_server_args", Arguments)
    told = layout(mha())
    assert plain.revision == "" and plain.draft_tokens == 0
    assert told.revision.startswith("abc;quantization=fp8;overrides=")
    assert told.revision.endswith(";dummy weights")
    assert (told.model_dtype, told.draft_tokens) == ("bfloat16", 4)


@pytest.mark.parametrize(
    "one, other",
    [
        # Pools of either are tensors of uint8.
        (dict(kv_cache_dtype="fp8_e4m3"), dict(kv_cache_dtype="fp8_e5m2")),
        (dict(quantization_param_path="/scales"), {}),
        (dict(speculative_draft_model_revision="abc"), {}),
        # Both served under the name that config_of() gives.
        (dict(model_path="/models/a"), dict(model_path="/models/b")),
        (dict(model_path="/m" * 1000 + "/a"), dict(model_path="/m" * 1000 + "/b")),
    ],
)
def test_what_no_pool_shows_is_told_apart(monkeypatch, one, other):
    def told(facts):
        monkeypatch.setattr(identity, "get_server_args", lambda: SimpleNamespace(**facts))
        return layout(mha(dtype=torch.uint8))

    assert told(one).groups == told(other).groups
    assert told(one) == told(dict(one)) != told(other)
    assert len(told(one).revision) <= 1024


# ---- ranks ----


def test_two_ranks_hold_parts_of_the_same_pages(shared_daemon, open_backend):
    """What both can restore is the intersection, as SGLang takes it."""
    pools = [(mha(), mamba()) for _ in range(2)]
    ranks = [
        open_backend(shared_daemon, kv, {MAMBA: states}, tp_rank=rank, tp_size=2)
        for rank, (kv, states) in enumerate(pools)
    ]
    contents = []
    for rank, (kv, states) in enumerate(pools):
        contents.append(store(ranks[rank], KV, kv, n=N - rank, seed=rank))
        fill(states, 10 + rank)
        for page in ((1, 3), (1, 2))[rank]:
            one = [transfer(MAMBA, [CHAIN[page]], indices_of(states, [page]))]
            assert ranks[rank].batch_set_v2(one) == {MAMBA: [True]}
    wanted = [transfer(MAMBA, CHAIN[-1:], policy=PoolHitPolicy.TRAILING_PAGES)]
    found = [rank.batch_exists_v2(CHAIN, wanted) for rank in ranks]
    assert [rank.restorable_prefix_pages for rank in found] == [[2, 4], [2, 3]]
    assert [rank.batch_exists(CHAIN) for rank in ranks] == [4, 3]
    assert contents[0][0] != contents[1][0]
    for rank, (kv, _) in enumerate(pools):
        assert load(ranks[rank], KV, kv, n=3) == contents[rank][:3]
    layouts = {rank._store._session.info().layout_id for rank in ranks}
    assert len(layouts) == 1


def test_replicated_pages_are_written_once_and_states_by_every_rank(shared_daemon, open_backend):
    pools = [(mla(), mamba()) for _ in range(2)]
    ranks = [
        open_backend(
            shared_daemon, kv, {MAMBA: states}, tp_rank=rank, tp_size=2, is_mla_model=True
        )
        for rank, (kv, states) in enumerate(pools)
    ]
    assert [rank._config.is_storage_writer for rank in ranks] == [True, False]
    stored = store(ranks[0], KV, pools[0][0])
    assert ranks[1].batch_exists(CHAIN) == N
    assert load(ranks[1], KV, pools[1][0]) == stored
    own = store(ranks[0], MAMBA, pools[0][1])
    assert load(ranks[1], MAMBA, pools[1][1]) is None
    others = store(ranks[1], MAMBA, pools[1][1], seed=2)
    assert own != others
    assert load(ranks[0], MAMBA, pools[0][1]) == own
    assert load(ranks[1], MAMBA, pools[1][1]) == others


def test_a_draft_of_another_make_is_not_shared_by_ranks():
    config = config_of(is_mla_model=True, tp_size=2)
    assert identity.is_sharded(config, "draft", mha())
    assert not identity.is_sharded(config, "draft", mla())
    assert not identity.is_sharded(config, "kv", mla())
    assert identity.is_sharded(config, "mamba", mamba())


def test_kinds_of_pools():
    names = {
        "kv": "ATTENTION",
        "draft": "ATTENTION",
        "mamba": "STATE",
        "swa": "WINDOW",
        "draft_swa": "WINDOW",
        "indexer": "INDEX",
        "deepseek_v4_c4_indexer": "INDEX",
        "deepseek_v4_c128": "COMPRESSED",
        "deepseek_v4_c4_state": "WINDOW",
    }
    assert {name: identity._kind(name).name for name in names} == names
