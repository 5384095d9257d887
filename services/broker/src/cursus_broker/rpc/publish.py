"""PublishService on the wire. What publishing means is in publish/publisher.py."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog
from google.rpc.status_pb2 import Status

from cursus_broker.errors import CursusError, InvalidRequest, ShuttingDown
from cursus_broker.publish.acks import Receipt
from cursus_broker.publish.publisher import Publisher
from cursus_broker.rpc.convert import fill_producer, fill_receipt, submission_from_proto
from cursus_broker.rpc.guard import Stream
from cursus_broker.rpc.status import internal_status, to_status
from cursus_broker.rpc.streams import Stopping, read_first, read_next
from cursus_broker.topics.catalog import Catalog
from cursus_proto.internal.v1 import opaque_pb2
from cursus_proto.v1 import publish_service_pb2 as pb

_log = structlog.get_logger()

# Answers to batches that arrive close together share a message, because a message costs the event loop as much as a
# batch. How many are worth waiting for is learnt from the stream: more as long as batches arrive while an answer is
# being written, and no more than came when the wait was in vain. A producer with one batch in flight never waits, and
# neither does a stream on which batches are so far apart that answering each alone takes no time from anybody.
MOST_OUTCOMES: Final = 32
GATHER_S: Final = 0.003
DENSE_S: Final = 0.000_75


class PublishServicer:
    def __init__(
        self,
        publisher: Publisher,
        catalog: Catalog,
        window_bytes: int,
        max_batch_bytes: int,
        observe_latency: Callable[[float], None],
        refused: Callable[[CursusError], None],
        stopping: Stopping,
    ) -> None:
        self._publisher = publisher
        self._refused = refused
        self._catalog = catalog
        self._stopping = stopping
        self._window_bytes = window_bytes
        self._max_batch_bytes = max_batch_bytes
        self._observe_latency = observe_latency

    async def publish(self, request: opaque_pb2.PublishRequest, _: str) -> pb.PublishResponse:
        started = time.perf_counter()
        receipt = await self._publisher.publish(submission_from_proto(request))
        self._observe_latency(time.perf_counter() - started)
        response = pb.PublishResponse()
        fill_receipt(response, receipt)
        return response

    async def describe_producers(self, request: pb.DescribeProducersRequest, _: str) -> pb.DescribeProducersResponse:
        partition = self._catalog.partition(request.topic, request.partition)
        found = await partition.describe_producers(request.producer_ids)
        response = pb.DescribeProducersResponse()
        for producer_id, producer in zip(request.producer_ids, found, strict=True):
            fill_producer(response.producers.add(id=producer_id), producer)
        return response

    async def release_producers(self, request: pb.ReleaseProducersRequest, _: str) -> pb.ReleaseProducersResponse:
        ledger = self._catalog.partition(request.topic, request.partition).producers
        return pb.ReleaseProducersResponse(
            released_count=sum(ledger.release(one.id, one.epoch) for one in request.producers)
        )

    async def publish_stream(self, stream: Stream) -> None:
        if await read_first(stream, opaque_pb2.PublishStreamRequest, "open") is None:
            return
        await stream.write(
            pb.PublishStreamResponse(
                opened=pb.PublishStreamOpened(window_bytes=self._window_bytes, max_batch_bytes=self._max_batch_bytes)
            )
        )
        await _PublishStream(
            stream, self._publisher, self._window_bytes, self._observe_latency, self._refused, self._stopping
        ).run()


@dataclass(slots=True)
class _Unanswered:
    """A batch that was appended or refused, in its place in the order of answers."""

    started: float
    size: int = 0
    receipt: Receipt | None = None
    refused: Status | None = None


class _PublishStream:
    """One publish stream: an appender that reads it, and an answerer that keeps the order."""

    def __init__(
        self,
        stream: Stream,
        publisher: Publisher,
        window_bytes: int,
        observe_latency: Callable[[float], None],
        refused: Callable[[CursusError], None],
        stopping: Stopping,
    ) -> None:
        self._stream = stream
        self._refused = refused
        self._stopping = stopping
        self._publisher = publisher
        self._window_bytes = window_bytes
        self._observe_latency = observe_latency
        self._unanswered: deque[_Unanswered] = deque()
        self._unanswered_bytes = 0
        self._ended = False
        self._stopped = False
        self._reading = False
        self._work = asyncio.Event()
        self._room = asyncio.Event()
        self._enough = asyncio.Event()
        self._worth_waiting_for = 1
        self._arrived_at = 0.0
        self._distance_s = DENSE_S
        """Between one batch and the next, on the average of the last ten or so."""

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._answer_all(), name="publish-answers")
            appending = tasks.create_task(self._append_all(), name="publish-appends")
            stopping = tasks.create_task(self._stopping.wait(), name="publish-stopping")
            await asyncio.wait((appending, stopping), return_when=asyncio.FIRST_COMPLETED)
            if not appending.done():
                # What was read is appended and answered; what was not read was never accepted.
                self._stopped = True
                if self._reading:
                    appending.cancel()
                await asyncio.wait((appending,))
            stopping.cancel()
            self._ended = True
            self._work.set()
            self._enough.set()
        if self._stopped:
            raise ShuttingDown

    async def _append_all(self) -> None:
        while not self._stopped:
            self._reading = True
            request = await read_next(self._stream, opaque_pb2.PublishStreamRequest)
            self._reading = False
            if request is None:
                return
            if request.WhichOneof("request") != "publish":
                raise InvalidRequest("after open, a publish stream takes only publish")
            self._unanswered.append(await self._append(request.publish))
            self._work.set()
            if len(self._unanswered) >= self._worth_waiting_for:
                self._enough.set()
            # Not reading is the backpressure: the transport's window fills, and the producer waits.
            while self._unanswered_bytes > self._window_bytes:
                self._room.clear()
                await self._room.wait()

    def _note_arrival(self) -> float:
        """Answers when it was."""
        now = time.perf_counter()
        # A pause counts for little, so that the batches after it are soon seen to be dense again.
        self._distance_s += (min(now - self._arrived_at, 2 * DENSE_S) - self._distance_s) / 10
        self._arrived_at = now
        return now

    async def _append(self, request: opaque_pb2.PublishRequest) -> _Unanswered:
        unanswered = _Unanswered(self._note_arrival())
        try:
            submission = submission_from_proto(request)
            unanswered.size = len(submission.payload)
            self._unanswered_bytes += unanswered.size
            unanswered.receipt = await self._publisher.append(submission)
        except CursusError as error:
            self._refused(error)
            unanswered.refused = to_status(error)
        except Exception:
            _log.exception("publish.failed", topic=request.topic)
            unanswered.refused = internal_status()
        return unanswered

    async def _answer_all(self) -> None:
        while not (self._ended and not self._unanswered):
            if not self._unanswered:
                self._work.clear()
                await self._work.wait()
                continue
            await self._settle(self._unanswered[0])
            dense = self._distance_s < DENSE_S
            if dense and len(self._unanswered) < self._worth_waiting_for and not self._ended:
                await self._gather()
            await self._write_ready()
            if self._unanswered:
                self._worth_waiting_for = min(self._worth_waiting_for + 2, MOST_OUTCOMES)

    async def _gather(self) -> None:
        """Wait for as many batches as it seems worth, but not long."""
        self._enough.clear()
        try:
            async with asyncio.timeout(GATHER_S):
                await self._enough.wait()
        except TimeoutError:
            self._worth_waiting_for = len(self._unanswered)

    async def _settle(self, unanswered: _Unanswered) -> None:
        """Wait for the disk if the batch asked for it; a failing disk turns its answer into a refusal."""
        if unanswered.receipt is None or unanswered.receipt.synced is None:
            return
        try:
            await unanswered.receipt.synced
        except CursusError as error:
            self._refused(error)
            unanswered.receipt, unanswered.refused = None, to_status(error)

    async def _write_ready(self) -> None:
        """Answer the longest run of settled batches at the head of the queue."""
        response = pb.PublishStreamResponse()
        outcomes = response.outcomes.outcomes
        now = time.perf_counter()
        while self._unanswered and len(outcomes) < MOST_OUTCOMES:
            head = self._unanswered[0]
            if head.receipt is not None and head.receipt.synced is not None:
                if not head.receipt.synced.done():
                    break
                await self._settle(head)
            self._unanswered.popleft()
            self._unanswered_bytes -= head.size
            if head.receipt is not None:
                fill_receipt(outcomes.add().published, head.receipt)
                self._observe_latency(now - head.started)
            else:
                assert head.refused is not None, "a batch is stored or refused"
                outcomes.add().refused.CopyFrom(head.refused)
        self._room.set()
        await self._stream.write(response)
