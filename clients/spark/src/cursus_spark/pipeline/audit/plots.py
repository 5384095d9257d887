"""Drawings for the report, as SVG within the page: bars over time, and bars over classes. They take their colours from
the page.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from typing import Final

_WIDTH: Final = 960
_LEFT: Final = 64
_RIGHT: Final = 12


def short(number: float) -> str:
    """A number that fits beside an axis.

    >>> short(950), short(1_200), short(3_000_000)
    ('950', '1.2k', '3M')
    """
    for unit, least in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= least:
            return f"{number / least:.3g}{unit}"
    return f"{number:.3g}"


def clock(time_ms: float, span_ms: float) -> str:
    """A time as finely as a span of time needs it, in UTC."""
    form = "%Y-%m-%d" if span_ms > 4 * 86_400_000 else "%m-%d %H:%M" if span_ms > 86_400_000 else "%H:%M:%S"
    text = datetime.fromtimestamp(time_ms / 1_000, UTC).strftime(form)
    return f"{text}.{int(time_ms) % 1_000:03}" if span_ms < 10_000 else text


def over_time(title: str, counts: Sequence[int], highest: int, start_ms: int, step_ms: int, *, axis: bool) -> str:
    """Bars of one partition. `highest` is the scale, the same for all of them; with `axis` the times stand below."""
    height = 44
    foot = 20 if axis else 4
    inner = _WIDTH - _LEFT - _RIGHT
    step = inner / max(1, len(counts))
    span_ms = step_ms * len(counts)
    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {height + foot}" role="img" aria-label="{escape(title)}: records over time">',
        f'<text class="label" x="{_LEFT - 10}" y="{height / 2 + 4}" text-anchor="end">{escape(title)}</text>',
        f'<line class="axis" x1="{_LEFT}" y1="{height}" x2="{_WIDTH - _RIGHT}" y2="{height}"/>',
    ]
    for number, count in enumerate(counts):
        if count:
            tall = max(1.0, (height - 6) * count / max(1, highest))
            begin = clock(start_ms + number * step_ms, span_ms)
            parts.append(
                f'<rect class="bar" x="{_LEFT + number * step:.1f}" y="{height - tall:.1f}"'
                f' width="{max(0.6, step - 0.8):.1f}" height="{tall:.1f}"><title>{count:,} from {begin}</title></rect>'
            )
    if axis:
        for tick in range(5):
            x = _LEFT + inner * tick / 4
            anchor = ("start", "middle", "middle", "middle", "end")[tick]
            text = clock(start_ms + span_ms * tick / 4, span_ms)
            parts.append(f'<text class="tick" x="{x:.1f}" y="{height + 15}" text-anchor="{anchor}">{text}</text>')
    parts.append("</svg>")
    return "".join(parts)


def over_classes(name: str, labels: Sequence[str], counts: Sequence[int]) -> str:
    """A bar for every class, with its share below its count."""
    width, height, foot, head = 470, 150, 34, 18
    inner = width - 16
    step = inner / len(labels)
    highest = max(1, *counts)
    parts = [
        f'<svg viewBox="0 0 {width} {head + height + foot}" role="img" aria-label="{escape(name)}">',
        f'<line class="axis" x1="8" y1="{head + height}" x2="{width - 8}" y2="{head + height}"/>',
    ]
    for number, (label, count) in enumerate(zip(labels, counts, strict=True)):
        tall = max(1.5, height * count / highest) if count else 0
        middle = 8 + step * (number + 0.5)
        top = head + height - tall
        if count:
            parts.append(
                f'<rect class="bar" x="{8 + step * number + 3:.1f}" y="{top:.1f}" width="{step - 6:.1f}"'
                f' height="{tall:.1f}"><title>{count:,} records</title></rect>'
                f'<text class="count" x="{middle:.1f}" y="{top - 5:.1f}" text-anchor="middle">{short(count)}</text>'
            )
        parts.append(
            f'<text class="tick" x="{middle:.1f}" y="{head + height + 15}" text-anchor="middle">{escape(label)}</text>'
        )
    parts.append("</svg>")
    return "".join(parts)
