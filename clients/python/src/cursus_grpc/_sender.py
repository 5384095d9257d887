"""Sends what the accumulator collects: a publish stream to each leader, pipelined, opened again when it breaks."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from cursus_grpc import _tasks
from cursus_grpc._accumulator import Accumulator
from cursus_grpc._batch import Batch
from cursus_grpc._channel import Connections, exchange, read, write
from cursus_grpc._lane import Lane, UnlikelyAnswer, Verdict
from cursus_grpc._retry import Backoff
from cursus_grpc._router import Router
from cursus_grpc._rpcs import PUBLISH_STREAM
from cursus_grpc._status import from_status
from cursus_grpc._wire import pack, publish_message
from cursus_grpc.errors import (
    BrokerUnreachable,
    CursusError,
    DeadlineExceeded,
    NotFound,
    NotLeader,
    ProducerForgotten,
    SequenceGap,
)
from cursus_proto.v1 import publish_service_pb2 as pb
from cursus_proto.v1.records_pb2 import CODEC_NONE
from cursus_transport import StreamCall

PublishCall = StreamCall[bytes, pb.PublishStreamResponse]

# A batch that is not full goes out while fewer than this many of its partition are unanswered. Otherwise it goes on
# filling: a batch costs the broker the same whether it holds one record or a thousand.
_PARTIAL_IN_FLIGHT: Final = 2

# Below this compressing takes less time than handing it to a thread and back.
_PACK_IN_THREAD_BYTES: Final = 32 * 1024


@dataclass(frozen=True, slots=True)
class SenderSettings:
    acks: pb.Acks.ValueType
    codec: int
    linger_s: float
    delivery_timeout_s: float
    request_timeout_s: float
    client_id: str
    producer_id: bytes


class Sender:
    """Owns the tasks of a producer. Lives on one event loop; only `wake` may be called from elsewhere."""

    def __init__(
        self,
        settings: SenderSettings,
        connections: Connections,
        router: Router,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._settings = settings
        self._connections = connections
        self._router = router
        self._loop = loop
        self._accumulator: Accumulator[Any]
        self._streams: dict[str, _PublishStream] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._woken = False

    def start(self, accumulator: Accumulator[Any]) -> None:
        self._accumulator = accumulator
        self._router.start(accumulator, self.wake)
        self._spawn(self._expire(), "cursus-expire")
        self._spawn(self._router.run(), "cursus-route")

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = _tasks.start(work, name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Ends all tasks. What is unsettled stays so."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def wake(self) -> None:
        """A lane has something to send."""
        if not self._woken:
            self._woken = True
            self._loop.call_soon_threadsafe(self._look)

    def _look(self) -> None:
        # Cleared first: a lane that is queued from here on brings its own wake-up.
        self._woken = False
        with self._accumulator.lock:
            leaders = {lane.leader for lane in self._accumulator.ready}
        for leader in leaders - self._streams.keys():
            stream = self._streams[leader] = _PublishStream(
                leader, self._settings, self._accumulator, self._connections, self._router.doubt
            )
            self._spawn(stream.run(), f"cursus-publish-{leader}")
        for stream in self._streams.values():
            stream.work.set()

    async def _expire(self) -> None:
        while True:
            now = time.monotonic()
            verdicts, deadline = self._accumulator.expire(now)
            if verdicts:
                self._accumulator.settle(verdicts)
            # What is sent while this sleeps has a later deadline than what there was, if there was anything.
            latest = now + self._settings.delivery_timeout_s
            next_s = min(deadline or latest, await self._router.expire(now) or latest) - time.monotonic()
            await asyncio.sleep(max(0.0, next_s))


class _Sent(NamedTuple):
    """A batch on the wire, in its place in the order of answers."""

    batch: Batch
    attempt: int
    size: int
    sent_at: float


class _PublishStream:
    """The publish stream to one broker and its successors."""

    def __init__(
        self,
        address: str,
        settings: SenderSettings,
        accumulator: Accumulator[Any],
        connections: Connections,
        doubt: Callable[[], None],
    ) -> None:
        self.work = asyncio.Event()
        """Set when a lane may have something to send."""
        self._address = address
        self._settings = settings
        self._accumulator = accumulator
        self._connections = connections
        self._doubt = doubt
        self._unanswered: deque[_Sent] = deque()
        self._unanswered_bytes = 0
        self._window_bytes = 0
        self._answered = asyncio.Event()
        self._backoff = Backoff()

    async def run(self) -> None:
        """Keep a stream open while there is something to send. Runs until cancelled."""
        while True:
            await self.work.wait()
            try:
                await self._session()
            except CursusError as error:
                self._give_up(error)
            await asyncio.sleep(self._backoff.next_s())

    async def _session(self) -> None:
        """One stream from its opening to its end, which is always an exception."""
        call = PUBLISH_STREAM.call(self._connections.channel(self._address))
        try:
            await self._open(call)
            self._backoff.reset()
            parts = [
                asyncio.create_task(self._read(call), name="cursus-publish-read"),
                asyncio.create_task(self._write(call), name="cursus-publish-write"),
                asyncio.create_task(self._watch(), name="cursus-publish-watch"),
            ]
            try:
                await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for part in parts:
                    part.cancel()
                ended = await asyncio.gather(*parts, return_exceptions=True)
        finally:
            call.cancel()
        for outcome in ended:
            if isinstance(outcome, Exception):
                raise outcome
        raise BrokerUnreachable(f"the stream to {self._address} was cancelled")

    async def _open(self, call: PublishCall) -> None:
        request = pb.PublishStreamRequest(open=pb.PublishStreamOpen(client_id=self._settings.client_id))
        response = await exchange(call, request, self._settings.request_timeout_s)
        if response.WhichOneof("response") != "opened":
            raise BrokerUnreachable(f"{self._address} does not begin with `opened`")
        self._window_bytes = response.opened.window_bytes
        self._accumulator.limit(response.opened.max_batch_bytes)

    async def _write(self, call: PublishCall) -> None:
        while True:
            taken = self._take()
            if taken is None:
                self.work.clear()
                await self.work.wait()
                continue
            lane, batch = taken
            attempt = lane.attempt
            if batch.packed is None:
                await self._pack(batch)
            message = publish_message(batch, self._settings.acks, self._settings.producer_id)
            await self._wait_for_window(len(message))
            if lane.attempt != attempt:
                continue  # rewound meanwhile: its turn comes again
            self._unanswered.append(_Sent(batch, attempt, len(message), time.monotonic()))
            self._unanswered_bytes += len(message)
            try:
                await write(call, message)
            except BrokerUnreachable:
                # The reader meets the same end and knows the reason.
                await asyncio.get_running_loop().create_future()

    def _take(self) -> tuple[Lane, Batch] | None:
        """The next batch to send, of the lanes in turn."""
        now = time.monotonic()
        accumulator = self._accumulator
        with accumulator.lock:
            ready = accumulator.ready
            for _ in range(len(ready)):
                lane = ready.popleft()
                if lane.leader != self._address:
                    ready.append(lane)
                    continue
                batch, look_again_at = self._next_of(lane, now)
                if batch is not None:
                    ready.append(lane)
                    return lane, batch
                lane.queued = False
                if look_again_at is not None:
                    asyncio.get_running_loop().call_later(look_again_at - now, self._enqueue, lane)
        return None

    def _next_of(self, lane: Lane, now: float) -> tuple[Batch | None, float | None]:
        """The lane's next batch; or None, and when to look again unless an event will tell."""
        if now < lane.resume_at:
            return None, lane.resume_at
        if lane.must_resend():
            self._accumulator.batches_resent += 1
            return lane.resend(), None
        if not lane.has_room():
            return None, None
        batch = self._accumulator.pop_sealed(lane)
        if batch is None:
            if lane.open is None or len(lane.in_flight) >= _PARTIAL_IN_FLIGHT:
                return None, None
            due = lane.open.created_at + self._settings.linger_s
            if now < due:
                return None, due
            batch = self._accumulator.pop_open(lane)
        lane.number(batch)
        return batch, None

    def _enqueue(self, lane: Lane) -> None:
        self._accumulator.enqueue(lane)
        self.work.set()

    async def _pack(self, batch: Batch) -> None:
        codec = self._settings.codec
        if codec == CODEC_NONE or batch.size < _PACK_IN_THREAD_BYTES:
            batch.packed = pack(batch.parts, batch.count, codec)
        else:
            batch.packed = await asyncio.to_thread(pack, batch.parts, batch.count, codec)
        batch.parts = []

    async def _wait_for_window(self, size: int) -> None:
        while self._unanswered and self._unanswered_bytes + size > self._window_bytes:
            self._answered.clear()
            await self._answered.wait()

    async def _read(self, call: PublishCall) -> None:
        while (response := await read(call)) is not None:
            verdicts: list[Verdict] = []
            for outcome in response.outcomes.outcomes:
                try:
                    verdicts += self._match(outcome)
                except UnlikelyAnswer as error:
                    self._accumulator.settle(verdicts)
                    raise BrokerUnreachable(f"{self._address} answers out of step: {error}") from error
            self._accumulator.settle(verdicts)
            self._answered.set()
            if self._accumulator.ready:
                self.work.set()
        raise BrokerUnreachable(f"{self._address} ended the stream")

    def _match(self, outcome: pb.PublishOutcome) -> list[Verdict]:
        """What an answer means for the batch whose turn it is. Raises UnlikelyAnswer."""
        if not self._unanswered:
            raise UnlikelyAnswer("an answer without a request")
        batch, attempt, size, _ = self._unanswered.popleft()
        self._unanswered_bytes -= size
        lane = self._accumulator.lane(batch.place)
        try:
            if outcome.HasField("refused"):
                return self._refused(lane, batch, attempt, from_status(outcome.refused))
            (place,) = outcome.published.appended
            if place.partition != batch.place.partition or place.record_count != batch.count:
                raise UnlikelyAnswer(f"an answer for {place.record_count} records of partition {place.partition}")
            return lane.acknowledge(batch, attempt, place.base_offset, place.append_time_ms)
        except ValueError as error:
            raise UnlikelyAnswer("an answer without a place") from error
        finally:
            self._accumulator.enqueue(lane)

    def _refused(self, lane: Lane, batch: Batch, attempt: int, error: CursusError) -> list[Verdict]:
        if attempt == lane.attempt and isinstance(error, (SequenceGap, ProducerForgotten)):
            got = error.metadata.get("got" if isinstance(error, SequenceGap) else "sequence")
            if got != str(batch.first_sequence):
                raise UnlikelyAnswer(f"{error.reason} at {got} for a batch at {batch.first_sequence}")
        if isinstance(error, (NotLeader, NotFound)):
            self._doubt()
        pause_s = Backoff(failures=lane.failures).next_s()
        return lane.refuse(batch, attempt, error, time.monotonic() + pause_s)

    async def _watch(self) -> None:
        """Give up a stream that does not answer although it stands. Raises DeadlineExceeded."""
        limit_s = self._settings.request_timeout_s
        while True:
            oldest = self._unanswered[0].sent_at if self._unanswered else time.monotonic()
            overdue_s = time.monotonic() - oldest
            if overdue_s >= limit_s:
                raise DeadlineExceeded(f"{self._address} has not answered for {overdue_s:.1f} s")
            await asyncio.sleep(limit_s - overdue_s)

    def _give_up(self, error: CursusError) -> None:
        """The stream is gone: everything on it has to be sent again."""
        self._unanswered.clear()
        self._unanswered_bytes = 0
        self._doubt()
        self.work.clear()
        for lane in self._accumulator.lanes():
            if lane.leader == self._address and not lane.idle:
                lane.connection_lost(error)
                self._enqueue(lane)
