# SPDX-License-Identifier: Apache-2.0
"""A blob's bytes in the daemon's memory, for as long as they are leased."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

from ._native import ffi, lib
from .buffers import flat_bytes, nanoseconds, pointer
from .memory import LeasedMemory
from .status import Status, checked

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from .blobs import Blobs


class Lease:
    """A right to read a stored blob, or to write a reserved one.

    The memory views below are the shared memory itself. They are valid until the lease
    ends, and so it cannot end while one is alive: `release`, `commit` and `abort` then
    raise BufferError. As a context manager, a read lease is released at the end and a write
    lease that was not committed is aborted. Not for use by two threads at once.
    """

    def __init__(self, session: Blobs, c: Any, writable: bool, timeout: float) -> None:
        self._session = session
        self._c: Optional[Any] = c
        self._timeout_ns = nanoseconds(timeout)
        self.writable = writable
        #: length of the whole blob
        self.nbytes: int = c.bytes
        #: of a read lease: the daemon's run that took the blob, and the wall clock then
        self.writer_boot_id: bytes = bytes(ffi.buffer(c.writer_boot_id))
        self.stored_ns: int = c.stored_ns
        self._memory: Optional[LeasedMemory] = LeasedMemory(c, writable)

    @property
    def segments(self) -> list[memoryview]:
        """The blob's runs of memory in order, each a flat view of bytes."""
        return self._leased().segments

    @property
    def contiguous(self) -> bool:
        """True when the blob is one run of memory: `view` and `address` exist."""
        return self._memory is not None and self._memory.contiguous

    @property
    def view(self) -> memoryview:
        """The blob as one flat view. BufferError when it is in several segments."""
        return self._leased().view

    @property
    def address(self) -> int:
        """Where the blob begins, for ctypes and engines. Must not be used after the end."""
        return self._leased().address

    def read_into(self, buffer: Buffer, offset: int = 0) -> int:
        """Copies from byte `offset` of the blob into a writable buffer; returns how many."""
        target = flat_bytes(buffer, writable=True)
        length = max(0, min(len(target), self.nbytes - offset))
        c_target = pointer("void *", target)
        checked(lib.kvt_read(self._object(), offset, c_target, length), "read_into")
        return length

    def write(self, data: Buffer, offset: int = 0) -> None:
        """Copies a buffer to byte `offset` of a reserved blob."""
        if not self.writable:
            raise TypeError("a read lease cannot be written")
        source = flat_bytes(data)
        c_source = pointer("void *", source)
        checked(lib.kvt_write(self._object(), offset, c_source, len(source)), "write")

    def commit(self) -> Status:
        """Publishes a written blob and ends the lease.

        OK; ALREADY_HAVE: another writer was first; anything else: nothing is stored.
        """
        if not self.writable:
            raise TypeError("only a reserved blob can be committed")
        return self._end(lib.kvt_blob_commit, "commit")

    def abort(self) -> Status:
        """Gives a reserved blob's room back unwritten and ends the lease."""
        if not self.writable:
            raise TypeError("a read lease is released")
        return self._end(lib.kvt_blob_abort, "abort")

    def release(self) -> Status:
        """Ends a read lease. The caller has finished copying."""
        if self.writable:
            raise TypeError("a reserved blob is committed or aborted")
        return self._end(lambda session, c, _: lib.kvt_blob_release(session, c), "release")

    @property
    def ended(self) -> bool:
        return self._c is None

    def _object(self) -> Any:
        if self._c is None:
            raise ValueError("the lease has ended")
        return self._c

    def _leased(self) -> LeasedMemory:
        if self._memory is None:
            raise ValueError("the lease has ended")
        return self._memory

    def _end(self, call: Any, what: str) -> Status:
        c = self._object()
        self._leased().check_unused(what)
        self._c = self._memory = None
        self._session._leases.discard(self)
        return checked(call(self._session._handle(), c, self._timeout_ns), what)

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_: object) -> None:
        if self.ended:
            return
        if self.writable:
            self.abort()
        else:
            self.release()
