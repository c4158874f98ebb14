#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""golden.py SOCKET RANK...: the names that two ranks of an engine give, as JSON.

The ranks attach in this order; the scheduler comes last. Python's own hash seed is what
PYTHONHASHSEED says; vLLM, which would make its keys from it, does not get to see it.
"""
import json
import os
import sys
from types import SimpleNamespace

os.environ.pop("PYTHONHASHSEED", None)

from vllm import SamplingParams  # noqa: E402
from vllm.lora.request import LoRARequest  # noqa: E402
from vllm.utils.hashing import get_hash_fn_by_name  # noqa: E402
from vllm.v1.core.kv_cache_utils import (  # noqa: E402
    get_request_block_hasher,
    init_none_hash,
)
from vllm.v1.kv_offload.base import make_offload_key  # noqa: E402
from vllm.v1.request import Request  # noqa: E402

from kvtier import GroupKind, Session, Tensor  # noqa: E402
from kvtier.vllm.engine import Engine, GroupFacts, model_changes  # noqa: E402
from kvtier.vllm.names import Names  # noqa: E402

BLOCK = 16
VARIANTS = {
    "plain": {},
    "salted": dict(cache_salt="tenant"),
    "lora": dict(lora_request=LoRARequest("adapter", 1, "/adapter")),
}


def names(algorithm, **identity):
    """Of two blocks, in group 3."""
    hasher = get_hash_fn_by_name(algorithm)
    init_none_hash(hasher)
    request = Request(
        "request",
        list(range(2 * BLOCK + 1)),
        SamplingParams(max_tokens=1),
        None,
        block_hasher=get_request_block_hasher(BLOCK, hasher),
        **identity,
    )
    keys = [make_offload_key(block_hash, 3) for block_hash in request.block_hashes]
    digests, groups = Names().of_keys(keys)
    assert groups.tolist() == [3, 3]
    return digests.hex()


def engine(rank):
    changed = SimpleNamespace(
        model_config=SimpleNamespace(
            hf_config_path=None,
            hf_overrides=dict(rope_theta=5e5, layers=dict(b=1, a=2)),
            code_revision=None,
            model_class_overrides={},
            quantization_config=None,
            hf_text_config=SimpleNamespace(model_type="qwen3"),
        ),
        load_config=SimpleNamespace(load_format="auto"),
        speculative_config=None,
    )
    return Engine(
        identity=dict(
            model="golden",
            revision=model_changes(changed),
            model_dtype="bfloat16",
            kv_dtype="fp8",
            engine="vllm",
            engine_build="0.0 cpu",
            kernel_layout="layout=NHD quantization=None runner=1",
            replay_mode="align",
            draft_tokens=1,
            tp=2,
        ),
        engine_id=bytes(16),
        groups=(
            GroupFacts(0, GroupKind.ATTENTION, BLOCK, 0, "uint8", ("layers.3.attn",)),
            GroupFacts(1, GroupKind.WINDOW, BLOCK, 128, "uint8", ("layers.1.attn",)),
            GroupFacts(2, GroupKind.STATE, BLOCK, 0, "float32", ("layers.0.mixer",)),
        ),
        chunk_tokens=2 * BLOCK,
        tokens_per_hash=BLOCK,
        blocks_per_chunk=2,
        rank=rank,
        n_ranks=2,
        replicated=False,
        attention="auto",
    )


def attach(socket, layout, rank=0, engine_id=bytes(16)):
    return Session(
        layout, socket=socket, engine_id=engine_id, partial_layout=True, rank=rank, n_ranks=2
    )


def layout_ids(socket, ranks):
    sessions = []
    for rank in ranks:
        facts = engine(rank)
        pages = [
            [Tensor(f"0.{group.layers[0]} (CPU_ATTN)", group.dtype, 4096 + rank)]
            for group in facts.groups
        ]
        sessions.append(attach(socket, facts.layout(pages), rank))
    sessions.append(attach(socket, engine(0).layout()))
    pool = attach(socket, engine(0).pool_layout(8192), engine_id=bytes(range(16)))
    for session in [*sessions, pool]:
        assert session.wait_attached(20).name == "OK"
    [found] = {session.info().layout_id.hex() for session in sessions}
    return dict(layout=found, pool=pool.info().layout_id.hex())


def main(socket, *ranks):
    print(
        json.dumps(
            {
                "sha256": {name: names("sha256", **more) for name, more in VARIANTS.items()},
                "sha256_cbor": {
                    name: names("sha256_cbor", **more) for name, more in VARIANTS.items()
                },
                **layout_ids(socket, map(int, ranks)),
            }
        )
    )


main(*sys.argv[1:])
