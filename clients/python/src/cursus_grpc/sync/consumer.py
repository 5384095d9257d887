"""The blocking consumer: the asyncio one's core, with the application's callbacks on the application's thread."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from types import TracebackType
from typing import Generic, Self, Unpack

from cursus_grpc._channel import parse_bootstrap
from cursus_grpc._commits import CommitCallback
from cursus_grpc._consumer import CLOSE_S, NOT_CLOSED, AsyncConsumer, Offsets, as_commits, as_places, places
from cursus_grpc._consumer_core import ConsumerCore
from cursus_grpc._consumer_settings import ConsumerOptions, ConsumerSettings
from cursus_grpc._faces import described_by
from cursus_grpc._loop_thread import LoopThread, Wakeup
from cursus_grpc._reading import Chunk, Failure, Truncated, hand_out, take_batch, unfinished
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

RebalanceCallback = Callable[[Sequence[TopicPartition]], object]
"""Told of partitions that come or go."""

TruncationCallback = Callable[[TopicPartition, int, int], object]
"""Told of a partition whose log was cut below what was read: the position until then, and the offset it goes on
from."""


@described_by(AsyncConsumer)
class Consumer(Generic[Value, Key]):
    """Reads records, as a member of a group or of partitions it is told. For one thread at a time.

    With a group every record is handed out at least once: what counts as processed, that is everything before the
    record in hand, is committed now and then, before a partition is given away, and on closing.

    >>> with Consumer(broker.address, group="other-readers", topics=["greetings"]) as consumer:
    ...     for record in consumer:
    ...         print(record.value)
    ...         break
    b'hello'
    """

    def __init__(
        self,
        bootstrap: str | Iterable[str],
        *,
        topics: Iterable[str] = (),
        pattern: str = "",
        on_assigned: RebalanceCallback | None = None,
        on_revoked: RebalanceCallback | None = None,
        on_lost: RebalanceCallback | None = None,
        on_truncated: TruncationCallback | None = None,
        value_deserializer: Callable[[bytes], Value] | None = None,
        key_deserializer: Callable[[bytes], Key] | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> None:
        """With `topics` or a `pattern` the consumer subscribes at once; else call `subscribe` or `assign`.

        `on_truncated(partition, position, offset)` is called, when the consumer is asked for records, after power loss
        or damage at the broker has cut a log below what was read: the records from `offset` up to `position` are gone,
        and what is read next begins at `offset`. With `reset="error"` LogTruncated is raised instead.

        The deserializers make values and keys of bytes when one looks at them; null they are not asked for.

        Raises ValueError for addresses and options that make no sense.
        """
        deserializers = Deserializers(value_deserializer, key_deserializer)
        self._deserializers = deserializers if deserializers.any else None
        self._closed = True  # until there is something to close
        addresses = parse_bootstrap(bootstrap)
        settings = ConsumerSettings(**options)
        self._on_assigned, self._on_revoked, self._on_lost = on_assigned, on_revoked, on_lost
        self._on_truncated = on_truncated
        self._chunk: Chunk | None = None
        self._hand: Iterator[Record[Value, Key]] = iter(())
        self._loop = LoopThread.shared()
        self._run = self._loop.run
        self._arrived = Wakeup()
        self._core = self._loop.make(lambda: ConsumerCore(addresses, settings, self._arrived, self._deserializers))
        self._closed = False
        if topics or pattern:
            try:
                self.subscribe(topics, pattern)
            except ValueError:
                self.close()
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close(CLOSE_S, all_processed=kind is None)

    def __del__(self) -> None:
        if not self._closed:
            self._loop.finish_soon(self._core.abandon)
            warnings.warn(NOT_CLOSED, ResourceWarning, stacklevel=2, source=self)

    def _open(self) -> ConsumerCore:
        if self._closed:
            raise ClientClosed("the consumer is closed")
        return self._core

    # What to read

    def subscribe(
        self,
        topics: Iterable[str] = (),
        pattern: str = "",
        *,
        on_assigned: RebalanceCallback | None = None,
        on_revoked: RebalanceCallback | None = None,
        on_lost: RebalanceCallback | None = None,
        on_truncated: TruncationCallback | None = None,
    ) -> None:
        """Join the group for these topics, which need not exist yet, and those whose whole name matches the pattern
        (RE2). The callbacks are called while the consumer is asked for records, on the thread that asks: `on_revoked`
        before partitions are given to another member, the place to finish and commit; `on_lost` (default:
        `on_revoked`) where they were taken away already; `on_assigned` before their first record, the place to seek.
        `on_truncated` is as in the constructor.

        Raises ValueError without a group, or if the consumer has partitions already.
        """
        self._on_assigned = on_assigned or self._on_assigned
        self._on_revoked = on_revoked or self._on_revoked
        self._on_lost = on_lost or self._on_lost
        self._on_truncated = on_truncated or self._on_truncated
        self._run(self._open().subscribe(topics, pattern))

    def assign(self, partitions: Iterable[TopicPartition] | Mapping[TopicPartition, Start | None]) -> None:
        self._run(self._open().assign(as_places(partitions)))

    def assignment(self) -> set[TopicPartition]:
        return set(self._core.assignment)

    def unsubscribe(self) -> None:
        core = self._open()
        _tell(self._on_revoked, list(core.assignment))
        self._run(core.unsubscribe())

    def subscription(self) -> Subscription | None:
        return self._core.subscription

    # Records

    def __iter__(self) -> Iterator[Record[Value, Key]]:
        return chain.from_iterable(self._hands())

    def _hands(self) -> Iterator[Iterator[Record[Value, Key]]]:
        while True:
            yield self._hand
            self._next_hand(Deadline(None))

    def poll(self, timeout_s: float | None = None) -> Record[Value, Key] | None:
        deadline = Deadline(timeout_s)
        while (record := next(self._hand, None)) is None:
            if not self._next_hand(deadline):
                return None
        return record

    def poll_batch(self, max_records: int = 500, timeout_s: float | None = None) -> list[Record[Value, Key]]:
        core, taken = self._open(), list[Record[Value, Key]]()
        self._hand = iter(())
        chunk = self._next_chunk(Deadline(timeout_s))
        while chunk is not None:
            take_batch(chunk, core.inbox, taken, max_records)
            if len(taken) == max_records or unfinished(chunk):
                break
            self._chunk = chunk = core.take_more()
        return taken

    def poll_many(
        self, max_records: int = 500, timeout_s: float | None = None
    ) -> dict[TopicPartition, list[Record[Value, Key]]]:
        return by_partition(self.poll_batch(max_records, timeout_s))

    def _next_hand(self, deadline: Deadline) -> bool:
        """Begin to hand out the next chunk. False at the deadline."""
        chunk = self._next_chunk(deadline)
        if chunk is None:
            return False
        self._hand = hand_out(chunk, self._core.inbox)
        return True

    def _next_chunk(self, deadline: Deadline) -> Chunk | None:
        core = self._open()
        while True:
            found = core.take(self._chunk)
            self._chunk = found if isinstance(found, Chunk) else None
            if found is None:
                if not self._something_arrived(deadline):
                    return None
                continue
            if isinstance(found, Failure):
                raise found.error
            if isinstance(found, Chunk):
                return found
            if isinstance(found, Truncated):
                if self._on_truncated is not None and not found.reading.gone:
                    self._on_truncated(found.reading.place, found.position, found.offset)
                continue
            revoked, lost = places(found.revoked), places(found.lost)
            _tell(self._on_revoked, revoked)
            _tell(self._on_lost or self._on_revoked, lost)
            self._run(core.prepare(found))
            _tell(self._on_assigned, places(found.assigned))
            self._run(core.finish(found))

    def _something_arrived(self, deadline: Deadline) -> bool:
        """Wait for it. False at the deadline."""
        if self._arrived.wait(deadline.left_s()):
            return True
        # An application that polls without waiting would otherwise keep the client's thread from receiving anything.
        time.sleep(0)
        return self._arrived.wait(0.0)

    def range(
        self, topic: str, partition: int, start: Start = BEGINNING, end_offset: int | None = None
    ) -> Iterator[Record[Value, Key]]:
        core = self._open()
        reader = self._run(core.open_range(TopicPartition(topic, partition), start, end_offset))
        try:
            while (chunk := self._run(reader.next_chunk())) is not None:
                yield from reader.hand_out(chunk)
        finally:
            self._run(core.close_range(reader))

    def range_batches(
        self,
        topic: str,
        partition: int,
        start: Start = BEGINNING,
        end_offset: int | None = None,
        *,
        patience_s: float | None = None,
    ) -> Iterator[StoredBatch]:
        core = self._open()
        reader = self._run(core.open_range(TopicPartition(topic, partition), start, end_offset))
        try:
            while (chunk := self._run(reader.next_chunk(patience_s))) is not None:
                yield from reader.hand_out_batches(chunk)
        finally:
            self._run(core.close_range(reader))

    # Places

    def seek(self, partition: TopicPartition, to: Start) -> None:
        self._run(self._open().seek(partition, to))

    def pause(self, *partitions: TopicPartition) -> None:
        self._run(self._open().pause(partitions))

    def paused(self) -> set[TopicPartition]:
        return self._core.paused()

    def resume(self, *partitions: TopicPartition) -> None:
        self._run(self._open().resume(partitions))

    def position(self, partition: TopicPartition) -> int:
        return self._run(self._open().position(partition))

    def bookmark(self, partition: TopicPartition) -> OffsetAndMetadata:
        found = self._open().reading(partition).handed_out()
        return found if found.offset >= 0 else self._run(self._open().bookmark(partition))

    def lag(self, partition: TopicPartition) -> int:
        return self._run(self._open().lag(partition))

    def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return self._run(self._open().edges(partitions, BEGINNING))

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return self._run(self._open().edges(partitions, END))

    def offsets_for_times(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        return self._run(self._open().offsets_for_times(times))

    def statistics(self) -> ConsumerStatistics:
        return self._loop.make(self._open().statistics)

    # Commits

    def commit(self, offsets: Offsets | None = None) -> None:
        core = self._open()
        self._run(core.commit(core.positions() if offsets is None else as_commits(offsets)))

    def commit_async(self, offsets: Offsets | None = None, callback: CommitCallback | None = None) -> None:
        """Begin to commit and return at once; `callback(offsets, error)` tells, on the client's own thread, how it
        went."""
        core = self._open()
        commits = core.positions() if offsets is None else as_commits(offsets)
        self._run(core.commit_soon(commits, callback))

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, CommittedOffset]:
        return self._run(self._open().commits.committed(list(partitions)))

    def close(self, timeout_s: float = CLOSE_S) -> None:
        self._close(timeout_s, all_processed=False)

    def _close(self, timeout_s: float, *, all_processed: bool) -> None:
        if self._closed:
            return
        self._closed = True
        self._run(self._core.close(timeout_s, all_processed=all_processed))


def _tell(callback: RebalanceCallback | None, partitions: list[TopicPartition]) -> None:
    if callback is not None and partitions:
        callback(partitions)
