# SPDX-License-Identifier: Apache-2.0
"""What vLLM's configuration says about the meaning of its bytes.

Scheduler and workers build the same description from the same configuration, each in its own
process, so that their sessions belong to one layout. What only a worker knows, the bytes of
its pages, is the row of its shard: see `kvtier.h`, KVT_OPEN_PARTIAL_LAYOUT.
"""
from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any, Sequence

import vllm
from vllm.config import get_layers_from_vllm_config
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.platforms import current_platform
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    MambaSpec,
    SlidingWindowSpec,
    iter_layer_specs,
)

from .. import Codec, Group, GroupKind, Layout, Row, Tensor
from ..matching import CELLS_MAX
from ..refusal import Refused

#: Where a connector leaves the Engine for what vLLM makes from a name.
ENGINE_KEY = "kvtier engine"

#: Hashes that are not the same in every process, or that an attacker can make collide.
UNSHAREABLE_HASHES = ("xxhash", "xxhash_cbor")

#: Of a tensor's name, which may have 1024 bytes.
NAME_MAX = 1000


@dataclass(frozen=True)
class GroupFacts:
    """One of vLLM's KV cache groups, as all its processes see it."""

    group_id: int  #: vLLM's number, as in its keys; its place in `Engine.groups` is kvtier's
    kind: GroupKind
    page_tokens: int
    window_tokens: int
    dtype: str
    layers: tuple[str, ...]
    codec: Codec = Codec.NONE

    @property
    def is_state(self) -> bool:
        return self.kind is GroupKind.STATE


@dataclass(frozen=True)
class Engine:
    """Everything but the rows."""

    identity: dict[str, Any]  #: members of `kvtier.Layout`
    engine_id: bytes
    groups: tuple[GroupFacts, ...]
    chunk_tokens: int
    tokens_per_hash: int
    blocks_per_chunk: int
    rank: int
    n_ranks: int
    replicated: bool  #: every rank holds the same bytes
    batch_tokens: int = 0  #: the most that a step computes
    attention: str = ""  #: backends that were chosen by hand; workers know those in use

    @property
    def shards(self) -> int:
        return 1 if self.replicated else self.n_ranks

    @property
    def shard(self) -> int:
        """Of this worker."""
        return 0 if self.replicated else self.rank

    def layout(self, pages: Sequence[Sequence[Tensor]] = ()) -> Layout:
        """pages: of each group the tensors of one page of this worker; none: a scheduler."""
        groups = [
            Group(
                name=f"{i}.{facts.kind.name.lower()}",
                kind=facts.kind,
                page_tokens=0 if facts.is_state else facts.page_tokens,
                window_tokens=facts.window_tokens,
                shards=self.shards,
                rows=[self._row(pages[i])] if pages else (),
                codec=facts.codec,
            )
            for i, facts in enumerate(self.groups)
        ]
        return Layout(groups=groups, chunk_tokens=self.chunk_tokens, **self.identity)

    def pool_layout(self, row_bytes: int) -> Layout:
        """Of vLLM's pool of host memory, a row of which has a chunk of all ranks."""
        groups = [
            Group(
                name=f"{i}.{facts.kind.name.lower()}",
                kind=facts.kind,
                page_tokens=0 if facts.is_state else self.chunk_tokens,
                window_tokens=facts.window_tokens,
                page_bytes=row_bytes,
                tensors=[Tensor(",".join(facts.layers)[:NAME_MAX], facts.dtype, row_bytes)],
            )
            for i, facts in enumerate(self.groups)
        ]
        kernels = f"{self.identity['kernel_layout']} attention={self.attention}"
        where = f"pool of {self.shards} x {self.blocks_per_chunk} blocks"
        identity = {**self.identity, "kernel_layout": f"{kernels} {where}"}
        return Layout(groups=groups, chunk_tokens=self.chunk_tokens, **identity)

    def _row(self, tensors: Sequence[Tensor]) -> Row:
        return Row(self.shard, sum(tensor.bytes for tensor in tensors), tensors=tensors)


