# SPDX-License-Identifier: Apache-2.0
"""Blobs of token sequences: for engines that save and restore whole states."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

from ._native import ffi, lib
from .buffers import flat_bytes, nanoseconds, pointer
from .digest import CIdentity, Identity, Tokens, token_view
from .handle import Handle
from .lease import Lease
from .status import Status, checked

if TYPE_CHECKING:
    from typing_extensions import Buffer

NO_IDENTITY = Identity()


class Blobs(Handle):
    """`tokens` is a buffer of 4-byte integers (no copy) or an iterable of ints; `timeout` is
    in seconds, for each step of a call."""

    def __init__(self) -> None:
        super().__init__()
        self._leases: set[Lease] = set()

    def find(
        self, tokens: Tokens, *, identity: Identity = NO_IDENTITY, group: int = 0, shard: int = 0
    ) -> int:
        """How many leading tokens the best stored blob serves; 0: none. A hint."""
        blob = _Blob(tokens, identity, group, shard)
        found = ffi.new("size_t *")
        status = checked(lib.kvt_blob_find(self._handle(), blob.c, found), "find")
        return found[0] if status is Status.OK else 0

    def acquire(
        self,
        tokens: Tokens,
        *,
        identity: Identity = NO_IDENTITY,
        group: int = 0,
        shard: int = 0,
        timeout: float = 30.0,
    ) -> tuple[Status, Optional[Lease]]:
        """Leases the blob that serves exactly these tokens, as many as `find` said.

        (OK, lease), or why there is none: MISS, BUSY, CORRUPT, UNAVAILABLE ... A croppable
        blob may hold more tokens than asked for. What came from below host memory has been
        verified against its checksums.
        """
        blob = _Blob(tokens, identity, group, shard, timeout=timeout)
        c = ffi.new("struct kvt_object *")
        status = checked(lib.kvt_blob_acquire(self._handle(), blob.c, c), "acquire")
        return status, self._lease(c, False, timeout) if status is Status.OK else None

    def reserve(
        self,
        tokens: Tokens,
        nbytes: int,
        *,
        croppable: bool = False,
        replace: bool = False,
        identity: Identity = NO_IDENTITY,
        group: int = 0,
        shard: int = 0,
        timeout: float = 30.0,
    ) -> tuple[Status, Optional[Lease]]:
        """Room for a blob of `nbytes` bytes that ends after the last token.

        (OK, lease): write it, then commit. ALREADY_HAVE: nothing to do. Anything else: not
        stored this time. croppable: it serves any prefix of its tokens (pure attention
        only). The room is one segment whenever there is one so large.
        """
        flags = _store_flags(croppable, replace)
        blob = _Blob(tokens, identity, group, shard, flags, timeout)
        c = ffi.new("struct kvt_object *")
        status = checked(lib.kvt_blob_reserve(self._handle(), blob.c, nbytes, c), "reserve")
        return status, self._lease(c, True, timeout) if status is Status.OK else None

    def put(
        self,
        tokens: Tokens,
        data: Buffer,
        *,
        croppable: bool = False,
        replace: bool = False,
        identity: Identity = NO_IDENTITY,
        group: int = 0,
        shard: int = 0,
        timeout: float = 30.0,
    ) -> Status:
        """Stores a buffer as the blob of these tokens. OK or ALREADY_HAVE: it is stored."""
        flags = _store_flags(croppable, replace)
        blob = _Blob(tokens, identity, group, shard, flags, timeout)
        source = flat_bytes(data)
        c_source = pointer("void *", source)
        return checked(lib.kvt_blob_put(self._handle(), blob.c, c_source, len(source)), "put")

    def get(
        self,
        tokens: Tokens,
        *,
        identity: Identity = NO_IDENTITY,
        group: int = 0,
        shard: int = 0,
        timeout: float = 30.0,
    ) -> Optional[tuple[int, bytearray]]:
        """(number of leading tokens, a copy of the longest usable blob), or None."""
        view = token_view(tokens)
        n = self.find(view, identity=identity, group=group, shard=shard)
        if not n:
            return None
        how: dict[str, Any] = dict(identity=identity, group=group, shard=shard, timeout=timeout)
        _, lease = self.acquire(view[:n], **how)
        if lease is None:
            return None
        with lease:
            data = bytearray(lease.nbytes)
            lease.read_into(data)
        return n, data

    def _lease(self, c: Any, writable: bool, timeout: float) -> Lease:
        lease = Lease(self, c, writable, timeout)
        self._leases.add(lease)
        return lease


def _store_flags(croppable: bool, replace: bool) -> int:
    flags: int = lib.KVT_CROPPABLE if croppable else 0
    return flags | (lib.KVT_REPLACE if replace else 0)


class _Blob:
    """A struct kvt_blob, and what it points to."""

    def __init__(
        self,
        tokens: Tokens,
        identity: Identity,
        group: int,
        shard: int,
        flags: int = 0,
        timeout: float = 30.0,
    ) -> None:
        self.tokens = token_view(tokens)
        self.identity = CIdentity(identity)
        self.c = ffi.new("struct kvt_blob *")
        self.c.size = ffi.sizeof("struct kvt_blob")
        self.c.identity = self.identity.c
        self.c.tokens = pointer("uint32_t *", self.tokens)
        self.c.n_tokens = len(self.tokens)
        self.c.group, self.c.shard, self.c.flags = group, shard, flags
        self.c.timeout_ns = nanoseconds(timeout)
