# SPDX-License-Identifier: Apache-2.0
"""The session itself, without what it can do."""
from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

from ._native import ffi, lib
from .buffers import nanoseconds
from .status import Status, checked


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
    lost_pins: int  #: boundaries whose pins the daemon did not take again after a reconnect
    last_error: str  #: why the last attempt to connect failed, which row was missing, or ""


class Handle:
    """A `struct kvt_session *` and what is known of it."""

    def __init__(self) -> None:
        self._session: Any = None
        self._has_gpus = False  #: by kvtier.cuda
        #: over what looks at them: they may be given up by another thread
        self._gpu_lock = threading.Lock()

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

    def fileno(self) -> int:
        """An eventfd: readable while `poll` has something to report. Don't read it.

        RuntimeError: in a forked child.
        """
        fd: int = lib.kvt_fd(self._handle())
        if fd < 0:
            checked(Status.FORKED, "fileno")
        return fd

    @property
    def c_session(self) -> Any:
        """The `struct kvt_session *`, for calls through `lib`; their completions are
        reported by `lib` alone: a session whose `poll` is used drops them."""
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
            lost_pins=c.lost_pins,
            last_error=ffi.string(c.last_error).decode(errors="replace"),
        )

    def wait_attached(self, timeout: float = 30.0) -> Status:
        """OK: the daemon answers and the layout is whole. PENDING: rows are missing still."""
        return checked(lib.kvt_wait_attached(self._handle(), nanoseconds(timeout)), "wait_attached")

    def tell(
        self,
        *,
        prompts: int = 0,
        prompt_tokens: int = 0,
        tail_tokens: int = 0,
        kv_tokens: int = 0,
        hit_tokens: int = 0,
        batch_tokens: int = 0,
    ) -> None:
        """What only the engine knows, for `kvtierctl doctor` and metrics; nothing depends on it.

        Counts are added to those told before. prompts: looked for here, each once.
        prompt_tokens: of these, without what the engine has in its own cache; and of those
        tail_tokens: behind the last whole chunk; kv_tokens: whose KV was here; hit_tokens: that
        could be used. batch_tokens: the most that the engine computes in a step, 0: as before.
        """
        c = ffi.new("struct kvt_told *")
        c.size = ffi.sizeof("struct kvt_told")
        c.prompts, c.prompt_tokens, c.tail_tokens = prompts, prompt_tokens, tail_tokens
        c.kv_tokens, c.hit_tokens, c.batch_tokens = kv_tokens, hit_tokens, batch_tokens
        status = Status(lib.kvt_tell(self._handle(), c))
        if status is Status.INVALID:
            raise ValueError("no count of tokens is more than prompt_tokens")
        checked(status, "tell")

    def is_mine(self, group: int, shard: int, boundary: int) -> bool:
        """Whether this rank is to store that object; boundaries count from 1."""
        return bool(lib.kvt_is_mine(self._handle(), group, shard, boundary))
