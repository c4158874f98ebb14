# SPDX-License-Identifier: Apache-2.0
"""What SGLang's own metrics page shows of its storage (`--enable-metrics`)."""
from __future__ import annotations

import threading
from typing import Optional

from sglang.srt.observability.metrics_collector import StorageMetrics

GB = 1e9


class Stats:
    """Pages and GB/s of the KV batches that were moved since the last take()."""

    def __init__(self, enabled: bool) -> None:
        self._enabled = enabled
        self._lock = threading.Lock()
        self._metrics = StorageMetrics()

    def loaded(self, n_pages: int, page_bytes: int, seconds: float) -> None:
        with self._lock:
            if self._enabled:
                self._metrics.prefetch_pgs.append(n_pages)
                self._metrics.prefetch_bandwidth.append(n_pages * page_bytes / GB / seconds)

    def stored(self, n_pages: int, page_bytes: int, seconds: float) -> None:
        with self._lock:
            if self._enabled:
                self._metrics.backup_pgs.append(n_pages)
                self._metrics.backup_bandwidth.append(n_pages * page_bytes / GB / seconds)

    def take(self) -> Optional[StorageMetrics]:
        with self._lock:
            taken, self._metrics = self._metrics, StorageMetrics()
        return taken if self._enabled else None
