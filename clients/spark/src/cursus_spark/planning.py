"""What the driver asks the brokers before it plans: which partitions there are and where they begin and end.

Every question is one short-lived client on an event loop of its own: Spark forks its Python workers, and nothing of a
client may be alive before a fork.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from cursus_grpc import END, AsyncAdmin, Timestamp, TopicPartition
from cursus_grpc.types import ListedOffset, OffsetAndMetadata, Place
from cursus_spark.filters import ENDLESS, Interval
from cursus_spark.offsets import OffsetRange, Position
from cursus_spark.options import Endpoint, OptionRefused
from cursus_spark.read_options import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    Assign,
    AtOffsets,
    AtTimestamp,
    AtTimestamps,
    Bound,
    Edge,
    Selection,
    Subscribe,
    SubscribePattern,
)

T = TypeVar("T")

_AT_ONCE: Final = 32
"""Lookups in flight: enough to hide the round trips of a thousand topics, few enough not to be a burden."""

CLIENT_ID: Final = "cursus-spark"


class TopicMissing(ValueError):
    """A topic or partition that was named does not exist."""


@dataclass(frozen=True, slots=True)
class Extent:
    """What can be read of a partition now."""

    earliest: int
    end: int
    """Where a read ends: the synced offset, or the next one for those who read what power loss may take back."""
    epoch: int


Extents = Mapping[TopicPartition, Extent]


def ask(endpoint: Endpoint, question: Callable[[AsyncAdmin], Coroutine[Any, Any, T]]) -> T:
    """Ask one question of the brokers. Raises CursusError."""

    async def asked() -> T:
        async with AsyncAdmin(endpoint.bootstrap, tls=endpoint.tls, client_id=CLIENT_ID) as admin:
            return await question(admin)

    return asyncio.run(asked())


async def find_extents(admin: AsyncAdmin, selection: Selection, *, read_unsynced: bool) -> dict[TopicPartition, Extent]:
    """Every partition selected, with its extent. Raises TopicMissing for one that was named and does not exist."""
    wanted = await _partitions_by_topic(admin, selection)
    listed = await _list_offsets(
        admin, {topic: (END, partitions) for topic, partitions in wanted.items()}, sync=not read_unsynced
    )
    return {
        place: Extent(
            one.earliest_offset,
            one.next_offset if read_unsynced else max(one.synced_offset, one.earliest_offset),
            one.leader_epoch,
        )
        for place, one in listed.items()
    }


async def resolve(
    admin: AsyncAdmin, bound: Bound, extents: Extents, option: str, *, late_is_end: bool
) -> dict[TopicPartition, Position]:
    """The offset that a bound stands for in every partition. `option` is named where it does not fit.

    Raises OptionRefused.
    """
    match bound:
        case Edge.EARLIEST:
            return {place: Position(one.earliest, one.epoch) for place, one in extents.items()}
        case Edge.LATEST:
            return {place: Position(one.end, one.epoch) for place, one in extents.items()}
        case AtOffsets(offsets):
            _check_complete(offsets.keys(), extents, option)
            return {place: Position(_number(offsets[place], one), one.epoch) for place, one in extents.items()}
        case AtTimestamp(ms):
            times = dict.fromkeys(extents, ms)
        case AtTimestamps(by_partition):
            _check_complete(by_partition.keys(), extents, option)
            times = dict(by_partition)
    found = await _find_times(admin, times)
    if not late_is_end and (late := [place for place, one in found.items() if one.append_time_ms is None]):
        raise OptionRefused(
            option,
            f"{_some(late)} has no record appended so late; `startingOffsetsByTimestampStrategy` = latest begins at the"
            " end there",
        )
    return {place: Position(min(one.offset, extents[place].end), one.leader_epoch) for place, one in found.items()}


def _number(offset: int, extent: Extent) -> int:
    return {EARLIEST_OFFSET: extent.earliest, LATEST_OFFSET: extent.end}.get(offset, offset)


def _check_complete(given: Collection[TopicPartition], extents: Extents, option: str) -> None:
    if missing := sorted(extents.keys() - given):
        raise OptionRefused(option, f"says nothing about {_some(missing)}: name every partition that is read")
    if unknown := sorted(given - extents.keys()):
        raise OptionRefused(option, f"names {_some(unknown)}, which is not read")


def _some(places: Collection[TopicPartition]) -> str:
    first = sorted(places)[0]
    more = f" and {len(places) - 1} more" if len(places) > 1 else ""
    return f"partition {first.partition} of topic {first.topic!r}{more}"


async def narrow_by_time(admin: AsyncAdmin, ranges: Collection[OffsetRange], times: Interval) -> list[OffsetRange]:
    """The part of each range that was appended within the interval, in milliseconds since 1970."""
    places = [one.place for one in ranges]
    starts = await _find_times(admin, dict.fromkeys(places, times.least)) if times.least > 0 else {}
    ends = await _find_times(admin, dict.fromkeys(places, times.end)) if times.end < ENDLESS else {}
    return [
        OffsetRange(
            one.topic,
            one.partition,
            max(one.start, starts[one.place].offset) if starts else one.start,
            min(one.end, ends[one.place].offset) if ends else one.end,
            one.epoch,
        )
        for one in ranges
    ]


async def find_cuts(admin: AsyncAdmin, positions: Mapping[TopicPartition, Position]) -> dict[TopicPartition, int]:
    """Where the log was cut below a position after it was read there, for the partitions whose log was."""
    return await admin.find_truncations(
        {place: OffsetAndMetadata(one.offset, leader_epoch=one.epoch) for place, one in positions.items()}
    )


async def _partitions_by_topic(admin: AsyncAdmin, selection: Selection) -> dict[str, tuple[int, ...]]:
    match selection:
        case SubscribePattern(pattern):
            matches = re.compile(pattern).fullmatch
            return {topic.name: () for topic in await admin.list_topics() if matches(topic.name)}
        case Subscribe(topics):
            known = {topic.name: len(topic.partitions) for topic in (await admin.describe_cluster(topics)).topics}
            if missing := [topic for topic in topics if topic not in known]:
                raise TopicMissing(f"topic {missing[0]!r} does not exist")
            return dict.fromkeys(topics, ())
        case Assign(partitions):
            by_topic: dict[str, list[int]] = {}
            for topic, partition in partitions:
                by_topic.setdefault(topic, []).append(partition)
            counts = {topic.name: len(topic.partitions) for topic in (await admin.describe_cluster(by_topic)).topics}
            for topic, partition in partitions:
                if partition >= counts.get(topic, 0):
                    raise TopicMissing(f"partition {partition} of topic {topic!r} does not exist")
            return {topic: tuple(numbers) for topic, numbers in by_topic.items()}


async def _find_times(admin: AsyncAdmin, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, ListedOffset]:
    # One question for all partitions of a topic that look for the same time.
    groups: dict[tuple[str, int], list[int]] = {}
    for place, ms in times.items():
        groups.setdefault((place.topic, ms), []).append(place.partition)
    found = await gather(
        admin.list_offsets(topic, Timestamp(ms), partitions) for (topic, ms), partitions in groups.items()
    )
    return {
        TopicPartition(topic, partition): one
        for (topic, _), listed in zip(groups, found, strict=True)
        for partition, one in listed.items()
    }


async def _list_offsets(
    admin: AsyncAdmin, wanted: Mapping[str, tuple[Place, tuple[int, ...]]], *, sync: bool
) -> dict[TopicPartition, ListedOffset]:
    found = await gather(
        admin.list_offsets(topic, at, partitions, sync=sync) for topic, (at, partitions) in wanted.items()
    )
    return {
        TopicPartition(topic, partition): one
        for topic, listed in zip(wanted, found, strict=True)
        for partition, one in listed.items()
    }


async def gather(questions: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """The answers to many questions, few of them asked at once."""
    gate = asyncio.Semaphore(_AT_ONCE)

    async def gated(question: Coroutine[Any, Any, T]) -> T:
        async with gate:
            return await question

    return await asyncio.gather(*map(gated, questions))
