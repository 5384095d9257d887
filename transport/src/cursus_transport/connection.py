"""One HTTP/2 connection, as far as its two ends are alike: frames, settings, flow windows, keepalive.

It runs on the event loop's own thread from the socket to the task that waits for a message, and back. That is the
whole reason for it: a message that passes through threads of a library on its way pays for every switch, and small
messages cost little else.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, cast

from grpc import StatusCode

from cursus_transport import frames
from cursus_transport.budget import Budget
from cursus_transport.buffers import buffers
from cursus_transport.errors import ConnectionFailed, StreamLost
from cursus_transport.frames import ErrorCode, Kind, Setting
from cursus_transport.headers import MAX_HEADER_BYTES, Headers, Reader
from cursus_transport.parser import MAX_FRAME_BYTES, FrameParser, check_length, without_padding
from cursus_transport.stream import WINDOW_BYTES, Stream

_BUFFERED_BYTES: Final = 1024 * 1024
"""What may wait for the socket before writers wait for it."""

_MOST_WAITING_REPLIES: Final = 1_000
"""Answers to pings and settings that a peer may ask for without reading them."""

INFLATED: Final = Budget(256 * 1024 * 1024)
"""What compressed messages may grow to in this process, if nothing else is said."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a connection allows its peer, and itself."""

    max_message_bytes: int = 4 * 1024 * 1024
    max_streams: int = 1000
    keepalive_s: float = 10.0
    """After so long without a byte the peer is asked whether it is still there."""
    keepalive_timeout_s: float = 10.0
    inflated: Budget = field(default=INFLATED)
    """What compressed messages may grow to, all together: whoever shares it shares the bytes."""
    min_ping_interval_s: float = 0.0
    """A peer that pings more often than this while nothing is going on is sent away; 0 allows everything."""


