"""A gRPC server on the event loop: takes the handlers that generated code registers, and the contexts they use."""

from __future__ import annotations

import asyncio
import inspect
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn

import grpc
from grpc import StatusCode

from cursus_transport import frames
from cursus_transport.connection import Connection, Limits
from cursus_transport.errors import ConnectionFailed, StreamLost, forget_frames
from cursus_transport.frames import ErrorCode, Setting
from cursus_transport.handshakes import Refused, TlsListener, ignore
from cursus_transport.headers import (
    STATUS_200,
    Headers,
    Metadata,
    decode_metadata,
    decode_timeout,
    encode_metadata,
    encode_text,
    fault_in_request,
    literal,
    size_of,
)
from cursus_transport.stream import Stream

_log = logging.getLogger("cursus_transport")

_BACKLOG: Final = 1024
_PREFACE_S: Final = 10.0
"""How long a connection may take to say that it speaks HTTP/2."""

_FLUSH_S: Final = 1.0
"""How long a connection may take for its last words."""

_CLEAN_UP_S: Final = 5.0
"""How long handlers may take to end when they are cancelled."""

_LONGEST_USER_AGENT: Final = 200
"""It goes into logs."""

_MOST_EARLY_PINGS: Final = 2
_MOST_KNOWN_REQUESTS: Final = 1024
_KNOWN_REQUEST_BYTES: Final = 2 * 1024
_GRPC: Final = b"application/grpc"
_RESPONSE: Final = STATUS_200 + literal(b"content-type", _GRPC)
_ACCEPTED: Final = literal(b"grpc-accept-encoding", b"identity,gzip,deflate")
_OK: Final = literal(b"grpc-status", b"0")
_UNSUPPORTED_MEDIA: Final = literal(b":status", b"415")

if TYPE_CHECKING:
    Handler = grpc.RpcMethodHandler[Any, Any]


class Aborted(Exception):
    """A handler has ended its call with a status."""

    def __init__(self, code: StatusCode, details: str, metadata: Metadata) -> None:
        super().__init__(details)
        self.code = code
        self.details = details
        self.metadata = metadata


@dataclass(frozen=True, slots=True)
class _HandlerDetails(grpc.HandlerCallDetails):
    method: str
    invocation_metadata: Metadata


