"""Our channel with servers that are not there, go away, fall silent or allow little."""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import Any

import grpc
import pytest

from cursus_transport import Channel, ChannelClosed, Limits, StreamCall, UnaryMethod
from tests.harness.http2 import (
    CANCEL,
    DATA,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    RST_STREAM,
    WINDOW_UPDATE,
    Frame,
    Listener,
    Peer,
    block,
    data,
    frame,
    message,
    settings,
)
from tests.harness.transport import nothing_escapes, serving
from tests.harness.waiting import DEADLINE_S, eventually

UNAVAILABLE, CANCELLED = grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED
ANSWER = block([(":status", "200"), ("content-type", "application/grpc")])
OK = block([("grpc-status", "0")])


async def ask(channel: Channel, request: bytes, timeout: float | None = None) -> bytes:
    async with asyncio.timeout(DEADLINE_S):
        method: UnaryMethod[bytes, Any] = channel.unary_unary("/test.Wire/Answer", None, None)
        return bytes(await method(request, timeout=timeout))


def talk(channel: Channel) -> StreamCall[bytes, Any]:
    return channel.stream_stream("/test.Wire/Talk", None, None)()


async def failure(work: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async with asyncio.timeout(DEADLINE_S):
            await work
    return caught.value


async def answer(peer: Peer, stream: int, content: bytes) -> None:
    """A whole answer in pieces, each of which may come alone."""
    await peer.send(frame(HEADERS, 0x04, stream, ANSWER))
    await peer.send(data(stream, message(content)))
    await peer.send(frame(HEADERS, 0x05, stream, OK))


async def test_a_refused_connection_names_the_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    async with Channel(f"127.0.0.1:{port}") as channel:
        unary, streamed = await failure(ask(channel, b"")), await failure(talk(channel).read())
    for error in (unary, streamed):
        assert error.code() is UNAVAILABLE
        assert f"127.0.0.1:{port}" in (error.details() or "")


async def test_a_server_that_dies_takes_its_calls_with_it() -> None:
    with nothing_escapes():
        async with Listener.open() as listener, Channel(f"127.0.0.1:{listener.port}") as channel:
            call, asking = talk(channel), asyncio.create_task(ask(channel, b""))
            reading = asyncio.create_task(call.read())
            peer = await listener.accept()
            await peer.be_greeted()
            await peer.wait_for(HEADERS, 3)
            await peer.send(frame(HEADERS, 0x04, 1, ANSWER), frame(HEADERS, 0x04, 3, ANSWER))
            listener.close()
            for error in (await failure(reading), await failure(asking), await failure(call.write(b"more"))):
                assert error.code() is UNAVAILABLE
                assert error.details()


async def test_what_arrived_before_the_end_can_still_be_read() -> None:
    async with Listener.open() as listener, Channel(f"127.0.0.1:{listener.port}") as channel:
        call = talk(channel)
        writing = asyncio.create_task(call.write(b""))
        peer = await listener.accept()
        await peer.be_greeted()
        await writing
        await peer.send(frame(HEADERS, 0x04, 1, ANSWER), data(1, message(b"one") + message(b"two")))
        listener.close()
        await eventually(lambda: not channel.connected)
        assert [await call.read(), await call.read()] == [b"one", b"two"]
        assert (await failure(call.read())).code() is UNAVAILABLE


async def test_an_answer_may_come_piece_by_piece() -> None:
    """The status behind the message, in a packet of its own."""
    async with Listener.open() as listener, Channel(f"127.0.0.1:{listener.port}") as channel:
        asking = asyncio.create_task(ask(channel, b"question"))
        peer = await listener.accept()
        await peer.be_greeted()
        await peer.wait_for(DATA, 1)
        for byte in frame(HEADERS, 0x04, 1, ANSWER) + data(1, message(b"answer")) + frame(HEADERS, 0x05, 1, OK):
            await peer.send(bytes((byte,)))
            await asyncio.sleep(0)
        assert await asking == b"answer"


@pytest.mark.parametrize(("frames", "updates"), [(1, 0), (2, 0), (4, 2)])
async def test_the_window_grows_only_for_an_answer_that_is_larger(frames: int, updates: int) -> None:
    """Of half a window a frame: a peer that may send all of a single answer need not be told to go on."""
    half = 512 * 1024
    whole = message(bytes(frames * half - 6))  # a window that is empty has to grow, in case there is a second answer
    async with Listener.open() as listener, Channel(f"127.0.0.1:{listener.port}") as channel:
        asking = asyncio.create_task(ask(channel, b"?"))
        peer = await listener.accept()
        await peer.be_greeted()
        await peer.expect(HEADERS, 1)
        await peer.expect(DATA, 1)
        await peer.send(frame(HEADERS, 0x04, 1, ANSWER))
        for number in range(frames):
            await peer.send(data(1, whole[number * half : (number + 1) * half]))
            if number < updates:
                assert (await peer.expect(WINDOW_UPDATE, 1)).number > 0
        await peer.send(frame(HEADERS, 0x05, 1, OK))
        assert len(await asking) == frames * half - 6
        await peer.send(frame(PING, 0, 0, b"and then"))
        assert (await peer.receive()).kind == PING, "no update was on its way"


async def test_a_channel_connects_again_by_itself() -> None:
    async with Listener.open() as listener, Channel(f"127.0.0.1:{listener.port}") as channel:
        for _ in range(3):
            asking = asyncio.create_task(ask(channel, b"question"))
            peer = await listener.accept()
            await peer.be_greeted()
            await peer.wait_for(DATA, 1)
            await answer(peer, 1, b"answer")
            assert await asking == b"answer"
            peer.socket.close()
            await eventually(lambda: not channel.connected)


async def test_a_channel_finds_a_server_that_comes_later() -> None:
    async with serving() as served:
        port = served.port
    async with Channel(f"127.0.0.1:{port}") as channel:
        assert (await failure(ask(channel, b""))).code() is UNAVAILABLE
        async with serving(port=port):
            answered: bytes = await eventually(lambda: ask(channel, b"there"), ignoring=(grpc.aio.AioRpcError,))
            assert answered == b"there"


async def test_calls_at_once_share_one_connection() -> None:
    async with serving() as served, Channel(f"127.0.0.1:{served.port}") as channel:
        asked = [b"%d" % number for number in range(20)]
        assert await asyncio.gather(*(ask(channel, one) for one in asked)) == asked
        assert len(served.server.connections) == 1


async def test_no_more_calls_than_the_server_allows_run_at_once() -> None:
    async with Listener.open() as listener, Channel(f"127.0.0.1:{listener.port}") as channel:
        asking = [asyncio.create_task(ask(channel, b"")) for _ in range(10)]
        peer = await listener.accept()
        await peer.be_greeted(settings(max_streams=2))
        for stream in range(1, 21, 2):
            await peer.settled()
            assert max(one.stream for one in peer.aside if one.kind == HEADERS) == min(stream + 2, 19)
            await answer(peer, stream, b"%d" % stream)
        assert await asyncio.gather(*asking) == [b"%d" % stream for stream in range(1, 21, 2)]


async def test_a_turn_that_is_not_taken_goes_to_the_next() -> None:
    """A call that is cancelled at the moment when it may begin."""
    async with Listener.open() as listener, Channel(f"127.0.0.1:{listener.port}") as channel:
        running = talk(channel)
        writing = asyncio.create_task(running.write(b""))
        peer = await listener.accept()
        await peer.be_greeted(settings(max_streams=1))
        await writing
        second, third = asyncio.create_task(ask(channel, b"2")), asyncio.create_task(ask(channel, b"3"))
        await peer.settled()
        running.cancel()
        second.cancel()
        stream = (await peer.wait_for(DATA, 3)).stream
        await answer(peer, stream, b"answer")
        assert await third == b"answer"


async def test_a_silent_server_is_found_out() -> None:
    limits = Limits(keepalive_s=0.05, keepalive_timeout_s=0.05)
    async with Listener.open() as listener, Channel(f"127.0.0.1:{listener.port}", limits=limits) as channel:
        reading = asyncio.create_task(talk(channel).read())
        peer = await listener.accept()
        await peer.be_greeted()
        error = await failure(reading)
        assert error.code() is UNAVAILABLE
        assert "silent" in (error.details() or "")
        await peer.rest()


async def test_a_server_that_answers_pings_is_left_in_peace() -> None:
    limits = Limits(keepalive_s=0.02, keepalive_timeout_s=1.0)
    async with Listener.open() as listener, Channel(f"127.0.0.1:{listener.port}", limits=limits) as channel:
        reading = asyncio.create_task(talk(channel).read())
        peer = await listener.accept()
        await peer.be_greeted()
        asked = await peer.wait_for(PING)
        assert not asked.flags
        await peer.send(frame(PING, 0x1, 0, asked.body))
        # It asks again, so it has not given up.
        await peer.wait_for(PING)
        assert not reading.done()
        reading.cancel()
        await asyncio.wait((reading,))


async def test_closing_a_channel_ends_its_calls() -> None:
    async with serving() as served:
        channel = Channel(f"127.0.0.1:{served.port}")
        call = talk(channel)
        await call.write(b"hello")
        assert await call.read() == b"hello"
        reading = asyncio.create_task(call.read())
        await asyncio.sleep(0)
        async with asyncio.timeout(DEADLINE_S):
            await channel.close()
        assert (await failure(reading)).code() is CANCELLED
        with pytest.raises(ChannelClosed):
            await ask(channel, b"")
        await eventually(lambda: not served.server.connections)
        await channel.close()


async def test_a_channel_that_made_no_call_can_be_closed() -> None:
    with nothing_escapes():
        async with Listener.open() as listener:
            channel = Channel(f"127.0.0.1:{listener.port}")
            connecting = asyncio.create_task(channel.connection())
            peer = await listener.accept()
            await peer.be_greeted()
            async with asyncio.timeout(DEADLINE_S):
                await connecting
                await channel.close()
            assert [one.kind for one in await peer.rest()] == [GOAWAY]


async def test_a_server_may_go_away_before_the_first_call() -> None:
    with nothing_escapes():
        async with Listener.open() as listener, Channel(f"127.0.0.1:{listener.port}") as channel:
            connecting = asyncio.create_task(channel.connection())
            peer = await listener.accept()
            await peer.be_greeted()
            await connecting
            await peer.send("000008 07 00 00000000 00000000 00000000")
            await peer.rest()
            asking = asyncio.create_task(ask(channel, b"question"))
            peer = await listener.accept()
            await peer.be_greeted()
            await peer.wait_for(DATA, 1)
            await answer(peer, 1, b"answer")
            assert await asking == b"answer"


async def test_closing_a_channel_ends_calls_that_wait_for_a_connection() -> None:
    """With an error of theirs: a CancelledError would tell their tasks that they are to end."""
    async with Listener.open() as listener:
        context = ssl.create_default_context()
        channel = Channel(f"127.0.0.1:{listener.port}", tls=context)
        asking, reading = asyncio.create_task(ask(channel, b"")), asyncio.create_task(talk(channel).read())
        await listener.accept()
        async with asyncio.timeout(DEADLINE_S):
            await channel.close()
            done = await asyncio.gather(asking, reading, return_exceptions=True)
    assert [type(one) for one in done if not isinstance(one, (grpc.aio.AioRpcError, ChannelClosed))] == []


async def test_a_cancelled_unary_call_resets_its_stream_only() -> None:
    async with Listener.open() as listener, Channel(f"127.0.0.1:{listener.port}") as channel:
        first, second = asyncio.create_task(ask(channel, b"1")), asyncio.create_task(ask(channel, b"2"))
        peer = await listener.accept()
        await peer.be_greeted()
        await peer.wait_for(DATA, 3)
        first.cancel()
        assert await peer.wait_for(RST_STREAM, 1) == Frame(RST_STREAM, 0, 1, CANCEL.to_bytes(4))
        await answer(peer, 1, b"too late")
        await answer(peer, 3, b"answer")
        assert await second == b"answer"


async def test_a_deadline_resets_the_stream_and_was_told_to_the_server() -> None:
    async with Listener.open() as listener, Channel(f"127.0.0.1:{listener.port}") as channel:
        asking = asyncio.create_task(ask(channel, b"", timeout=0.1))
        peer = await listener.accept()
        await peer.be_greeted()
        assert peer.headers(await peer.expect(HEADERS, 1))["grpc-timeout"] == "100m"
        assert (await peer.expect(DATA, 1)).flags & END_STREAM
        assert (await peer.expect(RST_STREAM, 1)).number == CANCEL
        assert (await failure(asking)).code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_calls_above_a_goodbye_fail_and_those_below_go_on() -> None:
    async with Listener.open() as listener, Channel(f"127.0.0.1:{listener.port}") as channel:
        first, second = asyncio.create_task(ask(channel, b"1")), asyncio.create_task(ask(channel, b"2"))
        peer = await listener.accept()
        await peer.be_greeted()
        await peer.wait_for(DATA, 3)
        await peer.send(frame(GOAWAY, 0, 0, bytes.fromhex("00000001 00000000") + b"maintenance"))
        error = await failure(second)
        assert error.code() is UNAVAILABLE
        assert "maintenance" in (error.details() or "")
        third = asyncio.create_task(ask(channel, b"3"))
        other = await listener.accept()
        await other.be_greeted()
        await other.wait_for(DATA, 1)
        await answer(other, 1, b"third")
        await answer(peer, 1, b"first")
        assert (await first, await third) == (b"first", b"third")


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (frame(HEADERS, 0x05, 1, block([(":status", "404")])), grpc.StatusCode.UNIMPLEMENTED),
        (frame(HEADERS, 0x05, 1, block([(":status", "503")])), UNAVAILABLE),
        (frame(HEADERS, 0x05, 1, ANSWER), grpc.StatusCode.UNKNOWN),
        (frame(HEADERS, 0x04, 1, ANSWER) + data(1, b"", end=True), grpc.StatusCode.INTERNAL),
        (frame(HEADERS, 0x04, 1, ANSWER) + frame(HEADERS, 0x05, 1, OK), grpc.StatusCode.INTERNAL),
        (frame(HEADERS, 0x04, 1, ANSWER) + data(1, message(b"1") + message(b"2")), grpc.StatusCode.INTERNAL),
        (frame(HEADERS, 0x04, 1, ANSWER) + data(1, b"\x01\0\0\0\0"), grpc.StatusCode.UNIMPLEMENTED),
        (frame(HEADERS, 0x04, 1, ANSWER) + data(1, b"\0\xff\0\0\0"), grpc.StatusCode.RESOURCE_EXHAUSTED),
        (frame(RST_STREAM, 0, 1, bytes(3) + b"\x07"), UNAVAILABLE),
        (frame(RST_STREAM, 0, 1, bytes(3) + b"\x0b"), grpc.StatusCode.RESOURCE_EXHAUSTED),
        (frame(RST_STREAM, 0, 1, bytes(3) + b"\x02"), grpc.StatusCode.INTERNAL),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", UNAVAILABLE),
    ],
    ids=[
        *("404", "503", "no status", "no trailers", "no answer", "two answers", "compressed", "too large"),
        *("refused", "calm", "internal", "HTTP/1.1"),
    ],
)
async def test_an_answer_that_is_none_is_an_error(sent: bytes, code: grpc.StatusCode) -> None:
    with nothing_escapes():
        async with Listener.open() as listener, Channel(f"127.0.0.1:{listener.port}") as channel:
            asking = asyncio.create_task(ask(channel, b""))
            peer = await listener.accept()
            await peer.be_greeted()
            await peer.wait_for(DATA, 1)
            await peer.send(sent)
            assert (await failure(asking)).code() is code
