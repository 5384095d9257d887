"""Everything this library raises on purpose, as one tree.

    CursusError                    reason, metadata, retriable
    ├── Refused                    the broker said no, and why; a class for each of its reasons
    │   ├── InvalidRequest         …TopicName, …PartitionCount, …TopicConfig, RecordTooLarge, …
    │   ├── NotFound               TopicNotFound, PartitionNotFound, GroupNotFound, MemberNotFound
    │   ├── Conflict               NotLeader, SequenceGap, GroupNotEmpty, OffsetRegression, …
    │   └── Unavailable            ShuttingDown, StorageFailed, DiskFull, …: the same request may succeed later
    └── ClientError                the broker did not say anything
        ├── BrokerUnreachable      TlsFailed
        ├── DeadlineExceeded       DeliveryTimeout
        ├── BufferFull, PartitionerFailed, ClientClosed
        └── CorruptBatch, BatchTooLarge, DeserializerFailed, NoCommittedOffset, CommitFailed

The message is for a person; `reason`, `metadata` and attributes are for a program. No gRPC here: `_status.py` turns
statuses into these. A test compares the table with the broker's own reasons.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar, Final

from cursus_grpc.types import TopicPartition


class CursusError(Exception):
    """Anything this library raises on purpose."""

    reason: str = ""
    retriable: ClassVar[bool] = False
    """Whether the same call may succeed later without anybody changing anything."""

    def __init__(self, message: str, metadata: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.metadata: Mapping[str, str] = dict(metadata or {})

    def __reduce__(self) -> tuple[Callable[..., CursusError], tuple[object, ...]]:
        # By attributes, not by calling the class again: subclasses have arguments of their own.
        return _rebuild, (type(self), self.args, self.__dict__)

    def copy(self) -> CursusError:
        """Another instance of the same: one that is raised in several places would collect all their tracebacks."""
        duplicate = _rebuild(type(self), self.args, self.__dict__)
        duplicate.__cause__ = self.__cause__
        return duplicate


def _rebuild(kind: type[CursusError], args: tuple[object, ...], attributes: Mapping[str, object]) -> CursusError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(attributes)
    return error


class Refused(CursusError):
    """The broker refused the request. Subclasses without a reason only group the others."""


class InvalidRequest(Refused):
    """A field is missing, negative, absurd or contradicts another one."""

    reason = "INVALID_REQUEST"


class InvalidTopicName(InvalidRequest):
    reason = "INVALID_TOPIC_NAME"


class InvalidPartitionCount(InvalidRequest):
    reason = "INVALID_PARTITION_COUNT"


class InvalidTopicConfig(InvalidRequest):
    reason = "INVALID_TOPIC_CONFIG"


class PartitionRequired(InvalidRequest):
    reason = "PARTITION_REQUIRED"


class UnknownCodec(InvalidRequest):
    reason = "UNKNOWN_CODEC"


class CorruptRecordSet(InvalidRequest):
    """The broker found that a record set is not what it claims to be."""

    reason = "CORRUPT_RECORD_SET"


class RecordTooLarge(InvalidRequest):
    """Larger than the broker or the topic takes. Raised by `send` where the client knows the limit."""

    reason = "RECORD_TOO_LARGE"


class RecordSetTooLarge(InvalidRequest):
    """A batch of more records than the broker takes, or one that unpacks to more bytes."""

    reason = "RECORD_SET_TOO_LARGE"


class RequestTooLarge(InvalidRequest):
    """A request that is larger than any without records need be."""

    reason = "REQUEST_TOO_LARGE"


class TooManyItems(InvalidRequest):
    """A list in the request is longer than the broker takes."""

    reason = "TOO_MANY_ITEMS"


class RecordTooSmall(InvalidRequest):
    reason = "RECORD_TOO_SMALL"


class NotFound(Refused):
    """Groups the refusals about names the broker does not know."""


class TopicNotFound(NotFound):
    reason = "TOPIC_NOT_FOUND"


class PartitionNotFound(NotFound):
    reason = "PARTITION_NOT_FOUND"


class GroupNotFound(NotFound):
    reason = "GROUP_NOT_FOUND"


class MemberNotFound(NotFound):
    reason = "MEMBER_NOT_FOUND"


class TopicExists(Refused):
    reason = "TOPIC_EXISTS"


class OffsetOutOfRange(Refused):
    """The offset is not retained any more or not assigned yet. `earliest` and `latest` say what can be read."""

    reason = "OFFSET_OUT_OF_RANGE"

    @property
    def earliest(self) -> int:
        return int(self.metadata.get("earliest", "-1"))

    @property
    def latest(self) -> int:
        return int(self.metadata.get("latest", "-1"))


class LogTruncated(Refused):
    """The log was cut below the offset after it was read, by power loss or damage: what was read is gone, and other
    records may have taken the offsets since. `offset` is where to go on, in the epoch `leader_epoch`."""

    reason = "LOG_TRUNCATED"

    @property
    def offset(self) -> int:
        return int(self.metadata.get("offset", "-1"))

    @property
    def leader_epoch(self) -> int:
        return int(self.metadata.get("leader_epoch", "-1"))


class Conflict(Refused):
    """Groups the refusals that a retry of the same request cannot cure."""


class NotLeader(Conflict):
    """Another broker owns the partition. The clients follow by themselves."""

    reason = "NOT_LEADER"
    retriable = True


class ProducerFenced(Conflict):
    reason = "PRODUCER_FENCED"


class ProducerForgotten(Conflict):
    """The partition does not know the producer: not any more, or it never did. A producer goes on in a new epoch by
    itself; records that may have been stored before it was forgotten fail with DeliveryTimeout, caused by this."""

    reason = "PRODUCER_FORGOTTEN"

    @property
    def never_known(self) -> bool:
        """Whether the partition has never forgotten anybody, so that nothing of the producer is stored in it."""
        return self.metadata.get("never_known") == "true"


class SequenceGap(Conflict):
    reason = "SEQUENCE_GAP"


class SequenceConflict(Conflict):
    """Other records are stored under these numbers."""

    reason = "SEQUENCE_CONFLICT"


class SequenceTooOld(Conflict):
    """The numbers are taken, by records that are too old to be compared with these. `Admin.describe_producers` tells
    what is stored."""

    reason = "SEQUENCE_TOO_OLD"

    @property
    def next_sequence(self) -> int:
        return int(self.metadata.get("next_sequence", "-1"))


class GenerationMismatch(Conflict):
    """The group has rebalanced since the member last looked."""

    reason = "GENERATION_MISMATCH"


class NotOwner(Conflict):
    """The member does not own the partition any more: what it wanted to commit is somebody else's to process now."""

    reason = "NOT_OWNER"


