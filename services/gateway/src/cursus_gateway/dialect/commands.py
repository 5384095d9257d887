"""Every command of the wire as a value, whatever dialect it was written in, and the words it may begin with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

DEFAULT_GROUP: Final = "default-group"
SUBSCRIBE_GROUP: Final = "default"
MAX_MESSAGES: Final = 8192


class Dialect(Enum):
    """How a request was written; its answer follows it."""

    POSITIONAL = "positional"
    KEYED = "key=value"


class Malformed(Exception):
    """The request cannot be parsed. The text is the whole answer; `close` if the connection ends with it."""

    def __init__(self, answer: str, *, close: bool = False) -> None:
        super().__init__(answer)
        self.close = close


@dataclass(frozen=True, slots=True)
class CreateTopic:
    topic: str
    partitions: int | None = None
    idempotent: bool = False
    """Judge every numbered batch by its sequences."""
    retention_ms: int | None = None
    """-1: for ever. None: as the broker does it by default."""
    retention_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class DeleteTopic:
    topic: str


@dataclass(frozen=True, slots=True)
class ListTopics:
    pass


@dataclass(frozen=True, slots=True)
class CountPartitions:
    """`LIST topic=`, which Java producers send."""

    topic: str


@dataclass(frozen=True, slots=True)
class Help:
    pass


@dataclass(frozen=True, slots=True)
class Exit:
    pass


@dataclass(frozen=True, slots=True)
class SetGroup:
    group: str


@dataclass(frozen=True, slots=True)
class Subscribe:
    topic: str
    group: str = SUBSCRIBE_GROUP


@dataclass(frozen=True, slots=True)
class Publish:
    topic: str
    message: bytes
    acks: str = "1"
    producer_id: bytes = b""
    sequence: int = 0
    epoch: int = 0
    idempotent: bool = False
    key: bytes = b""
    partition: int | None = None
    by_content: bool = False
    """Recognise a repetition by its payload, as the first generation does."""


@dataclass(frozen=True, slots=True)
class ConsumeAll:
    """Positional CONSUME: a frame a message, then the connection is closed. Offset -1: where the group stands."""

    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class ConsumeBatch:
    """key=value CONSUME: one batch frame."""

    topic: str
    partition: int
    offset: int
    member: str
    group: str = ""
    generation: int = 0
    limit: int = MAX_MESSAGES
    wait_ms: int = 0
    latest_without_commit: bool = False


@dataclass(frozen=True, slots=True)
class Stream:
    topic: str
    partition: int
    group: str
    member: str = ""
    generation: int = 0
    offset: int | None = None
    limit: int = MAX_MESSAGES
    latest_without_commit: bool = False


@dataclass(frozen=True, slots=True)
class JoinGroup:
    topic: str
    group: str
    member: str
    generation: int | None = None


@dataclass(frozen=True, slots=True)
class SyncGroup:
    """Whatever generation it names: its answer is of the current one, and says which."""

    topic: str
    group: str
    member: str


@dataclass(frozen=True, slots=True)
class LeaveGroup:
    group: str
    member: str


@dataclass(frozen=True, slots=True)
class Heartbeat:
    group: str
    member: str
    generation: int | None = None


@dataclass(frozen=True, slots=True)
class CommitOffset:
    topic: str
    partition: int
    offset: int
    group: str | None = None
    """None: the connection's group."""
    member: str = ""
    generation: int | None = None


@dataclass(frozen=True, slots=True)
class BatchCommit:
    topic: str
    group: str
    member: str
    generation: int
    offsets: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class FetchOffset:
    topic: str
    partition: int
    group: str
    member: str = ""


@dataclass(frozen=True, slots=True)
class ListOffsets:
    topic: str
    partition: int | None = None


@dataclass(frozen=True, slots=True)
class FindCoordinator:
    group: str
    transactional: bool = False


@dataclass(frozen=True, slots=True)
class Metadata:
    topic: str


