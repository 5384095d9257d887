"""Two hundred connections publish at the same time, each in pieces of its own: every stored byte is compared with what
was sent. Messages are about as large as the sizes at which the transport does something else with them.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import grpc
import pytest
from hpack import Decoder

from tests.harness.certificates import Authority
from tests.harness.clients import Client, publish_request
from tests.harness.http2 import (
    ACK,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    SETTINGS_ACK,
    WINDOW_UPDATE,
    call,
    data,
    frame,
    message,
    settings,
)
from tests.harness.processes import BrokerProcess

CONNECTIONS: Final = 200
MESSAGES: Final = 2
KIB: Final = 1024
WINDOW: Final = 1024 * KIB

# What is read at once, the least that is read to where it belongs, frames by default, half a window, a window and the
# largest frame, and what is about a sixteenth of that.
EDGES: Final = (2 * KIB, 16 * KIB, 64 * KIB, 128 * KIB, 300 * KIB, 512 * KIB, 1024 * KIB)
FRAMES: Final = (16 * KIB, 64 * KIB, 300 * KIB, 1024 * KIB)
PIECES: Final = {"slow": (1, 9, 700, 20 * KIB), "fast": (64 * KIB, 300 * KIB, 2048 * KIB)}


class Publisher:
    """One connection, written to by hand, piece by piece."""

    def __init__(
        self, number: int, seeded: random.Random, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.values = [seeded.randbytes(_size(seeded)) for _ in range(MESSAGES)]
        self.statuses: list[str] = []
        self._number = number
        self._seeded = seeded
        self._pieces = PIECES[seeded.choice(("slow", "fast"))]
        self._reader = reader
        self._writer = writer
        self._windows: dict[int, int] = {}
        self._more = asyncio.Event()
        self._decoder = Decoder()
        self._unsent = memoryview(b"")
        self._owed = b""
        # In one piece: a connection that does not say soon what it speaks is not kept.
        writer.write(bytes.fromhex(PREFACE) + settings(initial_window=WINDOW))
        self._frames = self._all_frames()

    def _all_frames(self) -> Iterator[tuple[int, bytes]]:
        """The stream and the data of each frame of all calls, one call after the other."""
        for number, value in enumerate(self.values):
            stream = 2 * number + 1
            request = message(publish_request("bytes", [value], self._number).SerializeToString())
            self._windows[stream] = WINDOW
            head, size = call(stream, "/cursus.v1.PublishService/Publish"), self._seeded.choice(FRAMES)
            for at in range(0, len(request), size):
                part = request[at : at + size]
                self._windows[stream] -= len(part)
                yield stream, head + data(stream, part, end=at + size >= len(request))
                head = b""

    async def send_piece(self) -> bool:
        """Write the next piece; False if all is written."""
        if not self._unsent:
            following = next(self._frames, None)
            if following is None:
                return False
            stream, frames = following
            while self._windows[stream] < 0:
                self._more.clear()
                await self._more.wait()
            self._unsent = memoryview(frames)
        size = self._seeded.choice(self._pieces)
        self._writer.write(self._unsent[:size])
        self._unsent = self._unsent[size:]
        if not self._unsent:
            self._writer.write(self._owed)
            self._owed = b""
        await self._writer.drain()
        return True

    async def listen(self) -> None:
        """Until every call has its status."""
        while len(self.statuses) < MESSAGES:
            head = await self._reader.readexactly(9)
            body = await self._reader.readexactly(int.from_bytes(head[:3]))
            kind, flags, stream = head[3], head[4], int.from_bytes(head[5:9])
            assert kind not in (RST_STREAM, GOAWAY), body
            if kind == WINDOW_UPDATE and stream:
                self._windows[stream] += int.from_bytes(body)
                self._more.set()
            elif kind == SETTINGS and not flags & ACK:
                self._owe(bytes.fromhex(SETTINGS_ACK))
            elif kind == PING and not flags & ACK:
                self._owe(frame(PING, ACK, 0, body))
            elif kind == HEADERS:
                named = {str(name): str(value) for name, value in self._decoder.decode(body)}
                if flags & END_STREAM:
                    self.statuses.append(named["grpc-status"])

    def _owe(self, answer: bytes) -> None:
        """It goes between two frames."""
        if self._unsent:
            self._owed += answer
        else:
            self._writer.write(answer)

    def close(self) -> None:
        self._writer.close()


def _size(seeded: random.Random) -> int:
    """A value such that it, or its request, is a few bytes below or above an edge; small ones more often."""
    edge = seeded.choice(EDGES[: seeded.randint(1, len(EDGES))])
    return max(1, edge + seeded.randint(-60, 10))


async def _connect(
    broker: BrokerProcess, number: int, seeded: random.Random, trusted: ssl.SSLContext | None
) -> Publisher:
    host, _, port = broker.grpc.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), ssl=trusted)
    return Publisher(number, seeded, reader, writer)


async def _interleave(publishers: Sequence[Publisher], seeded: random.Random) -> None:
    """Whose turn it is, is drawn by lot: many are in the middle of a message at any time."""
    sending = list(publishers)
    while sending:
        at = seeded.randrange(len(sending))
        if not await sending[at].send_piece():
            sending[at] = sending[-1]
            sending.pop()


@asynccontextmanager
async def _client(broker: BrokerProcess, root: bytes | None) -> AsyncIterator[Client]:
    if root is None:
        async with Client.connect(broker.grpc) as client:
            yield client
        return
    options = [("grpc.max_receive_message_length", -1)]
    async with grpc.aio.secure_channel(broker.grpc, grpc.ssl_channel_credentials(root), options=options) as channel:
        yield Client(channel)


@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "TLS"])
async def test_every_byte_is_stored_where_it_was_sent_to(tmp_path: Path, encrypted: bool) -> None:
    seeded = random.Random(20_260)
    flags: tuple[str, ...] = ()
    trusted, root = None, None
    if encrypted:
        authority = Authority(tmp_path / "certificates")
        pair, root = authority.server(), authority.certificate.read_bytes()
        flags = ("--tls-cert", str(pair.certificate), "--tls-key", str(pair.key))
        trusted = ssl.create_default_context(cafile=str(authority.certificate))
        trusted.set_alpn_protocols(["h2"])
    async with (
        BrokerProcess.start(tmp_path / "data", *flags) as broker,
        _client(broker, root) as client,
        AsyncExitStack() as connected,
    ):
        await client.create_topic("bytes", CONNECTIONS)
        publishers = [await _connect(broker, number, seeded, trusted) for number in range(CONNECTIONS)]
        for publisher in publishers:
            connected.callback(publisher.close)
        async with asyncio.TaskGroup() as listening:
            for publisher in publishers:
                listening.create_task(publisher.listen())
            await _interleave(publishers, seeded)
        for number, publisher in enumerate(publishers):
            assert publisher.statuses == ["0"] * MESSAGES
            assert sorted(await client.read_values("bytes", number)) == sorted(publisher.values)
