"""Servers and channels of cursus_transport in this process, and those of grpcio beside them."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import grpc

from cursus_transport import Channel, Limits, Server
from cursus_transport.server import Call
from tests.harness.certificates import KeyPair
from tests.harness.http2 import Peer
from tests.harness.waiting import DEADLINE_S

Talk = Callable[[Call], Awaitable[None]]

ROOMY: Final = Limits(max_message_bytes=32 * 1024 * 1024)


async def echo(call: Call) -> None:
    """Every message back, until the client has ended its side."""
    while (request := await call.read()) is not grpc.aio.EOF:
        await call.write(bytes(request))


async def say_back(request: bytes, _: object) -> bytes:
    return bytes(request)


@dataclass(frozen=True, slots=True)
class Served:
    server: Server
    port: int

    @asynccontextmanager
    async def connect(self, receive_buffer: int | None = None) -> AsyncIterator[Peer]:
        """A connection whose greetings are exchanged."""
        async with Peer.connect(self.port, receive_buffer) as peer:
            await peer.greet()
            yield peer


@contextmanager
def nothing_escapes() -> Iterator[None]:
    """What a protocol raises reaches nobody but the event loop's exception handler. Here it fails the test."""
    loop = asyncio.get_running_loop()
    escaped: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: escaped.append(context))
    try:
        yield
    finally:
        loop.set_exception_handler(None)
    # grpcio, at the other end, now and then reports what concerns a loop that an earlier test has closed.
    ours = [context for context in escaped if "PollerCompletionQueue" not in str(context.get("message"))]
    assert not ours, ours


@asynccontextmanager
async def serving(talk: Talk = echo, limits: Limits | None = None, port: int = 0) -> AsyncIterator[Served]:
    """A server with the methods Talk, a stream both ways, and Answer, which says back its only request.

    When it ends, nothing may be left of its calls.
    """

    async def run(_: object, call: Call) -> None:
        await talk(call)

    methods: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        "Talk": grpc.stream_stream_rpc_method_handler(run),
        "Answer": grpc.unary_unary_rpc_method_handler(say_back),
    }
    with nothing_escapes():
        server = Server(limits or Limits())
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Wire", methods),))
        port = server.bind("127.0.0.1", port)
        await server.start()
        try:
            yield Served(server, port)
            connections = list(server.connections)
        finally:
            await server.stop(None)
    assert not server.tasks
    assert not any(connection.streams for connection in connections)


# Ours and grpcio's, side by side


class Stream(Protocol):
    """A bidirectional call, of either channel."""

    async def write(self, request: bytes) -> None: ...

    async def read(self) -> Any: ...

    async def done_writing(self) -> None: ...

    def cancel(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Tls:
    """What the two ends know of certificates. With a pair for the client, the server asks for one."""

    authority: Path
    server: KeyPair
    client: KeyPair | None = None
    asks_client: bool = False

    def of_server(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.server.certificate, self.server.key)
        if self.asks_client:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(self.authority)
        return context

    def of_client(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.authority))
        if self.client is not None:
            context.load_cert_chain(self.client.certificate, self.client.key)
        return context


@dataclass(frozen=True, slots=True)
class Pair:
    """A channel, connected to a server, each of them ours or grpcio's."""

    channel: Any
    address: str
    stop: Callable[[float | None], Awaitable[None]]

    async def ask(self, request: bytes, timeout: float | None = None, method: str = "Ask") -> bytes:
        """A call that is unary on both sides."""
        async with asyncio.timeout(DEADLINE_S):
            answer: bytes = await self.channel.unary_unary(f"/test.Pair/{method}", None, None)(request, timeout=timeout)
            return bytes(answer)

    def talk(self) -> Stream:
        call: Stream = self.channel.stream_stream("/test.Pair/Talk", None, None)()
        return call


KINDS: Final = ("ours", "grpcio")
_MAX_BYTES: Final = 32 * 1024 * 1024
_OPTIONS: Final = (("grpc.max_receive_message_length", _MAX_BYTES), ("grpc.max_send_message_length", _MAX_BYTES))


@asynccontextmanager
async def paired(
    server: str, channel: str, handlers: Mapping[str, grpc.RpcMethodHandler[Any, Any]], tls: Tls | None = None
) -> AsyncIterator[Pair]:
    """A server and a channel to it, each "ours" or "grpcio". Handlers are those of the service test.Pair."""
    generic = grpc.method_handlers_generic_handler("test.Pair", dict(handlers))
    with nothing_escapes():
        async with _server(server, generic, tls) as (port, stop), _channel(channel, port, tls) as opened:
            yield Pair(opened, f"localhost:{port}", stop)


@asynccontextmanager
async def _server(
    kind: str, generic: grpc.GenericRpcHandler, tls: Tls | None
) -> AsyncIterator[tuple[int, Callable[[float | None], Awaitable[None]]]]:
    if kind == "ours":
        ours = Server(ROOMY)
        ours.add_generic_rpc_handlers((generic,))
        port = ours.bind("127.0.0.1", 0, None if tls is None else tls.of_server())
        await ours.start()
        try:
            yield port, ours.stop
        finally:
            await ours.stop(None)
        assert not ours.tasks
        assert not ours.connections
        return
    theirs = grpc.aio.server(options=_OPTIONS)
    theirs.add_generic_rpc_handlers((generic,))
    if tls is None:
        port = theirs.add_insecure_port("127.0.0.1:0")
    else:
        root = tls.authority.read_bytes() if tls.asks_client else None
        credentials = grpc.ssl_server_credentials([tls.server.read()], root, require_client_auth=tls.asks_client)
        port = theirs.add_secure_port("127.0.0.1:0", credentials)
    await theirs.start()
    try:
        yield port, theirs.stop
    finally:
        await theirs.stop(None)


@asynccontextmanager
async def _channel(kind: str, port: int, tls: Tls | None) -> AsyncIterator[Any]:
    if kind == "ours":
        context = None if tls is None else tls.of_client()
        async with Channel(f"127.0.0.1:{port}", limits=ROOMY, tls=context, server_name="localhost") as ours:
            yield ours
    elif tls is None:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=_OPTIONS) as theirs:
            yield theirs
    else:
        key, certificate = tls.client.read() if tls.client is not None else (None, None)
        credentials = grpc.ssl_channel_credentials(tls.authority.read_bytes(), key, certificate)
        named = (*_OPTIONS, ("grpc.ssl_target_name_override", "localhost"))
        async with grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials, options=named) as theirs:
            yield theirs
