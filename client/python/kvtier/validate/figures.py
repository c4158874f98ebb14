# SPDX-License-Identifier: Apache-2.0
"""Figures of many measurements: percentiles and slopes."""
from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Optional


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


def ratio(one: Optional[float], other: Optional[float]) -> Optional[float]:
    return one / other if one is not None and other else None
