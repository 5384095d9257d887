"""Messages that are larger than what is read from a socket at once: they are read to where they belong."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest

from cursus_transport import Channel, UnaryMethod
from cursus_transport.server import Call
from tests.harness.http2 import DATA, HEADERS, RST_STREAM, Listener, Peer, block, call, data, frame, message
from tests.harness.transport import ROOMY, serving
from tests.harness.waiting import DEADLINE_S, eventually

SIZE = 900_000


def content(seed: int, size: int = SIZE) -> bytes:
    """Such that no two parts of it, and no two of them, are alike."""
    numbers = itertools.count(seed * 1_000_000_007)
    return b"".join(next(numbers).to_bytes(8) for _ in range(size // 8))


def answer(stream: int, *, encoding: str | None = None) -> bytes:
    headers = [(":status", "200"), ("content-type", "application/grpc")]
    return frame(HEADERS, 0x04, stream, block([*headers, *([("grpc-encoding", encoding)] if encoding else [])]))


def ending(stream: int) -> bytes:
    return frame(HEADERS, 0x05, stream, block([("grpc-status", "0")]))


def asking(channel: Channel) -> UnaryMethod[bytes, bytearray | bytes]:
    """A method whose answers are handed over as they were received."""
    return channel.unary_unary("/test.Wire/Answer", None, lambda received: received)


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[Peer, Channel]]:
    async with Listener.open() as listener, Channel(f"127.0.0.1:{listener.port}") as channel:
        connecting = asyncio.create_task(channel.connection())
        peer = await listener.accept()
        await peer.be_greeted()
        await connecting
        async with asyncio.timeout(DEADLINE_S):
            yield peer, channel


async def test_an_answer_that_is_kept_is_not_written_into_by_later_ones() -> None:
    async with connected() as (peer, channel):
        ask, kept = asking(channel), []
        for number in range(12):
            call = asyncio.create_task(ask(b"?"))
            stream = (await peer.wait_for(DATA, 2 * number + 1)).stream
            await peer.send(answer(stream), data(stream, message(content(number))), ending(stream))
            kept.append(await call)
        assert [bytes(one) for one in kept] == [content(number) for number in range(12)]


async def test_an_answer_that_is_dropped_leaves_nothing_in_the_next() -> None:
    async with connected() as (peer, channel):
        ask = asking(channel)
        for number, size in enumerate((SIZE, 80_000, 500_000, SIZE, 64)):
            call = asyncio.create_task(ask(b"?"))
            stream = (await peer.wait_for(DATA, 2 * number + 1)).stream
            await peer.send(answer(stream), data(stream, message(content(number, size))), ending(stream))
            assert bytes(await call) == content(number, size)


async def test_answers_to_several_calls_arrive_in_turns() -> None:
    async with connected() as (peer, channel):
        ask = asking(channel)
        calls = [asyncio.create_task(ask(b"?")) for _ in range(3)]
        streams = [(await peer.wait_for(DATA, stream)).stream for stream in (1, 3, 5)]
        await peer.send(*map(answer, streams))
        whole = {stream: message(content(stream)) for stream in streams}
        for at in range(0, SIZE + 5, 300_000):
            for stream in streams:
                await peer.send(data(stream, whole[stream][at : at + 300_000]))
        await peer.send(*map(ending, streams))
        assert [bytes(await call) for call in calls] == [content(stream) for stream in streams]


async def test_a_compressed_answer() -> None:
    plain = content(1)
    packed = gzip.compress(plain)
    assert len(packed) > 100_000
    async with connected() as (peer, channel):
        call = asyncio.create_task(asking(channel)(b"?"))
        await peer.wait_for(DATA, 1)
        await peer.send(answer(1, encoding="gzip"), data(1, message(packed, compressed=True)), ending(1))
        assert bytes(await call) == plain


async def test_a_call_that_is_given_up_within_its_answer_disturbs_no_other() -> None:
    async with connected() as (peer, channel):
        ask = asking(channel)
        given_up = asyncio.create_task(ask(b"?"))
        await peer.wait_for(DATA, 1)
        frame_of_it = data(1, message(content(1)))
        await peer.send(answer(1), frame_of_it[:400_000])
        await eventually(lambda: channel._connection is not None and channel._connection.data_left < 600_000)
        given_up.cancel()
        await peer.wait_for(RST_STREAM, 1)
        call = asyncio.create_task(ask(b"?"))
        await peer.wait_for(DATA, 3)
        await peer.send(frame_of_it[400_000:], answer(3), data(3, message(content(3))), ending(3))
        assert bytes(await call) == content(3)


async def test_an_answer_that_is_not_finished_is_an_error() -> None:
    async with connected() as (peer, channel):
        call = asyncio.create_task(asking(channel)(b"?"))
        await peer.wait_for(DATA, 1)
        await peer.send(answer(1), data(1, message(content(1)))[:500_000])
        peer.socket.close()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_message_that_is_arriving_is_not_handed_to_another_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room was used again when the interpreter counted no reference to it but the owner's. Interpreters that borrow
    references count one less: a client's bytes were stored as another's."""
    counted = sys.getrefcount  # noqa: TID251
    monkeypatch.setattr(sys, "getrefcount", lambda one: counted(one) - 2)
    received: dict[bytes, bytes] = {}

    async def keep(call: Call) -> None:
        while (request := await call.read()) is not grpc.aio.EOF:
            received[bytes(request[:8])] = bytes(request)

    slow, fast = content(1, 300_000), content(2, 300_000)
    async with serving(keep, ROOMY) as served, served.connect() as first, served.connect() as second:
        framed = data(1, message(slow), end=True)
        await first.send(call(1), framed[:150_000])
        await eventually(lambda: any(150_000 < one.data_left < 200_000 for one in served.server.connections))
        await second.send(call(1), data(1, message(fast), end=True))
        assert (await second.answer()).status == 0
        await first.send(framed[150_000:])
        assert (await first.answer()).status == 0
    assert received == {slow[:8]: slow, fast[:8]: fast}
