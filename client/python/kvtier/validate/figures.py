# SPDX-License-Identifier: Apache-2.0
"""Figures of many measurements: percentiles and slopes."""
from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Optional

#: Of a histogram's buckets, each to the one before.
WIDTH = 1.02


def percentile(values: Sequence[float], share: float) -> Optional[float]:
    """The smallest value that `share` (0 to 1) of them do not exceed; None of none."""
    ordered = sorted(values)
    if not ordered:
        return None
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]


def median(values: Sequence[float]) -> Optional[float]:
    return statistics.median(values) if values else None


def slope(points: Sequence[tuple[float, float]]) -> Optional[float]:
    """Of a line through (x, y) by least squares; None: too few."""
    if len({x for x, _ in points}) < 2:
        return None
    xs, ys = zip(*points)
    return statistics.linear_regression(xs, ys).slope


class Histogram:
    """Of how many values are about as large: percentiles are right to a hundredth."""

    def __init__(self, counts: Optional[dict[str, int]] = None) -> None:
        #: By the number of the bucket, which JSON has as text; "": of what is not above 0.
        self.counts = counts if counts is not None else {}

    @classmethod
    def of(cls, parts: Iterable[Histogram]) -> Histogram:
        whole = cls()
        for part in parts:
            for bucket, n in part.counts.items():
                whole.counts[bucket] = whole.counts.get(bucket, 0) + n
        return whole

    def add(self, value: float) -> None:
        bucket = str(round(math.log(value, WIDTH))) if value > 0.0 else ""
        self.counts[bucket] = self.counts.get(bucket, 0) + 1

    def percentile(self, share: float) -> Optional[float]:
        """As of a sequence."""
        missing = math.ceil(share * sum(self.counts.values()))
        values = sorted((WIDTH ** int(b) if b else 0.0, n) for b, n in self.counts.items())
        for value, n in values:
            missing -= n
            if missing <= 0:
                return value
        return None


def ratio(one: Optional[float], other: Optional[float]) -> Optional[float]:
    return one / other if one is not None and other else None
