# SPDX-License-Identifier: Apache-2.0
"""One engine process attached to one layout."""
from __future__ import annotations

from typing import Any, Optional, Sequence

from ._native import ffi, lib
from .blobs import Blobs
from .layout import CLayout, Layout
from .marks import Marks
from .matching import Matching
from .pages import Pages


class Session(Blobs, Matching, Marks, Pages):
    """One engine process attached to one layout in a running kvtierd.

    layout: what the bytes mean. socket: None for the default. program: shown by
    `kvtierctl sessions`. engine_id: 16 bytes shared by the processes of one engine, None
    for a random one. shards: those on this node, None for all. connect_timeout: seconds to
    wait for the daemon; when it does not come the session exists all the same, everything
    misses, and it goes on trying. partial_layout: the rows of other shards are told by other
    processes of the engine; everything misses until all are known (see `wait_attached`).
    rank, n_ranks: of this process on this node, for `is_mine`. loads, stores: False for runs
    that must be reproducible: nothing that is stored is seen, or nothing is stored.

    With the daemon of another node (socket: rdma://HOST:PORT) `find_boundaries` asks what it has
    before `match` shows it. secret: the file that holds the domain's, None for what KVTIER_SECRET in
    the environment names, or /etc/kvtier/secret. buffer_bytes: of leases, 0 for 256 MiB.

    ValueError: the layout is wrong. SessionError: the daemon refuses. All methods may be
    called from any thread; `close` last. In a forked child they raise RuntimeError; open
    another session there.
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
        secret: Optional[str] = None,
        buffer_bytes: int = 0,
    ) -> None:
        super().__init__()
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
        options.secret = new("char[]", secret and secret.encode())
        options.buffer_bytes = buffer_bytes
        self._open(options)

    def close(self) -> None:
        """Ends all calls and leases, and the session.

        Calls in flight are CANCELLED. BufferError while views of leased memory are alive.
        """
        for lease in list(self._leases):
            lease.__exit__()
        for memory in self._memories.values():
            memory.check_unused("close")
        self._memories.clear()
        session = self._session
        if session is not None and lib.kvt_fd(session) < 0:
            # A forked child: calls and lock are of threads that are not here.
            self._session = None
            lib.kvt_close(session)
            return
        with self._gpu_lock:
            with self._lock:
                session, self._session = self._session, None
            if session is not None:
                lib.kvt_close(session)
        if session is not None:
            self._end_calls()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        # Without a close() leases may still be in use: then the memory stays as it is.
        if getattr(self, "_session", None) is not None and not self._leases | self._memories.keys():
            self.close()
