# SPDX-License-Identifier: Apache-2.0
"""Arrays from whatever the caller has: buffers as they are, anything else copied once."""
from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any, Sequence, Union

from ._native import ffi

if TYPE_CHECKING:
    from typing_extensions import Buffer

DIGEST_BYTES = 32

INTEGERS = tuple("bBhHiIlLqQnN")

#: A buffer of n x 32 bytes, or a sequence of n times 32 bytes.
Digests = Union["Buffer", Sequence[bytes]]
#: One number for all, or one for each: a buffer of the very type (no copy) or an iterable.
Numbers = Union[int, "Buffer", Sequence[int]]


def pointer(c_type: str, view: memoryview) -> Any:
    """The address of a contiguous view. Whoever keeps the pointer keeps the view.

    A cffi buffer that is kept in its place is no such thing: Python 3.11 crashes when it
    finds one, made from a memoryview, in a cycle of garbage.
    """
    return ffi.cast(c_type, ffi.from_buffer(view))


def flat_bytes(buffer: "Buffer", writable: bool = False) -> memoryview:
    """A contiguous buffer as bytes. BufferError: it is not contiguous, or read-only."""
    view = memoryview(buffer)
    if not view.c_contiguous or (writable and view.readonly):
        raise BufferError("the buffer is read-only" if view.c_contiguous else "not contiguous")
    return view.cast("B") if view.nbytes else memoryview(b"")


def digest_bytes(digests: Digests) -> memoryview:
    """n x 32 bytes; ValueError for another length."""
    if isinstance(digests, (list, tuple)):
        digests = b"".join(digests)
    view = flat_bytes(digests)  # type: ignore[arg-type]
    if len(view) % DIGEST_BYTES:
        raise ValueError(f"a digest has {DIGEST_BYTES} bytes")
    return view


def number_view(numbers: Union["Buffer", Sequence[int]], kind: str) -> memoryview:
    """One contiguous dimension of `kind`, as in array(kind); a copy where it must be one.

    OverflowError: an integer out of range. TypeError: not integers.
    """
    try:
        view = memoryview(numbers)  # type: ignore[arg-type]
    except TypeError:
        return memoryview(array(kind, numbers))  # type: ignore[arg-type]
    if view.itemsize != array(kind).itemsize or view.format.lstrip("@=<") not in INTEGERS:
        return memoryview(array(kind, view.tolist()))
    # A negative number becomes one that is out of bounds.
    flat = flat_bytes(view if view.c_contiguous else view.tobytes())
    return flat.cast(kind)  # type: ignore[call-overload, no-any-return]


def fill(view: memoryview, numbers: Numbers) -> None:
    """Writes into a view, which may have gaps between its items."""
    kind: Any = view.format
    if isinstance(numbers, int):
        view[:] = memoryview(array(kind, [numbers]) * len(view))
        return
    source = number_view(numbers, kind)
    if len(source) != len(view):
        raise ValueError(f"{len(source)} numbers for {len(view)} objects")
    view[:] = source


def nanoseconds(timeout: float | None) -> int:
    """Of seconds; None: 0, which stands for no limit."""
    if timeout is None:
        return 0
    if timeout < 0:
        raise ValueError("a timeout is not negative")
    return max(1, int(timeout * 1e9))
