"""What the coordinator asks of others, and the values it answers with."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection
from dataclasses import dataclass
from typing import Protocol

from cursus_broker.groups.assignors import MemberId, Strategy
from cursus_broker.groups.offsets import OffsetStore
from cursus_broker.groups.state import Assignment
from cursus_broker.log.api import Offset
from cursus_broker.metadata.model import StoredGroup
from cursus_broker.metadata.store import Settled


class PartitionLog(Protocol):
    """A partition that is served, as commits see it. After its topic was deleted and created anew it is another."""

    @property
    def next_offset(self) -> Offset: ...

    @property
    def leader_epoch(self) -> int: ...

    def check_epoch(self, offset: int, epoch: int | None) -> None:
        """Raises LogTruncated if the log was cut below `offset` since it was reached in `epoch`. None: not checked."""

    def sync_soon(self, upto: Offset) -> asyncio.Future[None] | None:
        """As in `log/api.py`. Raises StorageFailed."""


class Topics(Protocol):
    """What the coordinator has to know of topics. Whoever keeps them calls `topic_changed` after every change."""

    def names(self) -> Collection[str]: ...

    def partition_count(self, topic: str) -> int | None:
        """None if there is no such topic."""

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """Earliest and next offset of a partition that exists."""

    def partition(self, topic: str, partition: int) -> PartitionLog:
        """Raises TopicNotFound, PartitionNotFound, PartitionDamaged."""


class GroupStore(OffsetStore, Protocol):
    """Where groups are durable; `metadata/store.py` keeps these promises."""

    def put_group(self, group: StoredGroup, settled: Settled | None = None) -> Awaitable[None]: ...

    def delete_group(self, name: str) -> Awaitable[None]: ...


@dataclass(frozen=True, slots=True)
class GroupLimits:
    max_groups: int = 10_000
    max_members: int = 1_000  # of one group
    max_metadata_bytes: int = 4_096  # of the text a client may leave with a committed offset


@dataclass(frozen=True, slots=True)
class Joined:
    member_id: MemberId
    generation: int
    strategy: Strategy
    assignment: Assignment
    """As it stood when the join took effect; what is granted may be read without a sync."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    generation: int
    must_sync: bool


@dataclass(frozen=True, slots=True)
class OffsetCommit:
    next_offset: int
    metadata: str = ""
    leader_epoch: int | None = None
    """The epoch in which the records before the offset were read; None is not checked."""
