"""Our server and channel with each other and with grpcio's, in all four pairs: what one can tell apart is a fault."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.wrappers_pb2 import StringValue
from google.rpc.status_pb2 import Status
from grpc_status import rpc_status

from tests.harness.transport import KINDS, paired
from tests.harness.waiting import DEADLINE_S, eventually

pytestmark = [pytest.mark.parametrize("server", KINDS), pytest.mark.parametrize("channel", KINDS)]

if TYPE_CHECKING:
    Handlers = dict[str, grpc.RpcMethodHandler[Any, Any]]

LARGE = bytes(range(256)) * 80_000


# grpcio's client tries again as long as it may.
REFUSALS = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


async def say_back(request: bytes, _: object) -> bytes:
    return bytes(request)


async def echo(_: object, context: Any) -> None:
    while (request := await context.read()) is not grpc.aio.EOF:
        await context.write(bytes(request))


def unary(handler: Any) -> Handlers:
    return {"Ask": grpc.unary_unary_rpc_method_handler(handler)}


def talking(handler: Any) -> Handlers:
    return {"Talk": grpc.stream_stream_rpc_method_handler(handler)}


@pytest.mark.parametrize("size", [0, 1, 16_379, 16_380, 100_000, len(LARGE)])
async def test_a_unary_call_is_answered(server: str, channel: str, size: int) -> None:
    """The sizes are those about a frame's, and one that is twenty windows long."""
    async with paired(server, channel, unary(say_back)) as pair:
        assert await pair.ask(LARGE[:size]) == LARGE[:size]
        # And again on the connection that is there now.
        assert await pair.ask(b"next") == b"next"


async def test_many_unary_calls_at_once_get_each_its_own_answer(server: str, channel: str) -> None:
    async with paired(server, channel, unary(say_back)) as pair:
        asked = [b"%d" % number * (number * 13 % 997 + 1) for number in range(300)]
        assert await asyncio.gather(*map(pair.ask, asked)) == asked


async def test_a_stream_in_lockstep(server: str, channel: str) -> None:
    async with paired(server, channel, talking(echo)) as pair, asyncio.timeout(DEADLINE_S):
        call = pair.talk()
        for number in range(50):
            await call.write(b"%d" % number)
            assert await call.read() == b"%d" % number
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF


async def test_a_stream_whose_reader_and_writer_do_not_wait_for_each_other(server: str, channel: str) -> None:
    sent = [LARGE[: number * 7919 % 60_000] for number in range(400)]

    async with paired(server, channel, talking(echo)) as pair, asyncio.timeout(DEADLINE_S):
        call = pair.talk()

        async def write() -> None:
            for message in sent:
                await call.write(message)
            await call.done_writing()

        writing = asyncio.create_task(write())
        received = []
        while (message := await call.read()) is not grpc.aio.EOF:
            received.append(bytes(message))
        await writing
    assert received == sent


async def test_a_large_message_on_a_stream(server: str, channel: str) -> None:
    async with paired(server, channel, talking(echo)) as pair, asyncio.timeout(DEADLINE_S):
        call = pair.talk()
        await call.write(LARGE)
        assert bytes(await call.read()) == LARGE
        await call.write(b"")
        assert bytes(await call.read()) == b""
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF


async def test_a_server_that_reads_nothing_holds_the_client_back(server: str, channel: str) -> None:
    go_on = asyncio.Event()

    async def read_later(_: object, context: Any) -> None:
        await go_on.wait()
        await echo(_, context)

    async with paired(server, channel, talking(read_later)) as pair, asyncio.timeout(DEADLINE_S):
        call = pair.talk()
        written = 0

        async def write() -> None:
            nonlocal written
            for _ in range(20):
                await call.write(LARGE[:1_000_000])
                written += 1
            await call.done_writing()

        writing = asyncio.create_task(write())
        await eventually(lambda: written >= 1)
        assert written < 20
        go_on.set()
        received = 0
        while await call.read() is not grpc.aio.EOF:
            received += 1
        await writing
        assert received == 20


async def test_a_status_with_its_text_and_metadata(server: str, channel: str) -> None:
    detail = AnyMessage()
    detail.Pack(StringValue(value="größer als 5 %"))
    status = Status(code=9, message="nicht möglich: 100 % \u2014 \N{SNOWMAN}\n", details=[detail])

    async def refuse(_: bytes, context: Any) -> bytes:
        rich = rpc_status.to_status(status)
        await context.abort(
            rich.code, rich.details, (*rich.trailing_metadata, ("x-plain", "a, b"), ("x-bin", b"\xff\0"))
        )
        raise AssertionError("abort does not return")

    async with paired(server, channel, unary(refuse)) as pair:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await pair.ask(b"")
    error: Any = caught.value
    assert (error.code(), error.details()) == (grpc.StatusCode.FAILED_PRECONDITION, status.message)
    assert rpc_status.from_call(error) == status
    trailing = dict(error.trailing_metadata())
    assert (trailing["x-plain"], trailing["x-bin"]) == ("a, b", b"\xff\0")


