# SPDX-License-Identifier: Apache-2.0
"""Line charts as SVG, to stand in an HTML page: no fonts, scripts or files beside it."""
from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape

WIDTH, HEIGHT, LEFT, RIGHT, BOTTOM, TOP = 640, 280, 70, 606, 40, 50
COLORS = ("#1f6fb2", "#c4472b", "#3a8a4d", "#8459a6")
APART = 55  # of two numbers below the x axis, at least

Points = Sequence[tuple[float, float]]
Scale = Callable[[float], float]


def chart(title: str, lines: Mapping[str, Points], x: str, y: str, log_x: bool = False) -> str:
    """x, y: what the axes are, with units. log_x: numbers stand where points do. "": nothing to
    draw."""
    lines = {name: sorted(points) for name, points in lines.items() if points}
    if not lines:
        return ""
    xs = sorted({point[0] for points in lines.values() for point in points})
    highs = _ticks(max(0.0, *(point[1] for points in lines.values() for point in points)))
    across = _scale(xs[0], xs[-1], LEFT, RIGHT, log_x)
    up = _scale(0.0, highs[-1], HEIGHT - BOTTOM, TOP, False)
    below = xs if log_x else [value for value in _ticks(xs[-1]) if xs[0] <= value <= xs[-1]]
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">',
        f'<text x="{LEFT}" y="16" class="title">{escape(title)}, {escape(y)}</text>',
        *_axes(below, highs, across, up, x),
        *_legend(lines),
    ]
    for color, points in zip(_colors(lines), lines.values()):
        parts += _line(color, points, across, up)
    return "\n".join([*parts, "</svg>"])


def _ticks(high: float) -> list[float]:
    """Round numbers from 0 up to the first that is not below high."""
    rough = (high if high > 0 else 1.0) / 4
    unit = 10.0 ** math.floor(math.log10(rough))
    step = unit * next(n for n in (1, 2, 2.5, 5, 10) if n * unit >= rough * (1 - 1e-9))
    return [i * step for i in range(max(1, math.ceil(high / step * (1 - 1e-9))) + 1)]


def _number(value: float) -> str:
    """Without exponent: 20,000; 0.0002."""
    text = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.10f}".rstrip("0").rstrip(".")
    return text or "0"


def _scale(low: float, high: float, begin: float, end: float, log: bool) -> Scale:
    if log:
        inner = _scale(math.log(max(low, 1e-9)), math.log(max(high, 1e-9)), begin, end, False)
        return lambda value: inner(math.log(max(value, 1e-9)))
    span = high - low or 1.0
    return lambda value: begin + (value - low) / span * (end - begin)


def _axes(below: Sequence[float], highs: Sequence[float], across: Scale, up: Scale,
          x: str) -> list[str]:
    floor = HEIGHT - BOTTOM
    parts = [
        f'<path d="M{LEFT} {TOP}V{floor}H{RIGHT}" class="axis"/>',
        f'<text x="{RIGHT}" y="{HEIGHT - 6}" text-anchor="end">{escape(x)}</text>',
    ]
    for value in highs:
        at = up(value)
        parts.append(f'<path d="M{LEFT} {at:.1f}H{RIGHT}" class="grid"/>')
        parts.append(
            f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{_number(value)}</text>'
        )
    last = -math.inf
    for value in below:
        at = across(value)
        if at - last < APART:
            continue
        last = at
        parts.append(
            f'<text x="{at:.1f}" y="{floor + 16}" text-anchor="middle">{_number(value)}</text>'
        )
    return parts


def _colors(lines: Mapping[str, Points]) -> list[str]:
    return [COLORS[i % len(COLORS)] for i in range(len(lines))]


def _legend(lines: Mapping[str, Points]) -> list[str]:
    """Below the title, from the left."""
    parts, at = [], LEFT
    for color, name in zip(_colors(lines), lines):
        parts += [
            f'<rect x="{at}" y="27" width="10" height="10" fill="{color}"/>',
            f'<text x="{at + 14}" y="36">{escape(name)}</text>',
        ]
        at += 34 + 7 * len(name)
    return parts


def _line(color: str, points: Points, across: Scale, up: Scale) -> list[str]:
    places = [(across(a), up(b)) for a, b in points]
    path = "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in places)
    marks = places if len(places) <= 40 else []
    return [
        f'<path d="{path}" fill="none" stroke="{color}" stroke-width="2"/>',
        *(f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="{color}"/>' for a, b in marks),
    ]
