"""Every way the broker refuses a request, as one exception tree.

The message is for a person; `reason` and `metadata` are for a program. No gRPC here: `rpc/status.py` chooses the
canonical status for each class, and a test fails for a class without a row there.
"""

from __future__ import annotations

import errno
from typing import ClassVar, Final


class CursusError(Exception):
    """A request the broker refuses. Subclasses with a `reason` are what clients meet; the others only group them."""

    reason: ClassVar[str] = ""
    retry_after_ms: ClassVar[int | None] = None
    """How long a client should wait before it tries again; None leaves it to the client."""

    def __init__(self, message: str, **metadata: object) -> None:
        super().__init__(message)
        self.metadata: dict[str, str] = {key: str(value) for key, value in metadata.items()}


def refusal_in(error: BaseException) -> CursusError | None:
    """The refusal that `error` is, or that a task group wrapped; None if anything in it is a bug."""
    if isinstance(error, BaseExceptionGroup):
        found = [refusal_in(one) for one in error.exceptions]
        return None if None in found else found[0]
    return error if isinstance(error, CursusError) else None


# What was asked makes no sense, whatever the state of the broker.


class InvalidRequest(CursusError):
    """A field is missing, negative, absurd or contradicts another one."""

    reason = "INVALID_REQUEST"


class InvalidTopicName(InvalidRequest):
    reason = "INVALID_TOPIC_NAME"


class InvalidPartitionCount(InvalidRequest):
    reason = "INVALID_PARTITION_COUNT"


class InvalidTopicConfig(InvalidRequest):
    reason = "INVALID_TOPIC_CONFIG"


class PartitionRequired(InvalidRequest):
    """Sequences are counted per partition, so a batch with a producer identity has to name its partition."""

    reason = "PARTITION_REQUIRED"


class UnknownCodec(InvalidRequest):
    reason = "UNKNOWN_CODEC"


class CorruptRecordSet(InvalidRequest):
    """The record set is not what it claims to be: undecodable, a wrong checksum or a wrong record count."""

    reason = "CORRUPT_RECORD_SET"


class RecordTooLarge(InvalidRequest):
    reason = "RECORD_TOO_LARGE"


class RecordTooSmall(InvalidRequest):
    reason = "RECORD_TOO_SMALL"


class RecordSetTooLarge(InvalidRequest):
    """The set has more records than this broker takes, or unpacks to more bytes."""

    reason = "RECORD_SET_TOO_LARGE"


class RequestTooLarge(InvalidRequest):
    """A request without records that is larger than any such request need be: make several of it."""

    reason = "REQUEST_TOO_LARGE"


class TooManyItems(InvalidRequest):
    """A list in the request is longer than it may be: make several requests of it."""

    reason = "TOO_MANY_ITEMS"

    def __init__(self, field: str, limit: int) -> None:
        super().__init__(f"{field} has more than {limit} entries: split the request", field=field, limit=limit)


# What was asked for is not here, or already is.


class NotFound(CursusError):
    """Groups the errors about names the broker does not know."""


class TopicNotFound(NotFound):
    reason = "TOPIC_NOT_FOUND"

    def __init__(self, topic: str) -> None:
        super().__init__(f"topic {topic!r} does not exist", topic=topic)


class PartitionNotFound(NotFound):
    reason = "PARTITION_NOT_FOUND"

    def __init__(self, topic: str, partition: int, count: int) -> None:
        super().__init__(
            f"topic {topic!r} has no partition {partition}: it has {count}, numbered from 0",
            topic=topic,
            partition=partition,
            partitions=count,
        )


class GroupNotFound(NotFound):
    reason = "GROUP_NOT_FOUND"

    def __init__(self, group: str) -> None:
        super().__init__(f"consumer group {group!r} does not exist", group=group)


class MemberNotFound(NotFound):
    """The member never joined, left, or its session timed out: it has to join again."""

    reason = "MEMBER_NOT_FOUND"

    def __init__(self, group: str, member: str) -> None:
        super().__init__(f"group {group!r} has no member {member!r}: join again", group=group, member=member)


