"""The boundary of every rpc: refusals become statuses, bugs are logged once and answered INTERNAL.

Handlers are wrapped when they are registered, around the whole call and so also around a stream's iteration.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NoReturn, Protocol, TypeVar

import grpc
import structlog
from google.rpc.status_pb2 import Status
from grpc_status import rpc_status

from cursus_broker.errors import CursusError, refusal_in
from cursus_broker.rpc.status import internal_status, to_status

_log = structlog.get_logger()

Request = TypeVar("Request")
Response = TypeVar("Response")


class Stream(Protocol):
    """What our handlers use of a grpc.aio servicer context."""

    async def read(self) -> object: ...

    async def write(self, message: object) -> None: ...

    def peer(self) -> str: ...


class OpenCalls(Protocol):
    """Who counts running streams."""

    def stream_opened(self, method: str) -> None: ...

    def stream_closed(self, method: str) -> None: ...


def unary(method: str, handler: Callable[[Request, str], Awaitable[Response]]) -> Callable[..., Awaitable[Response]]:
    """Wraps `handler(request, peer)` as a unary method."""

    async def guarded(request: Request, context: grpc.aio.ServicerContext[Request, Response]) -> Response:
        try:
            return await handler(request, context.peer())
        except CursusError as error:
            await _abort(context, to_status(error))
        except Exception:
            _log.exception("rpc.failed", method=method)
            await _abort(context, internal_status())

    return guarded


def stream(
    method: str, handler: Callable[[Stream], Awaitable[None]], calls: OpenCalls
) -> Callable[..., Awaitable[None]]:
    """Wraps `handler(stream)` as a bidirectional method. The handler reads and writes the stream itself."""

    async def guarded(_: object, context: grpc.aio.ServicerContext[object, object]) -> None:
        calls.stream_opened(method)
        try:
            await handler(context)
        except Exception as error:
            # The parts of a stream run in task groups, which wrap what they raise.
            if (refused := refusal_in(error)) is not None:
                await _abort(context, to_status(refused))
            _log.exception("rpc.failed", method=method)
            await _abort(context, internal_status())
        finally:
            calls.stream_closed(method)

    return guarded


async def _abort(context: grpc.aio.ServicerContext[Request, Response], status: Status) -> NoReturn:
    rich = rpc_status.to_status(status)
    await context.abort(rich.code, rich.details, rich.trailing_metadata)
    raise AssertionError("abort does not return")
