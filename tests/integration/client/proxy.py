"""A proxy between a client and a broker that drops streams and repeats answers, at moments a seed decides.

It moves messages as bytes and knows nothing of their meaning, so the client meets a real broker's answers.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc

_STREAMS = ("PublishStream", "Consume", "Subscribe")
_UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


@dataclass(slots=True)
class Faults:
    """How often each fault happens, per message."""

    lose_request: float = 0.0
    """The stream breaks and the request never reaches the broker."""
    lose_answer: float = 0.0
    """The stream breaks and the client never sees the answer."""
    repeat_answer: float = 0.0
    """The answer comes twice."""
    cut_when_done: bool = False
    """A stream whose client has said all it had to say is cut off, as a broker does that has batches on their way."""
    happened: int = 0


class _Proxy(grpc.GenericRpcHandler):
    def __init__(self, channel: grpc.aio.Channel, faults: Faults, rng: random.Random) -> None:
        self._channel = channel
        self._faults = faults
        self._rng = rng

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any]:
        if details.method.endswith(_STREAMS):
            return grpc.stream_stream_rpc_method_handler(self._stream(details.method))
        return grpc.unary_unary_rpc_method_handler(self._unary(details.method))

    def _unary(self, method: str) -> Callable[..., Awaitable[bytes]]:
        async def serve(request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
            try:
                call: Any = self._channel.unary_unary(method)
                answer: bytes = await call(request)
            except grpc.aio.AioRpcError as error:
                await context.abort(error.code(), error.details() or "", error.trailing_metadata())
            return answer

        return serve

    def _stream(self, method: str) -> Callable[..., Awaitable[None]]:
        async def serve(_: object, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
            onward: Any = self._channel.stream_stream(method)()
            pumping = asyncio.create_task(self._requests(context, onward))
            try:
                await self._answers(context, onward)
            except (grpc.aio.AioRpcError, _Broken):
                await context.abort(grpc.StatusCode.UNAVAILABLE, "the proxy lost the broker")
            finally:
                onward.cancel()
                pumping.cancel()

        return serve

    async def _requests(self, context: Any, onward: Any) -> None:
        try:
            while (request := await context.read()) is not grpc.aio.EOF:
                if self._happens(self._faults.lose_request):
                    onward.cancel()
                    return
                await onward.write(request)
            if self._faults.cut_when_done:
                self._faults.happened += 1
                onward.cancel()
                return
            await onward.done_writing()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return  # the other direction says why

    async def _answers(self, context: Any, onward: Any) -> None:
        first = True
        try:
            while (answer := await onward.read()) is not grpc.aio.EOF:
                if not first and self._happens(self._faults.lose_answer):
                    raise _Broken
                await context.write(answer)
                if not first and self._happens(self._faults.repeat_answer):
                    await context.write(answer)
                first = False
        except asyncio.CancelledError:
            if onward.cancelled():
                raise _Broken from None
            raise

    def _happens(self, probability: float) -> bool:
        if self._rng.random() >= probability:
            return False
        self._faults.happened += 1
        return True


class _Broken(Exception):
    pass


@asynccontextmanager
async def faulty_proxy(address: str, faults: Faults, seed: int = 0) -> AsyncIterator[str]:
    """The address of a proxy to the broker at `address`. Change `faults` at any time."""
    async with grpc.aio.insecure_channel(address, options=_UNLIMITED) as channel:
        pings = [("grpc.http2.min_ping_interval_without_data_ms", 5_000), ("grpc.http2.max_ping_strikes", 0)]
        server = grpc.aio.server(options=[*_UNLIMITED, *pings])
        server.add_generic_rpc_handlers((_Proxy(channel, faults, random.Random(seed)),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            await server.stop(None)
