"""One group member on a Subscribe stream: its assignments, the delivery of its partitions, its commits.

The stream behind it is an `Outbox`, so nothing here knows gRPC. Three parts run side by side and share only what is
below: `watch` follows the group, `deliver` reads the partitions in turn, and the servicer calls `acknowledge` and
`commit` for the member's requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import structlog

from cursus_broker.consume.arrivals import Arrivals
from cursus_broker.consume.credit import Credit
from cursus_broker.consume.fetch import LOOKED_UP_TOGETHER, Catalog, Place, resolve
from cursus_broker.errors import (
    CursusError,
    GenerationMismatch,
    MemberFenced,
    OffsetOutOfRange,
    PartitionReopened,
    ShuttingDown,
)
from cursus_broker.groups.api import OffsetCommit
from cursus_broker.groups.coordinator import GroupCoordinator
from cursus_broker.groups.state import Assignment
from cursus_broker.log.api import Entry, Offset
from cursus_broker.metadata.model import TopicPartition
from cursus_broker.pace import Pace
from cursus_broker.topics.partition import Partition

log = structlog.get_logger(__name__)

DELIVERED_TOGETHER: Final = 32
"""Responses that are sent in one slice of the event loop if the transport takes them at once: a millisecond or two."""


@dataclass(slots=True)
class Reading:
    """A partition the member owns, and how far it was delivered."""

    partition: Partition
    offset: Offset
    keeps_up: bool = False
    """It has come to the end, and not fallen behind since."""
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
        self._arrivals: Arrivals[TopicPartition] = Arrivals()
        self._superseded = asyncio.Event()

    @property
    def looks(self) -> int:
        """How often a partition was looked at for something to send."""
        return self._arrivals.taken

    async def watch(self) -> None:
        """Tell the member of every change of its assignment. Ends only with MemberFenced or MemberNotFound."""
        watch = self._coordinator.watch(self._group, self._member_id)
        told: Assignment | None = None
        while True:
            assignment = self._coordinator.assignment(self._group, self._member_id)
            # A generation that does not concern the member is no news to it: in a large group it rarely does.
            if told is None or not assignment.says_no_more_than(told):
                await self._apply(assignment)
                told = assignment
            else:
                await watch.changed(None)

    async def _apply(self, assignment: Assignment) -> None:
        self._drop_replaced()
        revoked = [place for place in sorted(self._readings) if place not in assignment.granted]
        # Gone from the readings before the member is told: nothing of them is sent behind the announcement.
        for place in revoked:
            self._forget(place)
        fresh: dict[TopicPartition, Reading] = {}
        failed: list[tuple[TopicPartition, CursusError]] = []
        pace = Pace(LOOKED_UP_TOGETHER)
        for place in sorted(assignment.granted - self._readings.keys()):
            await pace.took()
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
        for place, reading in fresh.items():
            self._readings[place] = reading
            self._arrivals.watch(place, reading.partition.tail)
            self._arrivals.note(place)

    def _forget(self, place: TopicPartition) -> None:
        del self._readings[place]
        self._arrivals.forget(place)

    def _drop_replaced(self) -> None:
        """Forget the partitions of topics that were deleted and created anew in one go, as the member sees it: they
        begin again, in the epoch of the new ones."""
        for place, reading in list(self._readings.items()):
            try:
                replaced = self._catalog.topic(place.topic).partition(place.partition) is not reading.partition
            except CursusError:
                continue  # gone, which delivering finds out and says
            if replaced:
                self._forget(place)

    async def _start(self, place: TopicPartition, partition: Partition) -> Reading:
        committed = self._coordinator.fetch_offsets(self._group, [place]).get(place)
        if committed is None:
            return Reading(partition, (await resolve(partition, self._start_without_commit)).offset)
        # Retention may have passed the committed offset. Above the end it never is: see groups/truncation.py.
        offset = Offset(max(committed.next_offset, partition.earliest_offset))
        return Reading(partition, offset, truncated_from=committed.truncated_from)

    async def deliver(self) -> None:
        """Send what the partitions have, each in its turn, as far as credit goes. Runs until cancelled.

        A partition's turn comes when it is granted, when it is appended to or closed, and again after something of it
        was sent. So nothing is looked at that has not changed, and of a busy one no more than a response before the
        next has its turn.
        """
        pace = Pace(DELIVERED_TOGETHER)
        try:
            while True:
                place = await self._arrivals.next()
                await self._credit.available()
                reading = self._readings.get(place)
                # Without one, it was revoked while there was no credit.
                if reading is not None and await self._deliver_from(place, reading):
                    self._arrivals.note(place)
                await pace.took()
        finally:
            self._arrivals.close()

    async def _deliver_from(self, place: TopicPartition, reading: Reading) -> bool:
        """Send one response's worth of one partition. False if there was nothing to send."""
        try:
            reading.keeps_up = reading.keeps_up and reading.partition.tail.reaches(reading.offset)
            max_bytes = min(self._response_bytes, self._credit.bytes_left())
            entries = await reading.partition.read(reading.offset, max_bytes, self._credit.records_left())
            if not entries:
                # Raises if the topic was deleted, or the broker stops.
                reading.partition.tail.has(reading.offset)
        except OffsetOutOfRange:
            log.warning("subscription.trimmed", group=self._group, topic=place.topic, partition=place.partition)
            reading.offset = reading.partition.earliest_offset
            return True
        except CursusError as error:
            await self._fail(place, reading, error)
            return True
        # Reading may have suspended; what was revoked meanwhile must not be sent.
        if not entries:
            reading.keeps_up = True
            return False
        if self._readings.get(place) is not reading:
            return True
        self._credit.spend(entries)
        reading.offset = entries[-1].header.next_offset
        reading.partition.count_read(entries)
        if reading.keeps_up:
            self._observe_delivery(entries)
        await self._outbox.batches(reading.partition, entries)
        return True

    async def _fail(self, place: TopicPartition, reading: Reading, error: CursusError) -> None:
        if isinstance(error, ShuttingDown | PartitionReopened):
            # The end of the stream, not of one partition: whoever comes back starts from what is committed.
            raise error
        if self._readings.get(place) is reading:
            self._forget(place)
            await self._outbox.failed(place, error)

    async def acknowledge(self, generation: int) -> None:
        """The member has let go of what `generation` took away. Behind the times is fine: a newer assignment is on its
        way to the member.
        """
        try:
            await self._coordinator.acknowledge(self._group, self._member_id, generation)
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
