"""HTTP/2 by hand: one end of a connection that does and reads what a test says, for another end that is under test.

Nothing here is taken from cursus_transport: a mistake on both sides of a connection would not be seen.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Self

from hpack import Decoder, Encoder

from tests.harness.waiting import DEADLINE_S

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
END_STREAM, ACK, END_HEADERS = 0x1, 0x1, 0x4

NO_ERROR, PROTOCOL_ERROR, FLOW_CONTROL_ERROR, FRAME_SIZE_ERROR = 0, 1, 3, 6
REFUSED_STREAM, CANCEL, COMPRESSION_ERROR, ENHANCE_YOUR_CALM = 7, 8, 9, 11

PREFACE: Final = "505249202a20485454502f322e300d0a0d0a534d0d0a0d0a"
NO_SETTINGS: Final = "000000 04 00 00000000"
SETTINGS_ACK: Final = "000000 04 01 00000000"
TALK: Final = (
    "83 86"  # :method POST, :scheme http
    "04 0f 2f746573742e576972652f54616c6b"  # :path /test.Wire/Talk
    "0f10 10 6170706c69636174696f6e2f67727063"  # content-type application/grpc
)
"""The headers of a call to Talk, 38 (hex 26) bytes that refer to nothing but HPACK's static table."""

BEGIN_TALK: Final = "000026 01 04 00000001" + TALK
"""Begins a call on stream 1."""

_TURNS: Final = 5
_NAMES: Final = ("DATA", "HEADERS", "2", "RST_STREAM", "SETTINGS", "5", "PING", "GOAWAY", "WINDOW_UPDATE")


class Frame(NamedTuple):
    kind: int
    flags: int
    stream: int
    body: bytes

    @property
    def number(self) -> int:
        """The last four bytes: an error code, or the increment of a window."""
        return int.from_bytes(self.body[-4:])

    def __str__(self) -> str:
        name = _NAMES[self.kind] if self.kind < len(_NAMES) else str(self.kind)
        return f"{name} flags={self.flags:02x} stream={self.stream} {self.body[:40]!r}"


class Goaway(NamedTuple):
    last_stream: int
    code: int
    text: str


@dataclass
class Answer:
    """What came on one stream until its end. `reset` is the code, if it was reset."""

    headers: dict[str, str] = field(default_factory=dict)
    data: bytes = b""
    trailers: dict[str, str] = field(default_factory=dict)
    reset: int | None = None

    @property
    def status(self) -> int:
        return int(self.trailers["grpc-status"])

    @property
    def messages(self) -> list[bytes]:
        return split(self.data)


def frame(kind: int, flags: int, stream: int, body: bytes = b"") -> bytes:
    return len(body).to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4) + body


def data(stream: int, body: bytes, *, end: bool = False) -> bytes:
    return frame(DATA, END_STREAM if end else 0, stream, body)


def message(content: bytes, *, compressed: bool = False) -> bytes:
    """A message as DATA frames carry it."""
    return bytes((compressed,)) + len(content).to_bytes(4) + content


def split(joined: bytes) -> list[bytes]:
    """The messages in the data of a stream. None of them may be compressed."""
    found = []
    while joined:
        assert joined[0] == 0, "compressed"
        size = int.from_bytes(joined[1:5])
        assert len(joined) >= 5 + size, "half a message"
        found.append(joined[5 : 5 + size])
        joined = joined[5 + size :]
    return found


def block(headers: Iterable[tuple[str, str]]) -> bytes:
    """Headers that leave no trace in the table of either end."""
    encoded: bytes = Encoder().encode([(name, value, True) for name, value in headers], huffman=False)
    return encoded


def call(stream: int, path: str = "/test.Wire/Talk", *, end: bool = False, **more: str) -> bytes:
    """Begins a call. `more` are headers, with underscores for hyphens; they replace what would be there."""
    headers = {":method": "POST", ":scheme": "http", ":path": path, "te": "trailers"}
    headers |= {"content-type": "application/grpc", **{name.replace("_", "-"): more[name] for name in more}}
    return frame(HEADERS, END_HEADERS | (END_STREAM if end else 0), stream, block(headers.items()))


def window_update(stream: int, increment: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream, increment.to_bytes(4))


def settings(**values: int) -> bytes:
    numbers = {"max_streams": 3, "initial_window": 4, "max_frame": 5}
    body = b"".join(numbers[name].to_bytes(2) + value.to_bytes(4) for name, value in values.items())
    return frame(SETTINGS, 0, 0, body)


