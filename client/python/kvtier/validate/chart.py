# SPDX-License-Identifier: Apache-2.0
"""Line charts as SVG, to stand in an HTML page: no fonts, scripts or files beside it."""
from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 640, 260, 70, 40, 28
COLORS = ("#1f6fb2", "#c4472b", "#3a8a4d", "#8459a6")
TICKS = 4

Points = Sequence[tuple[float, float]]
Scale = Callable[[float], float]


def chart(title: str, lines: Mapping[str, Points], x: str, y: str, log_x: bool = False) -> str:
    """x, y: what the axes are, with units. "": nothing to draw."""
    lines = {name: sorted(points) for name, points in lines.items() if points}
    if not lines:
        return ""
    xs = [point[0] for points in lines.values() for point in points]
    top = max(point[1] for points in lines.values() for point in points) or 1.0
    across = _scale(min(xs), max(xs), LEFT, WIDTH - 12, log_x)
    up = _scale(0.0, top, HEIGHT - BOTTOM, TOP, False)
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">',
        f'<text x="{LEFT}" y="16" class="title">{escape(title)}</text>',
        *_axes(sorted(set(xs)), top, across, up, x, y),
    ]
    for i, (name, points) in enumerate(lines.items()):
        parts += _line(name, points, across, up, i)
    return "\n".join([*parts, "</svg>"])


def _scale(low: float, high: float, begin: float, end: float, log: bool) -> Scale:
    if log:
        inner = _scale(math.log(max(low, 1e-9)), math.log(max(high, 1e-9)), begin, end, False)
        return lambda value: inner(math.log(max(value, 1e-9)))
    span = high - low or 1.0
    return lambda value: begin + (value - low) / span * (end - begin)


def _axes(xs: list[float], top: float, across: Scale, up: Scale, x: str, y: str) -> list[str]:
    floor = HEIGHT - BOTTOM
    parts = [
        f'<path d="M{LEFT} {TOP}V{floor}H{WIDTH - 12}" class="axis"/>',
        f'<text x="{WIDTH - 12}" y="{HEIGHT - 6}" text-anchor="end">{escape(x)}</text>',
        f'<text x="4" y="16">{escape(y)}</text>',
    ]
    for i in range(TICKS + 1):
        value = top * i / TICKS
        at = up(value)
        parts.append(f'<path d="M{LEFT} {at:.1f}H{WIDTH - 12}" class="grid"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{value:.3g}</text>')
    step = max(1, len(xs) // 8)
    for value in xs[::step]:
        at = across(value)
        parts.append(
            f'<text x="{at:.1f}" y="{floor + 16}" text-anchor="middle">{value:.6g}</text>'
        )
    return parts


def _line(name: str, points: Points, across: Scale, up: Scale, number: int) -> list[str]:
    color = COLORS[number % len(COLORS)]
    places = [(across(a), up(b)) for a, b in points]
    path = "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in places)
    key = WIDTH - 12 - 150 * (number + 1)
    marks = places if len(places) <= 40 else []
    return [
        f'<path d="{path}" fill="none" stroke="{color}" stroke-width="2"/>',
        *(f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="{color}"/>' for a, b in marks),
        f'<rect x="{key}" y="7" width="10" height="10" fill="{color}"/>',
        f'<text x="{key + 14}" y="16">{escape(name)}</text>',
    ]
