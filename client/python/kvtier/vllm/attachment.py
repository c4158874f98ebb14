# SPDX-License-Identifier: Apache-2.0
"""Whether the daemon is there, for the scheduler's thread: logged once, shown as a metric."""
from __future__ import annotations

import logging
import time
from typing import Optional

from .. import Session
from . import metrics

logger = logging.getLogger("vllm.kvtier")

LOOK_S = 1.0


class Attachment:
    def __init__(self, session: Session, metrics: metrics.Metrics) -> None:
        self._session, self._metrics = session, metrics
        self._attached: Optional[bool] = None
        self._looked_at = 0.0
        self.look()

    def __bool__(self) -> bool:
        return bool(self._attached)

    def look(self) -> None:
        """Notices that the daemon has come or gone; at each step, or as often."""
        now = time.monotonic()
        if self._attached and now < self._looked_at + LOOK_S:
            return
        self._looked_at = now
        info = self._session.info()
        attached = info.attached and not info.pending
        if attached == self._attached:
            return
        if attached:
            logger.info("kvtier: attached, layout %s", info.layout_id.hex()[:16])
        elif not info.pending or self._attached:
            logger.warning(
                "kvtier: no daemon, nothing is stored or found: %s", info.last_error or "no answer"
            )
        self._attached = attached
        self._metrics.gauge(metrics.ATTACHED, attached)