def describe(
    vllm_config: Any,
    kv_cache_config: Any,
    offloading: Any,
    weights: str,
    codec: Codec = Codec.NONE,
) -> Engine:
    """offloading: vLLM's OffloadingConfig. codec: of what is not state. Raises Refused."""
    check(vllm_config, offloading, weights)
    groups = tuple(
        group_facts(group, kv_cache_config.kv_cache_groups[group.group_id], codec)
        for group in offloading.groups
    )
    sizes = {facts.page_tokens for facts in groups}
    if len(sizes) > 1:
        raise Refused(f"cache groups with blocks of {sorted(sizes)} tokens; one size is needed")
    parallel = offloading.parallel
    shards = 1 if offloading.replicated_layout else parallel.world_size
    if len(groups) * shards > CELLS_MAX:
        raise Refused(f"{len(groups)} cache groups on {shards} ranks: more than {CELLS_MAX} cells")
    return Engine(
        identity=_identity(vllm_config, offloading, weights),
        engine_id=hashlib.sha256(offloading.engine_id.encode()).digest()[:16],
        groups=groups,
        chunk_tokens=sizes.pop() * offloading.cache.blocks_per_chunk,
        tokens_per_hash=offloading.cache.tokens_per_hash,
        blocks_per_chunk=offloading.cache.blocks_per_chunk,
        rank=parallel.rank,
        n_ranks=parallel.world_size,
        replicated=offloading.replicated_layout,
        batch_tokens=vllm_config.scheduler_config.max_num_batched_tokens,
        attention=chosen_backends(vllm_config),
    )


def check(vllm_config: Any, offloading: Any, weights: str = "") -> None:
    cache = vllm_config.cache_config
    algorithm = cache.prefix_caching_hash_algo
    if algorithm in UNSHAREABLE_HASHES:
        raise Refused(
            f"--prefix-caching-hash-algo {algorithm}: its block hashes differ from process to "
            "process, or can be made to collide; use sha256 or sha256_cbor"
        )
    if not cache.enable_prefix_caching and not _goes_on_from_prefixes(vllm_config):
        # vLLM turns it off for models that cannot compute on top of a prefix.
        raise Refused("prefix caching is off, by --no-enable-prefix-caching or by vLLM itself")
    if offloading.canonical_layout:
        raise Refused("canonical_layout is not for this connector: each rank keeps its own pages")
    if vllm_config.parallel_config.pipeline_parallel_size > 1 and offloading.replicated_layout:
        raise Refused("replicated pages under pipeline parallelism")
    if callable(vllm_config.model_config.hf_overrides) and not weights:
        raise Refused("hf_overrides is a function: name what it makes of the model, kvtier_weights")


def _goes_on_from_prefixes(vllm_config: Any) -> bool:
    """vLLM keeps no prefixes of latent attention on the CPU, yet computes on top of them."""
    return bool(vllm_config.model_config.use_mla) and current_platform.is_cpu()


def group_facts(group: Any, kv_cache_group: Any, codec: Codec = Codec.NONE) -> GroupFacts:
    # Workers keep the spec of every layer, schedulers one for all.
    specs = list(iter_layer_specs(kv_cache_group.kv_cache_spec))
    for what, found in (("dtypes", map(_dtype, specs)), ("kinds", map(_kind_name, specs))):
        if len(names := sorted(set(found))) > 1:
            layers = f"layers of {what} {' and '.join(names)}"
            raise Refused(f"cache group {group.group_id} has {layers}")
    spec = specs[0]
    kind, window = _kind(spec)
    if kind is GroupKind.STATE:
        codec = Codec.NONE
    if codec and _dtype(spec) != "bfloat16":
        raise Refused(
            f"kvtier_codec is for bfloat16: cache group {group.group_id} holds {_dtype(spec)}"
        )
    return GroupFacts(
        group_id=group.group_id,
        kind=kind,
        page_tokens=group.tokens_per_block,
        window_tokens=window,
        dtype=_dtype(spec),
        layers=tuple(group.layer_names),
        codec=codec,
    )


def _kind(spec: Any) -> tuple[GroupKind, int]:
    if isinstance(spec, MambaSpec):
        return GroupKind.STATE, 0
    if isinstance(spec, SlidingWindowSpec):
        return GroupKind.WINDOW, spec.sliding_window + spec.extra_retained_tokens
    if isinstance(spec, ChunkedLocalAttentionSpec):
        return GroupKind.WINDOW, spec.attention_chunk_size
    if isinstance(spec, FullAttentionSpec):
        return GroupKind.ATTENTION, 0
    raise Refused(f"cache groups of {type(spec).__name__}")


