"""Numbers of a benchmark: percentiles and a histogram with bars."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

PERCENTILES: Final = (50.0, 90.0, 99.0, 99.9)
_BAR: Final = 40


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The smallest value that at least `percent` of all are not above. `ordered` is sorted and not empty.

    >>> percentile([1, 2, 3, 4], 50), percentile([1, 2, 3, 4], 99)
    (2, 4)
    """
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def histogram(values: Sequence[float]) -> list[tuple[float, float, int]]:
    """How many values lie in `[low, high)`, where each bucket is twice as wide as the one before. From the first bucket
    that holds any to the last.

    >>> histogram([1.0, 1.5, 3.0])
    [(1.0, 2.0, 2), (2.0, 4.0, 1)]
    """
    counts: dict[int, int] = {}
    for value in values:
        exponent = math.floor(math.log2(value)) if value > 0 else -20
        counts[exponent] = counts.get(exponent, 0) + 1
    if not counts:
        return []
    return [(2.0**at, 2.0 ** (at + 1), counts.get(at, 0)) for at in range(min(counts), max(counts) + 1)]


def summary(values_ms: Sequence[float]) -> dict[str, object]:
    """What JSON output says of some latencies in milliseconds."""
    ordered = sorted(values_ms)
    if not ordered:
        return {"count": 0}
    return {
        "count": len(ordered),
        "mean_ms": round(sum(ordered) / len(ordered), 4),
        **{f"p{percent:g}_ms": round(percentile(ordered, percent), 4) for percent in PERCENTILES},
        "max_ms": round(ordered[-1], 4),
        "histogram": [{"from_ms": low, "to_ms": high, "count": count} for low, high, count in histogram(ordered)],
    }


def report(values_ms: Sequence[float], what: str) -> list[str]:
    """The same for people, a line each."""
    ordered = sorted(values_ms)
    if not ordered:
        return [f"{what}: nothing was measured"]
    numbers = "  ".join(f"p{percent:g} {millis(percentile(ordered, percent))}" for percent in PERCENTILES)
    lines = [f"{what}: {numbers}  max {millis(ordered[-1])}  ({len(ordered):,} samples)"]
    buckets = histogram(ordered)
    most = max(count for _, _, count in buckets)
    for low, high, count in buckets:
        bar = "█" * round(count * _BAR / most) or ("▏" if count else "")
        lines.append(f"  {millis(low):>9} - {millis(high):<9} {count:>9,}  {bar}".rstrip())
    return lines


def millis(value: float) -> str:
    """A latency with a unit that suits it.

    >>> millis(0.25), millis(3.14159), millis(2500)
    ('250 us', '3.14 ms', '2.50 s')
    """
    if value < 1:
        return f"{value * 1000:.0f} us"
    return f"{value:.2f} ms" if value < 1000 else f"{value / 1000:.2f} s"
