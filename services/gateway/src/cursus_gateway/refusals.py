"""Why something could not be done, and the one table from the broker's reasons to the wire's `ERROR:` texts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from cursus_gateway.dialect import replies


class Refused(Exception):
    """The broker refused, or cannot be asked. `reason` is the broker's, or one of the gateway's own below."""

    def __init__(self, reason: str, message: str, metadata: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.metadata = dict(metadata or {})


BROKER_UNAVAILABLE: Final = "BROKER_UNAVAILABLE"
"""No broker answered within the request's time. Nothing was done."""
OUTCOME_UNKNOWN: Final = "OUTCOME_UNKNOWN"
"""The broker went away with the request; it may have been done."""
SHUTTING_DOWN: Final = "SHUTTING_DOWN"
"""The broker's own reason when it stops in order. What it took before, it has answered."""
TOPIC_DIFFERS: Final = "TOPIC_DIFFERS"
"""The topic exists, and does not do what its creator asks for."""
INTERNAL: Final = "INTERNAL"


class Kind(Enum):
    """Classes of errors as clients of the third generation know them; only `AVAILABILITY` is worth a retry."""

    VALIDATION = "validation"
    NOT_FOUND = "not_found"
    CONFLICT = "conflict"
    FENCING = "fencing"
    AVAILABILITY = "availability"
    INTERNAL = "internal"


@dataclass(frozen=True, slots=True)
class Spelling:
    code: str
    kind: Kind
    fields: tuple[str, ...] = ()
    """Taken from the error's metadata. Without any, its message is shown as `reason`."""


# Of one that is stored and cannot be delivered, and where to go on. One that is refused has none of these.
_STORED_BATCH: Final = ("topic", "partition", "offset", "next_offset")

