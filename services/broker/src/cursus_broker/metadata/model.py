"""The values that go into the metadata store and come out of it. Topic configuration passes through as JSON text: what
it means is the business of `topics/config.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID


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


@dataclass(frozen=True, slots=True)
class StoredLedger:
    """What a partition knew of its producers when its log ended at `upto_offset`."""

    upto_offset: int
    ledger: bytes


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
