"""Handlers of all four kinds on our server, and those of grpcio's own services, which it was not written for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2, reflection_pb2_grpc

from cursus_transport import Server
from tests.harness.transport import ROOMY, nothing_escapes, paired
from tests.harness.waiting import DEADLINE_S, eventually

HealthResponse = health_pb2.HealthCheckResponse


@asynccontextmanager
async def served(register: Any, servicer: Any) -> AsyncIterator[grpc.aio.Channel]:
    """Of a servicer with generated code."""
    server = Server(ROOMY)
    register(servicer, cast("grpc.aio.Server", server))
    with nothing_escapes():
        port = server.bind("127.0.0.1", 0)
        await server.start()
        try:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel, asyncio.timeout(DEADLINE_S):
                yield channel
            await eventually(lambda: not server.tasks)
        finally:
            await server.stop(None)


async def test_health_can_be_watched() -> None:
    """One request and many answers, which the handler writes."""
    servicer = health.aio.HealthServicer()
    async with served(health_pb2_grpc.add_HealthServicer_to_server, servicer) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        watching = stub.Watch(health_pb2.HealthCheckRequest(service="orders"))
        assert (await watching.read()).status == HealthResponse.SERVICE_UNKNOWN
        await servicer.set("orders", HealthResponse.SERVING)
        assert (await watching.read()).status == HealthResponse.SERVING
        await servicer.enter_graceful_shutdown()
        assert (await watching.read()).status == HealthResponse.NOT_SERVING
        watching.cancel()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Check(health_pb2.HealthCheckRequest(service="nothing"))
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_services_can_be_reflected() -> None:
    """A handler that is a generator, of a generator."""
    names = ("test.One", reflection.SERVICE_NAME)
    servicer = reflection.aio.ReflectionServicer(names)
    async with served(reflection_pb2_grpc.add_ServerReflectionServicer_to_server, servicer) as channel:
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(cast("grpc.Channel", channel))
        call = stub.ServerReflectionInfo()
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        listed = await call.read()
        assert sorted(one.name for one in listed.list_services_response.service) == sorted(names)
        await call.write(reflection_pb2.ServerReflectionRequest(file_containing_symbol="test.Nothing"))
        assert (await call.read()).error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF


async def sum_up(requests: AsyncIterator[bytes], _: object) -> bytes:
    return b"%d" % sum([int(request) async for request in requests])


async def count(request: bytes, _: object) -> AsyncIterator[bytes]:
    for number in range(int(request)):
        yield b"%d" % number


async def double(requests: AsyncIterator[bytes], _: object) -> AsyncIterator[bytes]:
    async for request in requests:
        yield bytes(request) * 2


KINDS: dict[str, Any] = {
    "Sum": grpc.stream_unary_rpc_method_handler(sum_up),
    "Count": grpc.unary_stream_rpc_method_handler(count),
    "Double": grpc.stream_stream_rpc_method_handler(double),
}


async def given(*requests: bytes) -> AsyncIterator[bytes]:
    for request in requests:
        yield request


async def test_handlers_may_be_generators_and_requests_iterated() -> None:
    async with paired("ours", "grpcio", KINDS) as pair, asyncio.timeout(DEADLINE_S):
        assert await pair.channel.stream_unary("/test.Pair/Sum")(given(b"1", b"2", b"39")) == b"42"
        assert await pair.channel.stream_unary("/test.Pair/Sum")(given()) == b"0"
        assert [one async for one in pair.channel.unary_stream("/test.Pair/Count")(b"3")] == [b"0", b"1", b"2"]
        assert [one async for one in pair.channel.unary_stream("/test.Pair/Count")(b"0")] == []
        doubled = pair.channel.stream_stream("/test.Pair/Double")(given(b"a", b"bc"))
        assert [one async for one in doubled] == [b"aa", b"bcbc"]


async def test_a_generator_is_closed_when_its_client_leaves() -> None:
    closed = asyncio.Event()

    async def count_on(_: bytes, __: object) -> AsyncIterator[bytes]:
        try:
            while True:
                yield bytes(100_000)
        finally:
            closed.set()

    handlers: dict[str, Any] = {"Count": grpc.unary_stream_rpc_method_handler(count_on)}
    async with paired("ours", "grpcio", handlers) as pair, asyncio.timeout(DEADLINE_S):
        call = pair.channel.unary_stream("/test.Pair/Count")(b"")
        await call.read()
        call.cancel()
        await closed.wait()


async def test_a_handler_sees_who_calls_and_with_which_metadata() -> None:
    seen: list[Any] = []

    async def look(_: bytes, context: Any) -> bytes:
        seen.extend((context.peer(), dict(context.invocation_metadata())))
        return b""

    handlers: dict[str, Any] = {"Ask": grpc.unary_unary_rpc_method_handler(look)}
    async with paired("ours", "grpcio", handlers) as pair, asyncio.timeout(DEADLINE_S):
        metadata = (("x-plain", "a, b"), ("x-bin", b"\xff\0\1"))
        await pair.channel.unary_unary("/test.Pair/Ask")(b"", metadata=metadata)
    peer, received = seen
    assert peer.startswith("ipv4:127.0.0.1:")
    assert (received["x-plain"], received["x-bin"]) == ("a, b", b"\xff\0\1")
    assert received["user-agent"].startswith("grpc-python")
    assert not [name for name in received if name.startswith(":")]
