"""The asyncio consumer. `sync/consumer.py` has the blocking one, over the same core."""

from __future__ import annotations

import asyncio
import inspect
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Generic, Self, Unpack

from cursus_grpc import _tasks
from cursus_grpc._channel import parse_bootstrap
from cursus_grpc._commits import CommitCallback
from cursus_grpc._consumer_core import ConsumerCore
from cursus_grpc._consumer_settings import ConsumerOptions, ConsumerSettings
from cursus_grpc._reading import Chunk, Failure, Reading, Truncated, hand_out, take_batch, unfinished
from cursus_grpc._records import Deserializers, Key, Record, StoredBatch, Value, by_partition
from cursus_grpc._retry import Deadline
from cursus_grpc.errors import ClientClosed
from cursus_grpc.types import (
    BEGINNING,
    END,
    CommittedOffset,
    ConsumerStatistics,
    OffsetAndMetadata,
    Start,
    Subscription,
    TopicPartition,
)

AsyncRebalanceCallback = Callable[[Sequence[TopicPartition]], Awaitable[object] | object]
"""Told of partitions that come or go. May be a coroutine function."""

AsyncTruncationCallback = Callable[[TopicPartition, int, int], Awaitable[object] | object]
"""Told of a partition whose log was cut below what was read: the position until then, and the offset it goes on
from. May be a coroutine function."""

Offsets = Mapping[TopicPartition, int | OffsetAndMetadata]

CLOSE_S = 10.0

NOT_CLOSED = "a consumer was not closed: its group waits for it"


def as_commits(offsets: Offsets) -> dict[TopicPartition, OffsetAndMetadata]:
    """Offsets to commit in one form."""
    return {
        TopicPartition(*place): one if isinstance(one, OffsetAndMetadata) else OffsetAndMetadata(one)
        for place, one in offsets.items()
    }


def as_places(
    partitions: Iterable[TopicPartition] | Mapping[TopicPartition, Start | None],
) -> dict[TopicPartition, Start | None]:
    """What to assign in one form."""
    if isinstance(partitions, Mapping):
        return {TopicPartition(*place): start for place, start in partitions.items()}
    return {TopicPartition(*place): None for place in partitions}


def places(readings: Iterable[Reading]) -> list[TopicPartition]:
    return [reading.place for reading in readings]


