"""What is left of calls when their peers have gone: nothing, and not only once the collector comes by."""

from __future__ import annotations

import asyncio
import gc
import logging
import weakref
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress

import grpc
import pytest

from cursus_transport import Channel, Limits, StreamCall, UnaryMethod
from cursus_transport.server import Call
from tests.harness.http2 import DATA, HEADERS, RST_STREAM, Listener, block, call, data, frame, message
from tests.harness.transport import Talk, echo, serving
from tests.harness.waiting import eventually

CALLS = 5
SMALL = Limits(max_message_bytes=100_000)


@pytest.fixture(autouse=True)
def _without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    logging.disable()  # pytest keeps what is logged, and with it the frames of an exception
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        gc.enable()


async def wait_for_the_end(call: Call) -> None:
    while await call.read() is not grpc.aio.EOF:
        pass


async def write_for_ever(call: Call) -> None:
    while True:
        await call.write(bytes(100_000))


async def fail(call: Call) -> None:
    await call.read()
    raise ValueError("a handler fails")


async def refuse(call: Call) -> None:
    await call.read()
    await call.abort(grpc.StatusCode.NOT_FOUND, "refused")


async def read_in_a_group(call: Call) -> None:
    """As the handlers of long streams do: the group puts what ends a part into exceptions of its own."""
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(wait_for_the_end(call))
        tasks.create_task(asyncio.Event().wait())


async def fail_in_a_group(call: Call) -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(fail(call))
        tasks.create_task(asyncio.Event().wait())


HANDLERS: dict[str, Talk] = {
    "echoes": echo,
    "waits": wait_for_the_end,
    "writes for ever": write_for_ever,
    "fails": fail,
    "refuses": refuse,
    "reads in a group": read_in_a_group,
    "fails in a group": fail_in_a_group,
}

ENDS: dict[str, bytes] = {
    "nothing": b"",
    "half a message": data(1, message(bytes(50_000))[:20_000]),
    "messages": data(1, message(b"one") + message(b"two")),
    "a message that is too large": data(1, message(bytes(100_001))[:5]),
    "the end": data(1, message(b"one"), end=True),
    "a reset": data(1, message(b"one")) + frame(RST_STREAM, 0, 1, bytes(4)),
}


@pytest.mark.parametrize("sent", ENDS.values(), ids=ENDS.keys())
@pytest.mark.parametrize("talk", HANDLERS.values(), ids=HANDLERS.keys())
async def test_no_call_outlives_its_connection(talk: Talk, sent: bytes) -> None:
    calls: list[weakref.ref[object]] = []

    async def noted(call: Call) -> None:
        calls.extend((weakref.ref(call), weakref.ref(call.stream), weakref.ref(call._connection)))
        await talk(call)

    async with serving(noted, SMALL) as served:
        async with served.connect() as peer:
            await peer.send(*(call(stream, grpc_timeout="1H") for stream in range(1, 2 * CALLS, 2)))
            await eventually(lambda: len(calls) == 3 * CALLS)
            await peer.send(sent)
            await peer.settled()
        await eventually(lambda: not served.server.connections and not served.server.tasks)
        await eventually(lambda: not any(one() for one in calls))


# The other end

ANSWERS: dict[str, bytes] = {
    "no answer": b"",
    "half an answer": frame(HEADERS, 4, 1, block([(":status", "200")])) + data(1, message(bytes(50_000))[:20_000]),
    "an answer without an end": frame(HEADERS, 4, 1, block([(":status", "200")])) + data(1, message(b"one")),
    "an answer": frame(HEADERS, 4, 1, block([(":status", "200")]))
    + data(1, message(b"one"))
    + frame(HEADERS, 5, 1, block([("grpc-status", "0")])),
    "a refusal": frame(HEADERS, 5, 1, block([(":status", "200"), ("grpc-status", "5"), ("grpc-message", "none")])),
    "a message that is too large": frame(HEADERS, 4, 1, block([(":status", "200")])) + data(1, b"\0\xff\xff\xff\xff"),
    "a reset": frame(RST_STREAM, 0, 1, bytes(4)),
}


async def ask(channel: Channel) -> None:
    method: UnaryMethod[bytes, bytes] = channel.unary_unary("/test.Wire/Answer")
    await method(b"?", timeout=3600.0)


async def ask_in_a_stream(channel: Channel) -> None:
    call: StreamCall[bytes, bytes] = channel.stream_stream("/test.Wire/Talk")()
    await call.write(b"?")
    while await call.read() is not grpc.aio.EOF:
        pass


@pytest.mark.parametrize("sent", ANSWERS.values(), ids=ANSWERS.keys())
@pytest.mark.parametrize("asking", [ask, ask_in_a_stream])
async def test_nothing_of_a_call_outlives_the_servers_end(
    asking: Callable[[Channel], Awaitable[None]], sent: bytes
) -> None:
    kept: list[weakref.ref[object]] = []
    async with Listener.open() as listener, Channel(f"127.0.0.1:{listener.port}", limits=SMALL) as channel:
        call = asyncio.ensure_future(asking(channel))
        peer = await listener.accept()
        await peer.be_greeted()
        await peer.wait_for(DATA, 1)
        connection = channel._connection
        assert connection is not None
        kept.append(weakref.ref(connection))
        kept.append(weakref.ref(connection.streams[1]))
        del connection
        await peer.send(sent)
        peer.socket.close()
        with suppress(grpc.aio.AioRpcError):
            await call
        del call
        await eventually(lambda: not channel.connected)
        channel._connection = None
        await eventually(lambda: not any(one() for one in kept))
