"""Refusals as values: what a test compares is the status code and the reason, what it may look at is the rest."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass, field

import grpc
from google.rpc.status_pb2 import Status

from tests.harness.clients import error_info


@dataclass(frozen=True, slots=True)
class Refusal:
    """A status with its ErrorInfo. Two are equal if code and reason are."""

    code: str
    reason: str
    message: str = field(default="", compare=False)
    metadata: dict[str, str] = field(default_factory=dict, compare=False)


async def refusal(call: Awaitable[object]) -> Refusal:
    """How the call is refused. Fails if it is not, or if the refusal has no ErrorInfo of ours."""
    try:
        answer = await call
    except grpc.aio.AioRpcError as error:
        return refusal_of(error)
    raise AssertionError(f"not refused, but answered {str(answer)[:200]!r}")


def refusal_of(error: grpc.aio.AioRpcError | Status) -> Refusal:
    """A failed call, or a status inside an answer, as a value."""
    info = error_info(error)
    if isinstance(error, Status):
        code = next(code.name for code in grpc.StatusCode if code.value[0] == error.code)
        return Refusal(code, info.reason, error.message, dict(info.metadata))
    return Refusal(error.code().name, info.reason, error.details() or "", dict(info.metadata))


def invalid(reason: str = "INVALID_REQUEST") -> Refusal:
    return Refusal("INVALID_ARGUMENT", reason)


def not_found(reason: str) -> Refusal:
    return Refusal("NOT_FOUND", reason)


def precondition(reason: str) -> Refusal:
    return Refusal("FAILED_PRECONDITION", reason)


OUT_OF_RANGE = Refusal("OUT_OF_RANGE", "OFFSET_OUT_OF_RANGE")
TRUNCATED = Refusal("OUT_OF_RANGE", "LOG_TRUNCATED")
DATA_LOSS = Refusal("DATA_LOSS", "DATA_LOSS")
