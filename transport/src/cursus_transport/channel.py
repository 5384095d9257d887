"""A gRPC client on the event loop: a channel to one address, and calls on it.

Calls fail with grpc.aio.AioRpcError, as those of a grpc.aio channel do.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar, cast

import grpc
from grpc import StatusCode

from cursus_transport import frames
from cursus_transport.connection import Connection, Limits
from cursus_transport.errors import NotConnected, StreamLost
from cursus_transport.frames import ErrorCode, Setting
from cursus_transport.headers import (
    METHOD_POST,
    SCHEME_HTTP,
    SCHEME_HTTPS,
    Headers,
    decode_metadata,
    decode_text,
    encode_timeout,
    literal,
)
from cursus_transport.stream import Stream

Request = TypeVar("Request")
Response = TypeVar("Response")

_CONNECT_S: Final = 20.0
"""How long one attempt to connect may take if the call that waits for it has longer."""

_PAUSE_S: Final = 0.05
"""After an attempt that failed, calls fail without another one for so long."""

_CLOSE_S: Final = 1.0
"""How long the last words may take to reach the socket."""

_USER_AGENT: Final = "grpc-python-cursus/1"
_EXPIRED: Final = "the deadline has passed"
_STATUSES: Final = {code.value[0]: code for code in StatusCode}
# What gRPC makes of an answer that is not gRPC's own.
_HTTP_STATUSES: Final = {
    b"400": StatusCode.INTERNAL,
    b"401": StatusCode.UNAUTHENTICATED,
    b"403": StatusCode.PERMISSION_DENIED,
    b"404": StatusCode.UNIMPLEMENTED,
    b"429": StatusCode.UNAVAILABLE,
    b"502": StatusCode.UNAVAILABLE,
    b"503": StatusCode.UNAVAILABLE,
    b"504": StatusCode.UNAVAILABLE,
}


class ChannelClosed(grpc.aio.UsageError):
    """The channel was closed before or during the call."""


@dataclass(frozen=True, slots=True)
class _Failure:
    """How a call ended. The error is made for everybody who asks: one that was raised keeps the frames it was raised
    through, and they keep the call."""

    code: StatusCode
    text: str
    trailing: tuple[tuple[str, str | bytes], ...] = ()

    def error(self) -> grpc.aio.AioRpcError:
        trailing = grpc.aio.Metadata(*self.trailing)
        return grpc.aio.AioRpcError(self.code, grpc.aio.Metadata(), trailing, details=self.text)


_CANCELLED: Final = _Failure(StatusCode.CANCELLED, "cancelled here")


class _ClientStream(Stream):
    __slots__ = ("answered", "failure")

    def __init__(self, connection: Connection, stream_id: int) -> None:
        super().__init__(connection, stream_id)
        self.answered = False
        self.failure: _Failure | None = None

    def why(self, lost: StreamLost) -> grpc.aio.AioRpcError:
        """What the caller is told when the stream is lost."""
        return (self.failure or _Failure(lost.status, str(lost))).error()

    def begin(self, block: bytes) -> None:
        """Send the headers, before any other stream sends its own."""
        self._connection.send(frames.headers(block, self.id))

    def expire(self) -> None:
        self.reset(ErrorCode.CANCEL, StreamLost(StatusCode.DEADLINE_EXCEEDED, _EXPIRED))


class _ClientConnection(Connection):
    def __init__(self, loop: asyncio.AbstractEventLoop, limits: Limits) -> None:
        super().__init__(loop, limits)
        self.last_id = -1
        self.over = loop.create_future()
        self.greeted: asyncio.Future[bool] = loop.create_future()
        """Whether the peer speaks HTTP/2, once that has shown."""
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def heard(self) -> bool:
        """Whether the peer has said anything lately."""
        return self._heard

    def own_settings(self) -> dict[Setting, int]:
        return {Setting.ENABLE_PUSH: 0}

    def opening(self) -> bytes:
        return frames.PREFACE + super().opening()

    def open_now(self) -> _ClientStream | None:
        """A stream, if there can be another one at once."""
        if self.closing is not None or len(self.streams) >= self.peer_max_streams:
            return None
        if self.last_id >= frames.LARGEST_ID - 2:
            self.closing = "the connection has no stream left"
            return None
        self.last_id += 2
        stream = self.streams[self.last_id] = _ClientStream(self, self.last_id)
        return stream

    async def open(self) -> _ClientStream:
        """A stream, once the server allows another one. Raises StreamLost."""
        while (stream := self.open_now()) is None:
            if self.closing is not None:
                raise StreamLost(StatusCode.UNAVAILABLE, self.closing)
            turn = self.loop.create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if not turn.cancelled():
                    self._pass_turn()
                raise
        return stream

    def _pass_turn(self) -> None:
        while self._waiting and (len(self.streams) < self.peer_max_streams or self.closing is not None):
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                if self.closing is None:
                    return

    def settings_changed(self) -> None:
        if not self.greeted.done():
            self.greeted.set_result(True)
        for _ in range(len(self._waiting)):
            self._pass_turn()

    def headers_received(self, stream_id: int, headers: Headers, *, ends: bool) -> None:
        stream = cast("_ClientStream | None", self._stream_of(stream_id))
        if stream is None:
            return
        named = dict(headers)
        if not stream.answered:
            stream.answered = True
            stream.compression = named.get(b"grpc-encoding")
            status = named.get(b":status", b"")
            if status != b"200":
                code = _HTTP_STATUSES.get(status, StatusCode.UNKNOWN)
                lost = StreamLost(code, f"the peer answered with HTTP status {status.decode('latin-1')}")
                self.stream_refused(stream, ErrorCode.CANCEL, lost)
                return
        if ends:
            self._ended(stream, _failure(headers, named))

    def data_ended(self, stream: Stream) -> None:
        self._ended(cast("_ClientStream", stream), _Failure(StatusCode.INTERNAL, "the stream ended without a status"))

    def _ended(self, stream: _ClientStream, failure: _Failure | None) -> None:
        stream.failure = failure
        if not stream.local_ended:
            # Nobody listens to what we would still send.
            self.reset(stream, ErrorCode.NO_ERROR)
            stream.local_ended = True
        self.forget(stream)
        stream.remote_ended = True
        stream.lose(StreamLost(StatusCode.CANCELLED, "the call is over"))

    def stream_lost(self, stream: Stream, lost: StreamLost) -> None:
        cast("_ClientStream", stream).failure = _Failure(lost.status, str(lost))
        stream.lose(lost)
        self._pass_turn()

    def forget(self, stream: Stream) -> None:
        super().forget(stream)
        self._left()

    def reset(self, stream: Stream, code: ErrorCode) -> None:
        super().reset(stream, code)
        self._left()

    def _left(self) -> None:
        """A stream is over: another may begin, or the connection may end if it was only kept for the last ones."""
        self._pass_turn()
        if self.closing is not None and not self.streams:
            self.close()

    def going_away(self, last_id: int, code: int, text: str) -> None:
        super().going_away(last_id, code, text)
        for stream in [one for one in self.streams.values() if one.id > last_id]:
            self._remove(stream)
            self.stream_lost(stream, StreamLost(StatusCode.UNAVAILABLE, self.closing or ""))
        self._left()

    def lost(self, reason: str) -> None:
        self.over.set_result(None)
        if not self.greeted.done():
            self.greeted.set_result(False)
        self._pass_turn()


class Channel:
    """Calls to one address over one connection, made when it is needed and made again when it broke."""

    def __init__(
        self,
        address: str,
        *,
        limits: Limits | None = None,
        tls: ssl.SSLContext | None = None,
        server_name: str | None = None,
        application: str = "",
    ) -> None:
        """`application` is the name by which the server's operator knows the caller."""
        self.address = address
        named = "".join(letter for letter in application if "!" <= letter <= "~")
        self._user_agent = f"{named} {_USER_AGENT}".lstrip().encode()
        host, _, port = address.rpartition(":")
        self._host, self._port = host.strip("[]"), int(port)
        self._limits = limits or Limits()
        self._tls = tls
        self._server_name = (server_name or self._host) if tls is not None else None
        if tls is not None:
            tls.set_alpn_protocols(["h2"])
        self._connection: _ClientConnection | None = None
        self._connecting: asyncio.Task[_ClientConnection | NotConnected] | None = None
        self.stage = ""
        """What an attempt to connect waits for."""
        self._failed_at = 0.0
        self._failed: NotConnected | None = None
        self._closed = False
        self._older: set[_ClientConnection] = set()

    @property
    def connected(self) -> bool:
        """Whether a call can begin without connecting first."""
        return self._connection is not None and self._connection.closing is None

    def _headers(self, path: str) -> bytes:
        """Of every call to a method, without its timeout."""
        authority = f"[{self._host}]" if ":" in self._host else self._host
        return b"".join(
            (
                METHOD_POST,
                SCHEME_HTTP if self._tls is None else SCHEME_HTTPS,
                literal(b":path", path.encode()),
                literal(b":authority", f"{self._server_name or authority}:{self._port}".encode()),
                literal(b"te", b"trailers"),
                literal(b"content-type", b"application/grpc"),
                literal(b"user-agent", self._user_agent),
                literal(b"grpc-accept-encoding", b"identity,gzip,deflate"),
            )
        )

    def unary_unary(
        self,
        path: str,
        request_serializer: Callable[[Request], bytes] | None = None,
        response_deserializer: Callable[[bytes], Response] | None = None,
    ) -> UnaryMethod[Request, Response]:
        """Without (de)serializers requests and answers are bytes."""
        return UnaryMethod(_Method(self, self._headers(path), request_serializer, response_deserializer))

    def stream_stream(
        self,
        path: str,
        request_serializer: Callable[[Request], bytes] | None = None,
        response_deserializer: Callable[[bytes], Response] | None = None,
    ) -> Callable[[], StreamCall[Request, Response]]:
        """What begins a call, each time it is called. Without (de)serializers messages are bytes."""
        method = _Method(self, self._headers(path), request_serializer, response_deserializer)
        return lambda: StreamCall(method)

    def open_now(self) -> _ClientStream | None:
        """A stream, if none of its beginning has to be waited for."""
        return None if self._connection is None or self._closed else self._connection.open_now()

    async def connection(self) -> _ClientConnection:
        """A connection that takes calls. Raises NotConnected, ChannelClosed."""
        if self._closed:
            raise ChannelClosed("the channel is closed")
        found = self._connection
        if found is not None and found.closing is None:
            return found
        loop = asyncio.get_running_loop()
        attempt = self._connecting
        if attempt is None:
            if self._failed is not None and loop.time() - self._failed_at < _PAUSE_S:
                raise self._failed.again()
            attempt = self._connecting = loop.create_task(self._connect(), name=f"connect-{self.address}")
        # Whoever waits may be cancelled; the attempt is everybody's.
        await asyncio.wait((attempt,))
        if attempt.cancelled():
            raise ChannelClosed("the channel is closed")
        made = attempt.result()
        if isinstance(made, NotConnected):
            raise made.again()
        return made

    async def _connect(self) -> _ClientConnection | NotConnected:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_CONNECT_S):
                made = await self._connected(loop)
        except TimeoutError:
            made = NotConnected(self.address, f"{self.stage} takes longer than {_CONNECT_S:g} s", answered=False)
        self._connecting = None
        if isinstance(made, NotConnected):
            self._failed, self._failed_at = made, loop.time()
            return made
        old, self._connection = self._connection, made
        if old is not None and not old.over.done():
            self._older.add(old)
            old.over.add_done_callback(lambda _: self._older.discard(old))
        return made

    async def _connected(self, loop: asyncio.AbstractEventLoop) -> _ClientConnection | NotConnected:
        """Raises TimeoutError."""
        self.stage = "looking up the name"
        failures: list[OSError | UnicodeError] = []
        try:
            found = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:  # a name may be none that can be looked up
            found = []
            failures.append(error)
        self.stage = "connecting"
        for family, _, _, _, place in found:
            # One by one, so that each tells its own reason: of several, create_connection makes a text.
            try:
                transport, connection = await loop.create_connection(
                    lambda: _ClientConnection(loop, self._limits),
                    str(place[0]),
                    self._port,
                    family=family,
                    ssl=self._tls,
                    server_hostname=self._server_name,
                )
            except OSError as error:
                failures.append(error)
            else:
                return await self._greeted(transport, connection)
        lost = NotConnected(self.address, _reasons(failures), answered=any(map(_answered, failures)))
        lost.__cause__ = failures[-1] if failures else None
        return lost

    async def _greeted(
        self, transport: asyncio.BaseTransport, connection: _ClientConnection
    ) -> _ClientConnection | NotConnected:
        self.stage = "a first word of HTTP/2 from it"
        try:
            greeted = await connection.greeted
        except asyncio.CancelledError:
            cast("asyncio.Transport", transport).abort()
            raise
        if connection.closing is None:
            return connection
        if greeted:
            reason = connection.closing
        elif connection.heard:
            reason = "it answers, but not in HTTP/2 as gRPC does"
        else:
            reason = f"{connection.closing} before a word of HTTP/2"
        return NotConnected(self.address, reason, answered=True)

    async def close(self) -> None:
        """End every call and the connection."""
        self._closed = True
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait((self._connecting,))
            self._connecting = None
        for connection in [one for one in (self._connection, *self._older) if one is not None]:
            for stream in list(connection.streams.values()):
                connection.reset(stream, ErrorCode.CANCEL)
                connection.stream_lost(stream, StreamLost(StatusCode.CANCELLED, "the channel was closed"))
            connection.close()
            await asyncio.wait((connection.over,), timeout=_CLOSE_S)
            connection.abort("the channel was closed")

    async def __aenter__(self) -> Channel:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


