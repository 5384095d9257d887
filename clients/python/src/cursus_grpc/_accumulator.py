"""Where records wait to be sent: routed to a partition, encoded, collected into batches, within a bound of bytes.

`append` is what every record passes, from any thread, so it does no more than it must: a route, a look-up or an
encoding, two list entries and a lock. It never waits; the faces of the producer do that, each in its own way.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Generic, TypeVar

from cursus_grpc._batch import Batch, Delivered, DeliveryCallback, report
from cursus_grpc._lane import Lane, Verdict
from cursus_grpc.errors import BrokerUnreachable, BufferFull, ClientClosed, PartitionNotFound, RecordTooLarge
from cursus_grpc.types import Headers, TopicPartition
from cursus_proto.partitioner import partition_for_key
from cursus_proto.records import CACHED_SIZES, VALUE_HEADS, encode_record, keyed_head, value_head

DeliveryType = TypeVar("DeliveryType", bound=Delivered)

# Keys come back. Besides, the hash lets other threads run, and each time it does the sender takes a batch that is not
# full yet.
_partition_for_key = lru_cache(maxsize=16_384)(partition_for_key)

# The sender is behind when this many full batches wait for it; whoever fills them should then give it a turn.
_BEHIND_BATCHES: Final = 2


@dataclass(frozen=True, slots=True)
class Attributes:
    """What a record may have besides key and value."""

    timestamp_ms: int = 0
    headers: Headers = ()
    event_type: bytes = b""
    schema_version: int = 0
    aggregate_version: int = 0
    metadata: bytes = b""


@dataclass(frozen=True, slots=True)
class AccumulatorSettings:
    batch_bytes: int
    batch_records: int
    buffer_bytes: int
    delivery_timeout_s: float
    max_in_flight: int


class Unrouted(Exception):
    """The topic's partitions are not known: ask for them, `route` it, and append again."""


class _Route:
    """The partitions of a topic."""

    __slots__ = ("current", "lanes")

    def __init__(self, lanes: list[Lane]) -> None:
        self.lanes = lanes
        self.current = lanes[0]
        """Where records without a key go until a batch is full."""

    def advance(self) -> Lane:
        """The next partition in turn becomes the current one."""
        lanes = self.lanes
        self.current = lanes[(self.current.place.partition + 1) % len(lanes)]
        return self.current


