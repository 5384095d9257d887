"""Whatever messages are sent, and wherever they and their frames are cut, they arrive as they were."""

from __future__ import annotations

import asyncio
import gzip
import itertools
from typing import Any

import grpc
from hypothesis import given, settings
from hypothesis import strategies as st

from cursus_transport import Channel, StreamCall
from tests.harness.http2 import (
    DATA,
    END_STREAM,
    HEADERS,
    Listener,
    Peer,
    block,
    call,
    data,
    frame,
    message,
    window_update,
)
from tests.harness.http2 import settings as http2_settings
from tests.harness.transport import serving
from tests.harness.waiting import DEADLINE_S

MESSAGES = st.lists(
    st.one_of(
        st.binary(max_size=40),
        st.integers(0, 120_000).map(lambda size: bytes(itertools.islice(itertools.cycle(b"cursus"), size))),
    ),
    max_size=8,
)
CUTS = st.lists(st.one_of(st.integers(0, 12), st.integers(0, 20_000), st.integers(0, 130_000)), max_size=30)
LARGEST_FRAMES = st.sampled_from((16_000, 1_000_000))


def pieces(whole: bytes, sizes: list[int]) -> list[bytes]:
    """The whole, cut into pieces of these sizes as far as they go, and what is left."""
    cut, at = [], 0
    for size in sizes:
        cut.append(whole[at : at + size])
        at += size
    return [*cut, whole[at:]]


def frames_of(stream: int, joined: bytes, sizes: list[int], largest: int, padding: list[int], *, end: bool) -> bytes:
    """As DATA frames cut at these sizes, some of them padded."""
    parts = [
        part[at : at + largest]
        for part in pieces(joined, sizes)
        for at in (range(0, len(part), largest) if part else [0])
    ]
    written = []
    for part, padded in itertools.zip_longest(parts, padding[: len(parts)], fillvalue=0):
        assert isinstance(part, bytes)
        body = bytes((padded,)) + part + bytes(padded) if padded else part
        written.append(frame(DATA, 0x8 if padded else 0, stream, body))
    return b"".join(written) + (data(stream, b"", end=True) if end else b"")


async def send_in_pieces(peer: Peer, sent: bytes, sizes: list[int]) -> None:
    """Each piece alone, if the other end is as quick as it can be: it is on the same event loop."""
    for piece in pieces(sent, sizes):
        await peer.send(piece)
        await asyncio.sleep(0)


@settings(max_examples=60)
@given(MESSAGES, CUTS, LARGEST_FRAMES, CUTS, st.lists(st.integers(0, 255), max_size=10), st.booleans())
def test_messages_arrive_at_a_server_as_they_were(
    messages: list[bytes],
    frame_sizes: list[int],
    largest: int,
    read_sizes: list[int],
    padding: list[int],
    compressed: bool,
) -> None:
    packed = [message(gzip.compress(one) if compressed else one, compressed=compressed) for one in messages]
    sent = call(1, grpc_encoding="gzip") + frames_of(1, b"".join(packed), frame_sizes, largest, padding, end=True)

    async def run() -> list[bytes]:
        async with serving() as served, served.connect() as peer:
            await peer.send(window_update(0, 2**30), http2_settings(initial_window=2**30))
            await send_in_pieces(peer, sent, read_sizes)
            answer = await peer.answer()
            assert answer.status == 0
            return answer.messages

    assert asyncio.run(run()) == messages


@settings(max_examples=60)
@given(MESSAGES, CUTS, LARGEST_FRAMES, CUTS, st.lists(st.integers(0, 255), max_size=10))
def test_messages_arrive_at_a_client_as_they_were(
    messages: list[bytes], frame_sizes: list[int], largest: int, read_sizes: list[int], padding: list[int]
) -> None:
    sent = (
        frame(HEADERS, 0x04, 1, block([(":status", "200"), ("content-type", "application/grpc")]))
        + frames_of(1, b"".join(map(message, messages)), frame_sizes, largest, padding, end=False)
        + frame(HEADERS, 0x05, 1, block([("grpc-status", "0")]))
    )

    async def run() -> list[bytes]:
        received = []
        async with Listener.open() as listener, Channel(f"127.0.0.1:{listener.port}") as channel:
            talking: StreamCall[bytes, Any] = channel.stream_stream("/test.Wire/Talk", None, None)()
            writing = asyncio.create_task(talking.write(b""))
            peer = await listener.accept()
            await peer.be_greeted()
            await writing
            sending = asyncio.create_task(send_in_pieces(peer, sent, read_sizes))
            async with asyncio.timeout(DEADLINE_S):
                while (found := await talking.read()) is not grpc.aio.EOF:
                    received.append(bytes(found))
                await sending
        return received

    assert asyncio.run(run()) == messages


@settings(max_examples=40)
@given(
    st.lists(st.integers(0, 50_000), min_size=1, max_size=5),
    st.integers(0, 70_000),
    st.lists(st.integers(1, 90_000), max_size=12),
)
def test_a_server_keeps_to_any_windows_and_says_all_in_the_end(
    sizes: list[int], initial: int, increments: list[int]
) -> None:
    total = sum(sizes) + 5 * len(sizes)

    async def run() -> None:
        async with serving() as served, Peer.connect(served.port) as peer:
            await peer.greet(http2_settings(initial_window=initial))
            await peer.send(call(1), data(1, b"".join(message(bytes(size)) for size in sizes), end=True))
            allowed, allowed_in_all = initial, 65_535
            for increment in increments:
                await peer.settled()
                received = sum(len(one.body) for one in peer.aside if one.kind == DATA)
                assert received == min(allowed, allowed_in_all, total)
                allowed, allowed_in_all = allowed + increment, allowed_in_all + increment // 2 + 1
                await peer.send(window_update(1, increment), window_update(0, increment // 2 + 1))
            await peer.send(window_update(1, 2**29), window_update(0, 2**29))
            await peer.settled()
            assert sum(len(one.body) for one in peer.aside if one.kind == DATA) == total
            assert [one.kind for one in peer.aside if one.stream == 1 and one.flags & END_STREAM] == [HEADERS]

    asyncio.run(run())