class Call:
    """One call, and the context its handler sees: what grpc.aio's servicer context offers, as far as it is used."""

    def __init__(self, connection: _ServerConnection, stream: Stream, handler: Handler, headers: Headers) -> None:
        self.stream = stream
        self._connection = connection
        self._handler = handler
        self._headers = headers
        self._answered = False
        self._expired = False
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self, timeout_s: float | None) -> asyncio.Task[None]:
        self._task = self._connection.loop.create_task(self._run())
        # After the task: on uvloop a timer of less than a millisecond is due at once, and a task that is cancelled
        # before its first step never says so to the client.
        if timeout_s is not None:
            self._timer = self._connection.loop.call_later(timeout_s, self._expire)
        return self._task

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def refuse(self, lost: StreamLost) -> None:
        """End the call because of what the client has sent, and tell it so."""
        self._finish(lost.status, str(lost))
        self.stream.lose(lost)
        self.cancel()

    def _expire(self) -> None:
        self._expired = True
        self.cancel()

    # What handlers use

    def peer(self) -> str:
        return self._connection.peer

    def user_agent(self) -> str:
        """What the client calls itself; a client of gRPC lets applications put their own name first."""
        for name, value in self._headers:
            if name == b"user-agent":
                return value.decode("latin-1")[:_LONGEST_USER_AGENT]
        return ""

    def invocation_metadata(self) -> Metadata:
        """Raises ValueError for a binary value that is none."""
        return decode_metadata(self._headers)

    async def read(self) -> Any:
        """The next request, or grpc.aio.EOF when the client has ended its side. Raises StreamLost."""
        message = await self.stream.read()
        if message is None:
            return grpc.aio.EOF
        decode = self._handler.request_deserializer
        return bytes(message) if decode is None else decode(message)  # type: ignore[arg-type]  # a bytearray will do

    async def write(self, response: Any) -> None:
        """Raises StreamLost."""
        message = self._encoded(response)
        if not self._answered:
            self._answered = True
            self._connection.send(frames.headers(_RESPONSE + _ACCEPTED, self.stream.id))
        await self.stream.write(message)

    def write_now(self, response: Any) -> bool:
        """Write without waiting; False, with nothing written, if that cannot be. Only where nobody else is writing, and
        after the first answer."""
        return self._answered and self.stream.write_now(self._encoded(response))

    async def abort(
        self, code: StatusCode, details: str = "", trailing_metadata: Metadata | Sequence[Any] = ()
    ) -> NoReturn:
        raise Aborted(code, details, tuple(trailing_metadata))

    def _encoded(self, response: Any) -> bytes:
        encode = self._handler.response_serializer
        encoded: bytes = response if encode is None else encode(response)
        return encoded

    # Running

    async def _run(self) -> None:
        try:
            await self._serve()
        except (Exception, asyncio.CancelledError) as error:
            self._failed(error)
            forget_frames(error)
            if isinstance(error, asyncio.CancelledError) and not self._expired:
                raise

    def _failed(self, error: Exception | asyncio.CancelledError) -> None:
        match error:
            case Aborted():
                self._finish(error.code, error.details, error.metadata)
            case StreamLost():
                self._finish(error.status, str(error))
            case asyncio.CancelledError() if self._expired:
                self._finish(StatusCode.DEADLINE_EXCEEDED, "the deadline has passed")
            case asyncio.CancelledError():
                self.stream.reset(ErrorCode.CANCEL, StreamLost(StatusCode.CANCELLED, "cancelled"))
            case _:
                _log.error("a handler failed, called by %s", self.peer(), exc_info=error)
                self._finish(StatusCode.UNKNOWN, f"the handler failed: {type(error).__name__}")

    def over(self) -> None:
        """The task is done, whether it ever ran or not."""
        self.stream.let_go()
        self._task = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _serve(self) -> None:
        handler = self._handler
        if handler.request_streaming:
            serve = handler.stream_stream if handler.response_streaming else handler.stream_unary
            request: Any = self._requests()
        else:
            serve = handler.unary_stream if handler.response_streaming else handler.unary_unary
            request = await self.read()
            if request is grpc.aio.EOF:
                raise Aborted(StatusCode.INTERNAL, "the call has no request", ())
        assert serve is not None, "a handler has the function of its kind"
        answer: Any = serve(request, self)  # type: ignore[arg-type]  # the context is ours
        if inspect.isasyncgen(answer):
            async with aclosing(answer):
                async for response in answer:
                    await self.write(response)
        elif handler.response_streaming:
            await answer
        else:
            await self._answer(await answer)
            return
        self._finish(StatusCode.OK, "")

    async def _requests(self) -> AsyncIterator[Any]:
        while (request := await self.read()) is not grpc.aio.EOF:
            yield request

    async def _answer(self, response: Any) -> None:
        """The only answer and the status, in one piece if possible."""
        message = self._encoded(response)
        stream = self.stream
        head = frames.headers(_RESPONSE + _ACCEPTED, stream.id)
        end = frames.headers(_OK, stream.id, end=True)
        if stream.lost is None and stream.write_now(message, before=head, after=end):
            self._ended()
            return
        self._answered = True
        self._connection.send(head)
        await stream.write(message)
        self._finish(StatusCode.OK, "")

    def _finish(self, code: StatusCode, details: str, metadata: Metadata = ()) -> None:
        stream = self.stream
        if stream.lost is not None:
            return
        if stream.torn:
            stream.reset(ErrorCode.CANCEL, StreamLost(StatusCode.CANCELLED, "half an answer was written"))
            return
        block = b"" if self._answered else _RESPONSE
        if code is StatusCode.OK:
            block += _OK
        else:
            number: int = code.value[0]
            block += literal(b"grpc-status", b"%d" % number) + literal(b"grpc-message", encode_text(details[:4096]))
            block += encode_metadata(metadata)
        self._connection.send(frames.headers(block, stream.id, end=True))
        self._ended()

    def _ended(self) -> None:
        stream = self.stream
        stream.local_ended = True
        if stream.remote_ended:
            self._connection.forget(stream)
        else:
            # The client may stop sending: nobody reads it.
            stream.reset(ErrorCode.NO_ERROR, StreamLost(StatusCode.CANCELLED, "the call is over"))


@dataclass(frozen=True, slots=True)
class _Request:
    """What a call's headers ask for. Equal headers ask for the same, so it is found out once."""

    headers: Headers
    malformed: str | None = None
    handler: Handler | None = None
    """None if it is no gRPC."""
    timeout_s: float | None = None
    compression: bytes | None = None


