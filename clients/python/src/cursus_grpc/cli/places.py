"""How people write a place in a log, wherever an offset is allowed.

    beginning, start, earliest    the first retained record
    end, latest                   after the last record
    42                            an offset
    -5                            the last five records of each partition
    @-10m                         ten minutes ago (s, m, h, d, w; `@-1h30m` too)
    @2026-05-01T12:00:00Z         a time; without a zone it is local, without a time of day midnight
    @1777636800000                milliseconds since 1970

A time stands for the first record that was stored at or after it.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

from cursus_grpc.errors import OffsetOutOfRange
from cursus_grpc.types import BEGINNING, END, ListedOffset, Place, Timestamp

if TYPE_CHECKING:
    from cursus_grpc import Admin

EDGES: Final = {"beginning": BEGINNING, "start": BEGINNING, "earliest": BEGINNING, "end": END, "latest": END}

_UNIT_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_AGO: Final = re.compile(r"-(?:\d+(?:ms|[smhdw]))+")
_PART: Final = re.compile(r"(\d+)(ms|[smhdw])")
_MAX_MS: Final = 253_402_300_799_999  # the end of the year 9999
_MAX_OFFSET: Final = 2**63 - 1
_SHOWN: Final = 3

GRAMMAR: Final = "beginning, end, OFFSET, -N (the last N), @TIME or @-10m"


@dataclass(frozen=True, slots=True)
class Last:
    """The last `count` records of each partition."""

    count: int


WrittenPlace = Place | Last
"""A place as people write it; `offsets` turns the last kind into offsets, which only the broker knows."""


def parse(text: str, now_ms: int) -> WrittenPlace:
    """What the text means. Raises ValueError with a sentence that says what would have been right.

    >>> parse("-5", 0), parse("@-10m", 700_000), parse("12", 0)
    (Last(count=5), Timestamp(ms=100000), 12)
    """
    if (edge := EDGES.get(text.lower())) is not None:
        return edge
    if text.startswith("@"):
        return Timestamp(_time_ms(text[1:], now_ms))
    if re.fullmatch(r"-?[0-9]+", text):
        number = int(text)
        if abs(number) > _MAX_OFFSET:
            raise ValueError(f"{text!r} is larger than any offset")
        return Last(-number) if text.startswith("-") else number
    raise ValueError(f"{text!r} is no place in a log: it is {GRAMMAR}")


def _time_ms(text: str, now_ms: int) -> int:
    if _AGO.fullmatch(text):
        ago_ms = sum(int(number) * _UNIT_MS[unit] for number, unit in _PART.findall(text))
        return max(0, now_ms - ago_ms)
    if re.fullmatch(r"[0-9]+", text):
        time_ms = int(text)
    else:
        try:
            # A time without a zone is the user's own.
            time_ms = int(datetime.fromisoformat(text).astimezone().timestamp() * 1000)
        except (ValueError, OverflowError, OSError):
            raise ValueError(
                f"'@{text}' is no time: it is @-10m, @2026-05-01T12:00:00Z or @MILLISECONDS since 1970"
            ) from None
    if not 0 <= time_ms <= _MAX_MS:
        raise ValueError(f"'@{text}' is not between 1970 and 9999")
    return time_ms


def offsets(admin: Admin, topic: str, place: WrittenPlace, partitions: Collection[int] = ()) -> dict[int, int]:
    """The place as an offset in each of these partitions, or in all. Raises TopicNotFound, PartitionNotFound.

    An offset is taken as it is written: that it is not retained is for the reader to find out.
    """
    if isinstance(place, Last):
        found = admin.list_offsets(topic, END, partitions)
        return {one.partition: max(one.earliest_offset, one.next_offset - place.count) for one in found.values()}
    if isinstance(place, int):
        return dict.fromkeys(admin.list_offsets(topic, END, partitions), place)
    return {partition: one.offset for partition, one in admin.list_offsets(topic, place, partitions).items()}


def starts(admin: Admin, topic: str, place: WrittenPlace, partitions: Collection[int] = ()) -> dict[int, int]:
    """The same for somebody who is going to read from there: an offset has to be one that can be read, or the next one
    to come. Raises OffsetOutOfRange, which names what each partition holds."""
    if not isinstance(place, int):
        return offsets(admin, topic, place, partitions)
    listed = admin.list_offsets(topic, END, partitions)
    outside = [one for one in listed.values() if not one.earliest_offset <= place <= one.next_offset]
    if outside:
        shown = "; ".join(f"{topic}[{one.partition}] {_held(one)}" for one in outside[:_SHOWN])
        more = f"; and {len(outside) - _SHOWN} more partitions" if len(outside) > _SHOWN else ""
        raise OffsetOutOfRange(
            f"there is no offset {place}: {shown}{more}",
            {"earliest": str(outside[0].earliest_offset), "latest": str(outside[0].next_offset)},
        )
    return dict.fromkeys(listed, place)


def _held(one: ListedOffset) -> str:
    if one.earliest_offset == one.next_offset:
        return f"is empty, its next offset is {one.next_offset}"
    return f"holds {one.earliest_offset} to {one.next_offset - 1}"