class Peer:
    """One end of a connection. It reads when it is told to, so what it does not read stays with the other end."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self.aside: list[Frame] = []
        """Frames that came between those a test waited for."""
        self.max_frame = 16_384
        """What the other end has to keep to; more may be allowed by settings."""
        self._received = b""
        self._unread: list[Frame] = []
        self._decoder = Decoder()

    @classmethod
    @asynccontextmanager
    async def connect(cls, port: int, receive_buffer: int | None = None) -> AsyncIterator[Self]:
        connecting = socket.socket()
        try:
            connecting.setblocking(False)
            if receive_buffer is not None:
                connecting.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
            connecting.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            async with asyncio.timeout(DEADLINE_S):
                await asyncio.get_running_loop().sock_connect(connecting, ("127.0.0.1", port))
            yield cls(connecting)
        finally:
            connecting.close()

    async def greet(self, settings: str | bytes = NO_SETTINGS) -> Frame:
        """What a client begins with, and the server's answer to it. Returns the server's settings."""
        await self.send(PREFACE, settings)
        own = await self.expect(SETTINGS)
        assert not own.flags & ACK
        await self.expect(WINDOW_UPDATE)
        assert (await self.expect(SETTINGS)).flags & ACK
        return own

    async def be_greeted(self, settings: str | bytes = NO_SETTINGS) -> None:
        """The same from the server's side. Calls that came before the client's answer are there to be read."""
        await self.send(settings)
        assert await self._exactly(24) == bytes.fromhex(PREFACE)
        await self.expect(SETTINGS)
        await self.expect(WINDOW_UPDATE)
        early = []
        while (found := await self.receive()) != Frame(SETTINGS, ACK, 0, b""):
            early.append(found)
        self._unread = early

    async def send(self, *parts: str | bytes) -> None:
        """Text is hexadecimal."""
        joined = b"".join(bytes.fromhex(part) if isinstance(part, str) else part for part in parts)
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.get_running_loop().sock_sendall(self.socket, joined)

    async def receive(self) -> Frame:
        """The next frame, with its continuations. Raises EOFError at the end of the connection, orderly or not."""
        if self._unread:
            return self._unread.pop(0)
        found = await self._frame()
        while found.kind == HEADERS and not found.flags & END_HEADERS:
            more = await self._frame()
            assert (more.kind, more.stream) == (CONTINUATION, found.stream), str(more)
            found = Frame(HEADERS, found.flags | more.flags, found.stream, found.body + more.body)
        return found

    async def _frame(self) -> Frame:
        head = await self._exactly(9)
        size = int.from_bytes(head[:3])
        assert size <= self.max_frame, f"a frame of {size} bytes, and {self.max_frame} were allowed"
        return Frame(head[3], head[4], int.from_bytes(head[5:9]), await self._exactly(size))

    async def expect(self, kind: int, stream: int = 0) -> Frame:
        """The next frame, which has to be of this kind and stream."""
        found = await self.receive()
        assert (found.kind, found.stream) == (kind, stream), str(found)
        return found

    async def wait_for(self, kind: int, stream: int = 0) -> Frame:
        """The next frame of this kind and stream. Those before it are put aside."""
        while True:
            found = await self.receive()
            if (found.kind, found.stream) == (kind, stream):
                return found
            self.aside.append(found)

    async def answer(self, stream: int = 1) -> Answer:
        """All that comes on the stream until it ends. What comes on others is put aside."""
        answer = Answer()
        while True:
            found = await self.receive()
            if found.stream != stream or found.kind not in (DATA, HEADERS, RST_STREAM):
                self.aside.append(found)
                continue
            if found.kind == DATA:
                answer.data += found.body
            elif found.kind == RST_STREAM:
                answer.reset = found.number
                return answer
            else:
                named = self.headers(found)
                ended = found.flags & END_STREAM
                answer.headers |= {} if ended and answer.headers else named
                answer.trailers |= named if ended else {}
            if found.flags & END_STREAM:
                return answer

    def headers(self, found: Frame) -> dict[str, str]:
        """Of a HEADERS frame. To be called for each one in turn."""
        assert found.kind == HEADERS
        assert found.flags & END_HEADERS
        return {str(name): str(value) for name, value in self._decoder.decode(found.body)}

    async def settled(self) -> None:
        """Returns when the other end has dealt with all that was sent. What came until then is put aside.

        It answers pings when it reads them, but calls run in tasks, which have to get their turns: hence a few pings.
        """
        for _ in range(_TURNS):
            await self.send("000008 06 00 00000000 736574746c656421")
            while (found := await self.receive()) != Frame(PING, ACK, 0, b"settled!"):
                self.aside.append(found)

    async def goodbye(self) -> Goaway:
        """The GOAWAY that ends the connection, which has to be over after it. What came before it is put aside."""
        found = await self.wait_for(GOAWAY)
        assert await self.rest() == []
        last, code = int.from_bytes(found.body[:4]), int.from_bytes(found.body[4:8])
        return Goaway(last, code, found.body[8:].decode())

    async def rest(self) -> list[Frame]:
        """All frames until the end of the connection."""
        frames = []
        try:
            while True:
                frames.append(await self.receive())
        except EOFError:
            return frames

    async def drain(self) -> None:
        """Read to the end of the connection, whatever comes."""
        try:
            while True:
                await self._exactly(len(self._received) + 1)
        except EOFError:
            return

    async def _exactly(self, size: int) -> bytes:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(DEADLINE_S):
            while len(self._received) < size:
                try:
                    received = await loop.sock_recv(self.socket, 1024 * 1024)
                except ConnectionError as error:
                    raise EOFError("the connection broke") from error
                if not received:
                    raise EOFError("the connection ended")
                self._received += received
        taken, self._received = self._received[:size], self._received[size:]
        return taken


class Listener:
    """A port where connections are taken and driven by hand."""

    def __init__(self, listening: socket.socket) -> None:
        self._listening = listening
        self._peers: list[Peer] = []
        self.port: int = listening.getsockname()[1]

    @classmethod
    @asynccontextmanager
    async def open(cls) -> AsyncIterator[Self]:
        listening = socket.create_server(("127.0.0.1", 0))
        listening.setblocking(False)
        listener = cls(listening)
        try:
            yield listener
        finally:
            listener.close()

    def close(self) -> None:
        """Take no more connections, and end those there are."""
        self._listening.close()
        for peer in self._peers:
            peer.socket.close()

    async def accept(self) -> Peer:
        async with asyncio.timeout(DEADLINE_S):
            accepted, _ = await asyncio.get_running_loop().sock_accept(self._listening)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer = Peer(accepted)
        self._peers.append(peer)
        return peer