class AsyncConsumer(Generic[Value, Key]):
    """Reads records, as a member of a group or of partitions it is told. For one task at a time.

    With a group every record is handed out at least once: what counts as processed, that is everything before the
    record in hand, is committed now and then, before a partition is given away, and on closing.

    >>> async def main() -> None:
    ...     async with AsyncConsumer(broker.address, group="readers", topics=["greetings"]) as consumer:
    ...         async for record in consumer:
    ...             print(record.value)
    ...             break
    >>> asyncio.run(main())
    b'hello'
    """

    def __init__(
        self,
        bootstrap: str | Iterable[str],
        *,
        topics: Iterable[str] = (),
        pattern: str = "",
        on_assigned: AsyncRebalanceCallback | None = None,
        on_revoked: AsyncRebalanceCallback | None = None,
        on_lost: AsyncRebalanceCallback | None = None,
        on_truncated: AsyncTruncationCallback | None = None,
        value_deserializer: Callable[[bytes], Value] | None = None,
        key_deserializer: Callable[[bytes], Key] | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> None:
        """With `topics` or a `pattern` the consumer subscribes when it starts; else call `subscribe` or `assign`.

        `on_truncated(partition, position, offset)` is called, when the consumer is asked for records, after power loss
        or damage at the broker has cut a log below what was read: the records from `offset` up to `position` are gone,
        and what is read next begins at `offset`. With `reset="error"` LogTruncated is raised instead.

        The deserializers make values and keys of bytes when one looks at them; null they are not asked for.

        Raises ValueError for addresses and options that make no sense.
        """
        deserializers = Deserializers(value_deserializer, key_deserializer)
        self._deserializers = deserializers if deserializers.any else None
        self._core: ConsumerCore | None = None
        self._bootstrap = parse_bootstrap(bootstrap)
        self._settings = ConsumerSettings(**options)
        self._topics = [topics] if isinstance(topics, str) else list(topics)
        self._pattern = pattern
        self._on_assigned, self._on_revoked, self._on_lost = on_assigned, on_revoked, on_lost
        self._on_truncated = on_truncated
        self._arrived = asyncio.Event()
        self._chunk: Chunk | None = None
        self._hand: Iterator[Record[Value, Key]] = iter(())
        self._closed = False

    async def __aenter__(self) -> Self:
        await self._started()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close(CLOSE_S, all_processed=kind is None)

    def __del__(self) -> None:
        if self._core is not None and not self._closed:
            _tasks.finish_soon(self._core.loop, self._core.abandon)
            warnings.warn(NOT_CLOSED, ResourceWarning, stacklevel=2, source=self)

    async def _started(self) -> ConsumerCore:
        if self._closed:
            raise ClientClosed("the consumer is closed")
        if self._core is None:
            self._core = ConsumerCore(self._bootstrap, self._settings, self._arrived, self._deserializers)
            if self._topics or self._pattern:
                await self._core.subscribe(self._topics, self._pattern)
        return self._core

    # What to read

    async def subscribe(
        self,
        topics: Iterable[str] = (),
        pattern: str = "",
        *,
        on_assigned: AsyncRebalanceCallback | None = None,
        on_revoked: AsyncRebalanceCallback | None = None,
        on_lost: AsyncRebalanceCallback | None = None,
        on_truncated: AsyncTruncationCallback | None = None,
    ) -> None:
        """Join the group for these topics, which need not exist yet, and those whose whole name matches the pattern
        (RE2). The callbacks are called while the consumer is asked for records: `on_revoked` before partitions are
        given to another member, the place to finish and commit; `on_lost` (default: `on_revoked`) where they were
        taken away already; `on_assigned` before their first record, the place to seek.
        `on_truncated` is as in the constructor.

        Raises ValueError without a group, or if the consumer has partitions already.
        """
        core = await self._started()
        self._on_assigned = on_assigned or self._on_assigned
        self._on_revoked = on_revoked or self._on_revoked
        self._on_lost = on_lost or self._on_lost
        self._on_truncated = on_truncated or self._on_truncated
        await core.subscribe(topics, pattern)

    async def assign(self, partitions: Iterable[TopicPartition] | Mapping[TopicPartition, Start | None]) -> None:
        """Read these partitions, instead of those assigned before: from the place given, else from where the group
        left off, else as `reset` says. Raises ValueError, NoCommittedOffset."""
        await (await self._started()).assign(as_places(partitions))

    def assignment(self) -> set[TopicPartition]:
        """The partitions the consumer reads now."""
        return set(self._core.assignment) if self._core is not None else set()

    async def unsubscribe(self) -> None:
        """Leave the group, or let go of the partitions assigned: the consumer reads nothing until it is told to again.
        `on_revoked` is called, and what was processed is committed with `auto_commit`, as when partitions go to another
        member."""
        core = await self._started()
        await self._tell(self._on_revoked, list(core.assignment))
        await core.unsubscribe()

    def subscription(self) -> Subscription | None:
        """What the consumer subscribed to; None if it did not."""
        return self._core.subscription if self._core is not None else None

    # Records

    def __aiter__(self) -> AsyncIterator[Record[Value, Key]]:
        return self._iterate()

    async def _iterate(self) -> AsyncIterator[Record[Value, Key]]:
        while True:
            for record in self._hand:
                yield record
            await self._next_hand(Deadline(None))

    async def poll(self, timeout_s: float | None = None) -> Record[Value, Key] | None:
        """The next record; None if there is none within the timeout. Raises what keeps a partition from being read."""
        deadline = Deadline(timeout_s)
        while (record := next(self._hand, None)) is None:
            if not await self._next_hand(deadline):
                return None
        return record

    async def poll_batch(self, max_records: int = 500, timeout_s: float | None = None) -> list[Record[Value, Key]]:
        """Up to `max_records` records, at least one if there is any within the timeout. All of them count as processed
        when the consumer is asked for more."""
        core, taken = await self._started(), list[Record[Value, Key]]()
        self._hand = iter(())
        chunk = await self._next_chunk(Deadline(timeout_s))
        while chunk is not None:
            take_batch(chunk, core.inbox, taken, max_records)
            if len(taken) == max_records or unfinished(chunk):
                break
            self._chunk = chunk = core.take_more()
        return taken

    async def poll_many(
        self, max_records: int = 500, timeout_s: float | None = None
    ) -> dict[TopicPartition, list[Record[Value, Key]]]:
        """What `poll_batch` returns, by partition: those that have records, each with its own in order."""
        return by_partition(await self.poll_batch(max_records, timeout_s))

    async def _next_hand(self, deadline: Deadline) -> bool:
        """Begin to hand out the next chunk. False at the deadline."""
        chunk = await self._next_chunk(deadline)
        if chunk is None:
            return False
        assert self._core is not None
        self._hand = hand_out(chunk, self._core.inbox)
        return True

    async def _next_chunk(self, deadline: Deadline) -> Chunk | None:
        core = await self._started()
        while True:
            found = core.take(self._chunk)
            self._chunk = found if isinstance(found, Chunk) else None
            if found is None:
                if not await self._something_arrived(deadline):
                    return None
                continue
            if isinstance(found, Failure):
                raise found.error
            if isinstance(found, Chunk):
                return found
            if isinstance(found, Truncated):
                await self._tell_truncated(found)
                continue
            revoked, lost = places(found.revoked), places(found.lost)
            await self._tell(self._on_revoked, revoked)
            await self._tell(self._on_lost or self._on_revoked, lost)
            await core.prepare(found)
            await self._tell(self._on_assigned, places(found.assigned))
            await core.finish(found)

    async def _something_arrived(self, deadline: Deadline) -> bool:
        """Wait for it. False at the deadline."""
        try:
            async with asyncio.timeout(deadline.left_s()):
                return await self._arrived.wait()
        except TimeoutError:
            return False

    @staticmethod
    async def _tell(callback: AsyncRebalanceCallback | None, partitions: list[TopicPartition]) -> None:
        if callback is not None and partitions:
            outcome = callback(partitions)
            if inspect.isawaitable(outcome):
                await outcome

    async def _tell_truncated(self, truncated: Truncated) -> None:
        if self._on_truncated is not None and not truncated.reading.gone:
            outcome = self._on_truncated(truncated.reading.place, truncated.position, truncated.offset)
            if inspect.isawaitable(outcome):
                await outcome

    async def range(
        self, topic: str, partition: int, start: Start = BEGINNING, end_offset: int | None = None
    ) -> AsyncIterator[Record[Value, Key]]:
        """The records of one partition from a place up to, not including, `end_offset` (default: the end as it is
        now), independent of what the consumer is assigned. Raises OffsetOutOfRange, TopicNotFound, PartitionNotFound,
        and LogTruncated if the log is cut below what was read, or has been since the epoch of a bookmark to start at.
        """
        core = await self._started()
        reader = await core.open_range(TopicPartition(topic, partition), start, end_offset)
        try:
            while (chunk := await reader.next_chunk()) is not None:
                for record in reader.hand_out(chunk):
                    yield record
        finally:
            await core.close_range(reader)

    async def range_batches(
        self,
        topic: str,
        partition: int,
        start: Start = BEGINNING,
        end_offset: int | None = None,
        *,
        patience_s: float | None = None,
    ) -> AsyncIterator[StoredBatch]:
        """What `range` reads, as the batches it is stored in: whole ones, so the first may begin before the start and
        the last end behind the end. A broker that is away is waited for; with `patience_s`, DeadlineExceeded is raised
        when nothing has come for so long."""
        core = await self._started()
        reader = await core.open_range(TopicPartition(topic, partition), start, end_offset)
        try:
            while (chunk := await reader.next_chunk(patience_s)) is not None:
                for batch in reader.hand_out_batches(chunk):
                    yield batch
        finally:
            await core.close_range(reader)

    # Places

    async def seek(self, partition: TopicPartition, to: Start) -> None:
        """Go on at an offset, `BEGINNING`, `END`, a `Timestamp` or a bookmark. Takes effect with the next record.

        Raises ValueError for a partition that is not assigned.
        """
        await (await self._started()).seek(partition, to)

    async def pause(self, *partitions: TopicPartition) -> None:
        """Hand out nothing of these partitions until they are resumed. Raises ValueError if one is not assigned."""
        await (await self._started()).pause(partitions)

    def paused(self) -> set[TopicPartition]:
        """The partitions that are paused now."""
        return self._core.paused() if self._core is not None else set()

    async def resume(self, *partitions: TopicPartition) -> None:
        """Go on with paused partitions. Raises ValueError if one is not assigned."""
        await (await self._started()).resume(partitions)

    async def position(self, partition: TopicPartition) -> int:
        """The offset of the next record to be handed out. Raises ValueError if the partition is not assigned."""
        return await (await self._started()).position(partition)

    async def bookmark(self, partition: TopicPartition) -> OffsetAndMetadata:
        """The position with the epoch it stands in, to be kept with an application's results and given to `seek` or
        `assign` later: if the log was cut below it meanwhile, that is noticed. Raises ValueError likewise."""
        return await (await self._started()).bookmark(partition)

    async def lag(self, partition: TopicPartition) -> int:
        """How many records lie between the position and the end of the log. Raises ValueError likewise."""
        return await (await self._started()).lag(partition)

    async def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offset that is retained of each partition, whether assigned or not. Raises TopicNotFound,
        PartitionNotFound, and BrokerUnreachable or DeadlineExceeded."""
        return await (await self._started()).edges(partitions, BEGINNING)

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The offset that the next record of each partition will get. Raises as `beginning_offsets`."""
        return await (await self._started()).edges(partitions, END)

    async def offsets_for_times(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """The first offset stored at or after a time, in milliseconds since 1970, for each partition; None if there is
        none yet. Raises as `beginning_offsets`."""
        return await (await self._started()).offsets_for_times(times)

    async def statistics(self) -> ConsumerStatistics:
        """What was received, and how far the consumer is: what `on_statistics` is called with. Asks no broker."""
        return (await self._started()).statistics()

    # Commits

    async def commit(self, offsets: Offsets | None = None) -> None:
        """Commit these offsets, each the next one to read; by default everything handed out so far, the record in hand
        included. Durable when it returns. Raises CommitFailed, and BrokerUnreachable or DeadlineExceeded."""
        core = await self._started()
        await core.commit(core.positions() if offsets is None else as_commits(offsets))

    async def commit_async(self, offsets: Offsets | None = None, callback: CommitCallback | None = None) -> None:
        """Begin to commit and return at once; `callback(offsets, error)` tells how it went."""
        core = await self._started()
        await core.commit_soon(core.positions() if offsets is None else as_commits(offsets), callback)

    async def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, CommittedOffset]:
        """What the group has committed for these partitions."""
        return await (await self._started()).commits.committed(list(partitions))

    async def close(self, timeout_s: float = CLOSE_S) -> None:
        """Commit what was processed (not the record in hand), leave the group, let go of everything."""
        await self._close(timeout_s, all_processed=False)

    async def _close(self, timeout_s: float, *, all_processed: bool) -> None:
        if self._closed:
            return
        self._closed = True
        if self._core is not None:
            await self._core.close(timeout_s, all_processed=all_processed)
