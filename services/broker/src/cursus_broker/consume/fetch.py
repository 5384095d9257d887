"""Reading: resolving places to offsets, long-poll fetches over several partitions, and following one partition."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Protocol

from cursus_broker.consume.credit import Credit
from cursus_broker.consume.tail import Tail, past_any
from cursus_broker.errors import CursusError, InvalidRequest, OffsetOutOfRange
from cursus_broker.log.api import MANY_RECORDS, Entry, Offset, TimedOffset
from cursus_broker.pace import Pace
from cursus_broker.topics.partition import Partition
from cursus_broker.topics.topic import Topic

MAX_WAIT_MS: Final = 60_000

LOOKED_UP_TOGETHER: Final = 200
"""Partitions a request names that are looked at in one slice of the event loop: about a millisecond."""


class Edge(IntEnum):
    """The ends of a log; the numbers are the contract's."""

    EARLIEST = 1
    LATEST = 2


@dataclass(frozen=True, slots=True)
class AtOffset:
    offset: int


@dataclass(frozen=True, slots=True)
class AtTime:
    time_ms: int


Place = AtOffset | AtTime | Edge


@dataclass(frozen=True, slots=True)
class FetchPart:
    """One partition of a fetch."""

    topic: str
    partition: int
    offset: int
    max_bytes: int
    leader_epoch: int | None = None  # that the offset comes from; None: not checked


@dataclass(frozen=True, slots=True)
class Fetched:
    """What one partition had, or why it could not be read."""

    part: FetchPart
    partition: Partition | None
    entries: Sequence[Entry]
    error: CursusError | None = None


class Catalog(Protocol):
    """Where partitions come from."""

    def topic(self, name: str) -> Topic:
        """Raises TopicNotFound."""


async def resolve(partition: Partition, place: Place, leader_epoch: int | None = None) -> TimedOffset:
    """The offset a place stands for, within the log. The append time is -1 at its end. `leader_epoch` is that in which
    an offset was reached.

    Raises LogTruncated for an offset that was cut off since, OffsetOutOfRange for one outside of the log,
    InvalidRequest for a negative one.
    """
    match place:
        case AtOffset(offset):
            if offset < 0:
                raise InvalidRequest(f"offset {offset} is negative", offset=offset)
            partition.check_epoch(offset, leader_epoch)
            if not partition.earliest_offset <= offset <= partition.next_offset:
                raise OffsetOutOfRange(offset, partition.earliest_offset, partition.next_offset)
            return await _timed(partition, Offset(offset))
        case AtTime(time_ms):
            found = await partition.log.find_time(time_ms)
            return found if found is not None else TimedOffset(partition.next_offset, -1)
        case Edge.EARLIEST:
            return await _timed(partition, partition.earliest_offset)
        case Edge.LATEST:
            return TimedOffset(partition.next_offset, -1)


async def _timed(partition: Partition, offset: Offset) -> TimedOffset:
    time_ms = await partition.append_time_at(offset)
    return TimedOffset(offset, -1 if time_ms is None else time_ms)


class Fetcher:
    """Serves Fetch."""

    def __init__(self, catalog: Catalog, default_max_bytes: int) -> None:
        self._catalog = catalog
        self._default_max_bytes = default_max_bytes

    async def fetch(
        self, parts: Sequence[FetchPart], *, max_wait_ms: int, min_bytes: int, max_bytes: int, max_records: int
    ) -> list[Fetched]:
        """Collect whole entries, at least one if there is any, waiting up to `max_wait_ms` for `min_bytes`.

        A partition that cannot be read ends the wait: its error should not arrive late. So does a limit that leaves no
        room for more.
        """
        if not parts:
            raise InvalidRequest("a fetch names at least one partition")
        if min(max_wait_ms, min_bytes, max_bytes, max_records, *(part.max_bytes for part in parts)) < 0:
            raise InvalidRequest("limits of a fetch must not be negative")
        if max_wait_ms > MAX_WAIT_MS:
            raise InvalidRequest(f"max_wait_ms is {max_wait_ms}, at most {MAX_WAIT_MS} is allowed")
        max_bytes = max_bytes or self._default_max_bytes
        min_bytes = min(max(min_bytes, 1), max_bytes)
        deadline = asyncio.get_running_loop().time() + max_wait_ms / 1000
        reached: list[tuple[Tail, Offset]] | None = None
        while True:
            fetched = await self._collect(parts, max_bytes, max_records or MANY_RECORDS)
            size = sum(len(entry.payload) for one in fetched for entry in one.entries)
            if size >= min_bytes or any(one.error is not None for one in fetched):
                return fetched
            places = [
                (one.partition.tail, one.entries[-1].header.next_offset if one.entries else Offset(one.part.offset))
                for one in fetched
                if one.partition is not None
            ]
            if places == reached:
                # Woken because there is more, but the limits allow no more than before: waiting on would only spin.
                return fetched
            reached = places
            try:
                if not await past_any(places, deadline):
                    return fetched
            except CursusError:
                # A topic was deleted, or the broker stops: the next round finds out which, for each partition.
                return await self._collect(parts, max_bytes, max_records or MANY_RECORDS)

    async def _collect(self, parts: Sequence[FetchPart], max_bytes: int, max_records: int) -> list[Fetched]:
        fetched: list[Fetched] = []
        anything = False
        pace = Pace(LOOKED_UP_TOGETHER)
        for part in parts:
            await pace.took()
            try:
                if part.offset < 0:
                    raise InvalidRequest(f"offset {part.offset} is negative", offset=part.offset)
                partition = self._catalog.topic(part.topic).partition(part.partition)
                partition.check_epoch(part.offset, part.leader_epoch)
                if max_bytes <= 0 or max_records <= 0:
                    fetched.append(Fetched(part, partition, ()))
                    continue
                limit = min(max_bytes, part.max_bytes) if part.max_bytes else max_bytes
                entries = await partition.read(Offset(part.offset), limit, max_records)
                max_bytes -= sum(len(entry.payload) for entry in entries)
                max_records -= sum(entry.header.record_count for entry in entries)
                if anything and (max_bytes < 0 or max_records < 0):
                    # Only the very first batch of an answer may exceed its limits.
                    entries = ()
                anything = anything or bool(entries)
                fetched.append(Fetched(part, partition, entries))
            except CursusError as error:
                fetched.append(Fetched(part, None, (), error))
        return fetched


async def follow(
    partition: Partition,
    start: Offset,
    end: Offset | None,
    credit: Credit,
    max_bytes: int,
    delivered: Callable[[Sequence[Entry]], None],
) -> AsyncGenerator[Sequence[Entry], None]:
    """Entries from `start` on, up to `end` or for ever, as far as credit goes. A reader that is slow loses nothing: it
    reads from the log where the tail no longer reaches. Raises OffsetOutOfRange if the log is trimmed under it.
    """
    offset = start
    while end is None or offset < end:
        await credit.available()
        entries = await partition.read(offset, min(max_bytes, credit.bytes_left()), credit.records_left())
        if not entries:
            await partition.tail.past(offset)
            continue
        if end is not None:
            entries = [entry for entry in entries if entry.header.base_offset < end]
        credit.spend(entries)
        delivered(entries)
        yield entries
        offset = entries[-1].header.next_offset
