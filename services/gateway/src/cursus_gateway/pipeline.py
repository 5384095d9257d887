"""One publish stream to a broker, shared by many connections: requests go out in order, outcomes come back in order.

A stream that breaks is opened again while there is work. A batch that had been sent and was not answered is then sent
again only if the broker recognises repetitions of it; otherwise nobody knows whether it is stored, and its sender is
told so. A broker that ends the stream because it stops has answered all it took, so the rest is sent again in any case.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, TypeAlias

import grpc
import structlog

from cursus_gateway.refusals import BROKER_UNAVAILABLE, OUTCOME_UNKNOWN, SHUTTING_DOWN, Refused
from cursus_gateway.statuses import refused_by_call, refused_by_status
from cursus_proto.internal.v1 import opaque_pb2
from cursus_proto.v1 import publish_service_pb2 as pb
from cursus_transport import StreamCall

log = structlog.get_logger(__name__)

PublishCall: TypeAlias = StreamCall[opaque_pb2.PublishStreamRequest, pb.PublishStreamResponse]

_FIRST_PAUSE_S: Final = 0.02
_LONGEST_PAUSE_S: Final = 0.5


class Submission:
    """A batch on its way. `outcome` is cancelled by nobody: a client that leaves does not take its batch back."""

    __slots__ = ("expiry", "message", "outcome", "repeatable", "sent", "size")

    def __init__(self, message: opaque_pb2.PublishStreamRequest, size: int, repeatable: bool) -> None:
        self.message = message
        self.size = size
        self.repeatable = repeatable
        self.sent = False
        self.outcome: asyncio.Future[pb.PublishResponse] = asyncio.get_running_loop().create_future()
        self.expiry: asyncio.TimerHandle | None = None

    def refuse(self, refused: Refused) -> None:
        if not self.outcome.done():
            self.outcome.set_exception(refused)
            # Whoever waited for it may be gone; that nobody looks is then no mistake.
            self.outcome.exception()
        self._settle()

    def succeed(self, response: pb.PublishResponse) -> None:
        if not self.outcome.done():
            self.outcome.set_result(response)
        self._settle()

    def _settle(self) -> None:
        if self.expiry is not None:
            self.expiry.cancel()
            self.expiry = None


class PublishPipeline:
    def __init__(self, open_call: Callable[[], PublishCall], *, timeout_s: float, max_pending_bytes: int) -> None:
        self._open_call = open_call
        self._timeout_s = timeout_s
        self._max_pending_bytes = max_pending_bytes
        self._queue: deque[Submission] = deque()
        self._in_flight: deque[Submission] = deque()
        self._pending_bytes = 0
        self._work = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._waiting_for_room: list[Callable[[], None]] = []
        self._call: PublishCall | None = None
        self._answered = False
        self._last_failure = "no connection yet"

    @property
    def has_room(self) -> bool:
        return self._pending_bytes < self._max_pending_bytes

    def when_room(self, wake: Callable[[], None]) -> None:
        """Calls `wake` once as soon as there is room."""
        self._waiting_for_room.append(wake)

    def submit(
        self, message: opaque_pb2.PublishStreamRequest, *, repeatable: bool
    ) -> asyncio.Future[pb.PublishResponse]:
        """Queues a batch; the future ends with the broker's answer or Refused, within the time of a request."""
        submission = Submission(message, len(message.publish.records) + 64, repeatable)
        loop = asyncio.get_running_loop()
        submission.expiry = loop.call_later(self._timeout_s, self._expire, submission)
        self._pending_bytes += submission.size
        self._queue.append(submission)
        self._idle.clear()
        self._work.set()
        return submission.outcome

    async def drain(self) -> None:
        """Waits until everything submitted has its outcome."""
        await self._idle.wait()

    async def run(self) -> None:
        """Keeps a stream open while there is work. Runs until cancelled, and then refuses what is left."""
        pause_s = _FIRST_PAUSE_S
        try:
            while True:
                if not self._queue:
                    self._work.clear()
                    await self._work.wait()
                self._answered = False
                all_taken_answered = False
                try:
                    await self._converse()
                except grpc.aio.AioRpcError as error:
                    refused = refused_by_call(error)
                    self._last_failure = str(refused)
                    all_taken_answered = refused.reason == SHUTTING_DOWN
                    log.debug("upstream.publish_stream.broken", reason=str(refused))
                self._resend_or_refuse(all_taken_answered=all_taken_answered)
                pause_s = _FIRST_PAUSE_S if self._answered else min(2 * pause_s, _LONGEST_PAUSE_S)
                await asyncio.sleep(pause_s)
        finally:
            self._end_call()
            for submission in (*self._in_flight, *self._queue):
                submission.refuse(Refused(BROKER_UNAVAILABLE, "the gateway is stopping"))

    async def _converse(self) -> None:
        """One stream from its opening to its end. Returns if the broker ends it in order."""
        call = self._call = self._open_call()
        try:
            await call.write(opaque_pb2.PublishStreamRequest(open=pb.PublishStreamOpen(client_id="cursus-gateway")))
            if await call.read() is grpc.aio.EOF:
                return
            reading = asyncio.ensure_future(self._read_all(call))
            writing = asyncio.ensure_future(self._write_all(call))
            try:
                await asyncio.wait((reading, writing), return_when=asyncio.FIRST_COMPLETED)
                # A write may be the first to notice the end; answers that came before it are still to be read.
                await asyncio.wait((reading,))
            finally:
                writing.cancel()
                reading.cancel()
                results = await asyncio.gather(reading, writing, return_exceptions=True)
            for result in results:
                if isinstance(result, Exception):
                    raise result
        finally:
            self._end_call()

    def _end_call(self) -> None:
        if self._call is not None:
            self._call.cancel()
            self._call = None

    async def _write_all(self, call: PublishCall) -> None:
        while True:
            while self._queue:
                submission = self._queue.popleft()
                if submission.outcome.done():
                    self._release(submission)
                    continue
                submission.sent = True
                self._in_flight.append(submission)
                await call.write(submission.message)
            self._work.clear()
            await self._work.wait()

    async def _read_all(self, call: PublishCall) -> None:
        while (response := await call.read()) is not grpc.aio.EOF:
            self._answered = True
            for outcome in response.outcomes.outcomes:
                submission = self._in_flight.popleft()
                if outcome.HasField("published"):
                    submission.succeed(outcome.published)
                else:
                    submission.refuse(refused_by_status(outcome.refused))
                self._release(submission)

    def _resend_or_refuse(self, *, all_taken_answered: bool) -> None:
        """After the end of a stream: what may be repeated goes back to the head of the queue."""
        again = [s for s in self._in_flight if (s.repeatable or all_taken_answered) and not s.outcome.done()]
        for submission in self._in_flight:
            if not (submission.repeatable or all_taken_answered) or submission.outcome.done():
                reason = "the broker went away before it answered; the batch may be stored"
                submission.refuse(Refused(OUTCOME_UNKNOWN, reason))
                self._release(submission)
        self._in_flight.clear()
        for submission in again:
            submission.sent = False
        self._queue.extendleft(reversed(again))

    def _release(self, submission: Submission) -> None:
        self._pending_bytes -= submission.size
        if not self._queue and not self._in_flight:
            self._idle.set()
        if self.has_room and self._waiting_for_room:
            waiting, self._waiting_for_room = self._waiting_for_room, []
            for wake in waiting:
                wake()

    def _expire(self, submission: Submission) -> None:
        submission.expiry = None
        if submission.sent:
            submission.refuse(Refused(OUTCOME_UNKNOWN, "the broker did not answer in time; the batch may be stored"))
            # A stream whose head is silent for this long is given up: what it holds would otherwise stay for ever.
            if self._in_flight and self._in_flight[0] is submission and self._call is not None:
                self._call.cancel()
        else:
            submission.refuse(Refused(BROKER_UNAVAILABLE, f"no broker answers: {self._last_failure}"))
            if submission in self._queue:
                self._queue.remove(submission)
                self._release(submission)
