# SPDX-License-Identifier: Apache-2.0
"""Outcomes of calls and objects, numbered as in kvtier.h."""
import enum

from ._native import ffi, lib


class Status(enum.IntEnum):
    OK = 0
    ALREADY_HAVE = 1
    MISS = 2
    PENDING = 3
    BUSY = 4
    TOO_LARGE = 5
    REFUSED = 6
    STALE = 7
    GONE = 8
    UNAVAILABLE = 9
    TIMEOUT = 10
    CANCELLED = 11
    UNSUPPORTED = 12
    INVALID = 13
    CORRUPT = 14
    DENIED = 15
    IO_ERROR = 16
    NO_MEMORY = 17
    FORKED = 18
    DRAINING = 19

    @property
    def text(self) -> str:
        """The status in words, as the daemon and kvtierctl say it."""
        text: str = ffi.string(lib.kvt_status_text(int(self))).decode()
        return text


#: Of a store: these bytes, or another writer's, are there.
STORED = (Status.OK, Status.ALREADY_HAVE)


def checked(number: int, what: str) -> Status:
    """The status of a call; raises where the caller made a mistake."""
    status = Status(number)
    if status is Status.INVALID:
        raise ValueError(f"{what}: {status.text}")
    if status is Status.FORKED:
        raise RuntimeError(f"{what}: {status.text}; open a session in the child")
    if status is Status.NO_MEMORY:
        raise MemoryError(what)
    return status
