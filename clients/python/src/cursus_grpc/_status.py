"""From gRPC's failures to our exceptions: the one place that knows both."""

from __future__ import annotations

from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status
from grpc import StatusCode
from grpc.aio import AioRpcError
from grpc_status import rpc_status

from cursus_grpc.errors import (
    REASONS,
    BrokerFailed,
    BrokerUnreachable,
    CursusError,
    DeadlineExceeded,
    InvalidRequest,
    UnknownRefusal,
)

_DOMAIN = "cursus"


def from_status(status: Status) -> CursusError:
    """A refusal inside an answer."""
    for detail in status.details:
        info = ErrorInfo()
        if detail.Unpack(info) and info.domain == _DOMAIN:
            if (kind := REASONS.get(info.reason)) is not None:
                return kind(status.message, info.metadata)
            return UnknownRefusal(status.message, info.metadata, info.reason)
    return UnknownRefusal(status.message or "refused without a reason")


def from_rpc_error(error: AioRpcError) -> CursusError:
    """A failed call. Without the broker's own details the status code tells what the transport met."""
    status = rpc_status.from_call(error)  # type: ignore[arg-type]  # takes what has code, details and trailers
    if status is not None and status.details:
        return from_status(status)
    code, text = error.code(), error.details() or ""
    match code:
        case StatusCode.DEADLINE_EXCEEDED:
            return DeadlineExceeded("no answer within the time given")
        case StatusCode.UNAVAILABLE | StatusCode.CANCELLED:
            return BrokerUnreachable(text or "the connection broke")
        case StatusCode.INTERNAL | StatusCode.UNKNOWN:
            return BrokerFailed(text or "the call failed inside gRPC")
        case StatusCode.INVALID_ARGUMENT:
            return InvalidRequest(text)
        case StatusCode.UNIMPLEMENTED:
            return UnknownRefusal(f"whoever answers is no broker, or an older one: {text}", reason=code.name)
        case _:
            return UnknownRefusal(f"{code.name}: {text}", reason=code.name)
