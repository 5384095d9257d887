"""Clients that break the protocol, or ask for more than is good: they lose their connection, and nobody else does."""

from __future__ import annotations

import asyncio
import socket

import pytest

from cursus_transport import Limits
from cursus_transport.server import Call
from tests.harness.http2 import (
    ACK,
    BEGIN_TALK,
    COMPRESSION_ERROR,
    ENHANCE_YOUR_CALM,
    FLOW_CONTROL_ERROR,
    FRAME_SIZE_ERROR,
    HEADERS,
    NO_SETTINGS,
    PING,
    PREFACE,
    PROTOCOL_ERROR,
    REFUSED_STREAM,
    RST_STREAM,
    SETTINGS,
    TALK,
    Frame,
    Goaway,
    Peer,
    call,
    data,
    frame,
    message,
)
from tests.harness.transport import Served, serving
from tests.harness.waiting import DEADLINE_S, eventually

PING_FRAME = bytes.fromhex("000008 06 00 00000000 0102030405060708")


async def works(served: Served) -> None:
    """That a new connection is served."""
    async with served.connect() as peer:
        await peer.send(call(1), data(1, message(b"hi"), end=True))
        assert (await peer.answer()).messages == [b"hi"]


BROKEN = {
    "DATA without a stream": ("000001 00 00 00000000 00", PROTOCOL_ERROR),
    "DATA on a stream that was not opened": ("000001 00 00 00000003 00", PROTOCOL_ERROR),
    "padded DATA on a stream that was not opened": ("000001 00 08 00000003 00", PROTOCOL_ERROR),
    "DATA with more padding than frame": (BEGIN_TALK + "000002 00 08 00000001 02 00", PROTOCOL_ERROR),
    "padded DATA without the padding's length": (BEGIN_TALK + "000000 00 08 00000001", FRAME_SIZE_ERROR),
    "DATA that is larger than allowed": (BEGIN_TALK + "100001 00 00 00000001", FRAME_SIZE_ERROR),
    "padded DATA that is larger than allowed": (BEGIN_TALK + "100001 00 08 00000001", FRAME_SIZE_ERROR),
    "DATA within a header block": ("000002 01 00 00000001 8386 000000 00 01 00000001", PROTOCOL_ERROR),
    "HEADERS without a stream": ("000026 01 04 00000000" + TALK, PROTOCOL_ERROR),
    "HEADERS on a stream of the server": ("000026 01 04 00000002" + TALK, PROTOCOL_ERROR),
    "HEADERS on a stream before the last": (
        "000026 01 05 00000003" + TALK + "000026 01 05 00000001" + TALK,
        PROTOCOL_ERROR,
    ),
    "HEADERS with more padding than frame": ("000002 01 0c 00000001 02 83", PROTOCOL_ERROR),
    "HEADERS too short for their priority": ("000003 01 24 00000001 000000", FRAME_SIZE_ERROR),
    "HEADERS larger than allowed": ("100001 01 04 00000001", FRAME_SIZE_ERROR),
    "HEADERS within a header block": ("000002 01 00 00000001 8386 000026 01 04 00000003" + TALK, PROTOCOL_ERROR),
    "headers that refer to nothing": ("000001 01 05 00000001 fe", COMPRESSION_ERROR),
    "headers that end early": ("000003 01 05 00000001 000561", COMPRESSION_ERROR),
    "headers with an endless number": ("00000c 01 05 00000001 ffffffffffffffffffffffff", COMPRESSION_ERROR),
    "CONTINUATION of nothing": ("000001 09 04 00000001 83", PROTOCOL_ERROR),
    "CONTINUATION of another stream": ("000002 01 00 00000001 8386 000001 09 04 00000003 83", PROTOCOL_ERROR),
    "PING within a header block": ("000002 01 00 00000001 8386" + PING_FRAME.hex(), PROTOCOL_ERROR),
    "PING of seven bytes": ("000007 06 00 00000000 01020304050607", FRAME_SIZE_ERROR),
    "PING on a stream": ("000008 06 00 00000001 0102030405060708", PROTOCOL_ERROR),
    "SETTINGS that are cut": ("000005 04 00 00000000 0003000000", FRAME_SIZE_ERROR),
    "SETTINGS on a stream": ("000000 04 00 00000001", PROTOCOL_ERROR),
    "an acknowledgement with settings": ("000006 04 01 00000000 000300000001", FRAME_SIZE_ERROR),
    "a window that is too large by SETTINGS": ("000006 04 00 00000000 000480000000", FLOW_CONTROL_ERROR),
    "a frame size below the smallest": ("000006 04 00 00000000 000500003fff", PROTOCOL_ERROR),
    "a frame size above the largest": ("000006 04 00 00000000 000501000000", PROTOCOL_ERROR),
    "a window that overflows": ("000004 08 00 00000000 7fffffff", FLOW_CONTROL_ERROR),
    "a window that overflows by SETTINGS": (
        BEGIN_TALK + "000004 08 00 00000001 00000001 000006 04 00 00000000 00047fffffff",
        FLOW_CONTROL_ERROR,
    ),
    "a window that grows by nothing": ("000004 08 00 00000000 00000000", PROTOCOL_ERROR),
    "WINDOW_UPDATE of three bytes": ("000003 08 00 00000000 000001", FRAME_SIZE_ERROR),
    "WINDOW_UPDATE of a stream that was not opened": ("000004 08 00 00000005 00000001", PROTOCOL_ERROR),
    "RST_STREAM without a stream": ("000004 03 00 00000000 00000008", PROTOCOL_ERROR),
    "RST_STREAM of a stream that was not opened": ("000004 03 00 00000005 00000008", PROTOCOL_ERROR),
    "RST_STREAM of five bytes": (BEGIN_TALK + "000005 03 00 00000001 0000000800", FRAME_SIZE_ERROR),
    "GOAWAY of seven bytes": ("000007 07 00 00000000 00000000000000", FRAME_SIZE_ERROR),
    "PUSH_PROMISE": (BEGIN_TALK + "000005 05 04 00000001 00000002 83", PROTOCOL_ERROR),
}


