"""Whatever bytes a server or a channel gets, nothing is raised but to its own connection, and nothing stays behind."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
from hypothesis import given, settings
from hypothesis import strategies as st

from cursus_transport import Channel, Limits, UnaryMethod
from tests.harness.http2 import (
    DATA,
    HEADERS,
    NO_SETTINGS,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    Listener,
    Peer,
    block,
    call,
    data,
    frame,
    message,
    window_update,
)
from tests.harness.transport import nothing_escapes, serving
from tests.harness.waiting import DEADLINE_S, eventually

SMALL = Limits(max_message_bytes=2000, max_streams=3)

STREAMS = st.sampled_from([0, 1, 1, 1, 2, 3, 3, 5, 2**31 - 1, 2**31 + 1])
GARBAGE_FRAMES = st.builds(
    frame, st.sampled_from([*range(10), 11, 200]), st.integers(0, 255), STREAMS, st.binary(max_size=40)
)
CALLS = st.builds(
    call, st.sampled_from([1, 3, 5, 7]), st.sampled_from(["/test.Wire/Talk", "/test.Wire/Answer", "/none"])
)
MESSAGES = st.builds(
    lambda stream, content, end: data(stream, message(content), end=end),
    st.sampled_from([1, 3, 5]),
    st.binary(max_size=60),
    st.booleans(),
)
HALVES = st.builds(
    lambda stream, content, size: data(stream, message(content)[:size]),
    st.sampled_from([1, 3]),
    st.binary(max_size=60),
    st.integers(0, 20),
)
SENSIBLE = st.one_of(
    CALLS,
    MESSAGES,
    HALVES,
    st.builds(window_update, st.sampled_from([0, 1, 3]), st.integers(1, 1000)),
    st.sampled_from(
        [
            bytes.fromhex(NO_SETTINGS),
            bytes.fromhex("000008 06 00 00000000 0102030405060708"),
            bytes.fromhex("000004 03 00 00000001 00000008"),
            bytes.fromhex("000006 04 00 00000000 0004 00000003"),
            frame(HEADERS, 0x05, 1, block([("x-trailer", "yes")])),
        ]
    ),
)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """Frames that make sense, with a few bytes that do not."""
    sent = bytearray(call(1) + b"".join(draw(st.lists(SENSIBLE, max_size=12))))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(sent) - 1))
        match draw(st.sampled_from(["change", "drop", "insert"])):
            case "change":
                sent[at] = draw(st.integers(0, 255))
            case "drop" if len(sent) > 1:
                del sent[at : at + draw(st.integers(1, 20))]
            case _:
                sent[at:at] = draw(st.binary(min_size=1, max_size=8))
        if not sent:
            sent = bytearray(b"\0")
    return bytes(sent)


async def survive(sent: bytes) -> None:
    """Send it, leave, and look at what is left. `serving` sees to what would escape."""
    async with serving(limits=SMALL) as served:
        async with Peer.connect(served.port) as peer:
            await peer.send(PREFACE, NO_SETTINGS)
            try:
                await peer.send(sent)
                peer.socket.shutdown(1)
            except OSError:
                pass  # the server was faster, and has closed the connection
            connections = list(served.server.connections)
            await peer.drain()
        await eventually(lambda: not served.server.connections and not served.server.tasks)
        assert [one.streams for one in connections if one.streams] == []
        async with served.connect() as next_one:
            await next_one.send(call(1), data(1, message(b"hi"), end=True))
            assert (await next_one.answer()).messages == [b"hi"]
    assert asyncio.all_tasks() == {asyncio.current_task()}


@settings(max_examples=100)
@given(st.lists(st.one_of(GARBAGE_FRAMES, SENSIBLE), max_size=12).map(b"".join))
def test_a_server_survives_any_frames(sent: bytes) -> None:
    asyncio.run(survive(sent))


ON_A_CALL = st.one_of(
    HALVES,
    HALVES,
    st.builds(lambda stream, content: data(stream, message(content)), st.sampled_from([1, 3]), st.binary(max_size=60)),
    st.builds(window_update, st.sampled_from([0, 1, 3]), st.integers(1, 1000)),
    st.sampled_from([data(1, b"", end=True), data(3, b"", end=True)]),
    st.sampled_from([frame(HEADERS, 0x05, stream, block([("x-trailer", "yes")])) for stream in (1, 3)]),
    st.sampled_from([frame(RST_STREAM, 0, stream, bytes(4)) for stream in (1, 3)]),
    st.sampled_from([frame(SETTINGS, 0, 0, bytes.fromhex(f"0004 0000{size}")) for size in ("0000", "0003", "ffff")]),
)


@settings(max_examples=150)
@given(st.lists(ON_A_CALL, max_size=8).map(b"".join))
def test_a_server_survives_calls_that_end_anyhow(sent: bytes) -> None:
    asyncio.run(survive(call(1) + call(3, "/test.Wire/Answer") + sent))


@settings(max_examples=100)
@given(mutated())
def test_a_server_survives_frames_with_faults(sent: bytes) -> None:
    asyncio.run(survive(sent))


@settings(max_examples=60)
@given(st.binary(max_size=300))
def test_a_server_survives_any_bytes(sent: bytes) -> None:
    asyncio.run(survive(sent))


ANSWERS = st.one_of(
    GARBAGE_FRAMES,
    MESSAGES,
    st.sampled_from(
        [
            frame(HEADERS, 0x04, 1, block([(":status", "200"), ("content-type", "application/grpc")])),
            frame(HEADERS, 0x05, 1, block([("grpc-status", "0")])),
            frame(HEADERS, 0x05, 1, block([("grpc-status", "7"), ("grpc-message", "%"), ("x-bin", "!")])),
            bytes.fromhex("000008 07 00 00000000 00000001 00000000"),
            frame(DATA, 0x01, 3),
        ]
    ),
)


@settings(max_examples=100)
@given(st.lists(ANSWERS, max_size=8).map(b"".join))
def test_calls_of_a_channel_end_whatever_is_answered(sent: bytes) -> None:
    async def run() -> None:
        with nothing_escapes():
            async with Listener.open() as listener, Channel(f"127.0.0.1:{listener.port}", limits=SMALL) as channel:
                ask: UnaryMethod[bytes, Any] = channel.unary_unary("/test.Wire/Answer", None, None)
                asking = asyncio.create_task(ask(b""))
                talking: Any = channel.stream_stream("/test.Wire/Talk", None, None)()
                reading = asyncio.create_task(_all_of(talking))
                peer = await listener.accept()
                await peer.be_greeted()
                await peer.wait_for(HEADERS, 3)
                await peer.send(sent)
                listener.close()
                async with asyncio.timeout(DEADLINE_S):
                    ends = await asyncio.gather(asking, reading, return_exceptions=True)
            assert all(isinstance(one, (bytes, bytearray, list, grpc.aio.AioRpcError)) for one in ends), ends
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())


async def _all_of(talking: Any) -> list[bytes]:
    found = []
    while (one := await talking.read()) is not grpc.aio.EOF:
        found.append(bytes(one))
    return found
