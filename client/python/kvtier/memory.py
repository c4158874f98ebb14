# SPDX-License-Identifier: Apache-2.0
"""Views of the daemon's memory that cannot outlive the lease they are of."""
from __future__ import annotations

import sys
from typing import Any

from ._native import ffi


class LeasedMemory:
    """The segments of one leased object.

    All views come from buffers that are kept here; while somebody holds one, or a slice or
    a foreign object made from it, `check_unused` raises, and the lease must not end.
    """

    def __init__(self, c: Any, writable: bool) -> None:
        self.writable = writable
        self.nbytes: int = c.bytes
        self._buffers = [
            ffi.buffer(c.segments[i].address, c.segments[i].bytes) for i in range(c.n_segments)
        ]
        self._address = int(ffi.cast("uintptr_t", c.segments[0].address)) if self._buffers else 0

    @property
    def segments(self) -> list[memoryview]:
        """The runs of memory in order, each a flat view of bytes."""
        views = [memoryview(buffer) for buffer in self._buffers]
        return views if self.writable else [view.toreadonly() for view in views]

    @property
    def contiguous(self) -> bool:
        return len(self._buffers) == 1

    @property
    def view(self) -> memoryview:
        """All of it as one flat view. BufferError when it is in several segments."""
        self._check_contiguous()
        return self.segments[0]

    @property
    def address(self) -> int:
        self._check_contiguous()
        return self._address

    def _check_contiguous(self) -> None:
        if not self.contiguous:
            raise BufferError(f"the object lies in {len(self._buffers)} segments")

    def check_unused(self, what: str) -> None:
        """BufferError while a view is alive."""
        # The list and getrefcount's argument hold one reference each, a live view another.
        if any(sys.getrefcount(self._buffers[i]) > 2 for i in range(len(self._buffers))):
            raise BufferError(f"{what}: views of the leased memory are still alive")
