"""One connection: bodies in, answers out, in order.

Batches follow each other to the broker without waiting; their answers wait for their turn. Everything else is served
alone: after all answers before it, and before anything behind it. A STREAM takes the connection over; a SUBSCRIBE
pushes beside it. A client that leaves does not take back what it sent: complete frames are executed to the last.

Reading stops while too much is unanswered, while the publish stream is full, and while the client does not take its
answers, except for batches with acks 0: some clients never read those answers, so they are dropped when they do not
fit.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Coroutine
from hashlib import blake2b
from typing import Final, Protocol

import structlog

from cursus_gateway import body as bodies
from cursus_gateway.arrivals import LARGE_FRAME_BYTES
from cursus_gateway.batch import LegacyBatch
from cursus_gateway.body import BarSeparated, Body, DirectMessage
from cursus_gateway.dialect import commands as c
from cursus_gateway.dialect import replies
from cursus_gateway.epochs import ReadEpochs
from cursus_gateway.framing import MAX_BODY_BYTES, Parts, frame
from cursus_gateway.refusals import Refused
from cursus_gateway.requests import Requests, Services
from cursus_gateway.settings import ReplyProfile
from cursus_service.budget import Share

log = structlog.get_logger(__name__)

MAX_UNANSWERED: Final = 256
# Repeated bodies of a producer without identity are known again among this many (RULE 39).
_REMEMBERED_BODIES: Final = 16


class Wire(Protocol):
    """The transport as a session sees it."""

    @property
    def writing_paused(self) -> bool: ...

    @property
    def open(self) -> bool: ...

    def write(self, parts: Parts) -> None: ...

    async def writable(self) -> None: ...

    def set_reading(self, wanted: bool) -> None: ...

    def close(self) -> None:
        """Closes after what was written is sent."""


class _Slot:
    """The place of a batch's answer."""

    __slots__ = ("acks", "answer", "failed", "size", "waiting")

    def __init__(self, size: int, acks: str) -> None:
        self.size = size
        self.acks = acks
        self.answer: bytes | None = None
        self.failed = False
        self.waiting: list[_Slot] = []


