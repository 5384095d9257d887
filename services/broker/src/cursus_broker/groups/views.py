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
    """True if it has acknowledged the current generation."""


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


def summarize(group: Group) -> GroupSummary:
    return GroupSummary(group.name, group.state, group.generation, group.strategy, len(group.members))


def describe_member(group: Group, member: Member) -> MemberView:
    return MemberView(
        id=member.id,
        instance_id=member.request.instance_id,
        client_id=member.request.client_id,
        host=member.request.host,
        subscription=member.request.subscription,
        granted=frozenset(member.held),
        session_timeout_ms=member.request.session_timeout_ms,
        synced=member.synced_generation == group.generation,
    )
