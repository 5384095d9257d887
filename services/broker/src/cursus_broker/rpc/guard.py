"""The boundary of every rpc: refusals become statuses, bugs are logged once and answered INTERNAL, and a client that
leaves is neither.

Handlers are wrapped when they are registered, around the whole call and so also around a stream's iteration.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final, NoReturn, Protocol, TypeVar

import structlog
from google.protobuf.message import DecodeError
from google.rpc.status_pb2 import Status
from grpc import StatusCode
from grpc_status import rpc_status
from structlog.contextvars import bind_contextvars

from cursus_broker.errors import CursusError, InvalidRequest, ShuttingDown, refusal_in
from cursus_broker.rpc.status import code_of, internal_status, to_status
from cursus_transport import Call, StreamLost, forget_frames

_log = structlog.get_logger()

_OK: Final = StatusCode.OK.name
# A client that leaves, and one whose deadline has passed.
_CANCELLED: Final = StatusCode.CANCELLED.name

Request = TypeVar("Request")
Response = TypeVar("Response")


class Stream(Protocol):
    """What our handlers use of a call."""

    async def read(self) -> object: ...

    async def write(self, message: object) -> None: ...

    def write_now(self, message: object) -> bool: ...

    def peer(self) -> str: ...


class Tally(Protocol):
    """Who counts calls."""

    def stream_opened(self, method: str) -> None: ...

    def stream_closed(self, method: str) -> None: ...

    def call_ended(self, method: str, status: str) -> None:
        """`status` is the name of a gRPC status."""

    def refused(self, error: CursusError) -> None: ...

    def handshake_refused(self) -> None: ...


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
    method: str, handler: Callable[[Request, str], Awaitable[Response]], gate: Gate, calls: Tally
) -> Callable[..., Awaitable[Response]]:
    """Wraps `handler(request, peer)` as a unary method."""

    async def guarded(request: Request, context: Call) -> Response:
        peer = _known(context)
        try:
            if isinstance(request, Undecodable):
                raise request.refusal()
            with gate.entered():
                response = await handler(request, peer)
        except CursusError as error:
            await _refuse(method, context, error, calls)
        except Exception:
            await _fail(method, context, calls)
        except asyncio.CancelledError:
            calls.call_ended(method, _CANCELLED)
            raise
        calls.call_ended(method, _OK)
        return response

    return guarded


def stream(
    method: str, handler: Callable[[Stream], Awaitable[None]], gate: Gate, calls: Tally
) -> Callable[..., Awaitable[None]]:
    """Wraps `handler(stream)` as a bidirectional method. The handler reads and writes the stream itself."""

    async def guarded(_: object, context: Call) -> None:
        _known(context)
        calls.stream_opened(method)
        try:
            with gate.entered():
                await handler(context)
            calls.call_ended(method, _OK)
        except asyncio.CancelledError:
            calls.call_ended(method, _CANCELLED)
            raise
        except Exception as error:
            # The parts of a stream run in task groups, which wrap what they raise.
            if (refused := refusal_in(error)) is not None:
                await _refuse(method, context, refused, calls)
            if _client_left(error):
                _log.debug("rpc.left", method=method)
                calls.call_ended(method, _CANCELLED)
                forget_frames(error)  # the transport does so with what it gets to see
                return
            await _fail(method, context, calls)
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


def _known(context: Call) -> str:
    """Let everything that this call logs say who called, and answer the peer."""
    peer = context.peer()
    bind_contextvars(peer=peer, client=context.user_agent())
    return peer


async def _refuse(method: str, context: Call, error: CursusError, calls: Tally) -> NoReturn:
    calls.refused(error)
    calls.call_ended(method, code_of(error).name)
    _log.debug("rpc.refused", method=method, reason=error.reason, detail=str(error))
    await _abort(context, to_status(error))


async def _fail(method: str, context: Call, calls: Tally) -> NoReturn:
    """To be called where an exception is handled that is a bug."""
    _log.exception("rpc.failed", method=method)
    calls.call_ended(method, StatusCode.INTERNAL.name)
    await _abort(context, internal_status())


async def _abort(context: Call, status: Status) -> NoReturn:
    rich = rpc_status.to_status(status)
    await context.abort(rich.code, rich.details, rich.trailing_metadata)