def _kind_name(spec: Any) -> str:
    kind, window = _kind(spec)
    return f"{kind.name.lower()} {window}".removesuffix(" 0")


def _dtype(spec: Any) -> str:
    dtypes = getattr(spec, "dtypes", None) or (spec.dtype,)
    return ",".join(str(dtype).removeprefix("torch.") for dtype in dtypes)


def _identity(vllm_config: Any, offloading: Any, weights: str) -> dict[str, Any]:
    model, parallel = vllm_config.model_config, offloading.parallel
    speculative = vllm_config.speculative_config
    return dict(
        model=model.model,
        revision=";".join(filter(None, (model.revision, weights, model_changes(vllm_config)))),
        model_dtype=str(model.dtype).removeprefix("torch."),
        kv_dtype=offloading.model.dtype,
        engine="vllm",
        engine_build=f"{vllm.__version__} {current_platform.device_type}",
        kernel_layout=kernel_layout(vllm_config, offloading),
        replay_mode=str(vllm_config.cache_config.mamba_cache_mode),
        draft_tokens=speculative.num_speculative_tokens if speculative else 0,
        tp=parallel.tp_size,
        pp=parallel.pp_size,
        cp=parallel.pcp_size * parallel.dcp_size,
    )


def kernel_layout(vllm_config: Any, offloading: Any) -> str:
    parallel = vllm_config.parallel_config
    facts = [
        ("layout", offloading.kv_cache_layout),
        ("quantization", vllm_config.model_config.quantization),
        ("runner", "2" if vllm_config.use_v2_model_runner else "1"),
    ]
    if parallel.prefill_context_parallel_size * parallel.decode_context_parallel_size > 1:
        facts.append(("interleave", parallel.cp_kv_cache_interleave_size))
    return " ".join(f"{name}={value}" for name, value in facts)


def chosen_backends(vllm_config: Any) -> str:
    """Attention backends that were chosen by hand; vLLM chooses others by version and device."""
    attention = vllm_config.attention_config
    kinds = sorted((kind, backend.name) for kind, backend in attention.backend_per_kind.items())
    general = attention.backend.name if attention.backend else "auto"
    return ",".join([general] + [f"{kind}:{name}" for kind, name in kinds])


def backends_in_use(vllm_config: Any) -> dict[str, str]:
    """By layer, in a worker that has made its model."""
    layers = get_layers_from_vllm_config(vllm_config, AttentionLayerBase)
    return {name: layer.get_attn_backend().get_name() for name, layer in layers.items()}


def model_changes(vllm_config: Any) -> str:
    """By which the model is another one than its name and revision say; "": it is that."""
    model = vllm_config.model_config
    changes: list[str] = []
    if model.hf_config_path:
        changes.append(f"config={_short_digest(model.hf_config_path)}")
    if model.hf_overrides and not callable(model.hf_overrides):
        changes.append(f"overrides={_digest_of(model.hf_overrides)}")
    if vllm_config.load_config.load_format == "dummy":
        changes.append("dummy weights")
    if model.code_revision:
        changes.append(f"code={model.code_revision}")
    if model.model_class_overrides:
        changes.append(f"classes={_digest_of(model.model_class_overrides)}")
    if model.quantization_config:
        changes.append(f"quantization={_digest_of(model.quantization_config)}")
    return ";".join(changes + _by_length(model) + _draft(vllm_config.speculative_config))


def _by_length(model: Any) -> list[str]:
    """Of models that compute otherwise when longer prompts may come."""
    text = model.hf_text_config
    is_llama4 = str(getattr(text, "model_type", "")).startswith("llama4")
    if not is_llama4 and "longrope" not in str(getattr(text, "rope_parameters", "")):
        return []
    # Fitted to the memory (-1) when the model has been made, with all the length that it has.
    length = "whole" if model.original_max_model_len == -1 else model.max_model_len
    tuning = model.override_generation_config.get("attn_temperature_tuning", "")
    return [f"max_model_len={length}", f"tuning={tuning}"]


def _draft(speculative: Any) -> list[str]:
    """Its layers are in the cache, too."""
    if not speculative:
        return []
    facts = (speculative.method, speculative.model, speculative.revision, speculative.quantization)
    return [f"draft={_digest_of(facts)}"]


def _digest_of(value: Any) -> str:
    return _short_digest(json.dumps(value, sort_keys=True, default=str))


def _short_digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]
