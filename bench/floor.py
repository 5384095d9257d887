"""The floor: a bare grpc.aio service that receives or sends the broker's batches and does nothing else with them.

It runs on the same event loop as the broker, takes and gives bytes without parsing them,
and speaks just enough of the contract for the same client code to drive it: `python -m bench.floor`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

import grpc

from bench import batches
from cursus_proto.v1 import consume_service_pb2, publish_service_pb2
from cursus_service.process import announce_ready, run, settle_memory

SERVICE: Final = "bench.Floor"
ANSWERING: Final = f"/{SERVICE}/Answering"
SINK: Final = f"/{SERVICE}/Sink"
SOURCE: Final = f"/{SERVICE}/Source"
ECHO: Final = f"/{SERVICE}/Echo"

_HOST: Final = "127.0.0.1"
_OPTIONS: Final = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


class Call(Protocol):
    """What the handlers use of a grpc.aio servicer context without (de)serializers."""

    async def read(self) -> object: ...

    async def write(self, message: bytes) -> None: ...


async def answering(_: object, call: Call) -> None:
    """Receives batches and gives each one small answer: the least a publisher needs."""
    await call.read()
    await call.write(_OPENED)
    while await call.read() is not grpc.aio.EOF:
        await call.write(_OUTCOME)


async def sink(_: object, call: Call) -> None:
    """Receives batches and says nothing until the client is done."""
    await call.read()
    await call.write(_OPENED)
    while await call.read() is not grpc.aio.EOF:
        pass


async def source(_: object, call: Call) -> None:
    """Sends as many batches as the offsets asked for hold, gathered to at most the response size asked for."""
    request = await call.read()
    assert isinstance(request, bytes), "the client sends its start first"
    start = consume_service_pb2.ConsumeRequest.FromString(request).start
    await call.write(_STARTED)
    left = start.end_offset // batches.RECORDS_PER_BATCH
    gathered = max(1, start.max_response_bytes // len(batches.record_set()))
    message = batches.consume_response(gathered)
    while left >= gathered:
        await call.write(message)
        left -= gathered
    if left:
        await call.write(batches.consume_response(left))


async def echo(_: bytes, __: object) -> bytes:
    """A round trip with a request of any size and a small answer."""
    return _OUTCOME


async def serve(stop: asyncio.Event) -> None:
    """Serve on a free port until `stop` is set."""
    server = grpc.aio.server(options=_OPTIONS)
    streams: dict[str, Callable[[object, Call], Awaitable[None]]] = {
        "Answering": answering,
        "Sink": sink,
        "Source": source,
    }
    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        name: grpc.stream_stream_rpc_method_handler(handler) for name, handler in streams.items()
    }
    handlers["Echo"] = grpc.unary_unary_rpc_method_handler(echo)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    port = server.add_insecure_port(f"{_HOST}:0")
    await server.start()
    settle_memory()
    announce_ready(grpc=(_HOST, port))
    await stop.wait()
    await server.stop(0)


_OPENED: Final = publish_service_pb2.PublishStreamResponse(
    opened=publish_service_pb2.PublishStreamOpened(window_bytes=1, max_batch_bytes=1)
).SerializeToString()
_OUTCOME: Final = publish_service_pb2.PublishStreamResponse(
    outcomes=publish_service_pb2.PublishOutcomes(
        outcomes=[
            publish_service_pb2.PublishOutcome(
                published=publish_service_pb2.PublishResponse(
                    appended=[
                        publish_service_pb2.AppendedBatch(
                            base_offset=1_000_000_000,
                            record_count=batches.RECORDS_PER_BATCH,
                            append_time_ms=1_700_000_000_000,
                        )
                    ]
                )
            )
        ]
    )
).SerializeToString()
_STARTED: Final = consume_service_pb2.ConsumeResponse(
    started=consume_service_pb2.ConsumeStarted(start_offset=0)
).SerializeToString()


if __name__ == "__main__":
    run(serve)
