# SPDX-License-Identifier: Apache-2.0
"""From a model: what its cache consists of, which weights it has, and thus its layout."""
from __future__ import annotations

import hashlib
import json
from typing import Any

import torch
import transformers

from ..layout import Group, GroupKind, Layout, Tensor
from .shape import Template


def probe(model: Any, chunk_tokens: int) -> Template:
    """Runs the model over one chunk of made-up tokens."""
    if chunk_tokens < 1:
        raise ValueError("chunk_tokens is at least 1")
    device = next(model.parameters()).device
    positions = torch.arange(chunk_tokens, device=device)[None]
    ids = positions % model.config.get_text_config(decoder=True).vocab_size
    with torch.no_grad():
        output = model(ids, position_ids=positions, use_cache=True)
    cache = getattr(output, "cache", None)
    if cache is None:
        cache = getattr(output, "past_key_values", None)
    if cache is None:
        raise TypeError(f"{type(model).__name__} returns no cache")
    return Template(cache, model.config, chunk_tokens)


def fingerprint(model: Any) -> str:
    """A revision for weights that have none: SHA-256 of all of them, hexadecimal."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        if flat.numel():
            digest.update(flat.view(torch.uint8).numpy())
    return digest.hexdigest()


def layout_of(
    model: Any, template: Template, name: str | None = None, revision: str | None = None
) -> Layout:
    """All that decides what the bytes of this model's caches mean.

    ValueError: it is not known which weights these are.
    """
    config = model.config
    name = name or getattr(config, "_name_or_path", "")
    revision = revision or getattr(config, "_commit_hash", None)
    if not name:
        raise ValueError("the model has no name: pass name=")
    if not revision:
        raise ValueError("the model has no commit: pass revision=, such as fingerprint(model)")
    return Layout(
        model=name,
        revision=f"{revision} config={_digest(_config_text(config))}",
        model_dtype=_dtype_name(next(model.parameters()).dtype),
        kv_dtype=",".join(template.dtypes()),
        engine="transformers",
        engine_build=f"transformers {transformers.__version__} torch {torch.__version__}",
        kernel_layout=f"attn={getattr(config, '_attn_implementation', None)}"
        f" cache={_digest(template.signature())}",
        chunk_tokens=template.chunk_tokens,
        groups=_groups(template),
    )


def _groups(template: Template) -> list[Group]:
    """At most two: chunks with all that is paged, and states with everything else."""
    groups = []
    if template.page_bytes:
        sizes: dict[tuple[str, str], int] = {}
        for part in template.pages:
            key = part.attribute, _dtype_name(part.dtype)
            sizes[key] = sizes.get(key, 0) + part.nbytes
        pages = Group(
            "pages",
            GroupKind.ATTENTION,
            page_tokens=template.chunk_tokens,
            page_bytes=template.page_bytes,
            tensors=[Tensor(*key, nbytes) for key, nbytes in sizes.items()],
        )
        groups.append(pages)
    if template.has_state:
        groups.append(Group("state", GroupKind.STATE))
    return groups


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _config_text(config: Any) -> str:
    """Without what does not change what a model computes."""
    fields = config.to_dict()
    for name in ("_name_or_path", "_commit_hash", "transformers_version"):
        fields.pop(name, None)
    return json.dumps(fields, sort_keys=True)


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
