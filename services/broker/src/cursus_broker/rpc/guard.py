"""The boundary of every rpc: refusals become statuses, bugs are logged once and answered INTERNAL, and a client that
leaves is neither.

Handlers are wrapped when they are registered, around the whole call and so also around a stream's iteration.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn, Protocol, TypeVar

import structlog
from google.protobuf.message import DecodeError
from google.rpc.status_pb2 import Status
from grpc_status import rpc_status

from cursus_broker.errors import CursusError, InvalidRequest, ShuttingDown, refusal_in
from cursus_broker.rpc.status import internal_status, to_status
from cursus_transport import Call, StreamLost, forget_frames

_log = structlog.get_logger()

Request = TypeVar("Request")
Response = TypeVar("Response")


class Stream(Protocol):
    """What our handlers use of a call."""

    async def read(self) -> object: ...

    async def write(self, message: object) -> None: ...

    def peer(self) -> str: ...


class OpenCalls(Protocol):
    """Who counts running streams."""

    def stream_opened(self, method: str) -> None: ...

    def stream_closed(self, method: str) -> None: ...


class Gate:
    """Lets calls in until the broker stops, and knows when the last one has left."""

    def __init__(self) -> None:
        self._inside = 0
        self._closed = False
        self._empty = asyncio.Event()

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Raises ShuttingDown once the gate is closed."""
        if self._closed:
            raise ShuttingDown
        self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1
            if self._closed and self._inside == 0:
                self._empty.set()

    async def close(self, grace_s: float) -> bool:
        """Let nobody in any more and wait for those inside to leave. False if some are there after `grace_s`."""
        self._closed = True
        if self._inside == 0:
            return True
        try:
            async with asyncio.timeout(grace_s):
                await self._empty.wait()
        except TimeoutError:
            return False
        return True


class Undecodable:
    """A request that is not the message its method takes, or too much of it. Stands in for it, because a deserializer
    that raises is taken for a bug of ours.
    """

    __slots__ = ("_refusal",)

    def __init__(self, refusal: CursusError) -> None:
        self._refusal = refusal

    def refusal(self) -> CursusError:
        return self._refusal


def decoder(decode: Callable[[bytes], Request]) -> Callable[[bytes], Request | Undecodable]:
    """A deserializer that never raises for what a client sent."""

    def decoded(data: bytes) -> Request | Undecodable:
        try:
            return decode(data)
        except DecodeError as error:
            return Undecodable(InvalidRequest(f"the request cannot be decoded: {error}"))
        except CursusError as error:
            return Undecodable(error)

    return decoded


def unary(
    method: str, handler: Callable[[Request, str], Awaitable[Response]], gate: Gate
) -> Callable[..., Awaitable[Response]]:
    """Wraps `handler(request, peer)` as a unary method."""

    async def guarded(request: Request, context: Call) -> Response:
        try:
            if isinstance(request, Undecodable):
                raise request.refusal()
            with gate.entered():
                return await handler(request, context.peer())
        except CursusError as error:
            await _abort(context, to_status(error))
        except Exception:
            _log.exception("rpc.failed", method=method)
            await _abort(context, internal_status())

    return guarded


def stream(
    method: str, handler: Callable[[Stream], Awaitable[None]], gate: Gate, calls: OpenCalls
) -> Callable[..., Awaitable[None]]:
    """Wraps `handler(stream)` as a bidirectional method. The handler reads and writes the stream itself."""

    async def guarded(_: object, context: Call) -> None:
        calls.stream_opened(method)
        try:
            with gate.entered():
                await handler(context)
        except Exception as error:
            # The parts of a stream run in task groups, which wrap what they raise.
            if (refused := refusal_in(error)) is not None:
                await _abort(context, to_status(refused))
            if _client_left(error):
                _log.debug("rpc.left", method=method, peer=context.peer())
                forget_frames(error)  # the transport does so with what it gets to see
                return
            _log.exception("rpc.failed", method=method)
            await _abort(context, internal_status())
        finally:
            calls.stream_closed(method)

    return guarded


def _client_left(error: BaseException) -> bool:
    """Whether nothing is wrong but that there is nobody to talk to any more. A client that cancels usually ends the
    handler by cancellation; one that does so during a read or a write may end that first.
    """
    if isinstance(error, BaseExceptionGroup):
        return all(map(_client_left, error.exceptions))
    return isinstance(error, StreamLost | CursusError)


async def _abort(context: Call, status: Status) -> NoReturn:
    rich = rpc_status.to_status(status)
    await context.abort(rich.code, rich.details, rich.trailing_metadata)