class _ServerConnection(Connection):
    def __init__(self, server: Server, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop, server.limits)
        self._server = server
        self._calls: dict[int, Call] = {}
        self._greeted = 0
        self._preface_timer: asyncio.TimerHandle | None = None
        self._pinged_at = 0.0
        self._early_pings = 0

    def own_settings(self) -> dict[Setting, int]:
        return {Setting.MAX_CONCURRENT_STREAMS: self.limits.max_streams}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._server.connections.add(self)
        self._preface_timer = self.loop.call_later(_PREFACE_S, self.abort, "no HTTP/2 was spoken")

    def lost(self, reason: str) -> None:
        self._server.disconnected(self)
        if self._preface_timer is not None:
            self._preface_timer.cancel()
            self._preface_timer = None

    def receive(self, view: memoryview) -> None:
        if self._greeted < len(frames.PREFACE):
            expected = frames.PREFACE[self._greeted : self._greeted + len(view)]
            if view[: len(expected)] != expected:
                raise ConnectionFailed(ErrorCode.PROTOCOL_ERROR, "this port speaks HTTP/2 (gRPC) only")
            self._greeted += len(expected)
            view = view[len(expected) :]
            if self._greeted == len(frames.PREFACE) and self._preface_timer is not None:
                self._preface_timer.cancel()
        super().receive(view)

    def headers_received(self, stream_id: int, headers: Headers, *, ends: bool) -> None:
        stream = self.streams.get(stream_id)
        if stream is not None:
            if ends:  # trailers, which gRPC's clients do not send
                self.peer_ended(stream)
            return
        if stream_id <= self.last_id or not stream_id & 1:
            raise ConnectionFailed(ErrorCode.PROTOCOL_ERROR, f"stream {stream_id} cannot be opened")
        self.last_id = self.accepted_id = stream_id
        self.owe()
        if self._server.stopping or len(self._calls) >= self.limits.max_streams:
            self.send(frames.rst_stream(stream_id, ErrorCode.REFUSED_STREAM))
            return
        request = self._server.requests.get(headers) or self._server.understand(headers)
        if request.malformed:
            self.send(frames.rst_stream(stream_id, ErrorCode.PROTOCOL_ERROR))
        elif request.handler is None:
            self.send(frames.headers(_UNSUPPORTED_MEDIA, stream_id, end=True))
            if not ends:
                self.send(frames.rst_stream(stream_id, ErrorCode.NO_ERROR))
        else:
            self._open(stream_id, request, request.handler, ends=ends)

    def _open(self, stream_id: int, request: _Request, handler: Handler, *, ends: bool) -> None:
        stream = self.streams[stream_id] = Stream(self, stream_id)
        stream.compression = request.compression
        stream.remote_ended = ends
        call = self._calls[stream_id] = Call(self, stream, handler, request.headers)
        task = call.start(request.timeout_s)
        self._server.tasks.add(task)
        task.add_done_callback(lambda done: self._call_done(stream_id, done))

    def _call_done(self, stream_id: int, task: asyncio.Task[None]) -> None:
        self._calls.pop(stream_id).over()
        self._server.tasks.discard(task)

    def data_ended(self, stream: Stream) -> None:
        if stream.local_ended:
            self.forget(stream)

    def stream_lost(self, stream: Stream, lost: StreamLost) -> None:
        stream.lose(lost)
        call = self._calls.get(stream.id)
        if call is not None:
            call.cancel()

    def stream_refused(self, stream: Stream, code: ErrorCode, lost: StreamLost) -> None:
        """What only gRPC forbids is answered with a status, which says more than HTTP/2's codes."""
        call = self._calls.get(stream.id)
        if call is not None and code is ErrorCode.CANCEL:
            call.refuse(lost)
        else:
            super().stream_refused(stream, code, lost)

    def pinged(self) -> None:
        interval_s = self.limits.min_ping_interval_s
        now = self.loop.time()
        if self.spoke or now - self._pinged_at >= interval_s:
            self._early_pings = 0
        else:
            self._early_pings += 1
            if self._early_pings > _MOST_EARLY_PINGS:
                raise ConnectionFailed(ErrorCode.ENHANCE_YOUR_CALM, "too_many_pings")
        self.spoke = False
        self._pinged_at = now


