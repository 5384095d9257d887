"""Filters of a query that narrow what is fetched. Spark evaluates every filter again on the rows, so what is made of
them here may be wider than they are and must never be narrower.

Filters on `topic`, `partition`, `offset` and `append_time` narrow. One on `timestamp` does not: producers set it, and
the broker's index knows append times only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from cursus_grpc import TopicPartition

ENDLESS: Final = 2**63 - 1
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

Comparison = EqualTo | EqualNullSafe | In | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual
_COMPARISONS: Final = (EqualTo, EqualNullSafe, In, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)


@dataclass(frozen=True, slots=True)
class Interval:
    """Whole numbers from `least` up to and without `end`.

    >>> Interval(3, 9).cut(Interval(5, 100))
    Interval(least=5, end=9)
    """

    least: int = 0
    end: int = ENDLESS

    def cut(self, other: Interval) -> Interval:
        return Interval(max(self.least, other.least), min(self.end, other.end))

    @property
    def is_whole(self) -> bool:
        return self == Interval()


@dataclass(frozen=True, slots=True)
class Narrowing:
    """What a query can be interested in at the most."""

    topics: frozenset[str] | None = None  # None: all
    partitions: Interval = Interval()
    offsets: Interval = Interval()
    append_ms: Interval = Interval()

    def admits(self, place: TopicPartition) -> bool:
        return (
            self.topics is None or place.topic in self.topics
        ) and self.partitions.least <= place.partition < self.partitions.end


def narrowing(filters: Iterable[Filter]) -> Narrowing:
    """What all of the filters together leave."""
    found = Narrowing()
    for one in filters:
        if isinstance(one, _COMPARISONS) and len(one.attribute) == 1 and one.value is not None:
            found = _narrowed(found, one)
    return found


def _narrowed(found: Narrowing, one: Comparison) -> Narrowing:
    match one.attribute[0]:
        case "topic" if isinstance(one, EqualTo | EqualNullSafe | In):
            names = frozenset(one.value if isinstance(one, In) else (one.value,))
            return replace(found, topics=names if found.topics is None else found.topics & names)
        case "partition":
            return replace(found, partitions=found.partitions.cut(_interval(one)))
        case "offset":
            return replace(found, offsets=found.offsets.cut(_interval(one)))
        case "append_time":
            return replace(found, append_ms=found.append_ms.cut(_interval(one)))
        case _:
            return found


def _interval(one: Comparison) -> Interval:
    """The numbers a comparison may let through, wider by one where the bound itself is excluded."""
    match one:
        case EqualTo(value=value) | EqualNullSafe(value=value):
            return Interval(_number(value), _number(value) + 1)
        case In(value=values):
            numbers = [_number(value) for value in values if value is not None]
            return Interval(min(numbers), max(numbers) + 1) if numbers else Interval(0, 0)
        case GreaterThan(value=value) | GreaterThanOrEqual(value=value):
            return Interval(least=_number(value))
        case LessThan(value=value) | LessThanOrEqual(value=value):
            return Interval(end=_number(value) + 1)


def _number(value: object) -> int:
    """A whole number, or a time in milliseconds since 1970; rounded down."""
    if isinstance(value, datetime):
        # Spark hands times over in UTC, with or without saying so.
        aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        return (aware - _EPOCH) // timedelta(milliseconds=1)
    if isinstance(value, int):
        return value
    raise TypeError(f"a filter compares with {value!r}, which is no number and no time")