@dataclass(frozen=True, slots=True)
class _Method(Generic[Request, Response]):
    """What all calls of one method on one channel share."""

    channel: Channel
    headers: bytes
    """All but the timeout, encoded."""
    encode: Callable[[Request], bytes] | None
    decode: Callable[[bytes], Response] | None

    def encoded(self, request: Request) -> bytes:
        return cast("bytes", request) if self.encode is None else self.encode(request)

    def decoded(self, message: bytes | bytearray) -> Response:
        # Decoders take any buffer; whoever takes the message as it is expects bytes.
        return cast("Response", bytes(message)) if self.decode is None else self.decode(cast("bytes", message))


class UnaryMethod(Generic[Request, Response]):
    """A method with one request and one answer."""

    __slots__ = ("_method",)

    def __init__(self, method: _Method[Request, Response]) -> None:
        self._method = method

    async def __call__(self, request: Request, timeout: float | None = None) -> Response:
        """Raises grpc.aio.AioRpcError, and ChannelClosed if the channel is."""
        message = self._method.encoded(request)
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        stream = self._method.channel.open_now() or await self._wait(deadline)
        expiry = None if deadline is None else loop.call_at(deadline, stream.expire)
        try:
            return self._method.decoded(await self._answer(stream, message, timeout))
        except StreamLost as lost:
            raise stream.why(lost) from lost
        except asyncio.CancelledError:
            stream.reset(ErrorCode.CANCEL, StreamLost(StatusCode.CANCELLED, "cancelled here"))
            raise
        finally:
            stream.let_go()
            if expiry is not None:
                expiry.cancel()

    async def _wait(self, deadline: float | None) -> _ClientStream:
        """A stream as soon as there can be one. Raises AioRpcError, ChannelClosed."""
        try:
            async with asyncio.timeout_at(deadline):
                connection = await self._method.channel.connection()
                return await connection.open()
        except StreamLost as lost:
            raise _Failure(lost.status, str(lost)).error() from lost
        except TimeoutError as error:
            raise _Failure(StatusCode.DEADLINE_EXCEEDED, _EXPIRED).error() from error

    async def _answer(self, stream: _ClientStream, message: bytes, timeout_s: float | None) -> bytes | bytearray:
        """Raises StreamLost, AioRpcError."""
        stream.single = True
        block = self._method.headers
        if timeout_s is not None:
            block += literal(b"grpc-timeout", encode_timeout(timeout_s))
        if not stream.write_now(message, before=frames.headers(block, stream.id), end=True):
            stream.begin(block)
            await stream.write(message, end=True)
        stream.local_ended = True
        answer = await stream.read()
        if answer is not None and await stream.read() is not None:
            lost = StreamLost(StatusCode.INTERNAL, "a second answer to a unary call")
            stream.reset(ErrorCode.CANCEL, lost)
            raise lost
        if stream.failure is not None:
            raise stream.failure.error()
        if answer is None:
            raise _Failure(StatusCode.INTERNAL, "no answer to a unary call").error()
        return answer


