"""One stream of a connection: messages put together from DATA frames and cut into them, within the flow windows."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

from grpc import StatusCode

from cursus_transport.errors import StreamLost
from cursus_transport.frames import DATA, END_STREAM, HEAD, MESSAGE_HEAD, PREFIX, ErrorCode, window_update
from cursus_transport.inflation import COMPRESSIONS, STEP_BYTES, Packed

if TYPE_CHECKING:
    from cursus_transport.connection import Connection

WINDOW_BYTES: Final = 1024 * 1024
"""What a peer may send on a stream before its earlier messages have been read."""

_TURN_BYTES: Final = 512 * 1024
"""After so much has been written without waiting, other tasks get a turn."""

_JOINED_BYTES: Final = 32 * 1024
"""Up to here a message is copied behind its head: one buffer to write instead of two. Two cost the event loop some 5 µs
more, as much as copying so many bytes."""

_LEAST_ROOM: Final = 16 * 1024
"""Below this, reading into a message of its own costs more than copying what was read together with other things."""

_LARGEST_ROOM: Final = 1024 * 1024
"""Larger messages grow with what arrives of them."""

_ANNOUNCED: Final = 16
"""A message gets room for all of it when so much of it is there: a sixteenth. Nobody can have memory set aside by
announcing what is never sent."""

_MOST_UNREAD: Final = 1024
"""After so many messages that nobody has read, what arrives is kept as it came: cut into messages, the smallest take
many times as much memory."""

_PREFIX_BYTES: Final = PREFIX.size


class Stream:
    """Both directions of one call, whichever end this is.

    A peer that sends faster than `read` is called fills the window and then waits: no message that is waiting to be
    read, no new window. So a stream holds a window and one message at most. What is compressed is inflated when it is
    read: what it grows to counts in a budget that all streams share, and as long as the message is in use, the peer
    gets no new window either.
    """

    __slots__ = (
        "__weakref__",
        "_broken",
        "_burst",
        "_compressed",
        "_connection",
        "_inflated",
        "_later",
        "_length",
        "_lost",
        "_message",
        "_missing",
        "_prefix",
        "_reader",
        "_receive_window",
        "_uncredited",
        "_unread",
        "_writer",
        "compression",
        "id",
        "local_ended",
        "remote_ended",
        "send_window",
        "single",
        "torn",
    )

    def __init__(self, connection: Connection, stream_id: int) -> None:
        self.id = stream_id
        self.send_window = connection.peer_initial_window
        self.compression: bytes | None = None
        self.remote_ended = False
        self.local_ended = False
        self.torn = False
        """Whether a part of a message was written and the rest was not."""
        self.single = False
        """Whether one message is all that is expected: if the window is large enough for it, it stays as it is."""
        self._connection = connection
        self._unread: deque[bytes | bytearray | Packed] = deque()
        self._later = bytearray()
        """What arrived behind more messages than are kept apart."""
        self._inflated = 0
        """What was taken of the budget for the message that was read last."""
        self._broken: StreamLost | None = None
        """What is wrong with a message that was found out when it was to be read."""
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None
        self._lost: StreamLost | None = None
        self._prefix = b""
        # The message that is arriving: as long as it will be, or as what is there of it.
        self._message: bytearray | None = None
        self._length = 0
        self._missing = 0
        self._compressed = False
        self._receive_window = WINDOW_BYTES
        self._uncredited = 0
        self._burst = 0

    @property
    def lost(self) -> StreamLost | None:
        return self._lost

    # Receiving

    def expect_data(self, size: int) -> bool:
        """Whether the peer may send so much now."""
        self._receive_window -= size
        self._uncredited += size
        return self._receive_window >= 0

    def feed(self, piece: memoryview) -> None:
        """Take a part of the stream's data, cut anywhere. Raises StreamLost."""
        at, size = 0, len(piece)
        while at < size:
            message = self._message
            if message is None:
                if self._later or len(self._unread) >= _MOST_UNREAD:
                    self._later += piece[at:]
                    return
                if self._prefix or size - at < _PREFIX_BYTES:
                    missing = _PREFIX_BYTES - len(self._prefix)
                    self._prefix += piece[at : at + missing]
                    at += missing
                    if len(self._prefix) < _PREFIX_BYTES:
                        break
                    compressed, length = PREFIX.unpack(self._prefix)
                    self._prefix = b""
                else:
                    compressed, length = PREFIX.unpack_from(piece, at)
                    at += _PREFIX_BYTES
                self._check(compressed, length)
                if size - at >= length and not compressed:
                    self._arrived(bytes(piece[at : at + length]))
                    at += length
                    continue
                message = self._message = bytearray()
                self._length, self._missing, self._compressed = length, length, bool(compressed)
            taken = min(self._missing, size - at)
            there = self._length - self._missing
            if there < len(message):
                message[there : there + taken] = piece[at : at + taken]
            else:
                message += piece[at : at + taken]
            at += taken
            self._took(message, taken)
        if not self._unread:
            self._credit()

    def room(self) -> memoryview | None:
        """Where the next data belongs, and nothing else does: what is read from the socket to there need not be copied.
        To be followed by `filled`."""
        message, left = self._message, min(self._missing, self._connection.data_left)
        if message is None or left < _LEAST_ROOM:
            return None
        there = self._length - self._missing
        if there == len(message):
            if self._length > _LARGEST_ROOM or self._length > there * _ANNOUNCED:
                return None
            whole = bytearray(self._length)
            whole[:there] = message
            message = self._message = whole
        return memoryview(message)[there : there + left]

    def filled(self, size: int) -> None:
        """So much has arrived in the room there was. Raises StreamLost."""
        assert self._message is not None, "there was room in it"
        self._took(self._message, size)
        if not self._unread:
            self._credit()

    def _took(self, message: bytearray, size: int) -> None:
        self._missing -= size
        if not self._missing:
            self._message = None
            if self._compressed:
                assert self.compression is not None, "checked with the message's head"
                self._arrived(Packed(message, self.compression))
            else:
                self._arrived(message)

    def _check(self, compressed: int, length: int) -> None:
        most = self._connection.limits.max_message_bytes
        if length > most:
            raise StreamLost(StatusCode.RESOURCE_EXHAUSTED, f"a message of {length} bytes, and {most} are allowed")
        if compressed > 1 or (compressed and self.compression not in COMPRESSIONS):
            known = "identity, gzip and deflate are known"
            named = (self.compression or b"none named").decode("latin-1")
            raise StreamLost(StatusCode.UNIMPLEMENTED, f"a compressed message (encoding: {named}); {known}")

    def _arrived(self, message: bytes | bytearray | Packed) -> None:
        self._unread.append(message)
        self._wake_reader()

    def end_of_data(self) -> None:
        """The peer has said its last word. Raises StreamLost if that was half a message."""
        self.remote_ended = True
        if not self._later:
            self._check_end()
        self._wake_reader()

    def _check_end(self) -> None:
        if self._message is not None or self._prefix:
            raise StreamLost(StatusCode.INTERNAL, "the stream ended within a message")

    def lose(self, lost: StreamLost) -> None:
        """The stream is over for both directions. What arrived before can still be read."""
        if self._lost is None:
            self._lost = lost.again()
        self._wake_reader()
        self.wake_writer()

    def _wake_reader(self) -> None:
        reader = self._reader
        if reader is not None:
            self._reader = None
            if not reader.done():
                reader.set_result(None)

    def _credit(self) -> None:
        """Let the peer send on, once it is worth a frame."""
        if self._uncredited >= WINDOW_BYTES // 2 and not (self.remote_ended or self._inflated or self._fits()):
            self._connection.send(window_update(self.id, self._uncredited))
            self._receive_window += self._uncredited
            self._uncredited = 0

    def _fits(self) -> bool:
        """Whether one message is expected, and what is to come of it in further frames is within the window. When it is
        there, a peer that wants to send another has to be able to begin with it, so that it is found out."""
        still = 1 if self._message is None else self._missing - self._connection.data_left
        return self.single and still <= self._receive_window

    async def read(self) -> bytes | bytearray | None:
        """The next message; None when the peer has ended its side. One reader at a time. Raises StreamLost.

        A cancelled read loses nothing: the message is there for the next one.
        """
        self.let_go()
        while not self._unread:
            if self._later:
                self._look_at_later()
            elif self._broken is not None:
                raise self._broken.again()
            elif self.remote_ended:
                return None
            elif self._lost is not None:
                raise self._lost.again()
            else:
                self._reader = reader = self._connection.loop.create_future()
                await reader
        message = self._unread[0]
        if isinstance(message, Packed):
            message = await self._inflate(message)
        self._unread.popleft()
        if not self._unread and not self._later:
            self._credit()
        return message

    def _look_at_later(self) -> None:
        """Cut as many messages as are kept apart from what arrived behind the last ones. Raises StreamLost."""
        later, self._later = self._later, bytearray()
        try:
            self.feed(memoryview(later))
            if self.remote_ended and not self._later:
                self._check_end()
        except StreamLost as lost:
            self._break(lost)
            raise

    async def _inflate(self, packed: Packed) -> bytearray:
        """In turns with other tasks. Raises StreamLost."""
        plain, burst = bytearray(), 0
        try:
            # One after the other: many that grow at the same time would take from each other what one needs.
            async with self._connection.inflating:
                for part in packed.steps(self._connection.limits.max_message_bytes):
                    self._pay(len(part))
                    plain += part
                    burst += len(part)
                    if burst >= STEP_BYTES:
                        burst = 0
                        await asyncio.sleep(0)
        except BaseException as error:
            self.let_go()
            if isinstance(error, StreamLost):
                self._break(error)
            raise
        return plain

    def _pay(self, size: int) -> None:
        """Raises StreamLost."""
        budget = self._connection.limits.inflated
        if not budget.take(size):
            text = f"too much is decompressed at once: there are {budget.total_bytes} bytes for all calls together"
            raise StreamLost(StatusCode.RESOURCE_EXHAUSTED, text)
        self._inflated += size

    def _break(self, lost: StreamLost) -> None:
        """The call ends because of a message that is none, or too large."""
        self._unread.clear()
        self._later.clear()
        self._broken = lost.again()
        self._connection.refuse(self, ErrorCode.CANCEL, lost)

    def let_go(self) -> None:
        """The message that was read last is not in use any more."""
        if self._inflated:
            self._connection.limits.inflated.give_back(self._inflated)
            self._inflated = 0
            if not self._unread and not self._later:
                self._credit()

    # Sending

    def write_now(self, message: bytes, before: bytes = b"", after: bytes = b"", *, end: bool = False) -> bool:
        """Write a message at once, with frames of the same stream before and after it; False if it has to wait."""
        connection, size = self._connection, len(message) + _PREFIX_BYTES
        if (
            size > self.send_window
            or size > connection.send_window
            or size > connection.peer_max_frame
            or connection.congested
            or self._lost is not None
        ):
            return False
        self.send_window -= size
        connection.send_window -= size
        head = MESSAGE_HEAD.pack(size >> 8, size & 0xFF, DATA, END_STREAM if end else 0, self.id, 0, len(message))
        if len(message) <= _JOINED_BYTES:
            connection.send(b"".join((before, head, message, after)))
        else:
            connection.send_many((before + head, message, after) if after else (before + head, message))
        return True

    async def write(self, message: bytes, *, end: bool = False) -> None:
        """Returns when the message is on its way as far as the windows and the socket let it. Raises StreamLost.

        Not to be cancelled if the stream is to go on: half a message cannot be taken back.
        """
        if self._burst < _TURN_BYTES and self.write_now(message, end=end):
            self._burst += len(message)
            return
        await asyncio.sleep(0)
        self._burst = 0
        if not self.write_now(message, end=end):
            await self._write_in_parts(message, end=end)

    async def _write_in_parts(self, message: bytes, *, end: bool) -> None:
        connection = self._connection
        rest = memoryview(message)
        self.torn = True
        prefix = PREFIX.pack(0, len(message))
        while prefix or rest:
            room = min(self.send_window, connection.send_window)
            while room <= 0 or connection.congested or self._lost is not None:
                await self._writable()
                room = min(self.send_window, connection.send_window)
            frames: list[bytes | memoryview] = []
            room = spent = min(room, _TURN_BYTES, len(prefix) + len(rest))
            while room:
                size = min(room, connection.peer_max_frame)
                room -= size
                part = rest[: size - len(prefix)] if size > len(prefix) else rest[:0]
                written, prefix = prefix[:size], prefix[size:]
                rest = rest[len(part) :]
                last = end and not prefix and not rest
                head = HEAD.pack(size >> 8, size & 0xFF, DATA, END_STREAM if last else 0, self.id)
                frames.append(head + written)
                if part:
                    frames.append(part)
            self.send_window -= spent
            connection.send_window -= spent
            connection.send_many(frames)
        self.torn = False

    def end(self) -> None:
        """Say that nothing more will be written."""
        self.local_ended = True
        self._connection.send(HEAD.pack(0, 0, DATA, END_STREAM, self.id))

    async def _writable(self) -> None:
        """Wait for a window or the socket. Raises StreamLost if there is nothing to wait for any more."""
        if self._lost is not None:
            raise self._lost.again()
        self._writer = writer = self._connection.loop.create_future()
        self._connection.await_room(self)
        try:
            await writer
        finally:
            self._writer = None
            self._connection.await_room_no_more(self)
        if self._lost is not None:
            raise self._lost.again()

    def wake_writer(self) -> None:
        if self._writer is not None and not self._writer.done():
            self._writer.set_result(None)

    def reset(self, code: ErrorCode, lost: StreamLost) -> None:
        """Give the stream up and tell the peer, unless both have ended it already."""
        self._connection.reset(self, code)
        self.lose(lost)