class Connection(FrameParser, asyncio.BufferedProtocol):
    """The protocol of a transport. The two ends say what a block of headers means, and what the end of a stream."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limits: Limits) -> None:
        super().__init__()
        self.loop = loop
        self.limits = limits
        self.streams: dict[int, Stream] = {}
        self.congested = True
        """Whether the socket has as much to write as it may."""
        self.send_window = frames.DEFAULT_WINDOW
        self.peer_initial_window = frames.DEFAULT_WINDOW
        self.peer_max_frame = frames.SMALLEST_MAX_FRAME
        self.peer_max_streams = 100
        self.inflating = asyncio.Lock()
        """Who holds it inflates a message."""
        self.spoke = False
        """Whether something was sent that the peer did not ask for with a ping or settings. It may be set back."""
        self.closing: str | None = None
        """Why no new stream can be opened."""
        self.last_id = 0
        """Of the streams that were opened, whoever opens them."""
        self.accepted_id = 0
        """Of the streams that the peer has opened."""
        self._transport: asyncio.Transport | None = None
        self._blocked: dict[int, Stream] = {}
        self._uncredited = 0
        self._reader = Reader()
        # Of the DATA frame that is being received.
        self._data_stream: Stream | None = None
        self._data_ends = False
        self._filling = False
        """Whether it is read from the socket into its message."""
        # A header block that goes on in CONTINUATION frames.
        self._block: bytearray | None = None
        self._block_of = 0
        self._block_ends = False
        self._waiting_replies = 0
        self._receiving = False
        self._answers: list[bytes] = []
        """What is to be sent when all that was read has been dealt with."""
        self._deaf = False
        self._heard = False
        self._keepalive: asyncio.TimerHandle | None = None

    # What the ends do

    def opening(self) -> bytes:
        """What is written first."""
        return frames.settings(
            {
                Setting.HEADER_TABLE_SIZE: 0,
                Setting.INITIAL_WINDOW_SIZE: WINDOW_BYTES,
                Setting.MAX_FRAME_SIZE: MAX_FRAME_BYTES,
                Setting.MAX_HEADER_LIST_SIZE: MAX_HEADER_BYTES,
                **self.own_settings(),
            }
        ) + frames.window_update(0, frames.LARGEST_WINDOW - frames.DEFAULT_WINDOW)

    def own_settings(self) -> dict[Setting, int]:
        raise NotImplementedError

    def headers_received(self, stream_id: int, headers: Headers, *, ends: bool) -> None:
        raise NotImplementedError

    def data_ended(self, stream: Stream) -> None:
        """The peer has ended its side with a DATA frame."""
        raise NotImplementedError

    def stream_lost(self, stream: Stream, lost: StreamLost) -> None:
        """The peer, or the connection's end, has ended a stream before its time."""
        raise NotImplementedError

    def going_away(self, last_id: int, code: int, text: str) -> None:
        """The peer takes no new streams, and none above `last_id`."""
        self.closing = f"the peer is going away: {text or f'error code {code}'}"

    def settings_changed(self) -> None:
        """The peer has told its limits."""

    def pinged(self) -> None:
        """Raises ConnectionFailed if that was once too often."""

    def lost(self, reason: str) -> None:
        """The connection is over."""

    # Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not inherit from asyncio's, but are what they promise.
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=_BUFFERED_BYTES)
        self.congested = False
        self.send(self.opening())
        self._keepalive = self.loop.call_later(self.limits.keepalive_s, self._look_for_peer)

    def connection_lost(self, error: Exception | None) -> None:
        reason = self.closing or (f"the connection broke: {error}" if error else "the peer closed the connection")
        self.closing = reason
        self._transport = None
        self.congested = True
        if self._keepalive is not None:
            self._keepalive.cancel()
            self._keepalive = None
        self._data_stream = None
        streams, self.streams = list(self.streams.values()), {}
        for stream in streams:
            self.stream_lost(stream, StreamLost(StatusCode.UNAVAILABLE, reason))
        self.lost(reason)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self.congested = True

    def resume_writing(self) -> None:
        self.congested = False
        self._waiting_replies = 0
        self._wake_writers()

    @property
    def peer(self) -> str:
        """As gRPC writes addresses."""
        name = self._transport.get_extra_info("peername") if self._transport is not None else None
        if not isinstance(name, tuple):
            return "unknown:"
        return f"ipv6:[{name[0]}]:{name[1]}" if ":" in name[0] else f"ipv4:{name[0]}:{name[1]}"

    def send(self, data: bytes) -> None:
        self.spoke = True
        self._write(data)

    def _write(self, data: bytes) -> None:
        """What is said to what a peer sends is written together: asyncio's own loop looks at all that waits for the
        socket with each write, and thousands of small frames fit into what is read at once."""
        if self._receiving:
            self._answers.append(data)
        elif self._transport is not None and not self._deaf:
            self._transport.write(data)

    def _write_answers(self) -> None:
        self._receiving = False
        if self._answers:
            answers, self._answers = self._answers, []
            self._write(b"".join(answers))

    def send_many(self, buffers: Iterable[bytes | memoryview]) -> None:
        self.spoke = True
        if self._transport is not None and not self._deaf:
            self._transport.writelines(buffers)

    def close(self, code: ErrorCode = ErrorCode.NO_ERROR, text: str = "") -> None:
        """Say goodbye, write what is waiting, and end."""
        if self._transport is not None and not self._transport.is_closing():
            self.send(frames.goaway(self.accepted_id, code, text))
            self._write_answers()
            self._transport.close()
        self.closing = self.closing or text or "the connection is closed"

    def finish(self) -> None:
        """Close, but read on until the peer has closed too: a socket that is closed with something unread takes back
        what it has not delivered yet. Whoever calls this puts an end to the waiting with `abort`.
        """
        transport = self._transport
        if transport is None or transport.is_closing() or not transport.can_write_eof():
            self.close()
            return
        self.send(frames.goaway(self.accepted_id, ErrorCode.NO_ERROR))
        self._deaf = True
        self.closing = self.closing or "the connection is closed"
        try:
            transport.write_eof()
        except OSError:
            transport.abort()

    def abort(self, reason: str) -> None:
        """End at once, whatever is waiting to be written."""
        self.closing = reason
        self._answers.clear()
        if self._transport is not None:
            self._transport.abort()

    def _look_for_peer(self) -> None:
        if not self._heard:
            self.send(frames.ping(b"keepaliv"))
            self._keepalive = self.loop.call_later(self.limits.keepalive_timeout_s, self._miss_peer)
            return
        self._heard = False
        self._keepalive = self.loop.call_later(self.limits.keepalive_s, self._look_for_peer)

    def _miss_peer(self) -> None:
        if not self._heard:
            self.abort(f"the peer has been silent for {self.limits.keepalive_timeout_s:g} s")
            return
        self._look_for_peer()

    # Streams

    def await_room(self, stream: Stream) -> None:
        """Wake the stream's writer when the connection's window or the socket has room."""
        self._blocked[stream.id] = stream

    def await_room_no_more(self, stream: Stream) -> None:
        self._blocked.pop(stream.id, None)

    def _wake_writers(self) -> None:
        blocked, self._blocked = self._blocked, {}
        for stream in blocked.values():
            stream.wake_writer()

    def forget(self, stream: Stream) -> None:
        """Both ends are done with the stream."""
        self._remove(stream)

    def _remove(self, stream: Stream) -> bool:
        """False if it was not there."""
        if self._data_stream is stream:
            self._data_stream = None
        return self.streams.pop(stream.id, None) is not None

    def reset(self, stream: Stream, code: ErrorCode) -> None:
        if self._remove(stream):
            self.send(frames.rst_stream(stream.id, code))

    # Receiving

    def get_buffer(self, sizehint: int) -> memoryview:
        if self.data_left and self._data_stream is not None and (room := self._data_stream.room()) is not None:
            self._filling = True
            return room
        self._filling = False
        return buffers.read

    def buffer_updated(self, nbytes: int) -> None:
        self._heard = True
        if self._deaf:
            return
        try:
            self._receiving = True
            if self._filling:
                self.data_continues(nbytes, None)
            else:
                self.receive(buffers.read[:nbytes])
        except ConnectionFailed as failed:
            self.close(failed.code, str(failed))
        finally:
            self._write_answers()

    def data_begins(self, flags: int, stream_id: int, length: int) -> None:
        if self._block is not None:
            raise ConnectionFailed(ErrorCode.PROTOCOL_ERROR, "a header block was interrupted")
        check_length(frames.DATA, length)
        stream = self._stream_of(stream_id)
        # A stream that waits must not make others wait: the connection's window is given back at once.
        self._uncredited += length
        if self._uncredited >= frames.LARGEST_WINDOW // 4:
            self.send(frames.window_update(0, self._uncredited))
            self._uncredited = 0
        if stream is not None and (stream.remote_ended or not stream.expect_data(length)):
            code = ErrorCode.STREAM_CLOSED if stream.remote_ended else ErrorCode.FLOW_CONTROL_ERROR
            self.refuse(stream, code, StreamLost(StatusCode.INTERNAL, "the peer sent more than it may"))
            stream = None
        self._data_stream = stream
        self.data_left = length
        self._data_ends = bool(flags & frames.END_STREAM)
        if length == 0 and self._data_ends:
            self._end_data()

    def _stream_of(self, stream_id: int) -> Stream | None:
        """None for one that is over: its frames may still be on their way. Raises ConnectionFailed if it never was."""
        stream = self.streams.get(stream_id)
        if stream is None and (stream_id == 0 or stream_id > self.last_id):
            raise ConnectionFailed(ErrorCode.PROTOCOL_ERROR, f"a frame for stream {stream_id}, which is not open")
        return stream

    def data_continues(self, size: int, piece: memoryview | None) -> None:
        self.data_left -= size
        stream = self._data_stream
        if stream is not None:
            try:
                if piece is None:
                    stream.filled(size)
                else:
                    stream.feed(piece)
            except StreamLost as lost:
                self._data_stream = None
                self.refuse(stream, ErrorCode.CANCEL, lost)
                return
        if self.data_left == 0 and self._data_ends:
            self._end_data()

    def _end_data(self) -> None:
        stream, self._data_stream = self._data_stream, None
        if stream is not None:
            self.peer_ended(stream)

    def peer_ended(self, stream: Stream) -> None:
        """The peer has ended its side."""
        try:
            stream.end_of_data()
        except StreamLost as lost:
            self.refuse(stream, ErrorCode.PROTOCOL_ERROR, lost)
            return
        self.data_ended(stream)

    def refuse(self, stream: Stream, code: ErrorCode, lost: StreamLost) -> None:
        """End a stream because of what came on it."""
        if stream.id in self.streams:
            self.stream_refused(stream, code, lost)

    def stream_refused(self, stream: Stream, code: ErrorCode, lost: StreamLost) -> None:
        """The peer has sent on a stream what cannot be accepted. The stream is to end with that code."""
        self.reset(stream, code)
        self.stream_lost(stream, lost)

    def frame_arrived(self, kind: int, flags: int, stream_id: int, body: memoryview) -> None:
        if self._block is not None and (kind != Kind.CONTINUATION or stream_id != self._block_of):
            raise ConnectionFailed(ErrorCode.PROTOCOL_ERROR, "a header block was interrupted")
        if (kind in _OF_CONNECTIONS and stream_id) or (kind in _OF_STREAMS and not stream_id):
            raise ConnectionFailed(ErrorCode.PROTOCOL_ERROR, f"{Kind(kind).name} with stream id {stream_id}")
        try:
            match kind:
                case Kind.HEADERS:
                    self._headers(flags, stream_id, body)
                case Kind.WINDOW_UPDATE:
                    self._window_update(stream_id, frames.parse_uint32(body) & frames.LARGEST_WINDOW)
                case Kind.RST_STREAM:
                    self._rst_stream(stream_id, frames.parse_uint32(body))
                case Kind.PING:
                    self._ping(flags, body)
                case Kind.SETTINGS:
                    self._settings(flags, body)
                case Kind.DATA:
                    self._padded_data(flags, stream_id, body)
                case Kind.CONTINUATION:
                    self._continuation(flags, body)
                case Kind.GOAWAY:
                    self.going_away(*frames.parse_goaway(body))
                case Kind.PUSH_PROMISE:
                    raise ConnectionFailed(ErrorCode.PROTOCOL_ERROR, "nothing is to be pushed")
                case Kind.PRIORITY:
                    self._priority(stream_id, body)
                case _:  # what later versions may add
                    pass
        except (ValueError, IndexError, struct.error) as error:
            name = Kind(kind).name
            raise ConnectionFailed(ErrorCode.FRAME_SIZE_ERROR, f"{name} of {len(body)} bytes: {error}") from error

    def _padded_data(self, flags: int, stream_id: int, body: memoryview) -> None:
        data = without_padding(body)
        self.data_begins(flags & ~frames.END_STREAM, stream_id, len(body))
        self.data_left = len(data)
        self._data_ends = bool(flags & frames.END_STREAM)
        if data:
            self.data_continues(len(data), data)
        elif self._data_ends:
            self._end_data()

    def _headers(self, flags: int, stream_id: int, body: memoryview) -> None:
        if flags & frames.PADDED:
            body = without_padding(body)
        if flags & frames.PRIORITY:
            self._priority(stream_id, body[:5])
            body = body[5:]
        ends = bool(flags & frames.END_STREAM)
        if flags & frames.END_HEADERS:
            self.headers_received(stream_id, self._reader.read(bytes(body)), ends=ends)
        else:
            self._block, self._block_of, self._block_ends = bytearray(body), stream_id, ends

    @staticmethod
    def _priority(stream_id: int, body: memoryview) -> None:
        """It says nothing any more, but it has to make sense."""
        if len(body) != 5:
            raise ValueError("5 are expected")
        if frames.parse_uint32(body[:4]) & frames.LARGEST_WINDOW == stream_id:
            raise ConnectionFailed(ErrorCode.PROTOCOL_ERROR, f"stream {stream_id} depends on itself")

    def _continuation(self, flags: int, body: memoryview) -> None:
        if self._block is None or not (body or flags & frames.END_HEADERS):
            raise ConnectionFailed(ErrorCode.PROTOCOL_ERROR, "CONTINUATION of nothing, or with nothing")
        self._block += body
        if len(self._block) > MAX_HEADER_BYTES:
            raise ConnectionFailed(ErrorCode.ENHANCE_YOUR_CALM, f"headers of more than {MAX_HEADER_BYTES} bytes")
        if flags & frames.END_HEADERS:
            block, self._block = bytes(self._block), None
            self.headers_received(self._block_of, self._reader.read(block), ends=self._block_ends)

    def _window_update(self, stream_id: int, increment: int) -> None:
        if stream_id == 0:
            self.send_window += increment
            if increment == 0 or self.send_window > frames.LARGEST_WINDOW:
                code = ErrorCode.FLOW_CONTROL_ERROR if increment else ErrorCode.PROTOCOL_ERROR
                raise ConnectionFailed(code, "a window of that size cannot be")
            self._wake_writers()
            return
        stream = self._stream_of(stream_id)
        if stream is None:
            return
        stream.send_window += increment
        if increment == 0 or stream.send_window > frames.LARGEST_WINDOW:
            code = ErrorCode.FLOW_CONTROL_ERROR if increment else ErrorCode.PROTOCOL_ERROR
            self.refuse(stream, code, StreamLost(StatusCode.INTERNAL, "a window of that size cannot be"))
            return
        stream.wake_writer()

    def _rst_stream(self, stream_id: int, code: int) -> None:
        stream = self._stream_of(stream_id)
        if stream is not None:
            self._remove(stream)
            self.stream_lost(stream, StreamLost(*_RESETS.get(code, (StatusCode.INTERNAL, f"reset with code {code}"))))

    def _ping(self, flags: int, body: memoryview) -> None:
        if len(body) != 8:
            raise ValueError("8 are expected")
        if not flags & frames.ACK:
            self.pinged()
            self._reply(frames.ping(bytes(body), ack=True))

    def _settings(self, flags: int, body: memoryview) -> None:
        if flags & frames.ACK:
            if body:
                raise ValueError("an acknowledgement holds nothing")
            return
        for setting, value in frames.parse_settings(body):
            match setting:
                case Setting.INITIAL_WINDOW_SIZE:
                    self._initial_window(value)
                case Setting.MAX_FRAME_SIZE:
                    if not frames.SMALLEST_MAX_FRAME <= value <= frames.LARGEST_MAX_FRAME:
                        raise ConnectionFailed(ErrorCode.PROTOCOL_ERROR, f"frames of {value} bytes cannot be")
                    self.peer_max_frame = value
                case Setting.ENABLE_PUSH if value > 1:
                    raise ConnectionFailed(ErrorCode.PROTOCOL_ERROR, f"ENABLE_PUSH is {value}")
                case Setting.MAX_CONCURRENT_STREAMS:
                    self.peer_max_streams = value
                case _:
                    pass
        self._reply(frames.SETTINGS_ACK)
        self._wake_writers()
        self.settings_changed()

    def _initial_window(self, value: int) -> None:
        if value > frames.LARGEST_WINDOW:
            raise ConnectionFailed(ErrorCode.FLOW_CONTROL_ERROR, f"a window of {value} bytes cannot be")
        change, self.peer_initial_window = value - self.peer_initial_window, value
        for stream in self.streams.values():
            stream.send_window += change
            if stream.send_window > frames.LARGEST_WINDOW:
                raise ConnectionFailed(ErrorCode.FLOW_CONTROL_ERROR, "a window of that size cannot be")
            stream.wake_writer()

    def owe(self) -> None:
        """The peer asks for an answer: it may do so for a while without reading any. Raises ConnectionFailed."""
        if self.congested:
            self._waiting_replies += 1
            if self._waiting_replies > _MOST_WAITING_REPLIES:
                self.abort("the peer asks and does not listen")
                # Nothing more of what it has sent is looked at.
                raise ConnectionFailed(ErrorCode.ENHANCE_YOUR_CALM, "the peer asks and does not listen")

    def _reply(self, frame: bytes) -> None:
        self.owe()
        self._write(frame)


_OF_CONNECTIONS: Final = frozenset((Kind.SETTINGS, Kind.PING, Kind.GOAWAY))
_OF_STREAMS: Final = frozenset((Kind.DATA, Kind.HEADERS, Kind.PRIORITY, Kind.RST_STREAM, Kind.CONTINUATION))

_RESETS: Final = {
    int(ErrorCode.NO_ERROR): (StatusCode.UNAVAILABLE, "the peer ended the stream without a word"),
    int(ErrorCode.CANCEL): (StatusCode.CANCELLED, "the peer cancelled the call"),
    int(ErrorCode.REFUSED_STREAM): (StatusCode.UNAVAILABLE, "the peer takes no more calls"),
    int(ErrorCode.ENHANCE_YOUR_CALM): (StatusCode.RESOURCE_EXHAUSTED, "the peer asks for fewer calls"),
    int(ErrorCode.INADEQUATE_SECURITY): (StatusCode.PERMISSION_DENIED, "the peer asks for better encryption"),
}
"""What gRPC makes of HTTP/2's error codes."""