class MemberFenced(Conflict):
    """A newer process runs under the same instance id; this one must stop."""

    reason = "MEMBER_FENCED"


class OffsetRegression(Conflict):
    """Committed offsets only move forward; `Admin.reset_offsets` is the way back."""

    reason = "OFFSET_REGRESSION"


class GroupNotEmpty(Conflict):
    reason = "GROUP_NOT_EMPTY"


class InconsistentGroup(Conflict):
    reason = "INCONSISTENT_GROUP"


class Unavailable(Refused):
    """Groups what may succeed after a pause."""

    retriable = True


class ShuttingDown(Unavailable):
    reason = "SHUTTING_DOWN"


class StorageFailed(Unavailable):
    """The broker's disk refused: failing or gone."""

    reason = "STORAGE_FAILED"


class DiskFull(StorageFailed):
    """There is no room on the broker's disk. It goes on by itself when there is."""

    reason = "DISK_FULL"


class PartitionReopened(StorageFailed):
    """An operator had the partition opened anew, for instance after its disk had refused a sync: try again."""

    reason = "PARTITION_REOPENED"


class WriteTimeout(Refused):
    """The broker's disk is behind. Nothing was stored."""

    reason = "WRITE_TIMEOUT"
    retriable = True


class ResourceLimit(Refused):
    """A bound of the broker (streams, groups, partitions) is reached."""

    reason = "RESOURCE_LIMIT"


class PartitionDamaged(Refused):
    """The log of this partition is damaged on the broker's disk."""

    reason = "DATA_LOSS"