class Session:
    def __init__(
        self, services: Services, wire: Wire, *, peer: str, lane: int, profile: ReplyProfile, advertised: str
    ) -> None:
        self.peer = peer
        self.lane = lane
        self.profile = profile
        self.advertised = advertised
        self.group = c.DEFAULT_GROUP
        self.epochs = ReadEpochs()
        self.third_generation = False
        self.structured_errors = False
        self.first_generation = False
        """The last frame was of a form only the first generation sends."""
        self.modern = False
        """It has sent a batch or a key=value command."""
        self._services = services
        self._wire = wire
        self._frames: deque[bytes] = deque()
        self._head: Body | None = None
        self._head_read = False
        self._head_share: Share | None = None
        """What the head holds of the memory for what is unpacked."""
        self._slots: deque[_Slot] = deque()
        self._unanswered_bytes = 0
        self._task: asyncio.Task[None] | None = None
        self._pushes: set[asyncio.Task[None]] = set()
        self._streaming = False
        self._no_more_frames = False
        self._last_words = ""
        self._closing = False
        self._waits_for_room = False
        self._pumping = False
        self._plain_noted = False
        self._quiet = asyncio.Event()
        self._requests = Requests(services, self)
        self._recent: OrderedDict[bytes, _Slot] = OrderedDict()

    # What the transport tells

    def received(self, found: list[bytes]) -> None:
        """Complete bodies, in order."""
        if self._streaming or self._closing:
            return  # A stream takes no commands; Java repeats STREAM on it (RULE 33).
        self._services.metrics.frames.inc(len(found))
        self._frames += found
        self._unanswered_bytes += sum(map(len, found))
        for body in found:
            if len(body) > LARGE_FRAME_BYTES:
                self._services.arrivals.keep(len(body))
        self._pump()

    def ended(self) -> None:
        """The client sends no more. What it sent is executed, then the connection is closed."""
        self._no_more_frames = True
        if self._streaming and self._task is not None:
            self._task.cancel()
        for push in self._pushes:
            push.cancel()
        self._pump()

    def refuse_frame(self, size: int) -> None:
        """A frame that is too large to be read: said after the answers before it, and the end."""
        self._services.metrics.oversized_frames.inc()
        self._services.metrics.errors.labels("FRAME_TOO_LARGE").inc()
        log.warning("request.frame_too_large", peer=self.peer, size=size, limit=MAX_BODY_BYTES)
        self._last_words = replies.error("frame_too_large", size=size, max=MAX_BODY_BYTES)
        self._no_more_frames = True
        self._pump()

    def writing_resumed(self) -> None:
        self._pump()

    @property
    def idle(self) -> bool:
        """Nothing is being served or pushed."""
        return not (self._frames or self._slots or self._task or self._pushes)

    async def finish(self) -> None:
        """Ends pushes and waits until everything received was executed."""
        self._no_more_frames = True
        for task in (*self._pushes, *([self._task] if self._streaming and self._task else [])):
            task.cancel()
        while not self.idle:
            self._quiet.clear()
            await self._quiet.wait()

    # Outlet of pushes

    def send(self, parts: Parts) -> None:
        self._wire.write(parts)

    async def writable(self) -> None:
        await self._wire.writable()

    # Order

    def _pump(self) -> None:
        """Serves frames as far as the rules of order and the bounds allow."""
        if self._pumping:
            return
        self._pumping = True
        try:
            while self._frames and self._task is None and not self._closing and self._serve_head():
                pass
        finally:
            self._pumping = False
        if self.idle:
            self._quiet.set()
        if self._no_more_frames and self.idle and not self._closing:
            if self._last_words:
                self.write_text(self._last_words)
            self.close()
        self._wire.set_reading(
            not self._no_more_frames
            and not self._waits_for_room
            and self._unanswered_bytes < self._services.unanswered_bytes
            and len(self._frames) + len(self._slots) < MAX_UNANSWERED
        )

    def _serve_head(self) -> bool:
        """Serves the first frame; False if it has to wait."""
        body = self._frames[0]
        if not self._head_read and not self._read_head(body):
            self._start(self._unpack(body))
            return False
        meaning = self._head
        if isinstance(meaning, LegacyBatch):
            return self._judge(meaning) and self._publish(body)
        if self._slots or (self._wire.writing_paused and self._wire.open):
            return False
        share = self._next_frame()
        if isinstance(meaning, DirectMessage | BarSeparated):
            self._note_plain(body)
        if meaning is not None:
            self._start(self._serve(meaning, len(body), share))
        else:
            self._unanswered_bytes -= len(body)
        return True

    def _read_head(self, body: bytes) -> bool:
        """False if it has to be waited for."""
        started = time.perf_counter()
        read = self._services.unpacking.read_now(body)
        if read is None:
            return False
        self._head, self._head_share = read
        self._head_read = True
        if isinstance(self._head, LegacyBatch):
            self._services.metrics.translation.observe(time.perf_counter() - started)
        return True

    async def _unpack(self, body: bytes) -> None:
        """Reads the head elsewhere. What comes before it is answered meanwhile."""
        self._head, self._head_share = await self._services.unpacking.read(body)
        self._head_read = True
        if self._closing:
            self._drop_frames()

    async def _serve(self, meaning: Body, size: int, share: Share | None) -> None:
        try:
            await self._requests.serve(meaning)
        finally:
            self._unanswered_bytes -= size
            if share is not None:
                share.give_back()

    def _next_frame(self) -> Share | None:
        """Takes the first frame away. What its meaning holds is the caller's to give back, when that is handed on."""
        body = self._frames.popleft()
        if len(body) > LARGE_FRAME_BYTES:
            self._services.arrivals.let_go(len(body))
        share, self._head_share = self._head_share, None
        self._head, self._head_read = None, False
        return share

    def _drop_frames(self) -> None:
        """Nothing more is served."""
        for body in self._frames:
            if len(body) > LARGE_FRAME_BYTES:
                self._services.arrivals.let_go(len(body))
        self._frames.clear()
        share, self._head_share = self._head_share, None
        self._head, self._head_read = None, False
        if share is not None:
            share.give_back()

    def _start(self, work: Coroutine[None, None, None]) -> None:
        self._task = asyncio.create_task(self._guard(work))

    async def _guard(self, work: Coroutine[None, None, None]) -> None:
        try:
            await work
        except asyncio.CancelledError:
            log.debug("session.cancelled", peer=self.peer)
        except Exception:
            log.exception("session.failed", peer=self.peer)
            self.write_text(replies.error("internal_error"))
            self.close()
        finally:
            self._task = None
            self._streaming = False
            self._pump()

    def _note_plain(self, body: bytes) -> None:
        """Where messages are expected as gzip, one that is not is taken all the same (RULE 43), and somebody told."""
        if not self._services.expects_gzip or bodies.is_gzip(body):
            return
        self._services.metrics.plain_frames.inc()
        if not self._plain_noted:
            self._plain_noted = True
            log.warning("request.uncompressed", peer=self.peer)

    # Batches

    def _judge(self, batch: LegacyBatch) -> bool:
        """Applies the topic's wish for idempotence to the batch at the head; False if that has to be asked first."""
        if batch.unread is None or not batch.count:
            return True
        judged = self._services.idempotent_topics.known(batch.topic)
        if judged is None:
            self._start(self._learn(batch))
            return False
        self._head = batch.decided(judged=judged)
        return True

    async def _learn(self, batch: LegacyBatch) -> None:
        try:
            judged = await self._services.idempotent_topics.learn(batch.topic)
            self._head = batch.decided(judged=judged)
        except Refused as refused:
            slot = _Slot(len(self._frames[0]), batch.acks)
            slot.answer = frame(self._services.publishing.refusal(batch, refused).encode())
            self._services.metrics.command("BATCH", "error")
            share = self._next_frame()
            if share is not None:
                share.give_back()
            self._slots.append(slot)
            self._flush()

    def _publish(self, body: bytes) -> bool:
        batch = self._head
        assert isinstance(batch, LegacyBatch), "looked at by the caller"
        if self._wire.writing_paused and self._wire.open and batch.acks != "0":
            return False
        pipeline = self._services.upstream.pipeline(batch.topic, batch.partition, self.lane)
        if not pipeline.has_room:
            if not self._waits_for_room:
                self._waits_for_room = True
                pipeline.when_room(self._room)
            return False
        share = self._next_frame()
        try:
            self._hand_on(batch, body)
        finally:
            if share is not None:
                share.give_back()
        return True

    def _hand_on(self, batch: LegacyBatch, body: bytes) -> None:
        self.modern, self.first_generation = True, False
        self._services.metrics.batch_records.observe(batch.count)
        self._note_plain(body)
        slot = _Slot(len(body), batch.acks)
        self._slots.append(slot)
        if batch.idempotent and not batch.messages.last_producer_id and batch.count:
            digest = blake2b(body, digest_size=16).digest()
            earlier = self._recent.get(digest)
            if earlier is not None and not earlier.failed:
                self._repeat(earlier, slot)
                return
            self._recent[digest] = slot
            while len(self._recent) > _REMEMBERED_BODIES:
                self._recent.popitem(last=False)

        def answered(text: str, stored: bool) -> None:
            self._services.metrics.command("BATCH", "ok" if stored else "error")
            slot.failed = not stored
            answer = frame(text.encode())
            for waiting in (slot, *slot.waiting):
                waiting.answer = answer
            self._flush()

        self._services.publishing.publish_batch(batch, self.lane, answered)

    def _repeat(self, earlier: _Slot, slot: _Slot) -> None:
        """The same body again from a producer without identity: a retry, answered like the first."""
        if earlier.answer is None:
            earlier.waiting.append(slot)
        else:
            slot.answer = earlier.answer
            self._flush()

    def _room(self) -> None:
        self._waits_for_room = False
        self._pump()

    def _flush(self) -> None:
        """Writes the answers whose turn it is."""
        parts: list[bytes] = []
        while self._slots and self._slots[0].answer is not None:
            slot = self._slots.popleft()
            self._unanswered_bytes -= slot.size
            assert slot.answer is not None, "checked by the loop"
            if slot.acks == "0" and self._wire.writing_paused:
                self._services.metrics.dropped_answers.inc()
                continue
            parts.append(slot.answer)
        if parts:
            self._wire.write(parts)
        self._pump()

    # What requests ask of their connection

    def begin_stream(self) -> None:
        """A STREAM takes over: frames behind it are not looked at, but the client is still read, to see it leave."""
        self._streaming = True
        self._unanswered_bytes -= sum(map(len, self._frames))
        self._drop_frames()
        self._wire.set_reading(True)

    def add_push(self, push: asyncio.Task[None]) -> None:
        """Something that sends beside the answers; it ends with the connection."""
        self._pushes.add(push)

    def push_ended(self, push: asyncio.Task[None]) -> None:
        self._pushes.discard(push)
        self._pump()

    def write(self, parts: Parts) -> None:
        """Whole frames; an error among them is classified where that was negotiated."""
        self._wire.write(self._structured(parts))

    def write_text(self, text: str) -> None:
        self.write([frame(text.encode())])

    def close(self) -> None:
        """Closes after what was written; nothing more is served."""
        self._closing = True
        self._drop_frames()
        for push in self._pushes:
            push.cancel()
        self._wire.close()

    def _structured(self, parts: Parts) -> Parts:
        """Class and retryability behind the code of an error, for a connection that negotiated them."""
        if not self.structured_errors or len(parts) != 1 or parts[0][4:11] != b"ERROR: ":
            return parts
        text = bytes(parts[0][11:])
        if b" class=" in text:
            return parts
        code, space, rest = text.partition(b" ")
        if rest and b"=" not in rest.split(b" ", 1)[0]:
            return parts  # A sentence of an earlier generation.
        return [frame(b"ERROR: " + code + b" class=validation retryable=false" + space + rest)]
