# SPDX-License-Identifier: Apache-2.0
"""What the attributes of transformers' cache classes are.

A table says for each class what the attributes that it adds are; an object's attributes have
the roles of all classes it derives from, a deriving class has the last word. A class that is
not in the table, or an attribute that has no role, is refused by name: nothing is ever stored
by half because a newer release keeps something more.
"""
from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any


class Kind(enum.Enum):
    PAGED = "paged"  #: rows by token along an axis: chunks, each serves every longer prefix
    WINDOW = "window"  #: the last rows alone: part of the state
    STATE = "state"  #: a function of all tokens, of fixed size
    FLAG = "flag"  #: bool, number or dtype, the same at every boundary
    COUNT = "count"  #: a number of tokens, or with a rate of rows
    OWNED = "owned"  #: made by the constructor, or derived: neither stored nor compared


@dataclass(frozen=True)
class Role:
    """rate: the attribute of the layer that says how many tokens a row stands for."""

    kind: Kind
    axis: int = 0
    rate: str = ""


def _each(kind: Kind, *names: str) -> dict[str, Role]:
    return {name: Role(kind) for name in names}


_CACHES = "transformers.cache_utils."
_V4 = "transformers.models.deepseek_v4.modeling_deepseek_v4."
_M3 = "transformers.models.minimax_m3_vl.modeling_minimax_m3_vl."

_ROLES: dict[str, dict[str, Role]] = {
    "builtins.object": {},
    "abc.ABC": {},
    # ---- caches ----
    _CACHES + "Cache": _each(
        Kind.OWNED,
        "layers",
        "layer_class_to_replicate",
        "offloading",
        "only_non_sliding",
        "prefetch_stream",
    ),
    _CACHES + "DynamicCache": {},
    "transformers.models.minimax.modeling_minimax.MiniMaxCache": {
        "linear_cache": Role(Kind.STATE),
    },
    # ---- layers ----
    _CACHES + "CacheLayerMixin": {},
    _CACHES + "DynamicLayer": {
        "keys": Role(Kind.PAGED, -2),
        "values": Role(Kind.PAGED, -2),
        **_each(Kind.FLAG, "is_initialized", "dtype"),  # dtype: up to 5.17
        "device": Role(Kind.OWNED),
    },
    _CACHES + "DynamicSlidingWindowLayer": {
        "keys": Role(Kind.WINDOW, -2),
        "values": Role(Kind.WINDOW, -2),
        "cumulative_length": Role(Kind.COUNT),
        "record_past": Role(Kind.FLAG),
        **_each(Kind.OWNED, "sliding_window", "_sliding_window_tensor"),
    },
    _CACHES + "DynamicIndexedLayer": {
        "indexer_keys": Role(Kind.PAGED, 1),
        "indexer_position_ids": Role(Kind.PAGED, -1),
        **_each(Kind.FLAG, "is_indexer_initialized", "indexer_dtype"),
        "indexer_device": Role(Kind.OWNED),
    },
    _CACHES + "LinearAttentionCacheLayerMixin": {},
    _CACHES + "LinearAttentionLayer": {
        **_each(Kind.STATE, "conv_states", "recurrent_states"),
        **_each(
            Kind.FLAG,
            "is_conv_states_initialized",
            "is_recurrent_states_initialized",
            "has_previous_state",
            "conv_kernel_size",
            "dtype",
            "record_past",
        ),
        **_each(Kind.OWNED, "device", "number_of_states"),
    },
    _CACHES + "LinearAttentionAndFullAttentionLayer": {},
    _CACHES + "LinearAttentionAndSlidingWindowAttentionLayer": {},
    _CACHES + "DummyLayer": _each(Kind.OWNED, "keys", "values", "is_initialized"),
    _V4 + "DeepseekV4HCACache": {
        "compressed_kv": Role(Kind.PAGED, 1, "compress_rate"),
        "entry_count": Role(Kind.COUNT, rate="compress_rate"),
        **_each(Kind.STATE, "buffer_kv", "buffer_gate"),
        "compress_rate": Role(Kind.OWNED),
    },
    _V4 + "DeepseekV4CSACache": _each(Kind.STATE, "overlap_kv", "overlap_gate"),
    _M3 + "MiniMaxM3VLSparseCacheLayer": {"idx_keys": Role(Kind.PAGED, -2)},
}

# Those whose constructor takes the model's config; the other caches take nothing.
_FROM_CONFIG = {_CACHES + "DynamicCache"}


def full_name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def roles_of(owner: Any) -> dict[str, Role]:
    """The role of each attribute of a cache or of one of its layers.

    TypeError: its class, or one that it derives from, or an attribute is not known.
    """
    roles: dict[str, Role] = {}
    for cls in reversed(type(owner).__mro__):
        if full_name(cls) not in _ROLES:
            heir = "" if cls is type(owner) else f", from which {full_name(type(owner))} derives"
            raise TypeError(f"kvtier.transformers does not know {full_name(cls)}{heir}")
        roles.update(_ROLES[full_name(cls)])
    unknown = sorted(set(vars(owner)) - set(roles))
    if unknown:
        raise TypeError(
            f"kvtier.transformers does not know {full_name(type(owner))}.{', '.join(unknown)}"
        )
    return roles


def new_cache(cls: type, config: Any) -> Any:
    """An empty cache of a class that roles_of() knows."""
    return cls(config=config) if full_name(cls) in _FROM_CONFIG else cls()