class BrokerFailed(Refused):
    """A bug in the broker; its log has the details. What became of the request is not known."""

    reason = "INTERNAL"
    retriable = True


class UnknownRefusal(Refused):
    """A reason that this version of the library does not know. `reason` and `metadata` are as the broker sent them."""

    def __init__(self, message: str, metadata: Mapping[str, str] | None = None, reason: str = "") -> None:
        super().__init__(message, metadata)
        self.reason = reason


class ClientError(CursusError):
    """Groups what this side found out by itself."""


class BrokerUnreachable(ClientError):
    """No broker answered at any known address."""

    reason = "BROKER_UNREACHABLE"
    retriable = True


class TlsFailed(BrokerUnreachable):
    """The two sides do not agree on TLS or do not trust each other's certificates."""

    reason = "TLS_FAILED"
    retriable = False


class DeadlineExceeded(ClientError):
    """No answer within the time given. What became of the request is not known."""

    reason = "DEADLINE_EXCEEDED"
    retriable = True


class DeliveryTimeout(DeadlineExceeded):
    """A record was not acknowledged within the delivery timeout.

    `maybe_stored` is False if it was certainly not stored. `__cause__` is the last failure on the way, if any.
    """

    reason = "DELIVERY_TIMEOUT"
    retriable = False

    def __init__(self, message: str, maybe_stored: bool) -> None:
        super().__init__(message, {"maybe_stored": str(maybe_stored).lower()})
        self.maybe_stored = maybe_stored


class PartitionerFailed(ClientError):
    """The application's partitioner raised something, or chose what is no partition of the topic."""

    reason = "PARTITIONER_FAILED"


class DeserializerFailed(ClientError):
    """The application's deserializer raised something: the cause. The record has its bytes in `raw_value` and
    `raw_key`."""

    reason = "DESERIALIZER_FAILED"


class BufferFull(ClientError):
    """The producer's buffer is full; the record was not taken."""

    reason = "BUFFER_FULL"
    retriable = True


class ClientClosed(ClientError):
    """The client was closed, before or during the call."""

    reason = "CLIENT_CLOSED"


class CorruptBatch(ClientError):
    """A received batch does not have the checksum or the records it claims."""

    reason = "CORRUPT_BATCH"


class BatchTooLarge(ClientError):
    """A received batch unpacks to more than the consumer's `max_unpacked_bytes` or `max_unpacked_records`.

    Nothing of it was handed out, and asking for more meets it again: `seek` to `next_offset` goes on behind it, a
    consumer with larger limits reads it.
    """

    reason = "BATCH_TOO_LARGE"

    def __init__(self, message: str, partition: TopicPartition, offset: int, next_offset: int) -> None:
        super().__init__(
            message,
            {
                "topic": partition.topic,
                "partition": str(partition.partition),
                "offset": str(offset),
                "next_offset": str(next_offset),
            },
        )
        self.partition = partition
        self.next_offset = next_offset


class NoCommittedOffset(ClientError):
    """The group has committed nothing for a partition, and `reset="error"` forbids to choose a place."""

    reason = "NO_COMMITTED_OFFSET"

    def __init__(self, partition: TopicPartition) -> None:
        super().__init__(
            f"the group has committed nothing for partition {partition.partition} of {partition.topic!r}",
            {"topic": partition.topic, "partition": str(partition.partition)},
        )
        self.partition = partition


class CommitFailed(ClientError):
    """Some offsets of a commit were refused; `errors` says which and why. The others are committed."""

    reason = "COMMIT_FAILED"

    def __init__(self, errors: Mapping[TopicPartition, CursusError]) -> None:
        super().__init__("; ".join(f"{place.topic}[{place.partition}]: {error}" for place, error in errors.items()))
        self.errors = dict(errors)


def _by_reason(parent: type[Refused]) -> dict[str, type[Refused]]:
    found: dict[str, type[Refused]] = {}
    for child in parent.__subclasses__():
        if child.reason:
            found[child.reason] = child
        found.update(_by_reason(child))
    return found


REASONS: Final[Mapping[str, type[Refused]]] = _by_reason(Refused)
"""The exception for each reason a broker gives."""
