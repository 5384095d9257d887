"""The values that go into the metadata store and come out of it. Topic configuration passes through as JSON text: what
it means is the business of `topics/config.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from cursus_broker.log.epochs import Epochs


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """How far a group has read one partition."""

    next_offset: int
    """The next offset to read: one above the last record the group is done with."""
    metadata: str = ""
    commit_time_ms: int = 0
    leader_epoch: int | None = None
    """The epoch the offset stands in; None if it was committed before there were epochs."""
    truncated_from: int | None = None
    """What was committed before the log was cut below it, and the offset moved back to where the log ended; None if
    there was no cut since the last commit."""


@dataclass(frozen=True, slots=True)
class StoredTopic:
    name: str
    id: UUID
    """Tells a topic from a later one with the same name."""
    partitions: int
    config_json: str
    created_ms: int


@dataclass(frozen=True, slots=True)
class StoredGroup:
    name: str
    generation: int
    strategy: str
    """Empty while no member ever joined: the group only keeps offsets."""
    created_ms: int


class StoredProducer(NamedTuple):
    """What a partition knew of one producer; the packed parts are the business of `publish/remembered.py`."""

    id: bytes
    epoch: int
    next_sequence: int
    checksum: int | None
    next_offset: int
    """Behind the last of its batches that is covered here."""
    last_append_ms: int
    incomplete: bool
    recent: bytes
    seen: bytes
    released: bool = False
    """It is done, and only known to be kept out."""


@dataclass(frozen=True, slots=True)
class LedgerReach:
    """How far a saved ledger goes."""

    upto_offset: int
    """All batches below are covered; of single producers also later ones."""
    described_offset: int
    """No batch at or above is covered."""
    is_whole: bool
    """Nobody was ever forgotten."""


@dataclass(frozen=True, slots=True)
class LedgerChange:
    """What is new of a partition's producers, or a part of it: all of it is stored, or nothing."""

    producers: Sequence[StoredProducer]
    forgotten: Sequence[bytes]
    reach: LedgerReach


@dataclass(frozen=True, slots=True)
class StoredLedger:
    """What a partition knew of its producers when it was last saved."""

    reach: LedgerReach
    producers: Sequence[StoredProducer]
    """In the order of their last batches."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything the store holds, as read at start."""

    cluster_id: str
    incarnation: int
    """How often this data directory was opened, this time included."""
    topics: tuple[StoredTopic, ...]
    groups: tuple[StoredGroup, ...]
    offsets: Mapping[str, Mapping[TopicPartition, CommittedOffset]]
    """By group name."""
    epochs: Mapping[TopicPartition, Epochs] = field(default_factory=dict)
    """Without those partitions that have had none yet."""