@dataclass(frozen=True, slots=True)
class DescribeTopic:
    topic: str


@dataclass(frozen=True, slots=True)
class GroupStatus:
    group: str


@dataclass(frozen=True, slots=True)
class RegisterGroup:
    topic: str
    group: str


@dataclass(frozen=True, slots=True)
class ListGroups:
    pass


@dataclass(frozen=True, slots=True)
class ProtocolInfo:
    pass


@dataclass(frozen=True, slots=True)
class Negotiate:
    version: int
    features: tuple[str, ...] = ()
    every_feature: bool = False
    required: bool = False


@dataclass(frozen=True, slots=True)
class NotServed:
    """A command of the third generation that has no counterpart here yet, or belongs between brokers."""

    name: str


Command: TypeAlias = (
    CreateTopic
    | DeleteTopic
    | ListTopics
    | CountPartitions
    | Help
    | Exit
    | SetGroup
    | Subscribe
    | Publish
    | ConsumeAll
    | ConsumeBatch
    | Stream
    | JoinGroup
    | SyncGroup
    | LeaveGroup
    | Heartbeat
    | CommitOffset
    | BatchCommit
    | FetchOffset
    | ListOffsets
    | FindCoordinator
    | Metadata
    | DescribeTopic
    | GroupStatus
    | RegisterGroup
    | ListGroups
    | ProtocolInfo
    | Negotiate
    | NotServed
)


@dataclass(frozen=True, slots=True)
class Request:
    """A command and what its wording tells about the sender."""

    name: str
    command: Command
    dialect: Dialect
    third_generation: bool = False
    """It carries something only clients of the third generation send."""


TRANSACTIONS: Final = frozenset(
    {"INIT_PRODUCER_ID", "BEGIN_TXN", "TXN_PUBLISH", "SEND_OFFSETS_TO_TXN", "END_TXN", "TXN_STATUS"}
)
EVENT_STREAMS: Final = frozenset({"APPEND_STREAM", "READ_STREAM", "SAVE_SNAPSHOT", "READ_SNAPSHOT", "STREAM_VERSION"})
CLUSTER: Final = frozenset({"CLUSTER_STATUS", "ELECT_LEADER", "LIST_CLUSTER"})
INTERNAL: Final = frozenset(
    {
        "CATCHUP_SNAPSHOTS",
        "FETCH_SNAPSHOT",
        "INTERNAL_BATCH",
        "LIST_SNAPSHOTS",
        "RAFT_APPLY",
        "REPLICATE_MESSAGE",
        "REPLICATE_SNAPSHOT",
    }
)
NOT_SERVED: Final = TRANSACTIONS | EVENT_STREAMS | CLUSTER | INTERNAL | {"AUTH"}
SERVED: Final = frozenset(
    {
        "BATCH_COMMIT",
        "COMMIT",
        "COMMIT_OFFSET",
        "CONSUME",
        "CREATE",
        "DELETE",
        "DESCRIBE",
        "EXIT",
        "FETCH_OFFSET",
        "FIND_COORDINATOR",
        "GROUP_STATUS",
        "HEARTBEAT",
        "HELP",
        "JOIN_GROUP",
        "LEAVE_GROUP",
        "LIST",
        "LIST_GROUPS",
        "LIST_OFFSETS",
        "METADATA",
        "NEGOTIATE",
        "PROTOCOL_INFO",
        "PUBLISH",
        "REGISTER_GROUP",
        "SETGROUP",
        "STREAM",
        "SUBSCRIBE",
        "SYNC_GROUP",
    }
)
KEYWORDS: Final = SERVED | NOT_SERVED

# Only these tell that the whole connection is of the third generation (4.34).
THIRD_GENERATION: Final = TRANSACTIONS | {"AUTH", "CLUSTER_STATUS", "LIST_OFFSETS", "NEGOTIATE", "PROTOCOL_INFO"}
