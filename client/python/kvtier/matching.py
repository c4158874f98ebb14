# SPDX-License-Identifier: Apache-2.0
"""What is stored, as the presence table shows it: no call here asks the daemon."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Sequence

from ._native import ffi, lib
from .buffers import DIGEST_BYTES, Digests, digest_bytes, pointer
from .handle import Handle
from .objects import Objects
from .status import Status, checked

#: Of a layout that can be probed.
CELLS_MAX = 64


@dataclass(frozen=True)
class Boundary:
    """A usable boundary, and what it needs of all groups and shards."""

    boundaries: int  #: which: the number of digests up to it
    tokens: int
    resident: bool  #: all of it is in host memory
    n_objects: int
    nbytes: int  #: to move; without states whose length the layout does not tell
    nbytes_below: int  #: of these, not in host memory
    exact: bool  #: nbytes is all of it


@dataclass(frozen=True)
class Match:
    """The longest usable prefix, as the presence table shows it."""

    boundaries: int
    tokens: int
    resident_boundaries: int  #: of the longest usable prefix in host memory
    kv_boundaries: int  #: of the longest prefix of paged groups, with or without a state
    usable: tuple[Boundary, ...] = ()  #: longest first, as many as were asked for
    state_boundaries: int = 0  #: if asked for: the longest with its states, KV aside
    replay_tokens: int = 0  #: ... tokens to compute again from there
    checkpoint_boundaries: int = 0  #: if asked for: where a state would pay; 0: nowhere


class Matching(Handle):
    """Questions about a digest chain."""

    def match(
        self,
        digests: Digests,
        prompt_tokens: int = 0,
        max_tokens: int = 0,
        *,
        usable: int = 0,
        state: bool = False,
        checkpoint: bool = False,
        bypass: bool = False,
    ) -> Match:
        """The longest usable prefix of a digest chain; a hint, and no system call.

        digests: n x 32 bytes, one a boundary, in order. max_tokens: 0 for no
        limit. usable: how many usable boundaries to list. state, checkpoint: fill in those
        members of the answer. bypass: find nothing, for a request that must see no cache.
        """
        data = digest_bytes(digests)
        query = ffi.new("struct kvt_match_query *")
        query.size = ffi.sizeof("struct kvt_match_query")
        query.digests = pointer("struct kvt_digest *", data)
        query.n_digests = len(data) // DIGEST_BYTES
        query.prompt_tokens, query.max_tokens = prompt_tokens, max_tokens
        query.flags = lib.KVT_MATCH_STATE if state else 0
        query.flags |= lib.KVT_MATCH_CHECKPOINT if checkpoint else 0
        query.flags |= lib.KVT_MATCH_BYPASS if bypass else 0
        found = ffi.new("struct kvt_boundary[]", max(usable, 1))
        query.usable, query.n_usable = found, usable
        c = ffi.new("struct kvt_match *")
        c.size = ffi.sizeof("struct kvt_match")
        checked(lib.kvt_match(self._handle(), query, c), "match")
        return Match(
            boundaries=c.boundaries,
            tokens=c.tokens,
            resident_boundaries=c.resident_boundaries,
            kv_boundaries=c.kv_boundaries,
            usable=tuple(_boundary(found[i]) for i in range(min(c.n_usable, usable))),
            state_boundaries=c.state_boundaries,
            replay_tokens=c.replay_tokens,
            checkpoint_boundaries=c.checkpoint_boundaries,
        )

    def probe(self, digests: Digests) -> tuple[memoryview, memoryview]:
        """(present, resident): a word of bits for each digest, uint64, shape (n,).

        Bit = cell of (group, shard) in layout order; layouts of at most CELLS_MAX cells. A hint.
        """
        data = digest_bytes(digests)
        n = len(data) // DIGEST_BYTES
        words = [ffi.new("uint64_t[]", max(n, 1)) for _ in range(2)]
        c_digests = pointer("struct kvt_digest *", data)
        checked(lib.kvt_probe(self._handle(), c_digests, n, *words), "probe")
        present, resident = (memoryview(ffi.buffer(w)).cast("Q")[:n] for w in words)
        return present, resident

    def boundary_objects(
        self, digests: Digests, boundaries: int, *, shards: Sequence[int] | None = None
    ) -> tuple[Status, Objects | None]:
        """What a boundary needs, no more and no less, for `acquire_objects`: chunk by chunk
        from the first, states with the last.

        digests, boundaries: as in `match` and its answer. shards: of the group with most
        shards, and what lies with them; None: all. (OK, objects), or UNAVAILABLE while the
        daemon is away or the layout not whole; more than 65,536 are acquired by shards.
        """
        data = digest_bytes(digests)
        if not 0 < boundaries <= len(data) // DIGEST_BYTES:
            raise ValueError(f"boundary {boundaries} of {len(data) // DIGEST_BYTES}")
        c_shards = ffi.NULL if shards is None else ffi.new("uint16_t[]", shards)
        query = ffi.new("struct kvt_boundary_query *")
        query.size = ffi.sizeof("struct kvt_boundary_query")
        query.digests = pointer("struct kvt_digest *", data)
        query.boundaries = boundaries
        query.shards, query.n_shards = c_shards, len(shards or ())
        objects, n = Objects._new(2 * boundaries + 16), ffi.new("size_t *")
        status = self._fill_boundary(query, objects, n)
        if status is Status.TOO_LARGE:
            objects = Objects._new(n[0])
            status = self._fill_boundary(query, objects, n)
        return status, objects[: n[0]] if status is Status.OK else None

    def _fill_boundary(self, query: Any, objects: Objects, ret_n: Any) -> Status:
        return checked(
            lib.kvt_boundary_objects(self._handle(), query, objects._c, len(objects), ret_n),
            "boundary_objects",
        )


def _boundary(c: Any) -> Boundary:
    return Boundary(
        boundaries=c.boundaries,
        tokens=c.tokens,
        resident=bool(c.flags & lib.KVT_BOUNDARY_RESIDENT),
        n_objects=c.n_objects,
        nbytes=c.bytes,
        nbytes_below=c.bytes_below,
        exact=not c.flags & lib.KVT_BOUNDARY_BYTES_UNKNOWN,
    )
