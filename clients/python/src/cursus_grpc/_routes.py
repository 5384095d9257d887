"""Where the records of a topic go, and those that wait because it is not known yet.

A topic's partitions have to be asked for, which takes a while and longer if no broker is there. Meanwhile its records
wait here in the order of `send`. Once the partitions are known the waiting ones are let go piece by piece, and new ones
go on queueing behind them until the last is gone: so that a partition and a key keep their order.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable

from cursus_grpc._batch import CALLBACKS, Batch, Delivered, Outcome
from cursus_grpc._lane import Lane
from cursus_grpc._many import Portion
from cursus_grpc._partitioning import Partitioner, chosen
from cursus_grpc.errors import CursusError
from cursus_grpc.types import RecordMetadata


class Route:
    """The partitions of a topic."""

    __slots__ = ("current", "lanes")

    def __init__(self, lanes: list[Lane]) -> None:
        self.lanes = lanes
        # By the system's randomness: processes that were forked share the other kind, and would all begin together.
        self.current = lanes[secrets.randbelow(len(lanes))]
        """Where records without a key go until their batch leaves. Any to begin with: else the first records of all
        producers, and all of those that send one, would lie in one partition."""

    def advance(self) -> Lane:
        """The next partition in turn becomes the current one."""
        lanes = self.lanes
        self.current = lanes[(self.current.place.partition + 1) % len(lanes)]
        return self.current

    def has(self, partition: int | None) -> bool:
        """Whether there is this partition; None is any."""
        return partition is None or partition < len(self.lanes)


class WaitingRecord(Outcome):
    """A record without a partition, encoded. It joins a batch or fails."""

    __slots__ = ("_batch", "deadline", "delivery", "failure", "head", "key", "partition", "sent_at", "size", "value")
    count = 1

    def __init__(
        self, head: bytes, value: bytes, key: bytes | None, partition: int | None, delivery: Delivered
    ) -> None:
        super().__init__()
        self.head = head
        self.value = value
        self.size = len(head) + len(value)
        self.key = key
        self.partition = partition
        self.failure: CursusError | None = None
        """Why no partition can be chosen for it."""
        self.sent_at = 0.0
        self.deadline = 0.0
        self.delivery: Delivered | None = delivery
        self._batch: Batch | None = None
        delivery._batch = self
        delivery._index = 0

    def choose(self, partitioner: Partitioner, topic: str, partition_count: int) -> None:
        """Let the application choose, if no partition is named. Raises PartitionerFailed."""
        if self.partition is None:
            self.partition = chosen(partitioner, topic, self.key, partition_count)

    @property
    def gone(self) -> bool:
        """Whether it waits no longer."""
        return self._batch is not None or self.done

    def join(self, batch: Batch, index: int) -> None:
        """It is record `index` of a batch from now on, whose outcome is its own."""
        assert self.delivery is not None
        # In this order: another thread that sees the batch must not take the index for 0.
        self.delivery._index = index
        self.delivery._batch = batch
        with CALLBACKS:
            self._batch = batch
            callbacks, self._callbacks = self._callbacks, None
        for callback in callbacks or ():
            batch.when_done(callback)

    def fail(self, error: CursusError) -> None:
        # Its delivery may be kept for long and needs the error only.
        self.head = self.value = b""
        self.delivery = None
        super().fail(error)

    def when_done(self, callback: Callable[[], None]) -> None:
        with CALLBACKS:
            batch = self._batch
            if batch is None and not self.done:
                self._await(callback)
                return
        if batch is None:
            callback()
        else:
            batch.when_done(callback)

    def metadata(self, index: int) -> RecordMetadata:
        assert self.error is not None, "a record that waits has no place"
        raise self.error.copy()


Waiting = WaitingRecord | Portion
"""What waits for its topic's partitions."""


class Queue:
    """The records that wait for one topic."""

    __slots__ = ("records", "route")

    def __init__(self) -> None:
        self.records: deque[Waiting] = deque()
        self.route: Route | None = None
        """Known while they are let go."""


class Backlog:
    """All records that wait, by topic. Whoever uses it holds the accumulator's lock."""

    def __init__(self) -> None:
        self.queues: dict[str, Queue] = {}
        self.last_failure: CursusError | None = None
        """Why the partitions could not be asked for, the last time."""

    def put(self, topic: str, record: Waiting) -> bool:
        """Whether it is the first of its topic, which has to be asked for."""
        queue = self.queues.get(topic)
        first = queue is None
        if queue is None:
            queue = self.queues[topic] = Queue()
        queue.records.append(record)
        return first

    def take(self, topic: str, most: int, due: Callable[[Waiting], bool]) -> list[Waiting]:
        """The oldest records of a topic, as long as they are `due`. A queue that is empty then is no more."""
        queue = self.queues.get(topic)
        if queue is None:
            return []
        taken: list[Waiting] = []
        records = queue.records
        while records and len(taken) < most and due(records[0]):
            taken.append(records.popleft())
        if not records:
            del self.queues[topic]
        return taken

    def youngest(self) -> list[Waiting]:
        """The last record of every topic: when it is gone, so are all before it."""
        return [queue.records[-1] for queue in self.queues.values() if queue.records]

    def next_deadline(self) -> float | None:
        return min((queue.records[0].deadline for queue in self.queues.values() if queue.records), default=None)