class TopicExists(CursusError):
    reason = "TOPIC_EXISTS"

    def __init__(self, topic: str) -> None:
        super().__init__(f"topic {topic!r} already exists", topic=topic)


class OffsetOutOfRange(CursusError):
    """The offset is not retained any more or not assigned yet."""

    reason = "OFFSET_OUT_OF_RANGE"

    def __init__(self, requested: int, earliest: int, next_offset: int) -> None:
        super().__init__(
            f"offset {requested} is outside [{earliest}, {next_offset}]",
            requested=requested,
            earliest=earliest,
            latest=next_offset,
        )


class LogTruncated(CursusError):
    """The log was cut below the offset after the reader was there, by power loss or damage: what it read is gone, and
    other records may have taken the offsets since. `offset` is where to go on."""

    reason = "LOG_TRUNCATED"

    def __init__(
        self, requested: int, requested_epoch: int, *, offset: int, leader_epoch: int, earliest: int, next_offset: int
    ) -> None:
        super().__init__(
            f"the log was cut at offset {offset} after offset {requested} was reached in epoch {requested_epoch}:"
            f" go on from {offset}",
            requested=requested,
            requested_epoch=requested_epoch,
            offset=offset,
            leader_epoch=leader_epoch,
            earliest=earliest,
            latest=next_offset,
        )


# The request is sound, but the state of the broker forbids it.


class Conflict(CursusError):
    """Groups the refusals that a retry of the same request cannot cure."""


class NotLeader(Conflict):
    """Another broker owns the partition."""

    reason = "NOT_LEADER"

    def __init__(self, topic: str, partition: int, leader: str) -> None:
        super().__init__(
            f"partition {partition} of topic {topic!r} is led by {leader}",
            topic=topic,
            partition=partition,
            leader=leader,
        )


class ProducerFenced(Conflict):
    reason = "PRODUCER_FENCED"

    def __init__(self, producer: str, epoch: int, current: int) -> None:
        super().__init__(
            f"producer {producer} has moved on to epoch {current}; epoch {epoch} is over",
            producer=producer,
            epoch=epoch,
            current=current,
        )


class ProducerForgotten(Conflict):
    """The partition does not know what the producer stored before this batch, or whether it did: it was idle for too
    long, crowded out or released, or its batches are gone. It can go on in a higher epoch, from sequence 0.
    """

    reason = "PRODUCER_FORGOTTEN"

    def __init__(self, producer: str, sequence: int, *, never_known: bool) -> None:
        detail = (
            "and has never forgotten one: nothing of it is stored here"
            if never_known
            else "or not any more: what it sends may have been stored before"
        )
        super().__init__(
            f"the partition does not know producer {producer}, whose batch begins at sequence {sequence}, {detail}",
            producer=producer,
            sequence=sequence,
            never_known="true" if never_known else "false",
        )


class SequenceGap(Conflict):
    """Batches before this one are missing: send those first."""

    reason = "SEQUENCE_GAP"

    def __init__(self, producer: str, expected: int, got: int) -> None:
        super().__init__(
            f"producer {producer} skipped from sequence {expected} to {got}: the batches between are missing",
            producer=producer,
            expected=expected,
            got=got,
        )


class SequenceConflict(Conflict):
    """A sequence was used again for other bytes, or for a range that only overlaps the stored one."""

    reason = "SEQUENCE_CONFLICT"

    def __init__(self, producer: str, sequence: int, detail: str) -> None:
        super().__init__(
            f"producer {producer} reused sequence {sequence}: {detail}", producer=producer, sequence=sequence
        )


class SequenceTooOld(Conflict):
    """The batch's numbers are taken, by batches so old that they cannot be compared with it any more. DescribeProducers
    tells what is stored."""

    reason = "SEQUENCE_TOO_OLD"

    def __init__(self, producer: str, sequence: int, next_sequence: int, oldest: int) -> None:
        super().__init__(
            f"producer {producer} has stored up to sequence {next_sequence}; {sequence} is too old to be compared, the"
            f" oldest remembered is {oldest}",
            producer=producer,
            sequence=sequence,
            next_sequence=next_sequence,
            oldest=oldest,
        )


