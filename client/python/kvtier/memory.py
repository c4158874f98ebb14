# SPDX-License-Identifier: Apache-2.0
"""Views of the daemon's memory that cannot outlive the lease they are of."""
from __future__ import annotations

import threading
import weakref
from typing import Any

from ._native import ffi


class LeasedMemory:
    """The segments of one leased object.

    Each view comes from an exporter, one a segment, that nobody but the views keeps alive:
    while somebody holds one, or a slice or a foreign object made from it, the exporter
    lives, `check_unused` raises, and the lease must not end.
    """

    def __init__(self, c: Any, writable: bool) -> None:
        self.writable = writable
        self.nbytes: int = c.bytes
        runs = [c.segments[i] for i in range(c.n_segments)]
        self._runs = [(run.address, run.bytes) for run in runs]
        self._exporters: list[weakref.ref[Any] | None] = [None] * len(runs)
        self._lock = threading.Lock()  # two exporters of a segment would be one too many

    @property
    def segments(self) -> list[memoryview]:
        """The runs of memory in order, each a flat view of bytes."""
        with self._lock:
            views = [memoryview(self._exporter(i)) for i in range(len(self._runs))]
        return views if self.writable else [view.toreadonly() for view in views]

    def _exporter(self, i: int) -> Any:
        known = self._exporters[i]
        exporter = known() if known else None
        if exporter is None:
            exporter = ffi.buffer(*self._runs[i])
            self._exporters[i] = weakref.ref(exporter)
        return exporter

    @property
    def contiguous(self) -> bool:
        return len(self._runs) == 1

    @property
    def view(self) -> memoryview:
        """All of it as one flat view. BufferError when it is in several segments."""
        self._check_contiguous()
        return self.segments[0]

    @property
    def address(self) -> int:
        self._check_contiguous()
        return int(ffi.cast("uintptr_t", self._runs[0][0]))

    def _check_contiguous(self) -> None:
        if not self.contiguous:
            raise BufferError(f"the object lies in {len(self._runs)} segments")

    def check_unused(self, what: str) -> None:
        """BufferError while a view is alive."""
        with self._lock:
            if any(known and known() is not None for known in self._exporters):
                raise BufferError(f"{what}: views of the leased memory are still alive")
