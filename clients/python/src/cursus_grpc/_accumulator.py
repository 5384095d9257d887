"""Where records wait to be sent: routed to a partition, encoded, collected into batches, within a bound of bytes.

`append` is what every record passes, from any thread, so it does no more than it must: a route, a look-up or an
encoding, two list entries and a lock. It never waits; the faces of the producer do that, each in its own way. A record
whose topic has no route goes to the backlog (`_routes.py`), within the same bound.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Generic, TypeVar

from cursus_grpc._attributes import NOTHING_MORE, Attributes, encode
from cursus_grpc._batch import Batch, Delivered, DeliveryCallback, report
from cursus_grpc._convert import require_text
from cursus_grpc._filling import Limits, join_many
from cursus_grpc._lane import Lane, Verdict
from cursus_grpc._many import Portion, RefusedRows
from cursus_grpc._metadata import no_such_partition
from cursus_grpc._partitioning import Partitioner, chosen
from cursus_grpc._routes import Backlog, Route, Waiting, WaitingRecord
from cursus_grpc._serializing import as_bytes
from cursus_grpc.errors import (
    BrokerUnreachable,
    BufferFull,
    ClientClosed,
    CursusError,
)
from cursus_grpc.types import ProducerStatistics, TopicPartition
from cursus_proto.partitioner import partition_for_recurring_key
from cursus_proto.records import CACHED_SIZES, VALUE_HEADS, keyed_head, value_head

DeliveryType = TypeVar("DeliveryType", bound=Delivered)

# The sender is behind when this many full batches wait for it; whoever fills them should then give it a turn.
_BEHIND_BATCHES: Final = 2


@dataclass(frozen=True, slots=True)
class AccumulatorSettings:
    batch_bytes: int
    batch_records: int
    buffer_bytes: int
    delivery_timeout_s: float
    max_in_flight: int


class Accumulator(Generic[DeliveryType]):
    """The records of one producer that are not settled yet. For any thread, unless a method says otherwise."""

    def __init__(
        self,
        settings: AccumulatorSettings,
        delivery: type[DeliveryType],
        wake: Callable[[], None],
        ask: Callable[[], None],
        on_delivery: DeliveryCallback | None = None,
        partitioner: Partitioner | None = None,
    ) -> None:
        """`wake` is called, without the lock and from any thread, when a lane has something to send, `ask` when records
        wait for a topic that was not waited for; `on_delivery` for every record that is settled, on the event loop's
        thread."""
        self.lock = threading.Lock()
        self.ready: deque[Lane] = deque()
        """Lanes that may have something to send."""
        self.behind = False
        """Whether full batches pile up."""
        self.caught_up = threading.Event()
        """Set when they do not any more. For other threads, which should let the event loop have its turn."""
        self.backlog = Backlog()
        """Records whose topics have no route."""
        self._buffer_bytes = settings.buffer_bytes
        self._limits = Limits(
            settings.batch_bytes, settings.batch_records, settings.buffer_bytes, settings.buffer_bytes
        )
        self._settings = settings
        self._delivery = delivery
        self._wake = wake
        self._ask = ask
        self._on_delivery = on_delivery
        self.partitioner = partitioner
        self._routes: dict[str, Route] = {}
        self._lanes: dict[TopicPartition, Lane] = {}
        self._unsettled: dict[Batch, None] = {}
        self._buffered_bytes = 0
        self._sealed = 0
        self._releasing = False
        self._room_waiters: dict[Callable[[], None], None] = {}
        self._closed = False
        # Of what was settled. Belong to the event loop.
        self._records_stored = self._bytes_stored = self._batches_stored = self._records_failed = 0
        self.batches_resent = 0

    def append(
        self,
        topic: str,
        value: object,
        key: bytes | None,
        partition: int | None,
        attributes: Attributes | None,
    ) -> DeliveryType:
        """Take a record. Raises BufferFull, RecordTooLarge, PartitionNotFound for a negative one, ClientClosed, and
        TypeError or ValueError for what is no record."""
        if value is None or attributes is not None:
            head, value = b"", encode(value, key, attributes or NOTHING_MORE)
            size = len(value)
        else:
            if type(value) is not bytes:
                value = as_bytes("value", value)
            size = len(value)
            if key is not None:
                head = keyed_head(key, size)
            else:
                head = VALUE_HEADS[size] if size < CACHED_SIZES else value_head(size)
            size += len(head)
        try:
            route = self._routes[topic]
        except KeyError:
            return self._queue(topic, head, value, key, partition)
        if partition is None and self.partitioner is not None:
            partition = chosen(self.partitioner, topic, key, len(route.lanes))
        if partition is not None:
            if not 0 <= partition < len(route.lanes):
                return self._queue(topic, head, value, key, partition)
            lane = route.lanes[partition]
        elif key is not None:
            lanes = route.lanes
            lane = lanes[partition_for_recurring_key(key, len(lanes))]
        else:
            lane = route.current
        must_wake = False
        lock = self.lock
        # Taken by hand: a `with` costs as much again as the lock.
        lock.acquire()
        try:
            buffered_bytes = self._buffered_bytes + size
            limits = self._limits
            if buffered_bytes > self._buffer_bytes or size > limits.max_record_bytes:
                self._refuse(size)
            batch = lane.open
            # `leave_room`, spelt out: this is done for every record.
            if batch is None or batch.count >= limits.batch_records or batch.size + size > limits.batch_bytes:
                if self._closed:
                    raise ClientClosed("the producer is closed")
                if partition is None and key is None:
                    lane = route.advance()
                batch, must_wake = self._batch_for(lane, size, time.monotonic())
            parts = batch.parts
            parts.append(head)
            parts.append(value)
            batch.size += size
            index = batch.count
            batch.count = index + 1
            self._buffered_bytes = buffered_bytes
        finally:
            lock.release()
        if must_wake:
            self._wake()
        delivery = self._delivery()
        delivery._batch = batch
        delivery._index = index
        return delivery

    def _batch_for(self, lane: Lane, size: int, sent_at: float) -> tuple[Batch, bool]:
        """The lane's open batch if it has room for `size`, else a new one, for a record sent at that time; and whether
        the sender must be woken."""
        batch = lane.open
        if batch is not None:
            if self._limits.leave_room(batch, size):
                return batch, False
            self._seal(lane)
        # A lane relies on deadlines in the order of its batches; a record that waited may be older than one before it.
        lane.deadline = max(lane.deadline, sent_at + self._settings.delivery_timeout_s)
        lane.open = batch = Batch(lane.place, sent_at, lane.deadline)
        self._unsettled[batch] = None
        return batch, self._enqueue(lane)

    def _seal(self, lane: Lane) -> None:
        assert lane.open is not None
        lane.sealed.append(lane.open)
        lane.open = None
        self._sealed += 1
        self._judge()

    def _enqueue(self, lane: Lane) -> bool:
        if lane.queued:
            # A sender takes a lane out of the queue before it goes to sleep, so it is still to look at this one.
            return False
        lane.queued = True
        self.ready.append(lane)
        return True

    def _refuse(self, size: int) -> None:
        if size > self._limits.max_record_bytes:
            raise self._limits.too_large(size)
        if self._closed:
            raise ClientClosed("the producer is closed")
        raise BufferFull(f"the buffer of {self._buffer_bytes} bytes is full")

    # Records without a route

    def _queue(self, topic: str, head: bytes, value: bytes, key: bytes | None, partition: int | None) -> DeliveryType:
        """Take a record that has no route, or none to this partition: it waits until the partitions were asked for."""
        require_text("the topic's name", topic)
        if partition is not None and partition < 0:
            raise no_such_partition(topic, partition)
        delivery = self._delivery()
        record = WaitingRecord(head, value, key, partition, delivery)
        with self.lock:
            if record.size > self._limits.max_record_bytes or self._buffered_bytes + record.size > self._buffer_bytes:
                self._refuse(record.size)
            if self._closed:
                raise ClientClosed("the producer is closed")
            record.sent_at = time.monotonic()
            record.deadline = record.sent_at + self._settings.delivery_timeout_s
            route = self._routes.get(topic)
            if route is not None and route.has(partition):  # learned since `append` looked
                self.join(record, route)
                tell = self._wake
            else:
                # Without the route later records queue behind this one, so that none overtakes it.
                self._routes.pop(topic, None)
                first = self.backlog.put(topic, record)
                tell = self._ask if first else _nobody
            self._buffered_bytes += record.size
        tell()
        return delivery

    def join(self, record: WaitingRecord, route: Route) -> None:
        """Put a record that waited into its batch. The caller holds the lock. Raises RecordTooLarge."""
        size = record.size
        if size > self._limits.max_record_bytes:  # it waited for this to be known, too
            self._refuse(size)
        if record.partition is not None:
            lane = route.lanes[record.partition]
        elif record.key is not None:
            lane = route.lanes[partition_for_recurring_key(record.key, len(route.lanes))]
        else:
            lane = route.current
            if not self._limits.leave_room(lane.open, size):
                lane = route.advance()
        batch, _ = self._batch_for(lane, size, record.sent_at)
        batch.parts += (record.head, record.value)
        batch.size += size
        batch.count += 1
        record.join(batch, batch.count - 1)

    # Many records

    def take(self, topic: str, portion: Portion) -> None:
        """Take many records. Raises BufferFull, ClientClosed: then none of them was taken."""
        with self.lock:
            if self._closed:
                raise ClientClosed("the producer is closed")
            if self._buffered_bytes + portion.size > self._buffer_bytes:
                raise BufferFull(f"the buffer of {self._buffer_bytes} bytes is full")
            portion.sent_at = time.monotonic()
            portion.deadline = portion.sent_at + self._settings.delivery_timeout_s
            route = self._routes.get(topic)
            if route is None or not self._all_fit(portion, route):
                # Whatever is wrong is found out, and told, where those that wait are let go.
                self._routes.pop(topic, None)
                tell = self._ask if self.backlog.put(topic, portion) else _nobody
            else:
                self.join_many(portion, route)
                tell = self._wake
            self._buffered_bytes += portion.size
        tell()

    def _all_fit(self, portion: Portion, route: Route) -> bool:
        assert portion.encoded is not None
        if max(portion.encoded.sizes) > self._limits.max_record_bytes:
            return False
        if portion.partitions is None:
            return self.partitioner is None
        return all(partition is None or partition < len(route.lanes) for partition in portion.partitions)

    def choose(self, topic: str, portion: Portion) -> None:
        """Let the application choose partitions, if there are any yet. Raises PartitionerFailed."""
        route = self._routes.get(topic)
        if self.partitioner is not None and route is not None:
            portion.choose(self.partitioner, topic, len(route.lanes))

    def check(self, portion: Portion) -> None:
        """Raises RecordTooLarge for a record that is never taken, as far as that is known."""
        assert portion.encoded is not None
        largest = max(portion.encoded.sizes)
        if largest > self._limits.max_record_bytes:
            self._refuse(largest)

    def require_room(self, size: int) -> None:
        """Raises BufferFull if so many bytes would not all be taken now."""
        with self.lock:
            if self._buffered_bytes + size > self._buffer_bytes:
                raise BufferFull(f"the buffer of {self._buffer_bytes} bytes has no room for {size}")

    def join_many(self, portion: Portion, route: Route) -> list[tuple[RefusedRows, CursusError]]:
        """Put the records of a portion into their batches. Answers those that can go nowhere, which the caller fails
        when it does not hold the lock any more, as it does now."""
        return join_many(portion, route, self._limits, self._batch_for)

    def refuse_many(self, portions: Iterable[Portion], error: CursusError) -> None:
        """Fail portions that were never taken. For the event loop, without the lock."""
        for portion in portions:
            self._records_failed += portion.count
            portion.fail(error)
            if self._on_delivery is not None:
                report(self._on_delivery, portion)

    def released(self, *, more: bool) -> None:
        """Waiting records went to their batches; `more` follow at once. The caller holds the lock."""
        self._releasing = more
        self._judge()

    def fail_waiting(self, records: Sequence[Waiting | RefusedRows], error: CursusError) -> None:
        """Tell records that were taken out of the backlog. For the event loop, without the lock."""
        self._give_back(sum(record.size for record in records))
        self._records_failed += sum(record.count for record in records)
        for record in records:
            record.fail(error)
            if self._on_delivery is not None:
                report(self._on_delivery, record)

    def waiting_topics(self) -> list[str]:
        with self.lock:
            return list(self.backlog.queues)

    def limit(self, max_batch_bytes: int) -> None:
        """The largest set the brokers take: no batch and no record may be larger."""
        with self.lock:
            self._limits = replace(
                self._limits,
                batch_bytes=min(self._settings.batch_bytes, max_batch_bytes),
                max_record_bytes=min(self._buffer_bytes, max_batch_bytes),
            )

    # Routes

    def route(self, topic: str, leaders: Iterable[str]) -> None:
        """Learn, or learn again, the partitions of a topic and who leads them."""
        with self.lock:
            lanes: list[Lane] = []
            for partition, leader in enumerate(leaders):
                place = TopicPartition(topic, partition)
                lane = self._lanes.get(place)
                if lane is None:
                    lane = self._lanes[place] = Lane(place, self._settings.max_in_flight)
                if lane.leader not in ("", leader):
                    lane.connection_lost(BrokerUnreachable(f"{place} is led by {leader} now"))
                lane.leader = leader
                lanes.append(lane)
            known = self._routes.get(topic)
            if (queue := self.backlog.queues.get(topic)) is not None:
                queue.route = Route(lanes)  # for new records only when those that wait have gone
            elif known is None:
                self._routes[topic] = Route(lanes)
            elif len(known.lanes) != len(lanes):
                known.lanes = lanes
                known.current = lanes[known.current.place.partition % len(lanes)]

    def open_route(self, topic: str, route: Route) -> None:
        """Nothing waits for the topic any more: new records take the route at once. The caller holds the lock."""
        del self.backlog.queues[topic]
        self._routes[topic] = route

    def forget(self, topic: str) -> None:
        """The topic is gone: the next record asks for it again. What waits for it meets its own refusal."""
        with self.lock:
            self._routes.pop(topic, None)

    def topics(self) -> list[str]:
        """All that are routed or waited for."""
        with self.lock:
            return [*self._routes, *self.backlog.queues]

    def lane(self, place: TopicPartition) -> Lane:
        return self._lanes[place]

    def lanes(self) -> list[Lane]:
        with self.lock:
            return list(self._lanes.values())

    # The sender's side

    def enqueue(self, lane: Lane) -> None:
        """Look at the lane again, if it has something to send. For the event loop, which need not be woken."""
        with self.lock:
            if lane.waiting:
                self._enqueue(lane)

    def pop_sealed(self, lane: Lane) -> Batch | None:
        """The oldest full batch of the lane. The caller holds the lock."""
        if not lane.sealed:
            return None
        self._sealed -= 1
        self._judge()
        return lane.sealed.popleft()

    def _judge(self) -> None:
        behind = self._sealed >= _BEHIND_BATCHES or self._releasing
        if behind != self.behind:
            self.behind = behind
            if behind:
                self.caught_up.clear()
            else:
                self.caught_up.set()

    def pop_open(self, lane: Lane) -> Batch:
        """The lane's open batch, which is filled no further. The caller holds the lock."""
        batch = lane.open
        assert batch is not None
        lane.open = None
        return batch

    def seal_all(self) -> list[Batch]:
        """Fill no batch further, and answer all that are not settled, oldest first. Wakes the sender."""
        with self.lock:
            for lane in self._lanes.values():
                if lane.open is not None:
                    self._seal(lane)
                    self._enqueue(lane)
            unsettled = list(self._unsettled)
        self._wake()
        return unsettled

    def expire(self, now: float) -> tuple[list[Verdict], float | None]:
        """Verdicts on everything whose time is over, and when to look again."""
        verdicts: list[Verdict] = []
        deadlines: list[float] = []
        with self.lock:
            for lane in self._lanes.values():
                if lane.idle:
                    continue
                verdicts += lane.expire(now)
                if (deadline := lane.next_deadline()) is not None:
                    deadlines.append(deadline)
            self._recount()
        return verdicts, min(deadlines, default=None)

    def abandon(self, error: ClientClosed) -> list[Verdict]:
        """Take no more records and give up those that are not settled."""
        with self.lock:
            self._closed = True
            verdicts = [verdict for lane in self._lanes.values() for verdict in lane.abandon(error)]
            self._recount()
            return verdicts

    def close(self) -> None:
        """Take no more records; those that were taken go on."""
        with self.lock:
            self._closed = True

    def _recount(self) -> None:
        self._sealed = sum(len(lane.sealed) for lane in self._lanes.values())
        self._judge()

    def settle(self, verdicts: Iterable[Verdict]) -> None:
        """Tell the batches what became of them, and give their room back. For the event loop, without the lock."""
        with self.lock:
            for verdict in verdicts:
                del self._unsettled[verdict.batch]
        self._give_back(sum(verdict.batch.size for verdict in verdicts))
        for batch, error, base_offset, append_time_ms in verdicts:
            if error is None:
                self._records_stored += batch.count
                self._bytes_stored += batch.size
                self._batches_stored += 1
            else:
                self._records_failed += batch.count
            batch.parts = []
            batch.packed = None
            if error is None:
                batch.stored(base_offset, append_time_ms)
            else:
                batch.fail(error)
            if self._on_delivery is not None:
                report(self._on_delivery, batch)

    # Room

    def _give_back(self, size: int) -> None:
        with self.lock:
            self._buffered_bytes -= size
            waiters, self._room_waiters = self._room_waiters, {}
        for waiter in waiters:
            waiter()

    def when_room(self, callback: Callable[[], None]) -> None:
        """Call it, on the event loop's thread, when room is given back next; at once, and here, if nothing is held."""
        with self.lock:
            if self._buffered_bytes and not self._closed:
                self._room_waiters[callback] = None
                return
        callback()

    def room_or_not(self, callback: Callable[[], None]) -> None:
        """It need not be called any more."""
        with self.lock:
            self._room_waiters.pop(callback, None)

    @property
    def buffered_bytes(self) -> int:
        return self._buffered_bytes

    def statistics(self) -> ProducerStatistics:
        """For the event loop."""
        return ProducerStatistics(
            self._records_stored,
            self._bytes_stored,
            self._batches_stored,
            self._records_failed,
            self.batches_resent,
            sum(len(lane.in_flight) for lane in self.lanes()),
            self._buffered_bytes,
        )


def _nobody() -> None:
    """There is nobody to tell."""
