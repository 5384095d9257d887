"""The blocking consumer: the asyncio one's core, with the application's callbacks on the application's thread."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from types import TracebackType
from typing import Self, Unpack

from cursus_grpc._channel import parse_bootstrap
from cursus_grpc._commits import CommitCallback
from cursus_grpc._consumer import CLOSE_S, Offsets, as_commits, as_places, places
from cursus_grpc._consumer_core import ConsumerCore
from cursus_grpc._consumer_settings import ConsumerOptions, ConsumerSettings
from cursus_grpc._loop_thread import LoopThread, Wakeup
from cursus_grpc._reading import Chunk, Failure, Truncated, hand_out, take_batch, unfinished
from cursus_grpc._records import Record, StoredBatch
from cursus_grpc._retry import Deadline
from cursus_grpc.errors import ClientClosed
from cursus_grpc.types import BEGINNING, CommittedOffset, OffsetAndMetadata, Start, TopicPartition

RebalanceCallback = Callable[[Sequence[TopicPartition]], object]
"""Told of partitions that come or go."""

TruncationCallback = Callable[[TopicPartition, int, int], object]
"""Told of a partition whose log was cut below what was read: the position until then, and the offset it goes on
from."""


class Consumer:
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
        **options: Unpack[ConsumerOptions],
    ) -> None:
        """With `topics` or a `pattern` the consumer subscribes at once; else call `subscribe` or `assign`.

        `on_truncated(partition, position, offset)` is called, when the consumer is asked for records, after power loss
        or damage at the broker has cut a log below what was read: the records from `offset` up to `position` are gone,
        and what is read next begins at `offset`. With `reset="error"` LogTruncated is raised instead.

        Raises ValueError for addresses and options that make no sense.
        """
        self._closed = True  # until there is something to close
        addresses = parse_bootstrap(bootstrap)
        settings = ConsumerSettings(**options)
        self._on_assigned, self._on_revoked, self._on_lost = on_assigned, on_revoked, on_lost
        self._on_truncated = on_truncated
        self._chunk: Chunk | None = None
        self._hand: Iterator[Record] = iter(())
        loop = LoopThread.shared()
        self._run = loop.run
        self._arrived = Wakeup()
        self._core = loop.make(lambda: ConsumerCore(addresses, settings, self._arrived))
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
            warnings.warn("a consumer was not closed: its group waits for it", ResourceWarning, stacklevel=2)

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
        """Read these partitions, instead of those assigned before: from the place given, else from where the group
        left off, else as `reset` says. Raises ValueError, NoCommittedOffset."""
        self._run(self._open().assign(as_places(partitions)))

    def assignment(self) -> set[TopicPartition]:
        """The partitions the consumer reads now."""
        return set(self._core.assignment)

    # Records

    def __iter__(self) -> Iterator[Record]:
        return chain.from_iterable(self._hands())

    def _hands(self) -> Iterator[Iterator[Record]]:
        while True:
            yield self._hand
            self._next_hand(Deadline(None))

    def poll(self, timeout_s: float | None = None) -> Record | None:
        """The next record; None if there is none within the timeout. Raises what keeps a partition from being read."""
        deadline = Deadline(timeout_s)
        while (record := next(self._hand, None)) is None:
            if not self._next_hand(deadline):
                return None
        return record

    def poll_batch(self, max_records: int = 500, timeout_s: float | None = None) -> list[Record]:
        """Up to `max_records` records, at least one if there is any within the timeout. All of them count as processed
        when the consumer is asked for more."""
        core, taken = self._open(), list[Record]()
        self._hand = iter(())
        chunk = self._next_chunk(Deadline(timeout_s))
        while chunk is not None:
            take_batch(chunk, core.inbox, taken, max_records)
            if len(taken) == max_records or unfinished(chunk):
                break
            self._chunk = chunk = core.take_more()
        return taken

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
            _tell(self._on_revoked, places(found.revoked))
            _tell(self._on_lost or self._on_revoked, places(found.lost))
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
    ) -> Iterator[Record]:
        """The records of one partition from a place up to, not including, `end_offset` (default: the end as it is
        now), independent of what the consumer is assigned. Raises OffsetOutOfRange, TopicNotFound, PartitionNotFound,
        and LogTruncated if the log is cut below what was read, or has been since the epoch of a bookmark to start at.
        """
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
        """What `range` reads, as the batches it is stored in: whole ones, so the first may begin before the start and
        the last end behind the end. A broker that is away is waited for; with `patience_s`, DeadlineExceeded is raised
        when nothing has come for so long."""
        core = self._open()
        reader = self._run(core.open_range(TopicPartition(topic, partition), start, end_offset))
        try:
            while (chunk := self._run(reader.next_chunk(patience_s))) is not None:
                yield from reader.hand_out_batches(chunk)
        finally:
            self._run(core.close_range(reader))

    # Places

    def seek(self, partition: TopicPartition, to: Start) -> None:
        """Go on at an offset, `BEGINNING`, `END`, a `Timestamp` or a bookmark. Takes effect with the next record.

        Raises ValueError for a partition that is not assigned.
        """
        self._run(self._open().seek(partition, to))

    def pause(self, *partitions: TopicPartition) -> None:
        """Hand out nothing of these partitions until they are resumed. Raises ValueError if one is not assigned."""
        self._run(self._open().pause(partitions))

    def resume(self, *partitions: TopicPartition) -> None:
        """Go on with paused partitions. Raises ValueError if one is not assigned."""
        self._run(self._open().resume(partitions))

    def position(self, partition: TopicPartition) -> int:
        """The offset of the next record to be handed out. Raises ValueError if the partition is not assigned."""
        return self._run(self._open().position(partition))

    def bookmark(self, partition: TopicPartition) -> OffsetAndMetadata:
        """The position with the epoch it stands in, to be kept with an application's results and given to `seek` or
        `assign` later: if the log was cut below it meanwhile, that is noticed. Raises ValueError likewise."""
        found = self._open().reading(partition).handed_out()
        return found if found.offset >= 0 else self._run(self._open().bookmark(partition))

    def lag(self, partition: TopicPartition) -> int:
        """How many records lie between the position and the end of the log. Raises ValueError likewise."""
        return self._run(self._open().lag(partition))

    # Commits

    def commit(self, offsets: Offsets | None = None) -> None:
        """Commit these offsets, each the next one to read; by default everything handed out so far, the record in hand
        included. Durable when it returns. Raises CommitFailed, and BrokerUnreachable or DeadlineExceeded."""
        core = self._open()
        self._run(core.commit(core.positions() if offsets is None else as_commits(offsets)))

    def commit_async(self, offsets: Offsets | None = None, callback: CommitCallback | None = None) -> None:
        """Begin to commit and return at once; `callback(offsets, error)` tells, on the client's own thread, how it
        went."""
        core = self._open()
        commits = core.positions() if offsets is None else as_commits(offsets)
        self._run(core.commit_soon(commits, callback))

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, CommittedOffset]:
        """What the group has committed for these partitions."""
        return self._run(self._open().commits.committed(list(partitions)))

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Commit what was processed (not the record in hand), leave the group, let go of everything."""
        self._close(timeout_s, all_processed=False)

    def _close(self, timeout_s: float, *, all_processed: bool) -> None:
        if self._closed:
            return
        self._closed = True
        self._run(self._core.close(timeout_s, all_processed=all_processed))


def _tell(callback: RebalanceCallback | None, partitions: list[TopicPartition]) -> None:
    if callback is not None and partitions:
        callback(partitions)
