# SPDX-License-Identifier: Apache-2.0
"""Counters and gauges on a Prometheus page, of the daemon or of the engine."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from prometheus_client.parser import text_string_to_metric_families

from .failure import EngineError
from .http import Http

#: Pages are read between measurements; as a whole no longer than this, in seconds.
TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Sample:
    name: str
    labels: dict[str, str]
    value: float


class Page:
    """What a page said at one time."""

    def __init__(self, text: str) -> None:
        try:
            self.samples = [
                Sample(one.name, dict(one.labels), float(one.value))
                for family in text_string_to_metric_families(text)
                for one in family.samples
            ]
        # The parser was made for pages that are right.
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as why:
            raise EngineError(f"no Prometheus page: {why}") from why

    def sum(self, name: str, **labels: str) -> Optional[float]:
        """Of all series of this name with these labels; None: there is none."""
        values = [
            one.value
            for one in self.samples
            if one.name == name and labels.items() <= one.labels.items()
        ]
        return sum(values) if values else None

    def labels(self, name: str) -> dict[str, str]:
        """Of the first series of this name."""
        return next((one.labels for one in self.samples if one.name == name), {})


class Counters:
    """Of the daemon: kvtierd's metrics port."""

    def __init__(self, url: str) -> None:
        base = url.removesuffix("/").removesuffix("/metrics")
        self._http = Http(base, connect_s=TIMEOUT_S, stall_s=TIMEOUT_S)

    def page(self, within_s: float = TIMEOUT_S) -> Page:
        """EngineError: nobody there, or another."""
        reply = self._http.read("GET", "/metrics", within_s)
        page = Page(reply.text) if reply.status == 200 else Page("")
        if page.sum("kvtier_uptime_seconds") is None:
            raise EngineError(f"{self._http.url}/metrics is no metrics page of kvtierd")
        return page

    def close(self) -> None:
        self._http.close()
