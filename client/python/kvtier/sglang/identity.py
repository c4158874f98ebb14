# SPDX-License-Identifier: Apache-2.0
"""What the bytes of this engine's pages mean, and who holds which part of them.

SGLang's page hashes are made of the tokens, the extra key (LoRA) and the cache salt, and of
nothing else: model, dtypes, ranks and memory layout are the layout id here. All of it comes
from the configuration, so that every process that is configured alike has the same. The ranks
of a tensor parallel engine are shards of one layout, each of which can describe it alone,
since all hold pages of one shape; stages of a pipeline have layouts of their own.
"""
from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Sequence

import sglang
from sglang.srt.mem_cache.hicache_storage import PoolName
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKOnlyPoolHost, MHATokenToKVPoolHost
from sglang.srt.runtime_context import get_server_args

from .. import Group, GroupKind, Layout
from ..matching import CELLS_MAX
from ..refusal import Refused
from .pools import HostPool

STATES = (PoolName.MAMBA,)
WINDOWS = (
    PoolName.SWA, PoolName.AUXILIARY_SWA, PoolName.DRAFT_SWA, PoolName.DEEPSEEK_V4_C4_STATE,
    PoolName.DEEPSEEK_V4_C4_INDEXER_STATE, PoolName.DEEPSEEK_V4_C128_STATE,
)  # fmt: skip
#: What decides the bytes beside the model's name, as the user has set it.
SERVER_FACTS = (
    # Models are served under any name; all pools of FP8 are bytes, whichever FP8 it is.
    "model_path", "quantization", "modelopt_quant", "rl_quant_profile",
    "kv_cache_dtype", "quantization_param_path", "qsa_indexer_dtype",
    "attention_backend", "prefill_attention_backend", "decode_attention_backend",
    "speculative_algorithm", "speculative_draft_model_path", "speculative_draft_model_revision",
    "speculative_draft_model_quantization", "speculative_draft_kv_cache_dtype",
    "mamba_ssm_dtype", "enable_int8_mamba_checkpoint", "enable_dp_attention",
)  # fmt: skip


@dataclass(frozen=True)
class Place:
    """Of one pool in the layout: its group, and this rank's part of it."""

    group: int
    shard: int
    bit: int  #: of (group, shard) in the presence table's words


def check(config: Any) -> None:
    if config.dcp_size > 1:
        raise Refused("decode context parallelism, which SGLang has for file and Mooncake only")


def is_sharded(config: Any, name: str, pool: Any) -> bool:
    """Whether each rank holds its own part, and not the same bytes as the others."""
    if not config.is_mla_model or name in STATES:
        return True
    # Such a model's drafts may be of another make.
    return isinstance(pool, (MHATokenToKVPoolHost, MHATokenToKOnlyPoolHost))


def layout_of(
    config: Any, weights: str, page_tokens: int, pools: Sequence[tuple[HostPool, bool]]
) -> tuple[Layout, dict[str, Place]]:
    """pools: with whether they are sharded, in the order of their groups. Raises Refused."""
    places: dict[str, Place] = {}
    groups: list[Group] = []
    cells = 0
    for number, (pool, sharded) in enumerate(pools):
        shards = config.attn_cp_size * (config.tp_size if sharded else 1)
        shard = config.attn_cp_rank
        if sharded:
            shard = config.attn_cp_rank * config.tp_size + config.tp_rank
        places[pool.name] = Place(number, shard, 1 << cells + shard)
        groups.append(_group(pool, page_tokens, shards))
        cells += shards
    if not groups:
        raise Refused("no pool has any memory")
    if cells > CELLS_MAX:
        raise Refused(f"{len(groups)} pools on {config.tp_size} ranks: more than {CELLS_MAX} cells")
    kinds = [f"{pool.name}: {pool.kind}" for pool, _ in pools]
    kernel_layout = "; ".join([f"pp_rank={config.pp_rank}", *kinds])
    if len(kernel_layout) > 512:
        kernel_layout = hashlib.sha256(kernel_layout.encode()).hexdigest()
    return (
        Layout(
            model=config.model_name or "",
            kv_dtype=pools[0][0].tensors[0].dtype,
            engine="sglang",
            engine_build=sglang.__version__,
            kernel_layout=kernel_layout,
            chunk_tokens=page_tokens,
            groups=groups,
            tp=config.tp_size,
            pp=config.pp_size,
            cp=config.attn_cp_size,
            **_server_facts(weights),
        ),
        places,
    )


def _group(pool: HostPool, page_tokens: int, shards: int) -> Group:
    kind = _kind(pool.name)
    return Group(
        name=pool.name,
        kind=kind,
        page_tokens=0 if kind is GroupKind.STATE else page_tokens,
        # How long a window is, SGLang says with each request; one page of it is always needed.
        window_tokens=page_tokens if kind is GroupKind.WINDOW else 0,
        page_bytes=pool.page_bytes,
        shards=shards,
        tensors=pool.tensors,
    )


def _kind(name: str) -> GroupKind:
    if name in STATES:
        return GroupKind.STATE
    if name in WINDOWS:
        return GroupKind.WINDOW
    if "indexer" in name:
        return GroupKind.INDEX
    if name.startswith("deepseek_v4"):
        return GroupKind.COMPRESSED
    return GroupKind.ATTENTION


def _arguments() -> Any:
    """SGLang's, the same in all ranks; a test of a pool alone has none."""
    try:
        return get_server_args()
    except ValueError:
        return None


def batch_tokens() -> int:
    """The most that a step of a prefill computes; 0: as much as comes."""
    return max(0, getattr(_arguments(), "chunked_prefill_size", None) or 0)


def _server_facts(weights: str) -> dict[str, Any]:
    args = _arguments()
    facts = [f"{name}={value}" for name in SERVER_FACTS if (value := getattr(args, name, None))]
    overrides = getattr(args, "json_model_override_args", "{}")
    if overrides not in ("{}", "", None):
        facts.append(f"overrides={hashlib.sha256(str(overrides).encode()).hexdigest()[:32]}")
    if getattr(args, "load_format", None) == "dummy":
        facts.append("dummy weights")
    if len(told := ";".join(facts)) > 512:
        told = hashlib.sha256(told.encode()).hexdigest()
    return dict(
        revision=";".join(filter(None, (getattr(args, "revision", None), weights, told))),
        model_dtype=str(getattr(args, "dtype", "")),
        draft_tokens=getattr(args, "speculative_num_draft_tokens", None) or 0,
    )


def engine_nonce() -> bytes:
    """32 bytes that the ranks of this very run have in common: children of one process.

    Of one that cannot be looked at, in another PID namespace, each rank has its own.
    """
    parent = os.getppid()
    try:
        # The fields behind the name, which may hold anything; the 22nd is when it was started.
        stat = Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return os.urandom(32)
    return hashlib.sha256(f"kvtier sglang {boot} {parent} {stat[19]}".encode()).digest()
