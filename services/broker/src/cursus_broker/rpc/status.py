"""Which gRPC status each refusal has: the one table and the one translation, for calls and inside streams."""

from __future__ import annotations

from typing import Final

from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status
from grpc import StatusCode

from cursus_broker import errors

DOMAIN: Final = "cursus"

CODES: Final[dict[type[errors.CursusError], StatusCode]] = {
    errors.InvalidRequest: StatusCode.INVALID_ARGUMENT,
    errors.InvalidTopicName: StatusCode.INVALID_ARGUMENT,
    errors.InvalidPartitionCount: StatusCode.INVALID_ARGUMENT,
    errors.InvalidTopicConfig: StatusCode.INVALID_ARGUMENT,
    errors.PartitionRequired: StatusCode.INVALID_ARGUMENT,
    errors.UnknownCodec: StatusCode.INVALID_ARGUMENT,
    errors.CorruptRecordSet: StatusCode.INVALID_ARGUMENT,
    errors.RecordTooLarge: StatusCode.INVALID_ARGUMENT,
    errors.RecordTooSmall: StatusCode.INVALID_ARGUMENT,
    errors.RecordSetTooLarge: StatusCode.INVALID_ARGUMENT,
    errors.RequestTooLarge: StatusCode.INVALID_ARGUMENT,
    errors.TooManyItems: StatusCode.INVALID_ARGUMENT,
    errors.TopicNotFound: StatusCode.NOT_FOUND,
    errors.PartitionNotFound: StatusCode.NOT_FOUND,
    errors.GroupNotFound: StatusCode.NOT_FOUND,
    errors.MemberNotFound: StatusCode.NOT_FOUND,
    errors.TopicExists: StatusCode.ALREADY_EXISTS,
    errors.OffsetOutOfRange: StatusCode.OUT_OF_RANGE,
    errors.LogTruncated: StatusCode.OUT_OF_RANGE,
    errors.NotLeader: StatusCode.FAILED_PRECONDITION,
    errors.ProducerFenced: StatusCode.FAILED_PRECONDITION,
    errors.ProducerForgotten: StatusCode.FAILED_PRECONDITION,
    errors.SequenceGap: StatusCode.FAILED_PRECONDITION,
    errors.SequenceConflict: StatusCode.FAILED_PRECONDITION,
    errors.SequenceTooOld: StatusCode.FAILED_PRECONDITION,
    errors.GenerationMismatch: StatusCode.FAILED_PRECONDITION,
    errors.NotOwner: StatusCode.FAILED_PRECONDITION,
    errors.MemberFenced: StatusCode.FAILED_PRECONDITION,
    errors.OffsetRegression: StatusCode.FAILED_PRECONDITION,
    errors.GroupNotEmpty: StatusCode.FAILED_PRECONDITION,
    errors.InconsistentGroup: StatusCode.FAILED_PRECONDITION,
    errors.ShuttingDown: StatusCode.UNAVAILABLE,
    errors.StorageFailed: StatusCode.UNAVAILABLE,
    errors.PartitionReopened: StatusCode.UNAVAILABLE,
    errors.DiskFull: StatusCode.RESOURCE_EXHAUSTED,
    errors.WriteTimeout: StatusCode.RESOURCE_EXHAUSTED,
    errors.ResourceLimit: StatusCode.RESOURCE_EXHAUSTED,
    errors.PartitionDamaged: StatusCode.DATA_LOSS,
}


# A refusal repeats what it refuses, and that may be a name of megabytes.
_LONGEST_TEXT: Final = 1_000


def code_of(error: errors.CursusError) -> StatusCode:
    return CODES[type(error)]


def to_status(error: errors.CursusError) -> Status:
    """The error as google.rpc.Status with its ErrorInfo, and RetryInfo where there is something to say."""
    info = AnyMessage()
    metadata = {key: _shown(value) for key, value in error.metadata.items()}
    info.Pack(ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=metadata))
    code: int = code_of(error).value[0]
    details = [info]
    if error.retry_after_ms is not None:
        retry = RetryInfo()
        retry.retry_delay.FromMilliseconds(error.retry_after_ms)
        details.append(AnyMessage())
        details[-1].Pack(retry)
    return Status(code=code, message=_shown(str(error)), details=details)


def _shown(text: str) -> str:
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}…"


def internal_status() -> Status:
    """What a client learns of a bug in the broker: that it is one. The log has the rest."""
    info = AnyMessage()
    info.Pack(ErrorInfo(reason="INTERNAL", domain=DOMAIN))
    code: int = StatusCode.INTERNAL.value[0]
    return Status(code=code, message="internal error; the broker's log has the details", details=[info])
