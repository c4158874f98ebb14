# SPDX-License-Identifier: Apache-2.0
"""Whether the daemon is there, for an engine that goes on without it: logged once each time."""
from __future__ import annotations

import logging
import time
from typing import Callable, Optional

from .session import Session

LOOK_S = 1.0


class Attachment:
    """True while the daemon answers and knows the whole layout; `changed` is told."""

    def __init__(
        self,
        session: Session,
        logger: logging.Logger,
        changed: Callable[[bool], None] = lambda _: None,
    ) -> None:
        self._session, self._logger, self._changed = session, logger, changed
        self._attached: Optional[bool] = None
        self._looked_at = 0.0
        self.look()

    def __bool__(self) -> bool:
        return bool(self._attached)

    def look(self) -> None:
        """Notices that the daemon has come or gone; at each step or call, or as often."""
        now = time.monotonic()
        if self._attached and now < self._looked_at + LOOK_S:
            return
        self._looked_at = now
        info = self._session.info()
        attached = info.attached and not info.pending
        if attached == self._attached:
            return
        if attached:
            self._logger.info("kvtier: attached, layout %s", info.layout_id.hex()[:16])
        elif not info.pending or self._attached:
            self._logger.warning(
                "kvtier: no daemon, nothing is stored or found: %s", info.last_error or "no answer"
            )
        self._attached = attached
        self._changed(attached)
