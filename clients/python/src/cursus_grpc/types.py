"""The plain values that go in and out of the clients. No protobuf shows through here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal, NamedTuple

Headers = Mapping[str, bytes | str | None] | Sequence[tuple[str, bytes | str | None]]
"""Names and values: a mapping, or pairs, in which a name may repeat. A value may be null."""

Acks = Literal[0, 1, "all"]
"""When a record is acknowledged: accepted in memory, written (survives a killed broker), synced (and power loss)."""

Compression = Literal["none", "gzip", "zstd", "lz4", "snappy"]

Reset = Literal["earliest", "latest", "error"]
"""Where to begin in a partition without a usable offset."""

Strategy = Literal["modulo", "range", "sticky"]


class TopicPartition(NamedTuple):
    """Names one partition."""

    topic: str
    partition: int


class RecordMetadata(NamedTuple):
    """Where a record was stored. `timestamp_ms` is the broker's append time."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


class ProducerStatistics(NamedTuple):
    """What a producer has done since it began, and what it holds."""

    records_stored: int
    bytes_stored: int
    """Of encoded records, before compression."""
    batches_stored: int
    records_failed: int
    batches_resent: int
    batches_in_flight: int
    """Sent and not answered."""
    buffered_bytes: int
    """Of records that are not settled yet."""


class PartitionProgress(NamedTuple):
    """How far a consumer is in a partition."""

    position: int | None
    """The offset of the next record to be handed out; None: not known yet."""
    end_offset: int | None
    """The offset that the next record stored will get, as of the last response; None: none came yet."""

    @property
    def lag(self) -> int | None:
        """Records between the two."""
        return None if self.position is None or self.end_offset is None else max(0, self.end_offset - self.position)


class ConsumerStatistics(NamedTuple):
    """What a consumer has received since it began, and how far it is."""

    records_received: int
    bytes_received: int
    """Of record sets, as they came."""
    bytes_held: int
    """Received and not handed out yet."""
    partitions: Mapping[TopicPartition, PartitionProgress]


class Subscription(NamedTuple):
    """What a consumer subscribed to."""

    topics: frozenset[str]
    pattern: str
    """Of further topics' names; empty: none."""


class Edge(Enum):
    """The ends of a log."""

    BEGINNING = "beginning"
    """The first retained offset."""
    END = "end"
    """The offset the next record will get."""


@dataclass(frozen=True, slots=True)
class Timestamp:
    """The first record whose batch was appended at or after this time; the end of the log if there is none."""

    ms: int


Place = int | Edge | Timestamp
"""A place in a partition: an offset, an edge or a time."""

BEGINNING = Edge.BEGINNING
END = Edge.END


