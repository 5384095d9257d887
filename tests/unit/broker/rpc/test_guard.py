"""What becomes of a stream's handler that fails, over a real gRPC server in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import grpc
import pytest
from structlog.testing import capture_logs

from cursus_broker.errors import CursusError, TopicNotFound
from cursus_broker.rpc.guard import Gate, Stream, stream
from cursus_transport import Limits, Server, StreamLost

DEADLINE_S = 30.0


class Calls:
    """Remembers how calls ended."""

    def __init__(self) -> None:
        self.ended: list[tuple[str, str]] = []
        self.reasons: list[str] = []

    def stream_opened(self, method: str) -> None: ...

    def stream_closed(self, method: str) -> None: ...

    def call_ended(self, method: str, status: str) -> None:
        self.ended.append((method, status))

    def refused(self, error: CursusError) -> None:
        self.reasons.append(error.reason)

    def handshake_refused(self) -> None: ...


@asynccontextmanager
async def serving(
    handler: Callable[[Stream], Awaitable[None]], calls: Calls | None = None
) -> AsyncIterator[grpc.aio.Channel]:
    guarded: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(
        stream("Talk", handler, Gate(), calls or Calls())
    )
    server = Server(Limits())
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Talks", {"Talk": guarded}),))
    port = server.bind("127.0.0.1", 0)
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield channel
    finally:
        await server.stop(None)


def talk(channel: grpc.aio.Channel) -> grpc.aio.StreamStreamCall[bytes, bytes]:
    return channel.stream_stream("/test.Talks/Talk")()


async def test_a_client_that_leaves_during_a_write_is_no_failure() -> None:
    """The write then fails before the handler is cancelled, which was once logged as a bug, with its traceback."""
    broken_writes = 0

    async def write_on(stream: Stream) -> None:
        nonlocal broken_writes
        try:
            while True:
                await stream.write(b"x" * 100_000)
        except StreamLost:
            broken_writes += 1
            raise

    async def in_a_group(stream: Stream) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(write_on(stream))

    with capture_logs() as events:
        async with serving(in_a_group) as channel, asyncio.timeout(DEADLINE_S):
            # Which of the two comes first is left open, so that clients leave until it was the write a few times.
            while broken_writes < 3:
                call = talk(channel)
                await call.read()
                call.cancel()
    assert {(event["log_level"], event["event"]) for event in events} <= {("debug", "rpc.left")}


async def test_a_bug_is_logged_and_answered_internal() -> None:
    async def fail(stream: Stream) -> None:
        raise ExceptionGroup("parts of a stream", [ValueError("a bug")])

    with capture_logs() as events:
        async with serving(fail) as channel, asyncio.timeout(DEADLINE_S):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await talk(channel).read()
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert [event["event"] for event in events] == ["rpc.failed"]


async def test_every_call_is_counted_once_with_its_status_and_a_refusal_with_its_reason() -> None:
    async def refuse(_: Stream) -> None:
        raise TopicNotFound("orders")

    async def answer(stream: Stream) -> None:
        await stream.write(b"fine")

    for handler, status, reasons in ((refuse, "NOT_FOUND", ["TOPIC_NOT_FOUND"]), (answer, "OK", [])):
        calls = Calls()
        async with serving(handler, calls) as channel:
            call = talk(channel)
            await call.done_writing()
            with suppress(grpc.aio.AioRpcError):
                while await call.read() is not grpc.aio.EOF:
                    pass
            async with asyncio.timeout(DEADLINE_S):
                assert (await call.code()).name == status
        assert calls.ended == [("Talk", status)]
        assert calls.reasons == reasons