class Accumulator(Generic[DeliveryType]):
    """The records of one producer that are not settled yet. For any thread, unless a method says otherwise."""

    def __init__(
        self,
        settings: AccumulatorSettings,
        delivery: type[DeliveryType],
        wake: Callable[[], None],
        on_delivery: DeliveryCallback | None = None,
    ) -> None:
        """`wake` is called, without the lock and from any thread, when a lane has something to send; `on_delivery` for
        every record that is settled, on the event loop's thread."""
        self.lock = threading.Lock()
        self.ready: deque[Lane] = deque()
        """Lanes that may have something to send."""
        self.behind = False
        """Whether full batches pile up."""
        self.caught_up = threading.Event()
        """Set when they do not any more. For other threads, which should let the event loop have its turn."""
        self._batch_bytes = settings.batch_bytes
        self._batch_records = settings.batch_records
        self._buffer_bytes = settings.buffer_bytes
        self._max_record_bytes = settings.buffer_bytes
        self._settings = settings
        self._delivery = delivery
        self._wake = wake
        self._on_delivery = on_delivery
        self._routes: dict[str, _Route] = {}
        self._lanes: dict[TopicPartition, Lane] = {}
        self._unsettled: dict[Batch, None] = {}
        self._buffered_bytes = 0
        self._sealed = 0
        self._room_waiters: list[Callable[[], None]] = []
        self._closed = False

    def append(
        self, topic: str, value: bytes | str, key: bytes | None, partition: int | None, attributes: Attributes | None
    ) -> DeliveryType:
        """Take a record. Raises Unrouted, BufferFull, RecordTooLarge, PartitionNotFound, ClientClosed, TypeError."""
        if type(value) is not bytes:
            value = as_bytes("value", value)
        size = len(value)
        if attributes is not None:
            head, value = b"", _encode(value, key, attributes)
            size = len(value)
        elif key is not None:
            head = keyed_head(key, size)
        else:
            head = VALUE_HEADS[size] if size < CACHED_SIZES else value_head(size)
        size += len(head)
        try:
            route = self._routes[topic]
        except KeyError:
            raise Unrouted(topic) from None
        if partition is not None:
            lane = _choose(route, topic, partition)
        elif key is not None:
            lanes = route.lanes
            lane = lanes[_partition_for_key(key, len(lanes))]
        else:
            lane = route.current
        must_wake = False
        lock = self.lock
        # Taken by hand: a `with` costs as much again as the lock.
        lock.acquire()
        try:
            buffered_bytes = self._buffered_bytes + size
            if buffered_bytes > self._buffer_bytes or size > self._max_record_bytes:
                self._refuse(size)
            batch = lane.open
            if batch is None or batch.count == self._batch_records or batch.size + size > self._batch_bytes:
                if partition is None and key is None:
                    lane = route.advance()
                batch, must_wake = self._batch_for(lane, size)
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

    def _batch_for(self, lane: Lane, size: int) -> tuple[Batch, bool]:
        """The lane's open batch if it has room for `size`, else a new one; and whether the sender must be woken."""
        batch = lane.open
        if batch is not None:
            if batch.size + size <= self._batch_bytes and batch.count < self._batch_records:
                return batch, False
            self._seal(lane)
        if self._closed:
            raise ClientClosed("the producer is closed")
        now = time.monotonic()
        lane.open = batch = Batch(lane.place, now, now + self._settings.delivery_timeout_s)
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
        if size > self._max_record_bytes:
            raise RecordTooLarge(
                f"the record has {size} bytes encoded, at most {self._max_record_bytes} are taken",
                {"size": str(size), "limit": str(self._max_record_bytes)},
            )
        if self._closed:
            raise ClientClosed("the producer is closed")
        raise BufferFull(f"the buffer of {self._buffer_bytes} bytes is full")

    def limit(self, max_batch_bytes: int) -> None:
        """The largest set the brokers take: no batch and no record may be larger."""
        with self.lock:
            self._batch_bytes = min(self._settings.batch_bytes, max_batch_bytes)
            self._max_record_bytes = min(self._buffer_bytes, max_batch_bytes)

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
            if known is None:
                self._routes[topic] = _Route(lanes)
            elif len(known.lanes) != len(lanes):
                known.lanes = lanes
                known.current = lanes[known.current.place.partition % len(lanes)]

    def forget(self, topic: str) -> None:
        """The topic is gone: the next record asks for it again. What waits for it meets its own refusal."""
        with self.lock:
            self._routes.pop(topic, None)

    def topics(self) -> list[str]:
        with self.lock:
            return list(self._routes)

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
        behind = self._sealed >= _BEHIND_BATCHES
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
                self._buffered_bytes -= verdict.batch.size
                del self._unsettled[verdict.batch]
            waiters, self._room_waiters = self._room_waiters, []
        for waiter in waiters:
            waiter()
        for batch, error, base_offset, append_time_ms in verdicts:
            batch.parts = []
            batch.packed = None
            if error is None:
                batch.stored(base_offset, append_time_ms)
            else:
                batch.fail(error)
            if self._on_delivery is not None:
                report(self._on_delivery, batch)

    # Room

    def when_room(self, callback: Callable[[], None]) -> None:
        """Call it, on the event loop's thread, when room is given back next; at once, and here, if nothing is held."""
        with self.lock:
            if self._buffered_bytes and not self._closed:
                self._room_waiters.append(callback)
                return
        callback()

    @property
    def buffered_bytes(self) -> int:
        return self._buffered_bytes


def as_bytes(name: str, value: object) -> bytes:
    """Raises TypeError for what is neither bytes-like nor text."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise TypeError(f"{name} must be bytes or str, not {type(value).__name__}")


def _encode(value: bytes, key: bytes | None, attributes: Attributes) -> bytes:
    return encode_record(
        value,
        key=key,
        timestamp_ms=attributes.timestamp_ms,
        headers=[(name, as_bytes("header", content)) for name, content in attributes.headers],
        event_type=attributes.event_type,
        schema_version=attributes.schema_version,
        aggregate_version=attributes.aggregate_version,
        metadata=attributes.metadata,
    )


def _choose(route: _Route, topic: str, partition: int) -> Lane:
    if not 0 <= partition < len(route.lanes):
        raise PartitionNotFound(
            f"topic {topic!r} has no partition {partition}: it has {len(route.lanes)}, numbered from 0",
            {"topic": topic, "partition": str(partition), "partitions": str(len(route.lanes))},
        )
    return route.lanes[partition]