@dataclass(frozen=True, slots=True)
class TLS:
    """How to speak TLS. Certificates and keys are PEM bytes or the path of a PEM file."""

    ca: bytes | str | None = None
    """Authorities to trust. None: the ones gRPC brings along."""
    cert: bytes | str | None = None
    """The client's certificate chain, for mutual TLS."""
    key: bytes | str | None = None
    """The private key of `cert`."""
    server_name: str | None = None
    """The name to expect in the broker's certificate, where it is not the one dialled."""

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            raise ValueError("mutual TLS needs both cert and key")


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """How a topic deviates from the broker's defaults. None: the default."""

    retention_ms: int | None = None
    """Delete segments whose newest record is older. -1: keep for ever."""
    retention_bytes: int | None = None
    """Delete the oldest segments of a partition that is larger. -1: no limit."""
    segment_bytes: int | None = None
    segment_ms: int | None = None
    content_deduplication: bool | None = None
    """Recognise repeated anonymous single records by their content."""
    min_value_bytes: int | None = None
    """A null has no size and is taken."""
    max_value_bytes: int | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    """Notes of applications; the broker does not read them."""


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic. `topic_id` tells it from an earlier one of the same name."""

    name: str
    partition_count: int
    config: TopicConfig
    created_ms: int
    topic_id: str


@dataclass(frozen=True, slots=True)
class RecoveryCut:
    """The torn end of a log, cut off when it was opened: the log goes on from `offset`, and at least `record_count`
    records are gone."""

    offset: int
    record_count: int
    bytes: int
    cause: str


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """The state of a partition. `damage` and `refusal` say what is wrong: with its files, and why nothing can be
    published; both are empty if nothing is."""

    partition: int
    earliest_offset: int
    next_offset: int
    synced_offset: int
    size_bytes: int
    segment_count: int
    damage: str
    refusal: str = ""
    recovery_cut: RecoveryCut | None = None


@dataclass(frozen=True, slots=True)
class TopicDescription:
    topic: TopicInfo
    partitions: tuple[PartitionInfo, ...]
    effective_config: TopicConfig | None = None
    """What holds for the topic, the broker's defaults included; None within it: no bound. None as a whole: the broker
    is too old to say."""


class ListedOffset(NamedTuple):
    """An offset looked up by place. `append_time_ms` is None at the end of the log."""

    partition: int
    offset: int
    append_time_ms: int | None
    earliest_offset: int
    next_offset: int
    leader_epoch: int
    """The epoch the partition is in: kept with the offset, it lets the broker tell whether power loss or damage has cut
    the log below it since."""
    synced_offset: int
    """Everything below survives power loss."""


class ProducerState(NamedTuple):
    """What a partition has stored of a producer."""

    epoch: int
    next_sequence: int
    """Behind the last record of this epoch. 0 for a producer whose sequences are windowed."""
    checksum: int | None
    """Of all batches of this epoch up to next_sequence, as `cursus_proto.chain` computes it; None: not known."""
    last_append_time_ms: int
    incomplete: bool
    """Whether more may have been stored behind next_sequence and removed before the broker had counted it. The producer
    can go on only in a higher epoch."""


class OffsetAndMetadata(NamedTuple):
    """An offset to commit, the next one to read, with a note of the application's. `leader_epoch` is the epoch that the
    records before it were read in; None: not known, and not checked."""

    offset: int
    metadata: str = ""
    leader_epoch: int | None = None


Start = Place | OffsetAndMetadata
"""Where a consumer begins: a place, or an offset with the epoch it is from."""


class CommittedOffset(NamedTuple):
    """What a group has committed. `offset` is None if nothing was."""

    offset: int | None
    metadata: str
    commit_time_ms: int
    leader_epoch: int | None = None
    """The epoch the offset stands in."""
    truncated_from: int | None = None
    """What was committed when power loss or damage cut the log below it; `offset` is then where the log ended. Kept
    until the next commit or reset."""


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """A group in a list. `state` is `empty`, `stable` or `rebalancing`; `strategy` is None if nobody ever joined, and
    the group only keeps offsets."""

    name: str
    state: str
    member_count: int
    generation: int
    strategy: Strategy | None


@dataclass(frozen=True, slots=True)
class GroupMember:
    member_id: str
    instance_id: str
    client_id: str
    peer: str
    topics: tuple[str, ...]
    topic_pattern: str
    partitions: tuple[TopicPartition, ...]
    session_timeout_ms: int
    synced: bool
    joined_ms: int
    last_heartbeat_ms: int
    """Its last sign of life, in milliseconds since 1970; now, for a member with an open stream."""


@dataclass(frozen=True, slots=True)
class GroupPartition:
    """How far a group has come in a partition. `member_id` is empty without an owner; `truncated_from` is as in
    CommittedOffset."""

    partition: TopicPartition
    member_id: str
    committed_offset: int | None
    earliest_offset: int
    next_offset: int
    lag_records: int
    lag_seconds: float
    metadata: str
    truncated_from: int | None


@dataclass(frozen=True, slots=True)
class GroupDescription:
    summary: GroupSummary
    members: tuple[GroupMember, ...]
    partitions: tuple[GroupPartition, ...]
    rebalanced_ms: int | None
    """When the generation was raised last; None if that was before the broker started."""


class OffsetChange(NamedTuple):
    """One moved offset. `before` is None if nothing was committed."""

    partition: TopicPartition
    before: int | None
    after: int


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    broker_id: int
    host: str
    port: int

    @property
    def target(self) -> str:
        """HOST:PORT as gRPC takes it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class PartitionLeader:
    partition: int
    leader_id: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class TopicLeaders:
    name: str
    topic_id: str
    partitions: tuple[PartitionLeader, ...]


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """The brokers, and who leads what."""

    cluster_id: str
    brokers: tuple[BrokerAddress, ...]
    topics: tuple[TopicLeaders, ...]


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    """The answering broker about itself."""

    version: str
    broker_id: int
    cluster_id: str
    started_ms: int
    now_ms: int
    max_batch_bytes: int
    topic_count: int
    partition_count: int
    disk_free_bytes: int
    disk_total_bytes: int
    log_bytes: int
    disk_full: bool = False
