# SPDX-License-Identifier: Apache-2.0
"""What came of a load, counted as it comes: it takes no more room after days than after minutes.

A load is cut into slices, each of which stands in the state as JSON when it is done. Times of
answers are kept as histograms of each third of a slice, and some of them as points to be drawn.
`whole` puts slices together, as if there had been no cut.
"""
from __future__ import annotations

import random
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Optional

from .figures import Histogram, ratio, slope

THIRDS = 3
Slice = dict[str, Any]
#: When, in seconds since the slice began; to the first token; between tokens.
Point = tuple[float, float, float]


@dataclass
class Record:
    """Of one slice. May be used by several threads."""

    seconds: float  #: that it is to last
    points_max: int
    requests: int = 0
    tokens: int = 0
    ttfts: list[Histogram] = field(default_factory=lambda: [Histogram() for _ in range(THIRDS)])
    gaps: list[Histogram] = field(default_factory=lambda: [Histogram() for _ in range(THIRDS)])
    points: list[Point] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    texts: dict[str, str] = field(default_factory=dict)  #: the first of each kind
    dead: bool = False
    samples: list[dict[str, float]] = field(default_factory=list)  #: gauges at "s"
    lock: threading.Lock = field(default_factory=threading.Lock)
    choice: random.Random = field(default_factory=lambda: random.Random(0))

    def answer(self, age: float, ttft: float, gap: float, tokens: int) -> None:
        third = min(THIRDS - 1, int(THIRDS * age / self.seconds))
        with self.lock:
            self.requests += 1
            self.tokens += tokens
            self.ttfts[third].add(ttft)
            self.gaps[third].add(gap)
            self._keep((age, ttft, gap))

    def _keep(self, point: Point) -> None:
        """Each answer with the same chance."""
        if len(self.points) < self.points_max:
            self.points.append(point)
        elif (i := self.choice.randrange(self.requests)) < self.points_max:
            self.points[i] = point

    def error(self, kind: str, text: str) -> None:
        with self.lock:
            self.errors[kind] += 1
            self.texts.setdefault(kind, text)

    def slice(self, seconds: float) -> Slice:
        """As JSON has it. seconds: that it has lasted."""
        return {
            "seconds": seconds,
            "requests": self.requests,
            "tokens": self.tokens,
            "errors": dict(self.errors),
            "error_texts": self.texts,
            "dead": self.dead,
            "ttfts": [one.counts for one in self.ttfts],
            "gaps": [one.counts for one in self.gaps],
            "answers": [[round(x, 5) for x in point] for point in sorted(self.points)],
            "samples": self.samples,
        }


def whole(slices: list[Slice]) -> dict[str, Any]:
    """What they show together."""
    seconds = sum(one["seconds"] for one in slices)
    errors: Counter[str] = Counter()
    texts: dict[str, str] = {}
    for one in slices:
        errors.update(one["errors"])
        texts = {**one["error_texts"], **texts}
    requests, left = sum(one["requests"] for one in slices), [one["leases_left"] for one in slices]
    samples = _moved(slices)
    return {
        "slices": len(slices),
        "seconds": seconds,
        "concurrency": slices[0]["concurrency"],
        "requests": requests,
        "requests_per_s": requests / seconds,
        "output_tokens_per_s": sum(one["tokens"] for one in slices) / seconds,
        "errors": dict(errors),
        "error_texts": texts,
        "dead": any(one["dead"] for one in slices),
        "leases_left": None if None in left else sum(left),
        "ttft": _drift([Histogram(counts) for one in slices for counts in one["ttfts"]]),
        "gap": _drift([Histogram(counts) for one in slices for counts in one["gaps"]]),
        "memory": _memory(samples, seconds),
        "samples": samples,
        "answers": [
            [when + began, ttft, gap]
            for one, began in zip(slices, _begins(slices))
            for when, ttft, gap in one["answers"]
        ],
    }


def _begins(slices: list[Slice]) -> list[float]:
    return [sum(one["seconds"] for one in slices[:i]) for i in range(len(slices))]


def _moved(slices: list[Slice]) -> list[dict[str, float]]:
    """Samples by the time of the whole load."""
    return [
        {**sample, "s": sample["s"] + began}
        for one, began in zip(slices, _begins(slices))
        for sample in one["samples"]
    ]


def _drift(parts: list[Histogram]) -> dict[str, Any]:
    """p99 of the first and of the last third, in seconds, and how they compare."""
    n = len(parts) // THIRDS
    first, last = (Histogram.of(some).percentile(0.99) for some in (parts[:n], parts[-n:]))
    all = Histogram.of(parts)
    return {
        "p50_s": all.percentile(0.5),
        "p99_s": all.percentile(0.99),
        "p99_first_third_s": first,
        "p99_last_third_s": last,
        "drift": ratio(last, first),
    }


def _memory(samples: list[dict[str, float]], seconds: float) -> dict[str, Any]:
    """Of each gauge: bytes at the end, and bytes per hour in the second half."""
    memory = {}
    for name in dict.fromkeys(name for one in samples for name in one if name != "s"):
        points = [(one["s"], one[name]) for one in samples if name in one]
        late: Optional[float] = slope([point for point in points if point[0] >= seconds / 2])
        memory[name] = {
            "bytes": points[-1][1],
            "bytes_per_hour": None if late is None else late * 3600,
        }
    return memory