async def test_a_stream_may_end_with_a_status_after_messages(server: str, channel: str) -> None:
    async def one_and_no_more(_: object, context: Any) -> None:
        await context.write(await context.read())
        await context.abort(grpc.StatusCode.OUT_OF_RANGE, "no more")

    async with paired(server, channel, talking(one_and_no_more)) as pair, asyncio.timeout(DEADLINE_S):
        call = pair.talk()
        await call.write(b"one")
        assert await call.read() == b"one"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.OUT_OF_RANGE, "no more")


async def test_a_handler_that_raises_is_a_status(server: str, channel: str) -> None:
    async def fail(_: bytes, context: Any) -> bytes:
        raise KeyError("a bug")

    async with paired(server, channel, unary(fail) | talking(fail)) as pair, asyncio.timeout(DEADLINE_S):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await pair.ask(b"")
        assert caught.value.code() is grpc.StatusCode.UNKNOWN
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await pair.talk().read()
        assert caught.value.code() is grpc.StatusCode.UNKNOWN


async def test_an_unknown_method_is_a_status(server: str, channel: str) -> None:
    async with paired(server, channel, unary(say_back)) as pair:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await pair.ask(LARGE, method="Nothing")
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_a_call_has_its_deadline_on_both_sides(server: str, channel: str) -> None:
    cancelled = asyncio.Event()

    async def take_long(_: bytes, context: Any) -> bytes:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        raise AssertionError("the wait has no end")

    async with paired(server, channel, unary(take_long)) as pair:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await pair.ask(b"", timeout=0.2)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        async with asyncio.timeout(DEADLINE_S):
            await cancelled.wait()


async def test_a_client_that_cancels_is_seen_by_the_server(server: str, channel: str) -> None:
    running, cancelled = asyncio.Event(), asyncio.Event()

    async def take_long(_: object, context: Any) -> None:
        await context.write(b"begun")
        running.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async with paired(server, channel, talking(take_long) | unary(say_back)) as pair, asyncio.timeout(DEADLINE_S):
        call = pair.talk()
        assert await call.read() == b"begun"
        await running.wait()
        assert call.cancel()
        await cancelled.wait()
        assert await pair.ask(b"still there") == b"still there"


async def test_a_cancelled_unary_call_is_seen_by_the_server(server: str, channel: str) -> None:
    running, cancelled = asyncio.Event(), asyncio.Event()

    async def take_long(_: bytes, context: Any) -> bytes:
        running.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        raise AssertionError("the wait has no end")

    async with paired(server, channel, unary(take_long)) as pair, asyncio.timeout(DEADLINE_S):
        asking = asyncio.create_task(pair.ask(b""))
        await running.wait()
        asking.cancel()
        await cancelled.wait()
        with pytest.raises(asyncio.CancelledError):
            await asking


async def test_a_server_that_stops_lets_calls_end_in_its_grace(server: str, channel: str) -> None:
    if server == channel == "grpcio":
        # Seen to fail once on a loaded machine, and there is nothing of ours in it.
        pytest.skip("how grpcio's server stops under grpcio's channel is not ours to test")
    running, go_on = asyncio.Event(), asyncio.Event()

    async def answer_later(request: bytes, _: object) -> bytes:
        running.set()
        await go_on.wait()
        return bytes(request)

    async with paired(server, channel, unary(answer_later)) as pair, asyncio.timeout(DEADLINE_S):
        asking = asyncio.create_task(pair.ask(LARGE[:1_000_000]))
        await running.wait()
        stopping = asyncio.ensure_future(pair.stop(DEADLINE_S))
        if server == "ours":
            # Those that come too late are not served.
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await pair.ask(b"late", timeout=0.5)
            assert caught.value.code() in REFUSALS
        go_on.set()
        assert await asking == LARGE[:1_000_000]
        await stopping


async def test_a_server_that_stops_ends_calls_after_its_grace(server: str, channel: str) -> None:
    async def take_long(_: object, context: Any) -> None:
        await context.write(b"begun")
        await asyncio.Event().wait()

    async with paired(server, channel, talking(take_long)) as pair, asyncio.timeout(DEADLINE_S):
        call = pair.talk()
        assert await call.read() == b"begun"
        await pair.stop(0.05)
        with pytest.raises((grpc.aio.AioRpcError, asyncio.CancelledError)) as caught:
            await call.read()
        if isinstance(caught.value, grpc.aio.AioRpcError):
            assert caught.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
