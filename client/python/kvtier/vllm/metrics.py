# SPDX-License-Identifier: Apache-2.0
"""What vLLM's own Prometheus page shows of kvtier, beside vLLM's `kv_offload` figures."""
from __future__ import annotations

from typing import Optional

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import (
    OffloadingConnectorStats,
)
from vllm.v1.kv_offload.base import (
    OffloadingCounterMetadata,
    OffloadingGaugeMetadata,
    OffloadingMetricMetadata,
)

ATTACHED = "vllm:kvtier_attached"
ACQUIRES = "vllm:kvtier_acquires"
PREFETCHES = "vllm:kvtier_prefetches"
LOADS_FAILED = "vllm:kvtier_loads_failed"
KEYS_LOADED = "vllm:kvtier_keys_loaded"
KEYS_OFFERED = "vllm:kvtier_keys_offered"
KEYS_STORED_ALREADY = "vllm:kvtier_keys_stored_already"

DEFINITIONS: dict[str, OffloadingMetricMetadata] = {
    ATTACHED: OffloadingGaugeMetadata("1 while kvtierd answers and knows the whole layout."),
    ACQUIRES: OffloadingCounterMetadata(
        "Acquires of the scheduler, by what came of them.", labelnames=("status",)
    ),
    PREFETCHES: OffloadingCounterMetadata(
        "Requests whose prompts were asked of a peer, by what came of it.", labelnames=("status",)
    ),
    LOADS_FAILED: OffloadingCounterMetadata("Loads that failed; their requests were recomputed."),
    KEYS_LOADED: OffloadingCounterMetadata("Keys that workers were told to load."),
    KEYS_OFFERED: OffloadingCounterMetadata("Keys that vLLM wanted to store."),
    KEYS_STORED_ALREADY: OffloadingCounterMetadata(
        "Of these, keys that were stored or being stored already."
    ),
}


class Metrics:
    """Counts since the last take()."""

    def __init__(self) -> None:
        self._stats = OffloadingConnectorStats()

    def count(self, name: str, n: int = 1, *labels: str) -> None:
        if n:
            self._stats.increase_counter(name, n, labels)

    def gauge(self, name: str, value: float) -> None:
        self._stats.set_gauge(name, value)

    def take(self) -> Optional[OffloadingConnectorStats]:
        stats, self._stats = self._stats, OffloadingConnectorStats()
        return None if stats.is_empty() else stats
