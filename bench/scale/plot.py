"""A curve as a picture: both axes logarithmic, a line for each tree, plain SVG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from xml.sax.saxutils import escape

_WIDTH: Final = 720
_HEIGHT: Final = 420
_LEFT: Final = 84
_RIGHT: Final = 24
_TOP: Final = 56
_BOTTOM: Final = 64
_COLOURS: Final = ("#1f6feb", "#b35900", "#2da44e", "#8250df")


@dataclass(frozen=True, slots=True)
class Line:
    name: str
    points: Mapping[int, float]


class _Axis:
    """Where a value lies between two pixels."""

    def __init__(self, least: float, most: float, begin: float, end: float) -> None:
        self._low, self._high = math.log10(least), math.log10(most)
        self._begin, self._end = begin, end

    def at(self, value: float) -> float:
        share = (math.log10(value) - self._low) / ((self._high - self._low) or 1)
        return self._begin + share * (self._end - self._begin)


def draw(title: str, across: str, up: str, lines: Sequence[Line]) -> str:
    """The picture. A line of exponent 1 is drawn, dashed, from where the first line begins."""
    sizes = sorted({size for line in lines for size in line.points})
    costs = [cost for line in lines for cost in line.points.values()]
    x = _Axis(sizes[0], sizes[-1], _LEFT, _WIDTH - _RIGHT)
    ticks = _ticks(min(costs), max(costs))
    y = _Axis(ticks[0], ticks[-1], _HEIGHT - _BOTTOM, _TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif"'
        ' font-size="12" fill="#24292f">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
        _text(_LEFT, 20, title, size=14),
        _text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 12, across, anchor="middle"),
        _text(_LEFT, 42, up),
    ]
    for tick in ticks:
        at = y.at(tick)
        parts.append(_stroke(_LEFT, at, _WIDTH - _RIGHT, at, "#d0d7de"))
        parts.append(_text(_LEFT - 8, at + 4, f"{tick:,g}", anchor="end"))
    below = _HEIGHT - _BOTTOM
    parts += [_stroke(x.at(size), below, x.at(size), below + 5, "#57606a") for size in sizes]
    parts += [_text(x.at(size), below + 20, f"{size:,}", anchor="middle") for size in _apart(sizes, x)]
    parts.append(_linear(lines[0], sizes[-1], ticks[-1], x, y))
    for number, line in enumerate(lines):
        colour = _COLOURS[number % len(_COLOURS)]
        points = sorted(line.points.items())
        path = " ".join(f"{x.at(size):.1f},{y.at(cost):.1f}" for size, cost in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [
            f'<circle cx="{x.at(size):.1f}" cy="{y.at(cost):.1f}" r="3" fill="{colour}"/>' for size, cost in points
        ]
        beside = _WIDTH - _RIGHT - 150
        parts.append(_stroke(beside - 26, 16 + 16 * number, beside - 6, 16 + 16 * number, colour, width=2))
        parts.append(_text(beside, 20 + 16 * number, line.name))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _linear(line: Line, last: int, most: float, x: _Axis, y: _Axis) -> str:
    first, cost = min(line.points.items())
    end = min(last, first * most / cost)
    return _stroke(x.at(first), y.at(cost), x.at(end), y.at(cost * end / first), "#8c959f", dashes="4 4")


def _ticks(least: float, most: float) -> list[float]:
    """1, 2, 5, 10, … from below the least to above the most."""
    power = math.floor(math.log10(least))
    steps = [factor * 10.0**one for one in range(power, math.ceil(math.log10(most)) + 2) for factor in (1, 2, 5)]
    low = max(step for step in steps if step <= least)
    high = min(step for step in steps if step > most)
    chosen = [step for step in steps if low <= step <= high]
    return chosen if len(chosen) <= 10 else [chosen[0], *(s for s in chosen[1:-1] if _is_power(s)), chosen[-1]]


def _is_power(value: float) -> bool:
    return math.isclose(math.log10(value), round(math.log10(value)))


def _apart(sizes: Sequence[int], x: _Axis) -> list[int]:
    """Those whose names do not run into each other; the largest always has its own."""
    named: list[int] = []
    for size in reversed(sizes):
        if not named or x.at(named[-1]) - x.at(size) >= 42:
            named.append(size)
    return named


def _text(x: float, y: float, text: str, *, anchor: str = "start", size: int = 12) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escape(text)}</text>'


def _stroke(x1: float, y1: float, x2: float, y2: float, colour: str, *, width: int = 1, dashes: str = "") -> str:
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="{colour}" stroke-width="{width}"{dashed}/>'
