"""One group member on a Subscribe stream: its assignments, the delivery of its partitions, its commits.

The stream behind it is an `Outbox`, so nothing here knows gRPC. Three parts run side by side and share only what is
below: `watch` follows the group, `deliver` reads the partitions in turn, and the servicer calls `acknowledge` and
`commit` for the member's requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import structlog

from cursus_broker.consume.credit import Credit
from cursus_broker.consume.fetch import Catalog, Place, resolve
from cursus_broker.consume.tail import Bell, past_any
from cursus_broker.errors import CursusError, GenerationMismatch, MemberFenced, OffsetOutOfRange, ShuttingDown
from cursus_broker.groups.api import OffsetCommit
from cursus_broker.groups.coordinator import GroupCoordinator
from cursus_broker.groups.state import Assignment
from cursus_broker.log.api import Entry, Offset
from cursus_broker.metadata.model import TopicPartition
from cursus_broker.topics.partition import Partition

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Reading:
    """A partition the member owns, and how far it was delivered."""

    partition: Partition
    offset: Offset
    truncated_from: int | None = None
    """What the group had committed before the log was cut below it and the offset moved back; None without a cut."""


class Outbox(Protocol):
    """Where a subscription puts what its member is to receive. Each call returns when the transport has taken it."""

    async def assignment(
        self, assignment: Assignment, readings: Mapping[TopicPartition, Reading], revoked: Sequence[TopicPartition]
    ) -> None: ...

    async def batches(self, partition: Partition, entries: Sequence[Entry]) -> None: ...

    async def failed(self, place: TopicPartition, error: CursusError) -> None: ...


class Subscription:
    """A joined member. The caller keeps it attached to the group while `watch` and `deliver` run."""

    def __init__(
        self,
        coordinator: GroupCoordinator,
        catalog: Catalog,
        group: str,
        member_id: str,
        start_without_commit: Place,
        credit: Credit,
        response_bytes: int,
        outbox: Outbox,
        observe_delivery: Callable[[Sequence[Entry]], None],
    ) -> None:
        self._coordinator = coordinator
        self._catalog = catalog
        self._group = group
        self._member_id = member_id
        self._start_without_commit = start_without_commit
        self._credit = credit
        self._response_bytes = response_bytes
        self._outbox = outbox
        self._observe_delivery = observe_delivery
        self._readings: dict[TopicPartition, Reading] = {}
        self._changed = Bell()
        self._superseded = asyncio.Event()

    async def watch(self) -> None:
        """Tell the member of every change of its assignment. Ends only with MemberFenced or MemberNotFound."""
        watch = self._coordinator.watch(self._group, self._member_id)
        told: Assignment | None = None
        while True:
            assignment = self._coordinator.assignment(self._group, self._member_id)
            if assignment != told:
                await self._apply(assignment)
                told = assignment
            else:
                await watch.changed(None)

    async def _apply(self, assignment: Assignment) -> None:
        self._drop_replaced()
        revoked = [place for place in sorted(self._readings) if place not in assignment.granted]
        # Gone from the readings before the member is told: nothing of them is sent behind the announcement.
        for place in revoked:
            del self._readings[place]
        fresh: dict[TopicPartition, Reading] = {}
        failed: list[tuple[TopicPartition, CursusError]] = []
        for place in sorted(assignment.granted - self._readings.keys()):
            try:
                partition = self._catalog.topic(place.topic).partition(place.partition)
                fresh[place] = await self._start(place, partition)
            except CursusError as error:
                failed.append((place, error))
        revoked_now = sorted({*revoked, *assignment.revoked})
        await self._outbox.assignment(assignment, self._readings | fresh, revoked_now)
        for place, refusal in failed:
            await self._outbox.failed(place, refusal)
        # Only now may their batches follow.
        self._readings |= fresh
        self._changed.ring()

    def _drop_replaced(self) -> None:
        """Forget the partitions of topics that were deleted and created anew in one go, as the member sees it: they
        begin again, in the epoch of the new ones."""
        for place, reading in list(self._readings.items()):
            try:
                replaced = self._catalog.topic(place.topic).partition(place.partition) is not reading.partition
            except CursusError:
                continue  # gone, which delivering finds out and says
            if replaced:
                del self._readings[place]

    async def _start(self, place: TopicPartition, partition: Partition) -> Reading:
        committed = self._coordinator.fetch_offsets(self._group, [place]).get(place)
        if committed is None:
            return Reading(partition, (await resolve(partition, self._start_without_commit)).offset)
        # Retention may have passed the committed offset. Above the end it never is: see groups/truncation.py.
        offset = Offset(max(committed.next_offset, partition.earliest_offset))
        return Reading(partition, offset, committed.truncated_from)

    async def deliver(self) -> None:
        """Send what the partitions have, each in its turn, as far as credit goes. Runs until cancelled."""
        while True:
            await self._credit.available()
            sent = False
            for place, reading in list(self._readings.items()):
                sent = await self._deliver_from(place, reading) or sent
            if not sent and self._credit.is_available():
                places = [(reading.partition.tail, reading.offset) for reading in self._readings.values()]
                try:
                    await past_any(places, None, self._changed)
                except CursusError:
                    await self._drop_closed()

    async def _deliver_from(self, place: TopicPartition, reading: Reading) -> bool:
        """Send one response's worth of one partition. False if there was nothing to send."""
        if not self._credit.is_available():
            return False
        try:
            max_bytes = min(self._response_bytes, self._credit.bytes_left())
            entries = await reading.partition.read(reading.offset, max_bytes, self._credit.records_left())
        except OffsetOutOfRange:
            log.warning("subscription.trimmed", group=self._group, topic=place.topic, partition=place.partition)
            reading.offset = reading.partition.earliest_offset
            return True
        except CursusError as error:
            await self._fail(place, reading, error)
            return True
        # Reading may have suspended; what was revoked meanwhile must not be sent.
        if not entries or self._readings.get(place) is not reading:
            return bool(entries)
        self._credit.spend(entries)
        reading.offset = entries[-1].header.next_offset
        self._observe_delivery(entries)
        await self._outbox.batches(reading.partition, entries)
        return True

    async def _drop_closed(self) -> None:
        """A topic was deleted, or the broker stops: say so for each partition it concerns."""
        for place, reading in list(self._readings.items()):
            try:
                reading.partition.tail.has(reading.offset)
            except CursusError as error:
                await self._fail(place, reading, error)

    async def _fail(self, place: TopicPartition, reading: Reading, error: CursusError) -> None:
        if isinstance(error, ShuttingDown):
            raise error  # the end of the stream, not of one partition
        if self._readings.get(place) is reading:
            del self._readings[place]
            await self._outbox.failed(place, error)

    async def acknowledge(self, generation: int) -> None:
        """The member has let go of what `generation` took away. Behind the times is fine: a newer assignment is on its
        way to the member.
        """
        try:
            await self._coordinator.sync(self._group, self._member_id, generation, max_wait_ms=0)
        except GenerationMismatch as error:
            log.debug("subscription.late_ack", group=self._group, member=self._member_id, detail=str(error))

    async def commit(self, offsets: Mapping[TopicPartition, OffsetCommit]) -> dict[TopicPartition, CursusError | None]:
        generation = self._coordinator.assignment(self._group, self._member_id).generation
        return await self._coordinator.commit(self._group, offsets, member_id=self._member_id, generation=generation)

    def supersede(self) -> None:
        """The member has come back on another stream: end this one."""
        self._superseded.set()

    async def until_superseded(self) -> None:
        """Raises MemberFenced once the member has come back on another stream."""
        await self._superseded.wait()
        raise MemberFenced(self._group, self._member_id, self._member_id)


class Registry:
    """The open subscriptions, so that a member that comes back on a new stream ends its old one."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, str], Subscription] = {}

    def enter(self, group: str, member_id: str, subscription: Subscription) -> None:
        if (older := self._open.get((group, member_id))) is not None:
            older.supersede()
        self._open[(group, member_id)] = subscription

    def leave(self, group: str, member_id: str, subscription: Subscription) -> None:
        if self._open.get((group, member_id)) is subscription:
            del self._open[(group, member_id)]

    def __len__(self) -> int:
        return len(self._open)