SPELLINGS: Final[Mapping[str, Spelling]] = {
    "INVALID_REQUEST": Spelling("invalid_request", Kind.VALIDATION),
    "INVALID_TOPIC_NAME": Spelling("invalid_topic_name", Kind.VALIDATION),
    "INVALID_PARTITION_COUNT": Spelling("invalid_partitions", Kind.VALIDATION),
    "INVALID_TOPIC_CONFIG": Spelling("invalid_topic_policy", Kind.VALIDATION),
    "PARTITION_REQUIRED": Spelling("partition_required", Kind.VALIDATION),
    "UNKNOWN_CODEC": Spelling("unsupported_compression", Kind.VALIDATION),
    "CORRUPT_RECORD_SET": Spelling("corrupt_batch", Kind.VALIDATION, _STORED_BATCH),
    "RECORD_TOO_LARGE": Spelling("message_too_large", Kind.VALIDATION),
    "RECORD_TOO_SMALL": Spelling("message_too_small", Kind.VALIDATION),
    "RECORD_SET_TOO_LARGE": Spelling("batch_too_large", Kind.VALIDATION, _STORED_BATCH),
    "REQUEST_TOO_LARGE": Spelling("request_too_large", Kind.VALIDATION),
    "TOO_MANY_ITEMS": Spelling("too_many_items", Kind.VALIDATION, ("field", "limit")),
    "TOPIC_NOT_FOUND": Spelling("topic_not_found", Kind.VALIDATION, ("topic",)),
    "PARTITION_NOT_FOUND": Spelling("partition_not_found", Kind.VALIDATION, ("partition",)),
    "GROUP_NOT_FOUND": Spelling("group_not_found", Kind.NOT_FOUND, ("group",)),
    "MEMBER_NOT_FOUND": Spelling("member_not_found", Kind.NOT_FOUND, ("member", "group")),
    "TOPIC_EXISTS": Spelling("topic_exists", Kind.CONFLICT, ("topic",)),
    "OFFSET_OUT_OF_RANGE": Spelling("OFFSET_OUT_OF_RANGE", Kind.VALIDATION, ("requested", "earliest", "latest")),
    # Legacy clients know one way to be told that their offset is not there.
    "LOG_TRUNCATED": Spelling("OFFSET_OUT_OF_RANGE", Kind.VALIDATION, ("requested", "earliest", "latest")),
    # Its own name would send clients elsewhere, and there is no elsewhere: the gateway follows leaders itself.
    "NOT_LEADER": Spelling("leader_unavailable", Kind.AVAILABILITY, ("partition",)),
    "PRODUCER_FENCED": Spelling("stale_producer_epoch", Kind.FENCING, ("producer", "current", "epoch")),
    "PRODUCER_FORGOTTEN": Spelling("producer_forgotten", Kind.CONFLICT, ("producer", "sequence")),
    "SEQUENCE_GAP": Spelling("sequence_out_of_order", Kind.CONFLICT, ("expected", "got")),
    "SEQUENCE_CONFLICT": Spelling("sequence_reused", Kind.CONFLICT, ("sequence",)),
    "SEQUENCE_TOO_OLD": Spelling("sequence_too_old", Kind.CONFLICT, ("sequence", "next_sequence")),
    "GENERATION_MISMATCH": Spelling("GEN_MISMATCH", Kind.FENCING, ("current", "requested", "group")),
    "NOT_OWNER": Spelling("NOT_OWNER", Kind.FENCING, ("partition", "member", "group", "generation")),
    "MEMBER_FENCED": Spelling("member_replaced", Kind.FENCING, ("member", "group")),
    "OFFSET_REGRESSION": Spelling("offset_regression", Kind.CONFLICT),
    "GROUP_NOT_EMPTY": Spelling("group_not_empty", Kind.CONFLICT, ("group", "members")),
    "INCONSISTENT_GROUP": Spelling("inconsistent_group", Kind.CONFLICT),
    SHUTTING_DOWN: Spelling("broker_unavailable", Kind.AVAILABILITY),
    "STORAGE_FAILED": Spelling("storage_failed", Kind.AVAILABILITY),
    "DISK_FULL": Spelling("disk_full", Kind.AVAILABILITY),
    "PARTITION_REOPENED": Spelling("partition_reopened", Kind.AVAILABILITY),
    "WRITE_TIMEOUT": Spelling("write_timeout", Kind.AVAILABILITY),
    "RESOURCE_LIMIT": Spelling("resource_limit", Kind.AVAILABILITY),
    "DATA_LOSS": Spelling("partition_damaged", Kind.INTERNAL),
    BROKER_UNAVAILABLE: Spelling("broker_unavailable", Kind.AVAILABILITY),
    OUTCOME_UNKNOWN: Spelling("outcome_unknown", Kind.AVAILABILITY),
    TOPIC_DIFFERS: Spelling("unsupported_topic_policy", Kind.VALIDATION),
    INTERNAL: Spelling("broker_error", Kind.INTERNAL),
}


NOT_THERE: Final = frozenset({"OFFSET_OUT_OF_RANGE", "LOG_TRUNCATED"})
"""A reader's offset is not, or no longer, in the log."""


def where_to_go_on(refused: Refused) -> int:
    """The offset at which a reader misses nothing more: where the log was cut below it, else where it begins."""
    return int(refused.metadata["offset" if refused.reason == "LOG_TRUNCATED" else "earliest"])


def spell(refused: Refused, *, classified: bool = False) -> str:
    """The answer for this refusal. `classified` adds class and retryability right after the code: for batches, and for
    connections that asked for it."""
    spelling = SPELLINGS.get(refused.reason, SPELLINGS[INTERNAL])
    fields: dict[str, object] = {}
    if classified:
        retryable = spelling.kind is Kind.AVAILABILITY
        fields = {"class": spelling.kind.value, "retryable": str(retryable).lower()}
    known = {name: refused.metadata[name] for name in spelling.fields if name in refused.metadata}
    return replies.error(spelling.code, **fields, **(known or {"reason": str(refused)}))


def fenced_epoch(refused: Refused) -> str:
    """What an acknowledgement's `error` says to a producer of an old epoch; clients look for its first word."""
    known = refused.metadata
    producer, current, got = known.get("producer", ""), known.get("current", ""), known.get("epoch", "")
    return f"stale_producer_epoch producer={producer} current={current} got={got}"
