"""What both consumers share: assignment, reading, seeking, committing. The faces add how an application waits and how
its callbacks are called."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from cursus_grpc import _convert, _lookups, _tasks
from cursus_grpc._channel import Connections, ConnectionSettings
from cursus_grpc._commits import CommitCallback, Commits, unsaved
from cursus_grpc._consumer_settings import ConsumerSettings
from cursus_grpc._membership import Membership, MembershipSettings
from cursus_grpc._metadata import ClusterView
from cursus_grpc._partition_stream import PartitionStream, tell_truncation
from cursus_grpc._range_reader import RangeReader
from cursus_grpc._reading import (
    UNKNOWN,
    Chunk,
    Event,
    Failure,
    Inbox,
    Reading,
    Rebalance,
    Signal,
    Truncated,
    unfinished,
)
from cursus_grpc._records import Deserializers
from cursus_grpc._retry import Deadline
from cursus_grpc._statistics import tell_now_and_then
from cursus_grpc.errors import CommitFailed, CursusError, DeadlineExceeded, NoCommittedOffset, OffsetOutOfRange
from cursus_grpc.types import (
    BEGINNING,
    END,
    CommittedOffset,
    ConsumerStatistics,
    OffsetAndMetadata,
    PartitionProgress,
    Place,
    Start,
    Subscription,
    TopicPartition,
)

_log = logging.getLogger("cursus_grpc")

# Below this a partition's share of the prefetch bound would not hold one ordinary batch.
_MIN_WINDOW_BYTES: Final = 64 * 1024


def known_start(start: Start) -> tuple[int, int | None]:
    """Offset and epoch of a start, as far as they are known before the broker is asked. An offset alone is not: the
    broker may not have it, and then the reset policy decides."""
    return (start.offset, start.leader_epoch) if isinstance(start, OffsetAndMetadata) else (UNKNOWN, None)


class ConsumerCore:
    """Made and used on one event loop, but for the methods that say otherwise."""

    def __init__(
        self,
        bootstrap: tuple[str, ...],
        settings: ConsumerSettings,
        arrived: Signal,
        deserializers: Deserializers | None = None,
    ) -> None:
        """`arrived` wakes the application when there is something to take."""
        self.settings = settings
        self.loop = asyncio.get_running_loop()
        self.inbox = Inbox(arrived, settings.unpacked_within, deserializers)
        self.assignment: dict[TopicPartition, Reading] = {}
        """What the application reads, as far as it has been told."""
        self._connections = Connections(
            ConnectionSettings(bootstrap, settings.tls, settings.client_id, settings.request_timeout_s)
        )
        self._cluster = ClusterView(self._connections)
        self.commits = Commits(settings.group, self._connections, self.assignment, self._ask_again)
        self.subscription: Subscription | None = None
        self._membership: Membership | None = None
        self._streams: dict[TopicPartition, PartitionStream] = {}
        self._ranges: set[RangeReader] = set()
        self._in_hand: list[Reading] = []
        self._auto_commit: asyncio.Task[None] | None = None
        self._telling: asyncio.Task[None] | None = None
        if settings.on_statistics is not None:
            telling = tell_now_and_then(self.statistics, settings.on_statistics, settings.statistics_interval_s)
            self._telling = _tasks.start(telling, "cursus-statistics")

    # What to read

    async def subscribe(self, topics: Iterable[str], pattern: str) -> None:
        """Join the group. Raises ValueError."""
        settings = self.settings
        names = [topics] if isinstance(topics, str) else list(topics)
        if settings.group is None:
            raise ValueError("to subscribe a consumer needs a group; `assign` does without")
        if not names and not pattern:
            raise ValueError("subscribe to at least one topic or a pattern")
        for name in [*names, pattern]:
            _convert.require_text("a topic's name or pattern", name)
        self._require_unused()
        self.subscription = Subscription(frozenset(names), pattern)
        self._membership = Membership(
            MembershipSettings(
                group=settings.group,
                topics=names,
                pattern=pattern,
                instance_id=settings.instance_id,
                client_id=settings.client_id,
                strategy=settings.strategy,
                session_timeout_ms=settings.session_timeout_ms,
                rebalance_timeout_ms=settings.rebalance_timeout_ms,
                reset=settings.reset,
                prefetch_bytes=settings.prefetch_bytes,
            ),
            self.inbox,
            self._connections,
            self.commits.committed_offset,
            self._take_over,
        )
        self._start_auto_commit()

    async def assign(self, partitions: Mapping[TopicPartition, Start | None]) -> None:
        """Read these partitions, instead of those assigned before, each from its place or, where that is None, from
        where the group left off or the reset policy says. Raises ValueError, NoCommittedOffset."""
        if self._membership is not None:
            raise ValueError("a consumer that subscribed is assigned its partitions by the group")
        for topic, _ in partitions:
            _convert.require_text("a topic's name", topic)
        await self._let_go(list(self.assignment.values()))
        committed = await self._committed([place for place, start in partitions.items() if start is None])
        starts = {
            place: self._left_off(place, committed.get(place)) if start is None else start
            for place, start in partitions.items()
        }
        for place, start in starts.items():
            reading = self.assignment[place] = Reading(place, *known_start(start))
            self._read(reading, start, len(starts))
        for place, found in committed.items():
            if found.offset is not None and found.truncated_from is not None:
                tell_truncation(self.inbox, Truncated(self.assignment[place], found.truncated_from, found.offset))
        self._start_auto_commit()

    async def unsubscribe(self) -> None:
        """Commit what was processed, if that happens automatically, leave the group, and read nothing any more."""
        for reading in self.assignment.values():
            reading.stop()
        if self._auto_commit is not None:
            await self._commit_safe(list(self.assignment.values()))
        await self._let_go(list(self.assignment.values()))
        if self._membership is not None:
            await self._membership.leave(self.settings.request_timeout_s)
        self._membership = self.subscription = None
        # What was to be told of the old subscription is void with it.
        self.inbox.forget()

    def statistics(self) -> ConsumerStatistics:
        """For the event loop, on which partitions come and go."""
        progress = {
            place: PartitionProgress(None if reading.position == UNKNOWN else reading.position, reading.end_offset)
            for place, reading in self.assignment.items()
        }
        inbox = self.inbox
        return ConsumerStatistics(inbox.records_received, inbox.bytes_received, inbox.bytes_held(), progress)

    def paused(self) -> set[TopicPartition]:
        return {place for place, reading in self.assignment.items() if reading.paused}

    def _require_unused(self) -> None:
        if self._membership is not None or self.assignment:
            raise ValueError("the consumer has its partitions already")

    async def _committed(self, places: list[TopicPartition]) -> dict[TopicPartition, CommittedOffset]:
        return await self.commits.committed(places) if places and self.settings.group is not None else {}

    def _left_off(self, place: TopicPartition, found: CommittedOffset | None) -> Start:
        """Where the group is, else where the reset policy says. Raises NoCommittedOffset."""
        if found is not None and found.offset is not None:
            return OffsetAndMetadata(found.offset, leader_epoch=found.leader_epoch)
        if self.settings.reset == "error":
            raise NoCommittedOffset(place)
        return END if self.settings.reset == "latest" else BEGINNING

    def _read(self, reading: Reading, start: Start, sharers: int) -> PartitionStream:
        """Open the partition's own stream."""
        window = max(_MIN_WINDOW_BYTES, self.settings.prefetch_bytes // max(1, sharers))
        stream = self._streams[reading.place] = PartitionStream(
            reading,
            start.offset if isinstance(start, OffsetAndMetadata) else start,
            self.inbox,
            self._connections,
            self._cluster,
            window_bytes=window,
            reset=self.settings.reset,
            in_group=self._membership is not None,
        )
        return stream

    def _detach(self) -> None:
        """Read the group's partitions over streams of their own, from where the subscription has brought them."""
        if self._membership is None or self._membership.detached:
            return
        self._membership.detach()
        for reading in self.assignment.values():
            if not reading.gone:
                self._read(reading, reading.fetched, len(self.assignment))

    def _take_over(self) -> None:
        """Read the group's partitions over streams of their own, also those whose stream has ended already."""
        self._detach()
        for place, reading in self.assignment.items():
            if not reading.gone and (stream := self._streams.get(place)) is not None and stream.ended.is_set():
                self._read(reading, reading.fetched, len(self.assignment))

    # Handing out

    def take(self, previous: Chunk | None) -> Event | Chunk | None:
        """What is next for the application, None if it has to wait. `previous` is what it was given last. Everything
        handed out before counts as processed, since the application has come back for more. For its own thread.

        Raises ValueError if there is nothing to read, so that nothing would ever come."""
        if self._membership is None and not self.assignment:
            raise ValueError("the consumer has nothing to read: subscribe to topics, or assign partitions, first")
        for reading in self._in_hand:
            reading.settle()
        self._in_hand.clear()
        if previous is not None and unfinished(previous):
            self.inbox.put_back(previous)
        found = self.inbox.take()
        if isinstance(found, Chunk):
            self._in_hand.append(found.reading)
        return found

    def take_more(self) -> Chunk | None:
        """Another chunk to be handed out together with the last one, if it is there and nothing else comes first. For
        the application's own thread."""
        found = self.inbox.take_chunk()
        if found is not None:
            self._in_hand.append(found.reading)
        return found

    async def prepare(self, rebalance: Rebalance) -> None:
        """After the application has let go of what it lost, and before it is told what it gets."""
        if self.settings.auto_commit and rebalance.revoked:
            await self._commit_safe(rebalance.revoked)
        await self._let_go(rebalance.gone)
        # Also what is taken away again by a change that waits behind this one: the application is told of both in turn.
        for reading in rebalance.assigned:
            self.assignment[reading.place] = reading
        if self.settings.reset == "error":
            await self._check_committed([reading for reading in rebalance.assigned if not reading.gone])

    async def finish(self, rebalance: Rebalance) -> None:
        """After the application was told of everything."""
        assert self._membership is not None
        if self._membership.detached:
            for reading in rebalance.assigned:
                if not reading.gone and reading.place not in self._streams:
                    self._read(reading, reading.fetched, len(self.assignment))
        self._membership.acknowledge(rebalance)

    async def _check_committed(self, readings: list[Reading]) -> None:
        if not readings:
            return
        committed = await self.commits.committed([reading.place for reading in readings])
        for reading in readings:
            offset = committed[reading.place].offset
            if offset is None:
                self.inbox.put_event(Failure(NoCommittedOffset(reading.place)))
            elif offset != reading.position:
                message = f"offset {offset} of {reading.place} is not retained"
                self.inbox.put_event(Failure(OffsetOutOfRange(message, {"requested": str(offset)})))
            else:
                continue
            reading.paused = True
            self._detach()

    async def _let_go(self, readings: Sequence[Reading]) -> None:
        for reading in readings:
            reading.gone = True
            if self.assignment.get(reading.place) is reading:
                del self.assignment[reading.place]
            if (stream := self._streams.pop(reading.place, None)) is not None:
                await stream.close()
        self.inbox.drop_void()

    # Places

    def reading(self, place: TopicPartition) -> Reading:
        """Raises ValueError for a partition that is not assigned."""
        found = self.assignment.get(TopicPartition(*place))
        if found is None:
            raise ValueError(f"{place[0]}[{place[1]}] is not assigned to this consumer")
        return found

    async def seek(self, place: TopicPartition, to: Start) -> None:
        """Raises ValueError for a partition that is not assigned, DeadlineExceeded."""
        reading = self.reading(place)
        self._detach()
        if (stream := self._streams.pop(reading.place, None)) is not None:
            await stream.close()
        offset, epoch = known_start(to)
        if isinstance(to, int):
            # Up to where it has been, the epoch is known; beyond, the application knows better.
            offset, epoch = to, reading.epoch if to <= reading.fetched else None
        reading.jump(offset, epoch)
        reading.paused = False
        self.inbox.drop_void()
        self.inbox.look_again()
        stream = self._read(reading, to, len(self.assignment))
        if reading.position == UNKNOWN:
            await self._until_started(stream)

    async def _until_started(self, stream: PartitionStream) -> None:
        try:
            async with asyncio.timeout(self.settings.request_timeout_s):
                await stream.started.wait()
        except TimeoutError as error:
            raise DeadlineExceeded(f"the position in {stream.reading.place} is not known yet") from error

    async def pause(self, places: Iterable[TopicPartition]) -> None:
        """Raises ValueError for a partition that is not assigned."""
        for reading in [self.reading(place) for place in places]:
            reading.paused = True
        self._detach()
        self.inbox.look_again()

    async def resume(self, places: Iterable[TopicPartition]) -> None:
        """Raises ValueError for a partition that is not assigned."""
        for reading in [self.reading(place) for place in places]:
            reading.paused = False
        self.inbox.look_again()

    async def position(self, place: TopicPartition) -> int:
        """Raises ValueError for a partition that is not assigned, DeadlineExceeded."""
        reading = self.reading(place)
        if reading.position == UNKNOWN:
            await self._until_started(self._streams[reading.place])
        return reading.position

    async def bookmark(self, place: TopicPartition) -> OffsetAndMetadata:
        """Raises ValueError for a partition that is not assigned, DeadlineExceeded."""
        await self.position(place)
        return self.reading(place).handed_out()

    async def lag(self, place: TopicPartition) -> int:
        """Raises ValueError for a partition that is not assigned, and what calls raise."""
        position = await self.position(place)
        return max(0, await self.end_offset(place) - position)

    async def end_offset(self, place: TopicPartition) -> int:
        (found,) = (await self.edges([place], END)).values()
        return found

    async def edges(self, partitions: Iterable[TopicPartition], edge: Place) -> dict[TopicPartition, int]:
        """Raises TopicNotFound, PartitionNotFound, and what calls raise."""
        return await _lookups.edges(self._connections, partitions, edge)

    async def offsets_for_times(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """Raises TopicNotFound, PartitionNotFound, and what calls raise."""
        return await _lookups.at_times(self._connections, times)

    async def open_range(self, place: TopicPartition, start: Start, end_offset: int | None) -> RangeReader:
        """Read one partition from a place up to an offset (None: the end as it is now), beside everything else."""
        _convert.require_text("the topic's name", place.topic)
        inbox = Inbox(arrived := asyncio.Event(), self.settings.unpacked_within, self.inbox.deserializers)
        stream = PartitionStream(
            Reading(place, *known_start(start)),
            start.offset if isinstance(start, OffsetAndMetadata) else start,
            inbox,
            self._connections,
            self._cluster,
            window_bytes=self.settings.prefetch_bytes,
            reset="error",
            end_offset=await self.end_offset(place) if end_offset is None else end_offset,
        )
        self._ranges.add(reader := RangeReader(inbox, arrived, stream))
        return reader

    async def close_range(self, reader: RangeReader) -> None:
        self._ranges.discard(reader)
        await reader.stream.close()

    # Commits

    def positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Where the application is: the offsets after what it was handed out last. For its own thread."""
        return {
            place: handed_out
            for place, reading in self.assignment.items()
            if (handed_out := reading.handed_out()).offset != UNKNOWN
        }

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Raises CommitFailed, ValueError without a group, and what calls raise."""
        await self.commits.commit(offsets, self._membership)

    def _ask_again(self, reading: Reading) -> None:
        """A commit was refused because the log was cut. The partition's own stream, which is the one to go back, is
        told the same as soon as it asks whether it can go on."""
        if self._membership is not None and not self._membership.detached:
            self._detach()
        elif (stream := self._streams.get(reading.place)) is not None:
            stream.reopen()

    async def commit_soon(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], callback: CommitCallback | None
    ) -> None:
        """Commit in the background; `callback(offsets, error)` is called on the event loop."""
        self.commits.run(self.commit(offsets), offsets, callback)

    def _start_auto_commit(self) -> None:
        if self.settings.auto_commit and self.settings.group is not None and self._auto_commit is None:
            self._auto_commit = _tasks.start(self._commit_now_and_then(), "cursus-auto-commit")

    async def _commit_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(self.settings.auto_commit_interval_ms / 1000)
            await self._commit_safe(list(self.assignment.values()))

    async def _commit_safe(self, readings: Iterable[Reading]) -> None:
        """Commit what was processed, as far as it is new. A failure is logged: the next time may succeed, and if not,
        records come again, which at-least-once allows."""
        try:
            await self.commits.commit(unsaved(readings), self._membership)
        except CommitFailed as error:
            _log.warning("auto commit refused: %s", error)
        except CursusError as error:
            _log.warning("auto commit failed: %s", error)

    # The end

    async def close(self, timeout_s: float, *, all_processed: bool) -> None:
        """Commit, leave the group, let go. With `all_processed` also what was handed out last counts as processed."""
        deadline = Deadline(timeout_s)
        if self._auto_commit is not None:
            self._auto_commit.cancel()
            await asyncio.gather(self._auto_commit, return_exceptions=True)
        try:
            async with asyncio.timeout(timeout_s):
                await self.commits.finished()
                if self._auto_commit is not None:
                    if all_processed:
                        for reading in self.assignment.values():
                            reading.settle()
                    await self._commit_safe([one for one in self.assignment.values() if not one.gone])
        except TimeoutError:
            _log.warning("the last commit did not end in time")
        await self._let_all_go(deadline)

    async def abandon(self) -> None:
        """Let go without a word, as a process that dies: what is not committed comes again."""
        if self._auto_commit is not None:
            self._auto_commit.cancel()
        await self._let_all_go(Deadline(0.0))

    async def _let_all_go(self, deadline: Deadline) -> None:
        if self._telling is not None:
            self._telling.cancel()
        await self.commits.close()
        if self._membership is not None:
            await self._membership.leave(deadline.left_s() or 0.0)
        for stream in [*self._streams.values(), *(reader.stream for reader in self._ranges)]:
            await stream.close()
        self.inbox.look_again()
        await self._cluster.close()
        await self._connections.close()