class GenerationMismatch(Conflict):
    """The group has rebalanced since the member last looked: synchronise, then go on."""

    reason = "GENERATION_MISMATCH"

    def __init__(self, group: str, requested: int, current: int) -> None:
        super().__init__(
            f"group {group!r} is in generation {current}, the request was made in {requested}",
            group=group,
            requested=requested,
            current=current,
        )


class NotOwner(Conflict):
    """The member does not own the partition it wants to commit or read for the group."""

    reason = "NOT_OWNER"

    def __init__(self, group: str, member: str, topic: str, partition: int, generation: int) -> None:
        super().__init__(
            f"member {member!r} of group {group!r} does not own partition {partition} of {topic!r}",
            group=group,
            member=member,
            topic=topic,
            partition=partition,
            generation=generation,
        )


class MemberFenced(Conflict):
    """A newer process joined with the same instance id; this one must stop."""

    reason = "MEMBER_FENCED"

    def __init__(self, group: str, member: str, instance: str) -> None:
        super().__init__(
            f"instance {instance!r} of group {group!r} was taken over by a newer process; {member!r} must stop",
            group=group,
            member=member,
            instance=instance,
        )


class OffsetRegression(Conflict):
    """Committed offsets only move forward; ResetOffsets is the way back."""

    reason = "OFFSET_REGRESSION"

    def __init__(self, group: str, topic: str, partition: int, committed: int, requested: int) -> None:
        super().__init__(
            f"group {group!r} has committed {committed} for partition {partition} of {topic!r}; {requested} is behind",
            group=group,
            topic=topic,
            partition=partition,
            committed=committed,
            requested=requested,
        )


class GroupNotEmpty(Conflict):
    reason = "GROUP_NOT_EMPTY"

    def __init__(self, group: str, members: int) -> None:
        super().__init__(f"group {group!r} has {members} live members: stop them first", group=group, members=members)


class InconsistentGroup(Conflict):
    """A member asked for another assignment strategy than the one its group runs with."""

    reason = "INCONSISTENT_GROUP"


# The broker cannot serve now; the same request may succeed later.


class Unavailable(CursusError):
    """Groups what a client may retry after a pause."""


class ShuttingDown(Unavailable):
    reason = "SHUTTING_DOWN"

    def __init__(self) -> None:
        super().__init__("the broker is shutting down")


class StorageFailed(Unavailable):
    """The disk refused: failing or gone. Nothing was acknowledged."""

    reason = "STORAGE_FAILED"

    def again(self) -> StorageFailed:
        """The same for another caller: an exception that is raised twice gathers both tracebacks."""
        return type(self)(str(self), **self.metadata)


class DiskFull(StorageFailed):
    """There is no room, or no quota. Nothing was stored, nothing is lost, and it goes on by itself when there is."""

    reason = "DISK_FULL"
    retry_after_ms = 1_000


class PartitionReopened(StorageFailed):
    """An operator has the log opened anew. Whoever reads or writes it comes back and finds it, maybe shorter."""

    reason = "PARTITION_REOPENED"


_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


def storage_failure(what: str, error: OSError) -> StorageFailed:
    """`error` as clients may see it: what was tried and the system's reason, without the path that Python adds."""
    cause = error.strerror or str(error)
    return DiskFull(f"{what}: {cause}") if error.errno in _NO_ROOM else StorageFailed(f"{what}: {cause}")


class WriteTimeout(CursusError):
    """The partition's buffer stayed full for the whole write timeout. Nothing was stored."""

    reason = "WRITE_TIMEOUT"


class ResourceLimit(CursusError):
    """A bound of the broker (open streams, groups, partitions) is reached."""

    reason = "RESOURCE_LIMIT"


class PartitionDamaged(CursusError):
    """The log of this partition is damaged before its tail. The rest of the broker serves."""

    reason = "DATA_LOSS"

    def __init__(self, path: str, position: int, cause: str) -> None:
        # Clients see it, and where the broker keeps its data is none of their business.
        file = "/".join(path.split("/")[-2:])
        super().__init__(
            f"{file} is damaged at byte {position}: {cause}; restore the file or delete the topic",
            file=file,
            position=position,
            cause=cause,
        )
        self.path = path
        self.position = position
