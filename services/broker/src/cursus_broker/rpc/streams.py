"""The shape all our streams share: an initial request, then others, until the client closes its side."""

from __future__ import annotations

import asyncio
from typing import TypeVar

import grpc

from cursus_broker.errors import InvalidRequest, ShuttingDown
from cursus_broker.rpc.guard import Stream, Undecodable
from cursus_proto.internal.v1.opaque_pb2 import PublishStreamRequest
from cursus_proto.v1.consume_service_pb2 import ConsumeRequest, SubscribeRequest


class Stopping:
    """Tells open streams that the broker is about to stop, so that they end by themselves and not with the grace."""

    def __init__(self) -> None:
        self._begun = asyncio.Event()

    def begin(self) -> None:
        self._begun.set()

    async def wait(self) -> None:
        await self._begun.wait()

    async def refuse(self) -> None:
        """A part of a stream that has nothing left to do once the broker stops. Raises ShuttingDown then."""
        await self._begun.wait()
        raise ShuttingDown


Message = TypeVar("Message", PublishStreamRequest, ConsumeRequest, SubscribeRequest)


async def read_next(stream: Stream, kind: type[Message]) -> Message | None:
    """The next request; None once the client has closed its side. Raises InvalidRequest."""
    message = await stream.read()
    if message is grpc.aio.EOF:
        return None
    if isinstance(message, Undecodable):
        raise message.refusal()
    assert isinstance(message, kind), "the deserializer registered with the method makes this type"
    return message


async def read_first(stream: Stream, kind: type[Message], initial: str) -> Message | None:
    """The first request, which must hold the field `initial`; None if the client sent nothing at all.

    Raises InvalidRequest.
    """
    message = await read_next(stream, kind)
    if message is not None and message.WhichOneof("request") != initial:
        raise InvalidRequest(f"the first message of this stream must be {initial}")
    return message
