"""Compressed messages: what they grow to is paid for when they are read, and only by those who read them."""

from __future__ import annotations

import asyncio
import gzip
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest

from cursus_transport import Budget, Channel, Limits, StreamCall, UnaryMethod
from cursus_transport.server import Call
from tests.harness.http2 import DATA, HEADERS, WINDOW_UPDATE, Listener, Peer, block, call, data, frame, message
from tests.harness.memory import Traced
from tests.harness.transport import Talk, serving
from tests.harness.waiting import DEADLINE_S, eventually

MIB = 1024 * 1024
RESOURCE_EXHAUSTED = 8
WINDOW = MIB
ZEROS = message(gzip.compress(bytes(MIB), 9), compressed=True)
"""1 MiB in about 1 KB."""


async def never_read(_: Call) -> None:
    await asyncio.Event().wait()


async def say_sizes(call: Call) -> None:
    while (request := await call.read()) is not grpc.aio.EOF:
        await call.write(b"%d" % len(request))


def limits(total_bytes: int, max_message_bytes: int = 8 * MIB) -> Limits:
    return Limits(max_message_bytes=max_message_bytes, inflated=Budget(total_bytes))


async def test_what_nobody_reads_takes_no_more_than_was_sent() -> None:
    """200 MiB in 200 KB: they were inflated when they arrived, in spite of the window."""
    async with serving(never_read) as served, served.connect() as peer:
        await peer.send(*(call(stream, grpc_encoding="gzip") for stream in range(1, 41, 2)))
        await peer.settled()
        with Traced() as traced:
            for stream in range(1, 41, 2):
                await peer.send(data(stream, ZEROS * 10))
            await peer.settled()
            assert traced.held < 3 * MIB


async def test_what_all_calls_inflate_together_is_bounded_and_the_connection_goes_on() -> None:
    """One large message on each of many streams."""
    within = limits(10 * MIB)
    held: list[Call] = []
    go_on = asyncio.Event()

    async def hold(call: Call) -> None:
        await call.read()
        held.append(call)
        await go_on.wait()

    async with serving(hold, within) as served, served.connect() as peer:
        for stream in range(1, 61, 2):
            await peer.send(call(stream, grpc_encoding="gzip"), data(stream, ZEROS, end=True))
        await peer.settled()
        await eventually(lambda: len(served.server.tasks) == len(held))
        await peer.settled()
        assert (len(held), within.inflated.held) == (10, 10 * MIB)
        refusals = [peer.headers(one) for one in peer.aside if one.kind == HEADERS]
        assert len(refusals) == 20
        for refusal in refusals:
            assert refusal["grpc-status"] == str(RESOURCE_EXHAUSTED)
            assert str(10 * MIB) in refusal["grpc-message"]
        go_on.set()
        await eventually(lambda: within.inflated.held == 0)
        await peer.send(call(101, grpc_encoding="gzip"), data(101, ZEROS, end=True))
        assert (await peer.answer(101)).status == 0


async def test_a_message_is_paid_for_until_the_next_is_read() -> None:
    within = limits(MIB)
    async with serving(say_sizes, within) as served, served.connect() as peer:
        await peer.send(call(1, grpc_encoding="gzip"), data(1, ZEROS * 20, end=True))
        answer = await peer.answer()
        assert (answer.status, answer.messages) == (0, [b"%d" % MIB] * 20)
    assert within.inflated.held == 0


LEAVINGS = {"resets": "000004 03 00 00000001 00000008", "closes": ""}


@pytest.mark.parametrize("leaving", LEAVINGS.values(), ids=LEAVINGS.keys())
async def test_a_client_that_leaves_gives_back_what_its_message_took(leaving: str) -> None:
    within = limits(2 * MIB)

    async def hold(call: Call) -> None:
        await call.read()
        await asyncio.Event().wait()

    async with serving(hold, within) as served, served.connect() as peer:
        await peer.send(call(1, grpc_encoding="gzip"), data(1, ZEROS))
        await eventually(lambda: within.inflated.held == MIB)
        if leaving:
            await peer.send(leaving)
        else:
            peer.socket.close()
        await eventually(lambda: within.inflated.held == 0)


async def test_a_message_in_use_counts_against_the_window() -> None:
    """As long as it is there in full, the peer gets no new window for what it was sent as."""
    count = 600
    packed = message(gzip.compress(random.Random(1).randbytes(1000)), compressed=True)
    assert WINDOW // 2 < count * len(packed) < WINDOW
    arrived, go_on = asyncio.Event(), asyncio.Event()

    async def read_but_the_last(call: Call) -> None:
        await arrived.wait()
        for _ in range(count):
            await call.read()
        await go_on.wait()
        await call.read()

    async with serving(read_but_the_last) as served, served.connect() as peer, asyncio.timeout(DEADLINE_S):
        await peer.send(call(1, grpc_encoding="gzip"))
        for _ in range(count):
            await peer.send(data(1, packed))
        await peer.settled()
        arrived.set()
        await peer.settled()
        assert [one for one in peer.aside if one.kind == WINDOW_UPDATE] == []
        go_on.set()
        assert (await peer.wait_for(WINDOW_UPDATE, 1)).number == count * len(packed)


