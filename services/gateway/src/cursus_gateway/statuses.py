"""gRPC statuses to Refused: the broker's own reason where there is one, else what the transport met."""

from __future__ import annotations

from typing import Final

import grpc
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status
from grpc_status import rpc_status

from cursus_gateway.refusals import BROKER_UNAVAILABLE, INTERNAL, SHUTTING_DOWN, Refused

DOMAIN: Final = "cursus"

_TRANSPORT: Final = frozenset(
    {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED}
)


def refused_by_status(status: Status) -> Refused:
    """A status inside an answer."""
    for detail in status.details:
        info = ErrorInfo()
        if detail.Unpack(info) and info.domain == DOMAIN:
            return Refused(info.reason, status.message, dict(info.metadata))
    return Refused(INTERNAL, status.message)


def refused_by_call(error: grpc.aio.AioRpcError) -> Refused:
    """A call that failed."""
    status = rpc_status.from_call(error)  # type: ignore[arg-type]  # an AioRpcError has the same accessors as a call
    if status is not None:
        return refused_by_status(status)
    if error.code() in _TRANSPORT:
        return Refused(BROKER_UNAVAILABLE, error.details() or error.code().name)
    return Refused(INTERNAL, error.details() or error.code().name)


def is_transient(refused: Refused) -> bool:
    """Whether the same call may succeed in a moment, at this broker or another."""
    return refused.reason in (BROKER_UNAVAILABLE, SHUTTING_DOWN)
