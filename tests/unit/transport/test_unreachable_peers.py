"""Why a connection could not be made, in words that tell the cases apart."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from cursus_transport import Channel, NotConnected
from tests.harness.waiting import eventually

Peer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def listening(serve: Peer) -> AsyncIterator[str]:
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def failure(address: str) -> NotConnected:
    async with Channel(address) as channel:
        with pytest.raises(NotConnected) as caught:
            await channel.connection()
    assert str(caught.value) == f"cannot connect to {address}: {caught.value.reason}"
    return caught.value


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_refused_connection_has_the_systems_reason_once(host: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        lost = await failure(f"{host}:{taken.getsockname()[1]}")
    assert lost.reason == "Connection refused"
    assert not lost.answered
    assert isinstance(lost.__cause__, ConnectionRefusedError)


@pytest.mark.parametrize("name", ["nobody.invalid", "a" * 64, ".."])
async def test_an_unknown_name_has_the_resolvers_reason(name: str) -> None:
    lost = await failure(f"{name}:1")
    assert lost.reason
    assert not lost.answered
    assert isinstance(lost.__cause__, (socket.gaierror, UnicodeError))


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x00\x00\x00\x0dERROR: no such"])
async def test_a_peer_of_another_protocol_is_told_from_one_that_is_not_there(answer: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(3)
        writer.write(answer)
        await reader.read()
        writer.close()

    async with listening(serve) as address:
        lost = await failure(address)
    assert lost.reason == "it answers, but not in HTTP/2 as gRPC does"
    assert lost.answered


async def test_a_peer_that_hangs_up_is_told_as_such() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(24)
        writer.close()

    async with listening(serve) as address:
        lost = await failure(address)
    assert lost.reason.endswith("before a word of HTTP/2")
    assert lost.answered


async def test_a_silent_peer_is_waited_for_and_the_channel_says_for_what() -> None:
    gone = asyncio.Event()

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await gone.wait()
        writer.close()

    async with listening(serve) as address, Channel(address) as channel:
        waiting = asyncio.ensure_future(channel.connection())
        await eventually(lambda: channel.stage == "a first word of HTTP/2 from it")
        assert not waiting.done()
        gone.set()
        with pytest.raises(NotConnected):
            await waiting
