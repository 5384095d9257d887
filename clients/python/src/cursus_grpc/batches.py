"""Publishing record sets that are packed and numbered already, for programs that repeat their own work after a failure
and must send the same numbers again: the Spark sink is one. Everybody else wants `Producer`, which numbers by itself.

Nothing is decided here: a set is sent under the identity it came with until the broker has answered for it, over broken
connections and restarts. What the broker refuses for good goes back to the caller.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Final, Self

from cursus_grpc._batch import PackedSet
from cursus_grpc._channel import MIB, Connections, ConnectionSettings, exchange, parse_bootstrap, read, write
from cursus_grpc._lane import MAX_IN_FLIGHT
from cursus_grpc._loop_thread import LoopThread
from cursus_grpc._metadata import ClusterView
from cursus_grpc._retry import Backoff
from cursus_grpc._rpcs import PUBLISH_STREAM
from cursus_grpc._status import from_status
from cursus_grpc._wire import ACKS, publish_message
from cursus_grpc.errors import BrokerUnreachable, ClientClosed, CursusError, DeadlineExceeded, DeliveryTimeout
from cursus_grpc.types import TLS, Acks, TopicPartition
from cursus_proto import records
from cursus_proto.v1 import publish_service_pb2 as pb
from cursus_proto.v1.records_pb2 import CODEC_NONE
from cursus_transport import StreamCall

_WINDOW_BYTES: Final = 8 * MIB

Lane = tuple[bytes, TopicPartition]
"""A producer and a partition: within it the broker stores sets in sequence."""


@dataclass(frozen=True, slots=True, eq=False)
class NumberedSet:
    """A plain record set for one partition, and whose it is. `first_sequence` is the number of its first record: they
    are contiguous from 0 in each epoch of a producer and partition."""

    place: TopicPartition
    producer_id: bytes
    epoch: int
    first_sequence: int
    packed: PackedSet

    @classmethod
    def of(
        cls, place: TopicPartition, producer_id: bytes, epoch: int, first_sequence: int, payload: bytes, count: int
    ) -> NumberedSet:
        """`payload` is what `cursus_proto.records.pack` makes of `count` records."""
        packed = PackedSet(payload, CODEC_NONE, count, records.checksum(payload))
        return cls(place, producer_id, epoch, first_sequence, packed)

    @property
    def next_sequence(self) -> int:
        return self.first_sequence + self.packed.count

    @property
    def lane(self) -> Lane:
        """Whose numbers these are."""
        return self.producer_id, self.place


RefusalCallback = Callable[[NumberedSet, CursusError], object]
"""Told of a set that the broker refused for good, on the thread that publishes. It may raise."""


def _raise(_: NumberedSet, error: CursusError) -> None:
    raise error


class BatchPublisher:
    """Sends numbered sets, pipelined, in the order in which they are given. For one thread."""

    def __init__(
        self,
        bootstrap: str | Iterable[str],
        *,
        tls: TLS | None = None,
        acks: Acks = "all",
        window_bytes: int = _WINDOW_BYTES,
        timeout_s: float = 120.0,
        request_timeout_s: float = 30.0,
        client_id: str = "cursus-python",
        on_refused: RefusalCallback = _raise,
    ) -> None:
        """At most `window_bytes` of sets wait for an answer, and 32 sets of one producer and partition, half of those
        that the broker knows again. If nothing at all is answered for `timeout_s` the publisher gives up. Without
        `on_refused` a refusal is raised."""
        settings = ConnectionSettings(parse_bootstrap(bootstrap), tls, client_id, request_timeout_s)
        self._on_refused = on_refused
        self._loop = LoopThread.shared()
        self._sending = self._loop.make(lambda: _Sending(settings, ACKS[acks], window_bytes, timeout_s))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def publish(self, sets: Sequence[NumberedSet]) -> None:
        """Send the sets; returns when there is room for them, not when they are stored. Raises what became of earlier
        ones: what the refusal callback raises, TopicNotFound, PartitionNotFound, DeliveryTimeout, ClientClosed."""
        for one in sets:
            if one.packed.count < 1:
                raise ValueError("an empty set cannot be published")
        self._tell(self._loop.run(self._sending.publish(sets)))

    def flush(self) -> None:
        """Wait until all sets are answered. Raises as `publish`."""
        self._tell(self._loop.run(self._sending.flush()))

    def close(self) -> None:
        """Let go of everything. What is not answered may be stored or not."""
        self._loop.run(self._sending.close())

    def _tell(self, refused: list[tuple[NumberedSet, CursusError]]) -> None:
        for batch, error in refused:
            self._on_refused(batch, error)


@dataclass(slots=True, eq=False)
class _Stream:
    """A publish stream to a leader, and what is unanswered on it, in the order of answers."""

    call: StreamCall[bytes, pb.PublishStreamResponse]
    unanswered: deque[NumberedSet]
    reader: asyncio.Task[None] | None = None


class _Sending:
    """The event loop's side. Sets are sent in rounds: when anything goes wrong that may pass, all streams are given up
    and everything unanswered is sent again from the oldest on, with the same numbers."""

    def __init__(
        self, settings: ConnectionSettings, acks: pb.Acks.ValueType, window_bytes: int, timeout_s: float
    ) -> None:
        self._settings = settings
        self._acks = acks
        self._window_bytes = window_bytes
        self._timeout_s = timeout_s
        self._connections = Connections(settings)
        self._cluster = ClusterView(self._connections)
        # In the order given; dict for its order and quick removal.
        self._unanswered: dict[NumberedSet, None] = {}
        self._bytes = 0
        self._in_flight: Counter[Lane] = Counter()
        # Below which offset no set with these numbers can lie.
        self._reached: dict[tuple[Lane, int, int], int] = {}
        self._unsent: deque[NumberedSet] = deque()
        self._refused: list[tuple[NumberedSet, CursusError]] = []
        self._changed = asyncio.Event()
        self._failure: Exception | None = None
        self._task: asyncio.Task[None] | None = None
        self._progress_at = 0.0

    # For the caller

    async def publish(self, sets: Sequence[NumberedSet]) -> list[tuple[NumberedSet, CursusError]]:
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="cursus-publish-batches")
        for one in sets:
            await self._until(partial(self._has_room, one))
            if not self._unanswered:
                self._progress_at = time.monotonic()
            self._unanswered[one] = None
            self._in_flight[one.lane] += 1
            self._bytes += len(one.packed.payload)
            self._unsent.append(one)
            self._changed.set()
        return self._take_refused()

    async def flush(self) -> list[tuple[NumberedSet, CursusError]]:
        await self._until(lambda: not self._unanswered)
        return self._take_refused()

    async def close(self) -> None:
        self._failure = self._failure or ClientClosed("the publisher is closed")
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._cluster.close()
        await self._connections.close()

    def _has_room(self, one: NumberedSet) -> bool:
        if self._in_flight[one.lane] >= MAX_IN_FLIGHT:
            return False
        return not self._unanswered or self._bytes + len(one.packed.payload) <= self._window_bytes

    def _take_refused(self) -> list[tuple[NumberedSet, CursusError]]:
        taken, self._refused = self._refused, []
        return taken

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Wait for it. Raises what has ended the sending."""
        while True:
            if self._failure is not None:
                raise self._failure.copy() if isinstance(self._failure, CursusError) else self._failure
            if condition():
                return
            self._changed.clear()
            await self._changed.wait()

    # Sending

    async def _run(self) -> None:
        backoff = Backoff()
        try:
            while True:
                answered_at = self._progress_at
                try:
                    await self._round()
                except CursusError as error:
                    if not error.retriable:
                        raise
                    if self._progress_at != answered_at:
                        backoff.reset()
                    waited_s = time.monotonic() - self._progress_at
                    if self._unanswered and waited_s >= self._timeout_s:
                        raise DeliveryTimeout(f"no answer for {waited_s:.0f} s: {error}", True) from error
                await asyncio.sleep(backoff.next_s())
                if topics := {one.place.topic for one in self._unanswered}:
                    await self._refresh(topics)
        except Exception as error:
            # Also what nobody expects: the caller would wait for ever.
            self._failure = error
            self._changed.set()

    async def _refresh(self, topics: Iterable[str]) -> None:
        try:
            await self._cluster.refresh(topics, patient=False)
        except CursusError as error:
            if not error.retriable:
                raise

    async def _round(self) -> None:
        """Send until something fails. Raises what did."""
        self._unsent = deque(self._unanswered)
        streams: dict[str, _Stream] = {}
        failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        writer = asyncio.create_task(self._write(streams, failed), name="cursus-publish-write")
        try:
            await asyncio.wait((writer, failed), return_when=asyncio.FIRST_COMPLETED)
            for one in (failed, writer):
                if one.done():
                    one.result()
        finally:
            failed.cancel()
            tasks = [writer, *(stream.reader for stream in streams.values() if stream.reader is not None)]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for stream in streams.values():
                stream.call.cancel()

    async def _write(self, streams: dict[str, _Stream], failed: asyncio.Future[None]) -> None:
        while True:
            while not self._unsent:
                self._changed.clear()
                await self._changed.wait()
            batch = self._unsent.popleft()
            leader = await self._cluster.leader(*batch.place)
            stream = streams.get(leader)
            if stream is None:
                stream = streams[leader] = await self._open(leader)
                stream.reader = asyncio.create_task(self._read(stream, leader, failed), name="cursus-publish-read")
            message = publish_message(batch, self._acks, batch.producer_id)
            stream.unanswered.append(batch)
            self._changed.set()
            try:
                await write(stream.call, message)
            except BrokerUnreachable:
                await failed  # the reader meets the same end and knows the reason

    async def _open(self, leader: str) -> _Stream:
        call = PUBLISH_STREAM.call(self._connections.channel(leader))
        try:
            request = pb.PublishStreamRequest(open=pb.PublishStreamOpen(client_id=self._settings.client_id))
            response = await exchange(call, request, self._settings.request_timeout_s)
            if response.WhichOneof("response") != "opened":
                raise BrokerUnreachable(f"{leader} does not begin with `opened`")
        except BaseException:
            call.cancel()
            raise
        return _Stream(call, deque())

    async def _read(self, stream: _Stream, leader: str, failed: asyncio.Future[None]) -> None:
        try:
            while True:
                await self._awaited(stream)
                try:
                    async with asyncio.timeout(self._settings.request_timeout_s):
                        response = await read(stream.call)
                except TimeoutError as error:
                    raise DeadlineExceeded(f"{leader} does not answer") from error
                if response is None:
                    raise BrokerUnreachable(f"{leader} ended the stream")
                for outcome in response.outcomes.outcomes:
                    if not stream.unanswered:
                        raise BrokerUnreachable(f"{leader} answers what it was not asked")
                    self._answered(stream.unanswered.popleft(), outcome)
        except CursusError as error:
            if not failed.done():
                failed.set_exception(error)

    async def _awaited(self, stream: _Stream) -> None:
        while not stream.unanswered:
            self._changed.clear()
            await self._changed.wait()

    def _answered(self, batch: NumberedSet, outcome: pb.PublishOutcome) -> None:
        """Raises a refusal that may pass."""
        if outcome.HasField("refused"):
            error = from_status(outcome.refused)
            if error.retriable:
                raise error
            self._refused.append((batch, error))
        else:
            (stored,) = outcome.published.appended
            if (
                stored.partition != batch.place.partition
                or stored.record_count != batch.packed.count
                or stored.base_offset < self._reached.get((batch.lane, batch.epoch, batch.first_sequence), 0)
            ):
                raise BrokerUnreachable("the broker answers out of step")
            self._reached.pop((batch.lane, batch.epoch, batch.first_sequence), None)
            self._reached[batch.lane, batch.epoch, batch.next_sequence] = stored.base_offset + stored.record_count
        self._progress_at = time.monotonic()
        del self._unanswered[batch]
        self._bytes -= len(batch.packed.payload)
        self._in_flight[batch.lane] -= 1
        self._changed.set()
