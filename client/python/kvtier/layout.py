# SPDX-License-Identifier: Apache-2.0
"""What decides the meaning of an engine's bytes. Engines with equal layouts share objects."""
from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any, Sequence

from ._native import ffi


class GroupKind(enum.IntEnum):
    ATTENTION = 1
    WINDOW = 2
    INDEX = 3
    COMPRESSED = 4
    STATE = 5
    SCRATCH = 6


class Codec(enum.IntEnum):
    """How the pages of a group stand in objects.

    FP8_TILE128 (e4m3, an fp32 scale for each 128 numbers) and MXFP8 (e4m3, a power of two for
    each 32) are for pages of bfloat16: about half of the bytes, and less exact. kvtier(3)
    has the bounds.
    """

    NONE = 0
    FP8_TILE128 = 1
    MXFP8 = 2


@dataclass(frozen=True)
class Tensor:
    """One tensor of a group; `bytes` of one page (paged groups) or of the blob, one shard.

    The tensors of a group or row, when there are any, add up to its page_bytes.
    """

    name: str
    dtype: str
    bytes: int


@dataclass(frozen=True)
class Row:
    """What each shard of a run of neighbours holds; page_bytes and so on as in a Group."""

    first_shard: int
    page_bytes: int = 0
    padded_bytes: int = 0
    n_shards: int = 1
    tensors: Sequence[Tensor] = ()


@dataclass(frozen=True)
class Group:
    """Layers that share one page shape.

    page_tokens: tokens of a page, 0 for STATE. page_bytes: un-padded, all layers, one
    shard; for STATE the bytes of the blob, 0 when its length varies. padded_bytes: with the
    engine's padding, 0 for none. shards: 1 means replicated. rows: in place of page_bytes,
    padded_bytes and tensors, when the shards do not all hold the same. codec: for groups with
    pages; page_bytes are then whole tiles, still as in the engine's memory.
    """

    name: str
    kind: GroupKind
    page_tokens: int = 0
    page_bytes: int = 0
    padded_bytes: int = 0
    window_tokens: int = 0
    shards: int = 1
    tensors: Sequence[Tensor] = ()
    rows: Sequence[Row] = ()
    codec: Codec = Codec.NONE


@dataclass(frozen=True)
class Layout:
    """Objects stored under one layout are misses under any other.

    chunk_tokens: distance of boundaries, a multiple of every group's page_tokens; 0 lets
    the daemon choose. Strings hold at most 1024 bytes of UTF-8.
    """

    model: str
    engine: str
    groups: Sequence[Group]
    revision: str = ""
    model_dtype: str = ""
    kv_dtype: str = ""
    engine_build: str = ""
    kernel_layout: str = ""
    replay_mode: str = ""
    draft_tokens: int = 0
    chunk_tokens: int = 0
    tp: int = 1
    pp: int = 1
    cp: int = 1


STRINGS = (
    "model", "revision", "model_dtype", "kv_dtype",
    "engine", "engine_build", "kernel_layout", "replay_mode",
)  # fmt: skip
NUMBERS = ("draft_tokens", "chunk_tokens", "tp", "pp", "cp")
GROUP_NUMBERS = (
    "kind", "shards", "page_tokens", "window_tokens", "page_bytes", "padded_bytes",
    "codec",
)  # fmt: skip
ROW_NUMBERS = ("first_shard", "n_shards", "page_bytes", "padded_bytes")


@dataclass
class CLayout:
    """A struct kvt_layout, and what it points to."""

    layout: Layout
    keep: list[Any] = field(default_factory=list)
    c: Any = None

    def __post_init__(self) -> None:
        layout = self.layout
        self.c = self.new("struct kvt_layout *")
        self.c.size = ffi.sizeof("struct kvt_layout")
        for name in STRINGS:
            setattr(self.c, name, self.string(getattr(layout, name)))
        for name in NUMBERS:
            setattr(self.c, name, getattr(layout, name))
        groups = self.new("struct kvt_group[]", max(len(layout.groups), 1))
        for group, c in zip(layout.groups, groups):
            self.fill_group(c, group)
        self.c.groups = groups
        self.c.n_groups = len(layout.groups)

    def fill_group(self, c: Any, group: Group) -> None:
        c.name = self.string(group.name)
        for name in GROUP_NUMBERS:
            setattr(c, name, int(getattr(group, name)))
        self.fill_tensors(c, group.tensors)
        if group.rows:
            c.rows = self.new("struct kvt_row[]", len(group.rows))
            c.n_rows = len(group.rows)
        for i, row in enumerate(group.rows):
            for name in ROW_NUMBERS:
                setattr(c.rows[i], name, getattr(row, name))
            self.fill_tensors(c.rows[i], row.tensors)

    def fill_tensors(self, c: Any, tensors: Sequence[Tensor]) -> None:
        """Of a struct kvt_group or kvt_row."""
        c.tensors = self.new("struct kvt_tensor[]", max(len(tensors), 1))
        c.n_tensors = len(tensors)
        for tensor, t in zip(tensors, c.tensors[0 : len(tensors)]):
            t.name, t.dtype = self.string(tensor.name), self.string(tensor.dtype)
            t.bytes = tensor.bytes

    def new(self, *arguments: Any) -> Any:
        self.keep.append(ffi.new(*arguments))
        return self.keep[-1]

    def string(self, text: str) -> Any:
        data = text.encode()
        if b"\0" in data:
            raise ValueError(f"a layout's strings hold no NUL: {text!r}")
        return self.new("char[]", data)