def _listen(family: int, address: tuple[Any, ...]) -> socket.socket:
    """Raises OSError."""
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # The wildcard is for everybody; the others are what they say.
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(address[0] != "::"))
        listening.bind(address)
        listening.listen(_BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening


def _is_grpc(headers: Mapping[bytes, bytes]) -> bool:
    kind = headers.get(b"content-type", b"")
    return headers[b":method"] == b"POST" and (kind == _GRPC or kind.startswith((_GRPC + b"+", _GRPC + b";")))


def _refusing(code: StatusCode, text: str) -> Handler:
    async def refuse(_: object, context: Call) -> None:
        await context.abort(code, text)

    return grpc.stream_stream_rpc_method_handler(refuse)


class Server:
    """Serves handlers on any number of ports. `add_generic_rpc_handlers` and `add_registered_method_handlers` are what
    generated code calls.
    """

    def __init__(self, limits: Limits, handshake_refused: Refused = ignore) -> None:
        self.limits = limits
        self._handshake_refused = handshake_refused
        self.stopping = False
        self.connections: set[_ServerConnection] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self.requests: dict[Headers, _Request] = {}
        self._generic: list[grpc.GenericRpcHandler] = []
        self._methods: dict[str, Handler] = {}
        self._sockets: list[tuple[socket.socket, ssl.SSLContext | None]] = []
        self._listeners: list[asyncio.Server | TlsListener] = []
        self._left = asyncio.Event()

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        self._generic.extend(handlers)

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Handler]) -> None:
        self._methods.update({f"/{service}/{name}": handler for name, handler in handlers.items()})

    def understand(self, headers: Headers) -> _Request:
        named = dict(headers)
        malformed = fault_in_request(headers)
        if malformed is not None or not _is_grpc(named):
            return _Request(headers, malformed)
        path = named[b":path"].decode("latin-1")
        handler = self.find(path)
        if handler is None:
            return _Request(headers, None, _refusing(StatusCode.UNIMPLEMENTED, f"there is no method {path}"))
        try:
            timeout_s = decode_timeout(named[b"grpc-timeout"]) if b"grpc-timeout" in named else None
        except ValueError as error:
            return _Request(headers, None, _refusing(StatusCode.INTERNAL, str(error)))
        request = _Request(headers, None, handler, timeout_s, named.get(b"grpc-encoding"))
        if len(self.requests) >= _MOST_KNOWN_REQUESTS:
            self.requests.clear()
        if size_of(headers) <= _KNOWN_REQUEST_BYTES:
            self.requests[headers] = request
        return request

    def find(self, path: str) -> Handler | None:
        found = self._methods.get(path)
        if found is None:
            details = _HandlerDetails(path, ())
            found = next((one for generic in self._generic if (one := generic.service(details)) is not None), None)
            if found is not None:
                self._methods[path] = found
        return found

    def bind(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        """Take the port on every address of the host, before anything is served on it; 0 picks one. Raises OSError."""
        if tls is not None:
            tls.set_alpn_protocols(["h2"])
        listening: list[socket.socket] = []
        try:
            for family, *_, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE):
                listening.append(_listen(family, (address[0], port, *address[2:])))
                port = listening[0].getsockname()[1]
        except OSError:
            for one in listening:
                one.close()
            raise
        self._sockets += [(one, tls) for one in listening]
        return port

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        for listening, tls in self._sockets:

            def make() -> _ServerConnection:
                return _ServerConnection(self, loop)

            if tls is not None:
                self._listeners.append(TlsListener(listening, tls, make, self._handshake_refused))
            else:
                self._listeners.append(await loop.create_server(make, sock=listening, backlog=_BACKLOG))

    async def stop(self, grace_s: float | None) -> None:
        """Take no new connections and calls, let those that run go on for the grace, then end them."""
        self.stopping = True
        for listener in self._listeners:
            listener.close()
        for listening, _ in self._sockets:
            listening.close()
        for connection in self.connections:
            connection.send(frames.goaway(connection.accepted_id, ErrorCode.NO_ERROR, "the server stops"))
        if self.tasks and grace_s:
            await asyncio.wait(self.tasks, timeout=grace_s)
        for task in self.tasks:
            task.cancel()
        if self.tasks:
            await asyncio.wait(self.tasks, timeout=_CLEAN_UP_S)
        await self._close_connections()

    async def _close_connections(self) -> None:
        for connection in list(self.connections):
            connection.finish()
        try:
            async with asyncio.timeout(_FLUSH_S):
                while self.connections:
                    self._left.clear()
                    await self._left.wait()
        except TimeoutError:
            for connection in list(self.connections):
                connection.abort("the server stops")

    def disconnected(self, connection: _ServerConnection) -> None:
        self.connections.discard(connection)
        self._left.set()
