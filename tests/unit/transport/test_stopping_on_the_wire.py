"""A server that stops: what its clients hear, and what becomes of the answers that are on their way."""

from __future__ import annotations

import asyncio

import grpc

from cursus_transport.server import Call
from tests.harness.http2 import (
    GOAWAY,
    NO_ERROR,
    REFUSED_STREAM,
    RST_STREAM,
    call,
    data,
    message,
    settings,
    window_update,
)
from tests.harness.transport import serving
from tests.harness.waiting import DEADLINE_S


async def test_clients_are_told_and_calls_that_run_go_on() -> None:
    async with serving() as served, served.connect() as peer:
        await peer.send(call(1))
        await peer.settled()
        stopping = asyncio.ensure_future(served.server.stop(DEADLINE_S))
        goaway = await peer.expect(GOAWAY)
        assert (goaway.body[:8], goaway.body[8:]) == (bytes.fromhex("00000001 00000000"), b"the server stops")
        await peer.send(call(3))
        assert (await peer.expect(RST_STREAM, 3)).number == REFUSED_STREAM
        await peer.send(data(1, message(b"one")), data(1, message(b"two"), end=True))
        answer = await peer.answer(1)
        assert (answer.status, answer.messages) == (0, [b"one", b"two"])
        assert (await peer.goodbye()).code == NO_ERROR
        peer.socket.close()
        await stopping


async def test_calls_that_go_on_for_too_long_are_reset() -> None:
    async with serving() as served, served.connect() as peer:
        await peer.send(call(1))
        await peer.settled()
        stopping = asyncio.ensure_future(served.server.stop(0.05))
        assert (await peer.answer(1)).reset is not None
        assert (await peer.goodbye()).code == NO_ERROR
        peer.socket.close()
        await stopping


async def test_the_last_answer_reaches_a_client_that_still_speaks() -> None:
    """A socket that is closed before all that came on it was read takes back what it has not delivered yet."""
    size = 3_000_000

    async def say_much(call: Call) -> None:
        while await call.read() is not grpc.aio.EOF:
            pass
        await call.write(bytes(size))

    async with serving(say_much) as served, served.connect(receive_buffer=65_536) as peer:
        await peer.send(settings(initial_window=2**30), window_update(0, 2**30), call(1))
        await peer.settled()
        stopping = asyncio.ensure_future(served.server.stop(DEADLINE_S))
        await peer.expect(GOAWAY)
        await peer.send(data(1, b"", end=True))
        while len(peer.aside) < 20:
            # As a client that reads does: it hands out new windows.
            peer.aside.append(await peer.receive())
            await peer.send(window_update(0, len(peer.aside[-1].body) or 1))
        answer = await peer.answer(1)
        assert answer.status == 0
        assert len(answer.data) + sum(len(one.body) for one in peer.aside if one.kind == 0) == size + 5
        peer.socket.close()
        await stopping


async def test_a_server_stops_though_a_client_does_not_listen() -> None:
    async def say_on(call: Call) -> None:
        while True:
            await call.write(bytes(100_000))

    async with serving(say_on) as served, served.connect(receive_buffer=4096) as peer:
        await peer.send(settings(initial_window=2**30), window_update(0, 2**30), call(1))
        await peer.receive()
        async with asyncio.timeout(DEADLINE_S):
            await served.server.stop(0.01)
        assert not served.server.tasks
