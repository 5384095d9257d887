"""The asyncio consumer. `sync/consumer.py` has the blocking one, over the same core."""

from __future__ import annotations

import asyncio
import inspect
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Self, Unpack

from cursus_grpc._channel import parse_bootstrap
from cursus_grpc._commits import CommitCallback
from cursus_grpc._consumer_core import ConsumerCore
from cursus_grpc._consumer_settings import ConsumerOptions, ConsumerSettings
from cursus_grpc._reading import Chunk, Failure, Reading, hand_out, take_batch
from cursus_grpc._records import Record
from cursus_grpc._retry import Deadline
from cursus_grpc.errors import ClientClosed
from cursus_grpc.types import BEGINNING, CommittedOffset, OffsetAndMetadata, Place, TopicPartition

AsyncRebalanceCallback = Callable[[Sequence[TopicPartition]], Awaitable[object] | object]
"""Told of partitions that come or go. May be a coroutine function."""

Offsets = Mapping[TopicPartition, int | OffsetAndMetadata]

CLOSE_S = 10.0


def as_commits(offsets: Offsets) -> dict[TopicPartition, OffsetAndMetadata]:
    """Offsets to commit in one form."""
    return {
        TopicPartition(*place): one if isinstance(one, OffsetAndMetadata) else OffsetAndMetadata(one)
        for place, one in offsets.items()
    }


def as_places(
    partitions: Iterable[TopicPartition] | Mapping[TopicPartition, Place | None],
) -> dict[TopicPartition, Place | None]:
    """What to assign in one form."""
    if isinstance(partitions, Mapping):
        return {TopicPartition(*place): start for place, start in partitions.items()}
    return {TopicPartition(*place): None for place in partitions}


def places(readings: Iterable[Reading]) -> list[TopicPartition]:
    return [reading.place for reading in readings]


class AsyncConsumer:
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
        **options: Unpack[ConsumerOptions],
    ) -> None:
        """With `topics` or a `pattern` the consumer subscribes when it starts; else call `subscribe` or `assign`.

        Raises ValueError for addresses and options that make no sense.
        """
        self._core: ConsumerCore | None = None
        self._bootstrap = parse_bootstrap(bootstrap)
        self._settings = ConsumerSettings(**options)
        self._topics = [topics] if isinstance(topics, str) else list(topics)
        self._pattern = pattern
        self._on_assigned, self._on_revoked, self._on_lost = on_assigned, on_revoked, on_lost
        self._arrived = asyncio.Event()
        self._chunk: Chunk | None = None
        self._hand: Iterator[Record] = iter(())
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
            warnings.warn("a consumer was not closed: its group waits for it", ResourceWarning, stacklevel=2)

    async def _started(self) -> ConsumerCore:
        if self._closed:
            raise ClientClosed("the consumer is closed")
        if self._core is None:
            self._core = ConsumerCore(self._bootstrap, self._settings, self._arrived)
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
    ) -> None:
        """Join the group for these topics, which need not exist yet, and those whose whole name matches the pattern
        (RE2). The callbacks are called while the consumer is asked for records: `on_revoked` before partitions are
        given to another member, the place to finish and commit; `on_lost` (default: `on_revoked`) where they were
        taken away already; `on_assigned` before their first record, the place to seek.

        Raises ValueError without a group, or if the consumer has partitions already.
        """
        core = await self._started()
        self._on_assigned = on_assigned or self._on_assigned
        self._on_revoked = on_revoked or self._on_revoked
        self._on_lost = on_lost or self._on_lost
        await core.subscribe(topics, pattern)

    async def assign(self, partitions: Iterable[TopicPartition] | Mapping[TopicPartition, Place | None]) -> None:
        """Read these partitions, instead of those assigned before: from the place given, else from where the group
        left off, else as `reset` says. Raises ValueError, NoCommittedOffset."""
        await (await self._started()).assign(as_places(partitions))

    def assignment(self) -> set[TopicPartition]:
        """The partitions the consumer reads now."""
        return set(self._core.assignment) if self._core is not None else set()

    # Records

    def __aiter__(self) -> AsyncIterator[Record]:
        return self._iterate()

    async def _iterate(self) -> AsyncIterator[Record]:
        while True:
            for record in self._hand:
                yield record
            await self._next_hand(Deadline(None))

    async def poll(self, timeout_s: float | None = None) -> Record | None:
        """The next record; None if there is none within the timeout. Raises what keeps a partition from being read."""
        deadline = Deadline(timeout_s)
        while (record := next(self._hand, None)) is None:
            if not await self._next_hand(deadline):
                return None
        return record

    async def poll_batch(self, max_records: int = 500, timeout_s: float | None = None) -> list[Record]:
        """Up to `max_records` records, at least one if there is any within the timeout. All of them count as processed
        when the consumer is asked for more."""
        core, taken = await self._started(), list[Record]()
        self._hand = iter(())
        chunk = await self._next_chunk(Deadline(timeout_s))
        while chunk is not None:
            taken += take_batch(chunk, max_records - len(taken))
            if len(taken) == max_records:
                break
            self._chunk = chunk = core.take_more()
        return taken

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
            await self._tell(self._on_revoked, places(found.revoked))
            await self._tell(self._on_lost or self._on_revoked, places(found.lost))
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

    async def range(
        self, topic: str, partition: int, start: Place = BEGINNING, end_offset: int | None = None
    ) -> AsyncIterator[Record]:
        """The records of one partition from a place up to, not including, `end_offset` (default: the end as it is
        now), independent of what the consumer is assigned. Raises OffsetOutOfRange, TopicNotFound, PartitionNotFound.
        """
        core = await self._started()
        reader = await core.open_range(TopicPartition(topic, partition), start, end_offset)
        try:
            while (chunk := await reader.next_chunk()) is not None:
                for record in reader.hand_out(chunk):
                    yield record
        finally:
            await core.close_range(reader)

    # Places

    async def seek(self, partition: TopicPartition, to: Place) -> None:
        """Go on at an offset, `BEGINNING`, `END` or a `Timestamp`. Takes effect with the next record.

        Raises ValueError for a partition that is not assigned.
        """
        await (await self._started()).seek(partition, to)

    async def pause(self, *partitions: TopicPartition) -> None:
        """Hand out nothing of these partitions until they are resumed. Raises ValueError if one is not assigned."""
        await (await self._started()).pause(partitions)

    async def resume(self, *partitions: TopicPartition) -> None:
        """Go on with paused partitions. Raises ValueError if one is not assigned."""
        await (await self._started()).resume(partitions)

    async def position(self, partition: TopicPartition) -> int:
        """The offset of the next record to be handed out. Raises ValueError if the partition is not assigned."""
        return await (await self._started()).position(partition)

    async def lag(self, partition: TopicPartition) -> int:
        """How many records lie between the position and the end of the log. Raises ValueError likewise."""
        return await (await self._started()).lag(partition)

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
