"""Reading: resolving places to offsets, long-poll fetches over several partitions, and following one partition."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Protocol

from cursus_broker.consume.arrivals import Arrivals
from cursus_broker.consume.audience import Seat, Sink
from cursus_broker.consume.credit import Credit
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


@dataclass(slots=True)
class Fetched:
    """What one partition had, or why it could not be read."""

    part: FetchPart
    partition: Partition | None
    entries: list[Entry]
    error: CursusError | None = None
    size: int = 0
    """Bytes of the entries."""

    @property
    def next_offset(self) -> Offset:
        """Behind what it had."""
        return self.entries[-1].header.next_offset if self.entries else Offset(self.part.offset)


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
        max_records = max_records or MANY_RECORDS
        min_bytes = min(max(min_bytes, 1), max_bytes)
        deadline = asyncio.get_running_loop().time() + max_wait_ms / 1000
        collection = Collection(self._catalog, parts, max_bytes, max_records)
        await collection.look_at_all()
        if max_wait_ms and collection.lacks(min_bytes):
            arrivals: Arrivals[int] = Arrivals()
            try:
                await collection.watch_all(arrivals)
                while collection.lacks(min_bytes) and await arrivals.wait(deadline):
                    while (index := arrivals.take()) is not None:
                        await collection.look_at(index)
            except CursusError:
                # A topic was deleted, or the broker stops: another look finds out which, for each partition.
                collection = Collection(self._catalog, parts, max_bytes, max_records)
                await collection.look_at_all()
            finally:
                arrivals.close()
        return collection.fetched


class Collection:
    """What one fetch has found so far. Waiting adds to it: a partition is looked at again only when it has changed."""

    def __init__(self, catalog: Catalog, parts: Sequence[FetchPart], max_bytes: int, max_records: int) -> None:
        self._catalog = catalog
        self._parts = parts
        self._bytes_left = max_bytes
        self._records_left = max_records
        self._pace = Pace(LOOKED_UP_TOGETHER)
        self.fetched: list[Fetched] = []
        self.size = 0
        self.may_grow = True
        """False once a partition cannot be read, or what it has does not fit any more."""
        self.looks = 0
        """How often a partition was looked at."""

    def lacks(self, min_bytes: int) -> bool:
        """Whether there should be more, and there can be."""
        return self.may_grow and self.size < min_bytes

    async def look_at_all(self) -> None:
        for part in self._parts:
            await self._pace.took()
            self.looks += 1
            try:
                if part.offset < 0:
                    raise InvalidRequest(f"offset {part.offset} is negative", offset=part.offset)
                partition = self._catalog.topic(part.topic).partition(part.partition)
                partition.check_epoch(part.offset, part.leader_epoch)
                found = Fetched(part, partition, [])
                await self._add(found, Offset(part.offset))
            except CursusError as error:
                found = Fetched(part, None, [], error)
                self.may_grow = False
            self.fetched.append(found)

    async def watch_all(self, arrivals: Arrivals[int]) -> None:
        """Also notes those that have got something since they were looked at. Raises the reason a tail was closed
        with."""
        for index, one in enumerate(self.fetched):
            await self._pace.took()
            assert one.partition is not None, "what cannot be read is not waited for"
            arrivals.watch(index, one.partition.tail)
            if one.partition.tail.has(one.next_offset):
                arrivals.note(index)

    async def look_at(self, index: int) -> None:
        """Add what a partition has got meanwhile. Raises the reason its tail was closed with."""
        await self._pace.took()
        one = self.fetched[index]
        if not self.may_grow or one.partition is None or not one.partition.tail.has(one.next_offset):
            return
        self.looks += 1
        try:
            await self._add(one, one.next_offset)
        except CursusError as error:
            self.fetched[index] = Fetched(one.part, None, [], error)
            self.may_grow = False

    async def _add(self, one: Fetched, offset: Offset) -> None:
        """What fits into what is left, also of the partition's own limit.

        Only the very first batch of an answer may exceed its limits, and the first of a partition the partition's own.
        """
        assert one.partition is not None, "what cannot be read has nothing to add"
        limit = self._bytes_left
        if one.part.max_bytes:
            limit = min(limit, one.part.max_bytes - one.size)
        if limit <= 0 or self._records_left <= 0:
            self.may_grow = False
            return
        entries = await one.partition.read(offset, limit, self._records_left)
        size = sum(len(entry.payload) for entry in entries)
        self._bytes_left -= size
        self._records_left -= sum(entry.header.record_count for entry in entries)
        is_over = min(self._bytes_left, self._records_left) < 0
        if (self.size and is_over) or (one.size and size > limit):
            self.may_grow = False
            return
        one.entries += entries
        one.size += size
        self.size += size


async def follow(
    partition: Partition,
    start: Offset,
    end: Offset | None,
    credit: Credit,
    max_bytes: int,
    delivered: Callable[[Sequence[Entry]], None],
    sink: Sink,
) -> None:
    """Send entries from `start` on, up to `end` or for ever, as far as credit goes. A reader that is slow loses
    nothing: it reads from the log where the tail no longer reaches. Raises OffsetOutOfRange if the log is trimmed under
    it.

    `delivered` is told of what a reader gets that keeps up: it has reached the end, and not fallen behind since.
    """

    def taken(entries: Sequence[Entry]) -> None:
        partition.count_read(entries)
        delivered(entries)

    offset = start
    keeps_up = False
    while end is None or offset < end:
        await credit.available()
        keeps_up = keeps_up and partition.tail.reaches(offset)
        entries = await partition.read(offset, min(max_bytes, credit.bytes_left()), credit.records_left())
        if not entries:
            keeps_up = True
            offset = await partition.tail.audience.attend(Seat(offset, end, credit, max_bytes, taken, sink))
            continue
        if end is not None:
            entries = [entry for entry in entries if entry.header.base_offset < end]
        credit.spend(entries)
        partition.count_read(entries)
        if keeps_up:
            delivered(entries)
        await sink.write(sink.encode(entries))
        offset = entries[-1].header.next_offset
