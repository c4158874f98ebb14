# SPDX-License-Identifier: Apache-2.0
"""What the scheduler tells its workers of a transfer, and which blocks belong to which key.

vLLM hands over block ids by group, without saying where one key's end and the next one's
begin; both come in the order of the keys.
"""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Iterator, NamedTuple, Sequence

from vllm.v1.kv_offload.base import LoadStoreSpec

from .. import DIGEST_BYTES

#: Of one call.
OBJECTS_MAX = 65536


@dataclass
class KeysSpec(LoadStoreSpec):
    """The objects of a job, by group; it is pickled on its way to the workers."""

    digests: bytes = b""  #: n x 32
    groups: list[int] = field(default_factory=list)  #: kvtier's numbers
    token: bytes = b""  #: loads: of the scheduler's acquire
    parents: bytes = b""  #: stores: n x 32
    ends: list[int] = field(default_factory=list)  #: stores: tokens up to each boundary
    hit_tokens: int = 0  #: stores: from where the prefill went on

    def __len__(self) -> int:
        return len(self.groups)

    def digest(self, i: int) -> bytes:
        return self.digests[i * DIGEST_BYTES : (i + 1) * DIGEST_BYTES]

    def parent(self, i: int) -> bytes:
        return self.parents[i * DIGEST_BYTES : (i + 1) * DIGEST_BYTES]


class Piece(NamedTuple):
    """One key's blocks."""

    key: int  #: number in the KeysSpec
    first: int  #: page of the chunk that the first block is
    blocks: Sequence[int]


def pieces(
    spec: KeysSpec, gpu: Any, blocks_per_chunk: int, is_state: Sequence[bool], whole: bool
) -> Iterator[Piece]:
    """gpu: vLLM's GPULoadStoreSpec. whole: of a store, where chunks are complete, or left out
    when vLLM has freed some of their blocks, which leaves no way to tell which.
    """
    begin = key = 0
    for group, (n, first) in enumerate(zip(gpu.group_sizes, gpu.block_indices)):
        blocks = [int(block) for block in gpu.block_ids[begin : begin + n]]
        begin += n
        n_keys = _run(spec.groups, key, group)
        yield from _group_pieces(
            range(key, key + n_keys),
            blocks,
            1 if is_state[group] and n_keys == n else blocks_per_chunk,
            None if whole else first % blocks_per_chunk,
            is_state[group],
        )
        key += n_keys
    if key != len(spec):
        raise ValueError(f"{len(spec)} keys, of which {key} are in order of their groups")


def _run(groups: Sequence[int], first: int, group: int) -> int:
    n = 0
    while first + n < len(groups) and groups[first + n] == group:
        n += 1
    return n


def _group_pieces(
    keys: range, blocks: Sequence[int], per_chunk: int, begin: int | None, is_state: bool
) -> Iterator[Piece]:
    """begin: page of the first chunk; None: all chunks are whole."""
    first = begin or 0 if per_chunk > 1 else 0
    missing = len(keys) * per_chunk - first - len(blocks)
    if not 0 <= missing < (1 if begin is None else per_chunk):
        return
    at = 0
    for key in keys:
        piece = blocks[at : at + per_chunk - first]
        if is_state:
            yield Piece(key, 0, piece[-1:])
        else:
            yield Piece(key, first, piece)
        at += per_chunk - first
        first = 0