class StreamCall(Generic[Request, Response]):
    """One bidirectional call. Begins to connect when it is first read or written."""

    def __init__(self, method: _Method[Request, Response]) -> None:
        self._method = method
        self._stream: _ClientStream | None = None
        self._opening: asyncio.Task[None] | None = None
        self._failure: _Failure | None = None
        self._done_writing = False

    async def _opened(self) -> _ClientStream:
        """Raises AioRpcError, ChannelClosed."""
        if self._failure is not None:
            raise self._failure.error()
        if self._stream is not None:
            return self._stream
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._open())
        # Whoever waits may be cancelled; reader and writer open the stream together.
        await asyncio.wait((self._opening,))
        if self._failure is not None:
            raise self._failure.error()
        if self._stream is None:
            raise ChannelClosed("the channel is closed")
        return self._stream

    async def _open(self) -> None:
        try:
            stream = await (await self._method.channel.connection()).open()
        except StreamLost as lost:
            self._failure = _Failure(lost.status, str(lost))
        except ChannelClosed:
            return
        else:
            stream.begin(self._method.headers)
            self._stream = stream

    async def write(self, request: Request) -> None:
        """Raises AioRpcError once the call is over."""
        message = self._method.encoded(request)
        stream = self._stream or await self._opened()
        try:
            await stream.write(message)
        except StreamLost as lost:
            raise stream.why(lost) from lost

    async def done_writing(self) -> None:
        if self._done_writing:
            return
        self._done_writing = True
        stream = self._stream or await self._opened()
        if stream.lost is None:
            stream.end()

    async def read(self) -> Any:
        """The next answer, or grpc.aio.EOF at an orderly end. Raises AioRpcError at any other."""
        stream = self._stream or await self._opened()
        try:
            message = await stream.read()
        except StreamLost as lost:
            raise stream.why(lost) from lost
        if message is not None:
            try:
                return self._method.decoded(message)
            finally:
                stream.let_go()
        if stream.failure is not None:
            raise stream.failure.error()
        return grpc.aio.EOF

    def cancel(self) -> bool:
        """End the call at once; False if it is over already."""
        if self._stream is None:
            over, self._failure = self._failure is not None, self._failure or _CANCELLED
            if self._opening is not None:
                self._opening.cancel()
            return not over
        if self._stream.lost is not None:
            return False
        self._stream.failure = _CANCELLED
        self._stream.reset(ErrorCode.CANCEL, StreamLost(StatusCode.CANCELLED, "cancelled here"))
        return True


def _failure(headers: Headers, named: dict[bytes, bytes]) -> _Failure | None:
    """What trailers say; None if all is well."""
    status = named.get(b"grpc-status", b"")
    if status == b"0":
        return None
    text = decode_text(named.get(b"grpc-message", b""))
    code = _STATUSES.get(int(status), StatusCode.UNKNOWN) if status.isdigit() else StatusCode.UNKNOWN
    try:
        return _Failure(code, text, decode_metadata(headers))
    except ValueError:
        return _Failure(code, text)


def _reasons(failures: list[OSError | UnicodeError]) -> str:
    """Each of them once: the addresses of a name mostly fail alike."""
    return "; ".join(dict.fromkeys(map(_reason, failures)))


def _reason(failure: OSError | UnicodeError) -> str:
    if isinstance(failure, OSError) and not isinstance(failure, ssl.SSLError):
        if isinstance(failure, socket.gaierror):
            return failure.strerror or str(failure)
        if failure.errno is not None:
            # Not its text, to which event loops add what they like.
            return os.strerror(failure.errno)
    return str(failure) or type(failure).__name__


def _answered(failure: OSError | UnicodeError) -> bool:
    return isinstance(failure, (ssl.SSLError, ConnectionResetError, ConnectionAbortedError))
