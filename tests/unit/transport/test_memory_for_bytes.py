"""A peer cannot make us hold much more than it has sent: announced messages, tiny messages, headers."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import grpc
import pytest

from cursus_transport.errors import ConnectionFailed
from cursus_transport.frames import ErrorCode
from cursus_transport.headers import Reader
from cursus_transport.server import Call
from tests.harness.http2 import call, data, message, window_update
from tests.harness.memory import Traced
from tests.harness.transport import serving
from tests.harness.waiting import DEADLINE_S

MIB = 1024 * 1024
INTERNAL = 13


async def test_a_message_that_is_announced_and_not_sent_takes_no_memory() -> None:
    async with serving() as served, AsyncExitStack() as connected:
        peers = [await connected.enter_async_context(served.connect()) for _ in range(20)]
        for peer in peers:
            await peer.send(call(1))
            await peer.settled()
        with Traced() as traced:
            for peer in peers:
                await peer.send(data(1, message(bytes(900_000)))[:3000])
            async with served.connect() as other:
                await other.send(call(1), data(1, message(b"x"), end=True))
                assert (await other.answer()).status == 0
            assert traced.held < MIB


TINY = message(b"ab")
COUNT = MIB // len(TINY)


async def test_many_tiny_messages_take_no_more_than_was_sent_until_they_are_read() -> None:
    """Each of seven bytes would be an object of some fifty."""
    read = 0
    go_on = asyncio.Event()

    async def read_later(call: Call) -> None:
        nonlocal read
        await go_on.wait()
        while (request := await call.read()) is not grpc.aio.EOF:
            read += request == b"ab"

    sent = TINY * COUNT
    async with serving(read_later) as served, served.connect() as peer, asyncio.timeout(DEADLINE_S):
        await peer.send(call(1))
        await peer.settled()
        with Traced() as traced:
            for at in range(0, len(sent), 16_384):
                await peer.send(data(1, sent[at : at + 16_384]))
            await peer.settled()
            assert traced.held < 2.5 * MIB
        go_on.set()
        await peer.send(data(1, b"", end=True))
        assert (await peer.answer()).status == 0
    assert read == COUNT


async def test_a_stream_of_tiny_messages_goes_on_when_they_are_read() -> None:
    async def echo_count(call: Call) -> None:
        count = 0
        while await call.read() is not grpc.aio.EOF:
            count += 1
        await call.write(b"%d" % count)

    sent = TINY * COUNT
    async with serving(echo_count) as served, served.connect() as peer, asyncio.timeout(DEADLINE_S):
        await peer.send(call(1), window_update(0, MIB))
        window, count = MIB, 0
        for _ in range(3):
            for at in range(0, len(sent), 16_384):
                piece = sent[at : at + 16_384]
                while window < len(piece):
                    window += (await peer.wait_for(8, 1)).number
                window -= len(piece)
                await peer.send(data(1, piece))
            count += COUNT
        await peer.send(data(1, b"", end=True))
        assert (await peer.answer()).messages == [b"%d" % count]


BROKEN = {"half a message": TINY[:4], "a flag that is none": b"\7" + TINY[1:]}


@pytest.mark.parametrize("last", BROKEN.values(), ids=BROKEN.keys())
async def test_what_is_wrong_behind_many_messages_is_found_out_when_it_is_reached(last: bytes) -> None:
    read = 0
    go_on = asyncio.Event()

    async def read_later(call: Call) -> None:
        nonlocal read
        await go_on.wait()
        while await call.read() is not grpc.aio.EOF:
            read += 1

    async with serving(read_later) as served, served.connect() as peer, asyncio.timeout(DEADLINE_S):
        await peer.send(call(1), data(1, TINY * 2000), data(1, last, end=True))
        await peer.settled()
        assert not peer.aside
        go_on.set()
        answer = await peer.answer()
        assert answer.status in (INTERNAL, 12)
        assert 1024 <= read <= 2000
        await peer.send(call(3), data(3, b"", end=True))
        assert (await peer.answer(3)).status == 0


def test_known_header_blocks_are_bounded_by_what_they_mean() -> None:
    """A field may be a single byte that stands for a name and a value."""
    reader = Reader()
    blocks = [bytes((0x82 + n % 10, 0x82 + n // 10 % 10, 0x82 + n // 100)) + b"\x84" * 200 for n in range(1000)]
    with Traced() as traced:
        for one in blocks:
            assert len(reader.read(one)) == 203
        assert traced.held < MIB


def test_a_block_of_too_many_fields_is_refused() -> None:
    reader = Reader()
    assert len(reader.read(b"\x84" * 256)) == 256
    with pytest.raises(ConnectionFailed) as caught:
        reader.read(b"\x84" * 257)
    assert caught.value.code is ErrorCode.ENHANCE_YOUR_CALM