@pytest.mark.parametrize(("sent", "code"), BROKEN.values(), ids=BROKEN.keys())
async def test_a_connection_ends_with(sent: str, code: int) -> None:
    async with serving() as served, served.connect() as other:
        async with served.connect() as peer:
            await peer.send(sent)
            goaway = await peer.goodbye()
        assert goaway.code == code, goaway.text
        assert goaway.text
        # Nor is another connection, old or new, the worse for it.
        await other.send(call(1), data(1, message(b"hi"), end=True))
        assert (await other.answer()).messages == [b"hi"]
        await works(served)
        await eventually(lambda: len(served.server.tasks) == 0)


async def test_a_goodbye_names_the_last_call_that_was_looked_at() -> None:
    async with serving() as served, served.connect() as peer:
        await peer.send(call(1), call(7), "000001 00 00 00000000 00")
        assert (await peer.goodbye()).last_stream == 7


async def test_a_window_of_a_stream_that_overflows_costs_the_stream_only() -> None:
    async with serving() as served, served.connect() as peer:
        await peer.send(call(1), call(3), "000004 08 00 00000001 7fffffff")
        answer = await peer.answer(1)
        assert answer.reset == FLOW_CONTROL_ERROR or answer.status != 0
        await peer.send(data(3, message(b"hi"), end=True))
        assert (await peer.answer(3)).messages == [b"hi"]


NOT_HTTP2 = {
    "HTTP/1.1": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "TLS": bytes.fromhex("16030100c8010000c40303"),
    "a preface with a fault at its end": bytes.fromhex(PREFACE)[:-1] + b"!",
    "a single byte": b"!",
}


@pytest.mark.parametrize("sent", NOT_HTTP2.values(), ids=NOT_HTTP2.keys())
async def test_what_is_not_http2_is_told_so(sent: bytes) -> None:
    async with serving() as served:
        async with Peer.connect(served.port) as peer:
            await peer.send(sent)
            goaway = await peer.goodbye()
        assert goaway == Goaway(0, PROTOCOL_ERROR, "this port speaks HTTP/2 (gRPC) only")
        await works(served)


@pytest.mark.parametrize("half", [PREFACE[:20], PREFACE, PREFACE + "0000", PREFACE + NO_SETTINGS + BEGIN_TALK[:40]])
async def test_a_client_may_leave_in_the_middle_of_anything(half: str) -> None:
    async with serving() as served:
        async with Peer.connect(served.port) as peer:
            await peer.send(half)
        await works(served)
        await eventually(lambda: len(served.server.connections) == 0)


async def test_a_client_that_leaves_cancels_its_calls() -> None:
    ends: list[str] = []

    async def wait_for_ever(_: Call) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ends.append("cancelled")
            raise

    async with serving(wait_for_ever) as served:
        async with served.connect() as peer:
            await peer.send(call(1), call(3))
            await peer.settled()
        await eventually(lambda: ends == ["cancelled", "cancelled"] and not served.server.tasks)


