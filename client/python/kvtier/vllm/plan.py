# SPDX-License-Identifier: Apache-2.0
"""What the scheduler knows of one request's chunks: which are stored, which are leased.

Chunks count from the start of the prompt. A word of bits for each says which (group, shard)
are there, as the presence table does: nothing here takes a chunk at a time.
"""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Optional

import numpy as np

from .. import DIGEST_BYTES, Call
from .fetches import Fetch, Peer

#: Chunks [first, end) of a group.
Span = tuple[int, int]
NOTHING = np.zeros(0, np.uint64)


@dataclass
class Lease:
    """What one acquire asked for, by vLLM's group numbers; `until` when it has been granted."""

    call: Call
    spans: dict[int, Span]
    token: bytes = b""
    until: float = 0.0  #: monotonic: not held any longer while nobody loads

    def objects(self, shards: int) -> tuple[np.ndarray, np.ndarray]:
        """(chunk, group) of each object, in the order of the call."""
        chunks = [np.arange(first, end) for first, end in self.spans.values()]
        groups = np.repeat(list(self.spans), [len(part) for part in chunks])
        return np.repeat(np.concatenate(chunks), shards), np.repeat(groups, shards)


@dataclass
class Plan:
    """One request."""

    context: Any  #: vLLM's ReqContext
    request: Any = None
    digests: bytes = b""  #: of the ends of its chunks, as far as its tokens are known
    began: int = 0  #: tokens that need no prefill
    first: int = 0  #: the first chunk that is of interest
    present: np.ndarray = field(default_factory=lambda: NOTHING)  #: of chunks from `first` on
    lost: list[tuple[int, int]] = field(default_factory=list)  #: (chunk, mask) found missing
    closed: bool = False  #: finds nothing any more
    peer: Optional[Peer] = None  #: to be asked for what is missing, or being asked
    fetch: Optional[Fetch] = None
    attempts: int = 0
    asked: Optional[Lease] = None
    held: Optional[Lease] = None
    loading: Optional[Lease] = None
    finished: bool = False
    told: bool = False  #: what became of its search
    mixed: bool = False  #: nothing of it is stored: some may have been computed before a reset

    def bypass(self) -> None:
        """It finds nothing, and leaves nothing; nor is it told of, since nobody looked for it."""
        self.closed = self.mixed = self.told = True
        self.peer = None

    def see(self, first: int, present: np.ndarray) -> None:
        self.first, self.present = first, present
        for chunk, mask in self.lost:
            if 0 <= chunk - first < len(present):
                present[chunk - first] &= np.uint64(~mask & (1 << 64) - 1)

    def hits(self, group: int, mask: np.uint64, first: int, n: int) -> np.ndarray:
        """Whether chunks [first, first + n) of the group can be had; shape (n,), bool."""
        if self.held:
            begin, end = self.held.spans[group]
            chunks = np.arange(first, first + n)
            return (begin <= chunks) & (chunks < end)
        found = np.zeros(n, bool)
        at = first - self.first
        if at >= 0:
            words = self.present[at : at + n]
            found[: len(words)] = words & mask == mask
        return found

    def leading(self, group: int, mask: np.uint64, first: int, n: int) -> int:
        """How many of them from the first on."""
        misses = np.flatnonzero(~self.hits(group, mask, first, n))
        return int(misses[0]) if len(misses) else n

    def run_to(self, end: int, group: int, mask: np.uint64, first: int) -> int:
        """The first chunk of those, from `first` on, that are all there up to `end`."""
        first = max(first, self.first)
        misses = np.flatnonzero(~self.hits(group, mask, first, end - first))
        return first + int(misses[-1]) + 1 if len(misses) else first

    def digest(self, chunk: int) -> bytes:
        """Of the chunk's end; before the first one there is a root."""
        at = chunk * DIGEST_BYTES
        return self.digests[at : at + DIGEST_BYTES] if chunk >= 0 else bytes(DIGEST_BYTES)

    def digest_table(self) -> np.ndarray:
        return np.frombuffer(self.digests, np.uint8).reshape(-1, DIGEST_BYTES)
