# SPDX-License-Identifier: Apache-2.0
"""One engine process attached to one layout."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional, Sequence

from ._native import ffi, lib
from .digest import DIGEST_BYTES, CIdentity, Identity, Tokens, token_buffer, token_view
from .layout import CLayout, Layout
from .lease import Lease
from .status import Status, checked

NO_IDENTITY = Identity()


class SessionError(RuntimeError):
    """The daemon refuses this session for good; `status` and the text say why."""

    def __init__(self, status: Status, why: str) -> None:
        super().__init__(f"{status.name}: {why or status.text}")
        self.status = status


@dataclass(frozen=True)
class SessionInfo:
    attached: bool
    pending: bool  #: attached, but rows of other processes are missing
    chunk_tokens: int  #: distance of boundaries; 0 until attached once
    layout_id: bytes  #: 32 bytes
    boot_id: bytes  #: 16 bytes, of the daemon's run
    reconnects: int
    host_bytes: int  #: size of the daemon's host tier
    last_error: str  #: why the last attempt to connect failed, which row was missing, or ""


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


class Session:
    """Blobs of token sequences in a running kvtierd.

    layout: what the bytes mean. socket: None for the default. program: shown by
    `kvtierctl sessions`. engine_id: 16 bytes shared by the processes of one engine, None
    for a random one. shards: those on this node, None for all. connect_timeout: seconds to
    wait for the daemon; when it does not come the session exists all the same, everything
    misses, and it goes on trying. partial_layout: the rows of other shards are told by other
    processes of the engine; everything misses until all are known (see `wait_attached`).
    rank, n_ranks: of this process on this node, for `is_mine`. loads, stores: False for runs
    that must be reproducible: nothing that is stored is seen, or nothing is stored.

    ValueError: the layout is wrong. SessionError: the daemon refuses. All methods may be
    called from any thread; `close` last. `tokens` is a buffer of 4-byte integers (no copy)
    or an iterable of ints; `timeout` is in seconds, for each step of a call.
    """

    def __init__(
        self,
        layout: Layout,
        *,
        socket: Optional[str] = None,
        program: Optional[str] = None,
        engine_id: Optional[bytes] = None,
        shards: Optional[Sequence[int]] = None,
        connect_timeout: float = 5.0,
        partial_layout: bool = False,
        rank: int = 0,
        n_ranks: int = 1,
        loads: bool = True,
        stores: bool = True,
    ) -> None:
        self._session: Any = None
        self._leases: set[Lease] = set()
        if engine_id is not None and len(engine_id) != 16:
            raise ValueError("engine_id has 16 bytes")
        c_layout = CLayout(layout)
        keep = []  # what the options point to, until kvt_open() has copied it

        def new(kind: str, value: Any) -> Any:
            keep.append(ffi.NULL if value is None else ffi.new(kind, value))
            return keep[-1]

        options = ffi.new("struct kvt_options *")
        options.size = ffi.sizeof("struct kvt_options")
        options.socket = new("char[]", socket and socket.encode())
        options.program = new("char[]", program and program.encode())
        options.layout = c_layout.c
        options.engine_id = new("uint8_t[]", engine_id)
        options.shards = new("uint16_t[]", shards)
        options.n_shards = len(shards or ())
        options.connect_timeout_ns = int(connect_timeout * 1e9)
        options.flags = lib.KVT_OPEN_PARTIAL_LAYOUT if partial_layout else 0
        options.flags |= 0 if loads else lib.KVT_OPEN_NO_LOADS
        options.flags |= 0 if stores else lib.KVT_OPEN_NO_STORES
        options.rank, options.n_ranks = rank, n_ranks
        self._open(options)

    def _open(self, options: Any) -> None:
        result = ffi.new("struct kvt_session **")
        why = ffi.new("char[512]")
        status = Status(lib.kvt_open(result, options, why, len(why)))
        text = ffi.string(why).decode(errors="replace")
        if status is Status.INVALID:
            raise ValueError(text or status.text)
        if result[0] == ffi.NULL:
            raise SessionError(status, text)
        self._session = result[0]

    def _handle(self) -> Any:
        if self._session is None:
            raise ValueError("the session is closed")
        return self._session

    def _forget(self, lease: Lease) -> None:
        self._leases.discard(lease)

    def close(self) -> None:
        """Ends all leases and the session. BufferError while views of a lease are alive."""
        for lease in list(self._leases):
            lease.__exit__()
        session, self._session = self._session, None
        if session is not None:
            lib.kvt_close(session)

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        # Without a close() leases may still be in use: then the memory stays as it is.
        if getattr(self, "_session", None) is not None and not self._leases:
            self.close()

    def fileno(self) -> int:
        """An eventfd for completions of object calls made through `lib`; poll, don't read."""
        return lib.kvt_fd(self._handle())

    @property
    def c_session(self) -> Any:
        """The `struct kvt_session *`, for object calls through `lib`."""
        return self._handle()

    def info(self) -> SessionInfo:
        c = ffi.new("struct kvt_session_info *")
        c.size = ffi.sizeof("struct kvt_session_info")
        checked(lib.kvt_session_info(self._handle(), c), "info")
        return SessionInfo(
            attached=bool(c.attached),
            pending=bool(c.pending),
            chunk_tokens=c.chunk_tokens,
            layout_id=bytes(ffi.buffer(c.layout_id)),
            boot_id=bytes(ffi.buffer(c.boot_id)),
            reconnects=c.reconnects,
            host_bytes=c.host_bytes,
            last_error=ffi.string(c.last_error).decode(errors="replace"),
        )

    def wait_attached(self, timeout: float = 30.0) -> Status:
        """OK: the daemon answers and the layout is whole. PENDING: rows are missing still."""
        return checked(lib.kvt_wait_attached(self._handle(), int(timeout * 1e9)), "wait_attached")

    def is_mine(self, group: int, shard: int, boundary: int) -> bool:
        """Whether this rank is to store that object; boundaries count from 1."""
        return bool(lib.kvt_is_mine(self._handle(), group, shard, boundary))

    def match(
        self,
        digests: Any,
        prompt_tokens: int = 0,
        max_tokens: int = 0,
        *,
        usable: int = 0,
        state: bool = False,
        checkpoint: bool = False,
        bypass: bool = False,
    ) -> Match:
        """The longest usable prefix of a digest chain; a hint, and no system call.

        digests: buffer of n x 32 bytes, one a boundary, in order. max_tokens: 0 for no
        limit. usable: how many usable boundaries to list. state, checkpoint: fill in those
        members of the answer. bypass: find nothing, for a request that must see no cache.
        """
        data = ffi.from_buffer(digests)
        if len(data) % DIGEST_BYTES:
            raise ValueError(f"a digest has {DIGEST_BYTES} bytes")
        query = ffi.new("struct kvt_match_query *")
        query.size = ffi.sizeof("struct kvt_match_query")
        query.digests = ffi.cast("struct kvt_digest *", data)
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

    def _mark(self, submit: Any, digests: Any, flags: int, timeout: float) -> list[Status]:
        data = bytes(memoryview(digests))
        if len(data) % DIGEST_BYTES or not data:
            raise ValueError(f"a digest has {DIGEST_BYTES} bytes, and there must be one")
        objects = ffi.new("struct kvt_object[]", len(data) // DIGEST_BYTES)
        for i, c in enumerate(objects):
            c.digest.bytes = data[i * DIGEST_BYTES : (i + 1) * DIGEST_BYTES]
            c.flags = flags
        call = ffi.new("struct kvt_call *")
        call.size, call.flags = ffi.sizeof("struct kvt_call"), lib.KVT_CALL_WAITED
        call.timeout_ns = int(timeout * 1e9)
        number, done = ffi.new("uint64_t *"), ffi.new("struct kvt_completion *")
        status = checked(submit(self._handle(), call, objects, len(objects), number), "mark")
        if status is not Status.OK:
            return [status] * len(objects)
        # The call's own deadline ends it; this wait only has to be longer.
        checked(lib.kvt_wait_call(self._handle(), number[0], done, 2**63), "mark")
        return [Status(c.status) for c in objects]

    def reclaim(
        self, digests: Any, *, below: bool = False, prefix: bool = False, timeout: float = 30.0
    ) -> list[Status]:
        """Drops what is no longer wanted from every tier; a status for each boundary.

        digests: buffer of n x 32 bytes. below: all that hangs on a boundary. prefix: the
        boundary and what is above it, as far as nothing else needs it.
        """
        flags = (lib.KVT_RECLAIM_BELOW if below else 0) | (lib.KVT_RECLAIM_PREFIX if prefix else 0)
        if not flags:
            raise ValueError("below, prefix or both")
        return self._mark(lib.kvt_reclaim, digests, flags, timeout)

    def pin(self, digests: Any, *, timeout: float = 30.0) -> list[Status]:
        """Keeps boundaries and all above them from eviction until unpinned or closed."""
        return self._mark(lib.kvt_pin, digests, 0, timeout)

    def unpin(self, digests: Any, *, timeout: float = 30.0) -> list[Status]:
        """Ends pins of this session."""
        return self._mark(lib.kvt_unpin, digests, 0, timeout)

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
        flags = lib.KVT_CROPPABLE if croppable else 0
        flags |= lib.KVT_REPLACE if replace else 0
        blob = _Blob(tokens, identity, group, shard, flags, timeout)
        c = ffi.new("struct kvt_object *")
        status = checked(lib.kvt_blob_reserve(self._handle(), blob.c, nbytes, c), "reserve")
        return status, self._lease(c, True, timeout) if status is Status.OK else None

    def put(
        self,
        tokens: Tokens,
        data: Any,
        *,
        croppable: bool = False,
        replace: bool = False,
        identity: Identity = NO_IDENTITY,
        group: int = 0,
        shard: int = 0,
        timeout: float = 30.0,
    ) -> Status:
        """Stores a buffer as the blob of these tokens. OK or ALREADY_HAVE: it is stored."""
        flags = lib.KVT_CROPPABLE if croppable else 0
        flags |= lib.KVT_REPLACE if replace else 0
        blob = _Blob(tokens, identity, group, shard, flags, timeout)
        source = ffi.from_buffer(data)
        return checked(lib.kvt_blob_put(self._handle(), blob.c, source, len(source)), "put")

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
        self.tokens = token_buffer(tokens)
        self.identity = CIdentity(identity)
        self.c = ffi.new("struct kvt_blob *")
        self.c.size = ffi.sizeof("struct kvt_blob")
        self.c.identity = self.identity.c
        self.c.tokens, self.c.n_tokens = self.tokens, len(self.tokens)
        self.c.group, self.c.shard, self.c.flags = group, shard, flags
        self.c.timeout_ns = int(timeout * 1e9)