async def test_other_tasks_get_their_turns_while_a_message_is_inflated() -> None:
    turns: list[int] = []

    async def count_turns(call: Call) -> None:
        taken = 0

        async def tick() -> None:
            nonlocal taken
            while True:
                taken += 1
                await asyncio.sleep(0)

        await call.read()
        ticking = asyncio.create_task(tick())
        await asyncio.sleep(0)
        before = taken
        await call.read()
        turns.append(taken - before)
        ticking.cancel()

    packed = message(gzip.compress(bytes(8 * MIB)), compressed=True)
    async with serving(count_turns, limits(8 * MIB)) as served, served.connect() as peer:
        await peer.send(call(1, grpc_encoding="gzip"), data(1, message(b"first") + packed, end=True))
        assert (await peer.answer()).status == 0
    assert turns[0] >= 31  # 256 KiB each


async def test_a_read_that_is_cancelled_while_it_inflates_loses_nothing() -> None:
    within = limits(4 * MIB)

    async def cancel_once(call: Call) -> None:
        reading = asyncio.ensure_future(call.read())
        await eventually(lambda: within.inflated.held > 0)
        assert within.inflated.held < 4 * MIB
        reading.cancel()
        await asyncio.wait((reading,))
        assert reading.cancelled()
        assert within.inflated.held == 0
        await say_sizes(call)

    packed = message(gzip.compress(bytes(4 * MIB)), compressed=True)
    async with serving(cancel_once, within) as served, served.connect() as peer:
        await peer.send(call(1, grpc_encoding="gzip"), data(1, packed, end=True))
        assert (await peer.answer()).messages == [b"%d" % (4 * MIB)]


# The channel's side


@asynccontextmanager
async def asked(within: Limits) -> AsyncIterator[tuple[Peer, UnaryMethod[bytes, bytes]]]:
    async with Listener.open() as listener, Channel(f"127.0.0.1:{listener.port}", limits=within) as channel:
        connecting = asyncio.create_task(channel.connection())
        peer = await listener.accept()
        await peer.be_greeted()
        await connecting
        async with asyncio.timeout(DEADLINE_S):
            yield peer, channel.unary_unary("/test.Wire/Answer")


@pytest.mark.parametrize("ended", [True, False])
async def test_an_answer_that_becomes_too_large_fails_its_call_and_no_other(ended: bool) -> None:
    within = limits(MIB)
    head = block([(":status", "200"), ("content-type", "application/grpc"), ("grpc-encoding", "gzip")])
    end = block([("grpc-status", "0")])
    async with asked(within) as (peer, ask):
        for stream, size, status in ((1, 2 * MIB, RESOURCE_EXHAUSTED), (3, MIB, 0)):
            asking = asyncio.ensure_future(ask(b"?"))
            await peer.wait_for(DATA, stream)
            packed = message(gzip.compress(bytes(size)), compressed=True)
            whole = ended or status == 0
            ending = frame(HEADERS, 0x05, stream, end) if whole else b""
            await peer.send(frame(HEADERS, 0x04, stream, head), data(stream, packed), ending)
            if status == 0:
                assert await asking == bytes(size)
            else:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await asking
                assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert within.inflated.held == 0


async def test_messages_of_a_stream_are_paid_for_only_while_they_are_decoded() -> None:
    within = limits(MIB)
    head = block([(":status", "200"), ("content-type", "application/grpc"), ("grpc-encoding", "gzip")])
    async with Listener.open() as listener, Channel(f"127.0.0.1:{listener.port}", limits=within) as channel:
        talk: StreamCall[bytes, int] = channel.stream_stream("/test.Wire/Talk", None, len)()
        writing = asyncio.ensure_future(talk.write(b"?"))
        peer = await listener.accept()
        await peer.be_greeted()
        await writing
        await peer.wait_for(DATA, 1)
        await peer.send(frame(HEADERS, 0x04, 1, head), data(1, ZEROS * 3))
        for _ in range(3):
            assert await talk.read() == MIB
            assert within.inflated.held == 0


HANDLERS: dict[str, Talk] = {"reads": say_sizes, "does not read": never_read}


@pytest.mark.parametrize("talk", HANDLERS.values(), ids=HANDLERS.keys())
async def test_a_message_that_is_not_gzip_is_found_out_when_it_is_read(talk: Talk) -> None:
    async with serving(talk) as served, served.connect() as peer:
        await peer.send(call(1, grpc_encoding="gzip"), data(1, message(b"no gzip", compressed=True)))
        if talk is say_sizes:
            assert "decompressed" in (await peer.answer()).trailers["grpc-message"]
        else:
            await peer.settled()
            assert not peer.aside