async def test_more_calls_than_allowed_are_refused_and_later_ones_are_not() -> None:
    async with serving(limits=Limits(max_streams=2)) as served, Peer.connect(served.port) as peer:
        own = await peer.greet()
        assert bytes.fromhex("0003 00000002") in own.body
        await peer.send(call(1), call(3), call(5))
        assert (await peer.expect(RST_STREAM, 5)).number == REFUSED_STREAM
        await peer.send(data(1, message(b"one"), end=True))
        assert (await peer.answer(1)).messages == [b"one"]
        await peer.send(call(7), data(7, message(b"four"), end=True))
        assert (await peer.answer(7)).messages == [b"four"]
        await peer.send(data(3, message(b"two"), end=True))
        assert (await peer.answer(3)).messages == [b"two"]


async def test_refused_headers_count_for_the_table() -> None:
    """A block that is not decoded would leave the tables of the two ends different."""
    async with serving(limits=Limits(max_streams=1)) as served, served.connect() as peer:
        path_into_table = "83 86 44 0f 2f746573742e576972652f54616c6b 0f10 10 6170706c69636174696f6e2f67727063"
        await peer.send(call(1), frame(HEADERS, 0x05, 3, bytes.fromhex(path_into_table)))
        assert (await peer.expect(RST_STREAM, 3)).number == REFUSED_STREAM
        await peer.send(data(1, b"", end=True))
        assert (await peer.answer(1)).status == 0
        await peer.send(frame(HEADERS, 0x05, 5, bytes.fromhex("8386be0f10106170706c69636174696f6e2f67727063")))
        assert (await peer.answer(5)).status == 0


async def test_too_many_pings_end_the_connection() -> None:
    async with serving(limits=Limits(min_ping_interval_s=3600.0)) as served:
        async with served.connect() as peer:
            await peer.send(PING_FRAME * 3)
            for _ in range(3):
                assert await peer.expect(PING) == Frame(PING, ACK, 0, PING_FRAME[9:])
            await peer.send(PING_FRAME)
            assert await peer.goodbye() == Goaway(0, ENHANCE_YOUR_CALM, "too_many_pings")
        await works(served)


async def test_pings_are_not_too_many_while_there_is_something_going_on() -> None:
    async with serving(limits=Limits(min_ping_interval_s=3600.0)) as served, served.connect() as peer:
        await peer.send(call(1))
        for _ in range(20):
            await peer.send(data(1, message(b"x")), PING_FRAME)
            await peer.wait_for(PING)
            while not any(one.stream == 1 and one.body.endswith(b"x") for one in peer.aside):
                peer.aside.append(await peer.receive())
            peer.aside.clear()


SOAKED = {
    "pings": PING_FRAME,
    "calls that are none": None,
}


@pytest.mark.parametrize("asked", SOAKED.values(), ids=SOAKED.keys())
async def test_a_client_that_asks_and_does_not_listen_is_sent_away(asked: bytes | None) -> None:
    """Otherwise the answers would fill the server's memory, for as long as it likes to ask."""
    async with serving() as served:
        async with served.connect(receive_buffer=4096) as peer:
            loop = asyncio.get_running_loop()
            stream = 1
            try:
                async with asyncio.timeout(DEADLINE_S):
                    for _ in range(100):
                        if asked is None:
                            batch = b"".join(frame(HEADERS, 0x04, stream + 2 * n, b"\x82\x86\x84") for n in range(6000))
                            stream += 12_000
                        else:
                            batch = asked * (200_000 // len(asked))
                        await loop.sock_sendall(peer.socket, batch)
            except ConnectionError:
                pass
            else:
                pytest.fail("20 MB were answered, and nobody read it")
        await works(served)


async def test_a_connection_that_says_nothing_is_still_there_for_the_rest() -> None:
    """Half a preface is held against nobody but its sender."""
    async with serving() as served, Peer.connect(served.port) as peer:
        await peer.send(PREFACE[:10])
        await works(served)
        await peer.send(PREFACE[10:], NO_SETTINGS)
        assert (await peer.expect(SETTINGS)).flags == 0


async def test_the_other_half_of_a_socket_may_be_closed_first() -> None:
    async with serving() as served, served.connect() as peer:
        await peer.send(call(1))
        await peer.settled()
        peer.socket.shutdown(socket.SHUT_WR)
        await peer.rest()
        await eventually(lambda: not served.server.tasks)
