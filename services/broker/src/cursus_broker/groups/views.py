"""What one may ask to see of a group."""

from __future__ import annotations

from dataclasses import dataclass

from cursus_broker.groups.assignors import MemberId, Strategy
from cursus_broker.groups.members import Member, Subscription
from cursus_broker.groups.state import Group, GroupState
from cursus_broker.metadata.model import CommittedOffset, TopicPartition


@dataclass(frozen=True, slots=True)
class GroupSummary:
    name: str
    state: GroupState
    generation: int
    strategy: Strategy | None
    """None if nobody ever joined: the group only keeps offsets."""
    members: int


@dataclass(frozen=True, slots=True)
class MemberView:
    id: MemberId
    instance_id: str
    client_id: str
    host: str
    subscription: Subscription
    granted: frozenset[TopicPartition]
    """What the member holds, including what it is about to hand over."""
    session_timeout_ms: int
    synced: bool
    """True if it has acknowledged what it is to read in the current generation."""
    joined_ms: int
    heard_ms: int
    """When it gave its last sign of life; now, while it has an open stream. As all times here, since 1970."""


@dataclass(frozen=True, slots=True)
class OffsetView:
    """How far the group has read one partition, and how far the partition goes."""

    committed: CommittedOffset | None
    """None for a partition that a member reads and nobody committed yet."""
    owner: MemberId
    """Empty if no live member is to read it."""
    earliest_offset: int
    log_next_offset: int

    @property
    def lag_records(self) -> int:
        """Records the group has not read yet and still can: what retention took is not waited for."""
        read_up_to = max(self.committed.next_offset if self.committed else 0, self.earliest_offset)
        return max(0, self.log_next_offset - read_up_to)


@dataclass(frozen=True, slots=True)
class GroupDescription:
    summary: GroupSummary
    members: tuple[MemberView, ...]
    offsets: dict[TopicPartition, OffsetView]
    rebalanced_ms: int | None
    """None: not since the broker started."""


@dataclass(frozen=True, slots=True)
class Clock:
    """This moment on both clocks: the one sessions are measured with, which never jumps, and the one people read."""

    now_ms: int
    time_ms: int

    def since_1970(self, moment_ms: int) -> int:
        """A moment of the first clock on the second."""
        return self.time_ms - (self.now_ms - moment_ms)


def summarize(group: Group) -> GroupSummary:
    return GroupSummary(group.name, group.state, group.generation, group.strategy, len(group.members))


def describe_member(group: Group, member: Member, clock: Clock) -> MemberView:
    return MemberView(
        id=member.id,
        instance_id=member.request.instance_id,
        client_id=member.request.client_id,
        host=member.request.host,
        subscription=member.request.subscription,
        granted=frozenset(member.held),
        session_timeout_ms=member.request.session_timeout_ms,
        synced=member.is_synced,
        joined_ms=clock.since_1970(member.joined_ms),
        heard_ms=clock.time_ms if member.streams else clock.since_1970(member.heard_ms),
    )
