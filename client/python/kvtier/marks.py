# SPDX-License-Identifier: Apache-2.0
"""What is no longer wanted, and what is to stay."""
from __future__ import annotations

from typing import Any

from ._native import lib
from .buffers import Digests, fill
from .calls import Calls
from .objects import Objects
from .status import Status


class Marks(Calls):
    """Each blocks until the daemon has answered; the GIL is free meanwhile."""

    def _mark(self, submit: Any, digests: Digests, flags: int, timeout: float) -> list[Status]:
        objects = Objects(digests)
        fill(objects.flags, flags)
        call = self._submit(submit, objects, 0, timeout, True)
        completion = call.wait()
        assert completion
        if not call.id:  # it was not submitted
            return [completion.status] * len(objects)
        return [Status(status) for status in objects.statuses]

    def reclaim(
        self, digests: Digests, *, below: bool = False, prefix: bool = False, timeout: float = 30.0
    ) -> list[Status]:
        """Drops what is no longer wanted from every tier; a status for each boundary.

        digests: n x 32 bytes. below: all that hangs on a boundary. prefix: the
        boundary and what is above it, as far as nothing else needs it.
        """
        flags = (lib.KVT_RECLAIM_BELOW if below else 0) | (lib.KVT_RECLAIM_PREFIX if prefix else 0)
        if not flags:
            raise ValueError("below, prefix or both")
        return self._mark(lib.kvt_reclaim, digests, flags, timeout)

    def pin(self, digests: Digests, *, timeout: float = 30.0) -> list[Status]:
        """Keeps boundaries and all above them from eviction until unpinned or closed."""
        return self._mark(lib.kvt_pin, digests, 0, timeout)

    def unpin(self, digests: Digests, *, timeout: float = 30.0) -> list[Status]:
        """Ends pins of this session."""
        return self._mark(lib.kvt_unpin, digests, 0, timeout)

