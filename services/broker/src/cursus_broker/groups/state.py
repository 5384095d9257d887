"""What a consumer group is and how it changes: pure decisions, with `now_ms` passed in and effects handed back.

A rebalance sets a *target*: who is to read what in the new generation. A partition that changes hands stays *held* by
the member that has it until that member acknowledges the generation, goes away, or has had its rebalance timeout.
Only then it is granted to its target. So at every moment a partition has at most one holder.

Invariants, between any two calls:
    a partition in some member's `held` is in no other member's
    a partition with a target and without a holder does not exist
    `_handovers` has a deadline for exactly the held partitions whose target is not their holder
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from cursus_broker.errors import (
    CursusError,
    GenerationMismatch,
    InconsistentGroup,
    InvalidRequest,
    MemberFenced,
    MemberNotFound,
    NotOwner,
    ResourceLimit,
)
from cursus_broker.groups.assignors import ASSIGNORS, MemberId, Strategy
from cursus_broker.groups.members import NOTHING_SYNCED, JoinRequest, Member, Stream, Subscription
from cursus_broker.metadata.model import TopicPartition

MAX_FENCED: Final = 1_000
"""Members taken over that a group remembers to answer them precisely; older ones are merely not found."""


class GroupState(Enum):
    EMPTY = "Empty"
    STABLE = "Stable"
    REBALANCING = "Rebalancing"


class Fencing(Enum):
    """What a member must prove to commit for a partition."""

    GENERATION = "generation"
    """That it holds the partition. An old generation is fine while it does: its last progress before handing over."""
    OWNERSHIP = "ownership"
    """That it holds the partition or is to read it: for legacy members, which may not know their generation."""


@dataclass(frozen=True, slots=True)
class Effects:
    """What a change asks of the world outside."""

    generation_raised: bool
    woken: frozenset[MemberId]
    """Members whose partitions, generation or standing changed, those that are gone included."""
    expired: tuple[MemberId, ...] = ()
    """Members whose session ended."""
    seized: tuple[tuple[TopicPartition, MemberId], ...] = ()
    """Partitions taken from a member that did not hand them over in time."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a member may and must do in a generation."""

    generation: int
    granted: frozenset[TopicPartition]
    """To read, now."""
    revoked: frozenset[TopicPartition]
    """Still held, to be let go of; acknowledging the generation says that this is done."""
    awaited: frozenset[TopicPartition]
    """To be granted as soon as the members that hold them let go."""

    @property
    def complete(self) -> bool:
        return not self.revoked and not self.awaited


class Group:
    """A group's members and who reads what. Belongs to one coordinator, which is its only caller.

    `topics`, wherever it is asked for, is every topic there is with its number of partitions.
    """

    def __init__(
        self,
        name: str,
        *,
        generation: int = 0,
        strategy: Strategy | None = None,
        created_ms: int = 0,
        max_members: int = 1_000,
    ) -> None:
        self.name = name
        self.generation = generation
        self.strategy = strategy
        self.created_ms = created_ms
        self.members: dict[MemberId, Member] = {}
        self.targets: dict[TopicPartition, MemberId] = {}
        self.holders: dict[TopicPartition, MemberId] = {}
        self._max_members = max_members
        self._handovers: dict[TopicPartition, int] = {}
        self._instances: dict[str, MemberId] = {}
        self._fenced: OrderedDict[MemberId, str] = OrderedDict()
        self._partitions: dict[str, int] = {}
        self._raised = False
        self._woken: set[MemberId] = set()

    @property
    def state(self) -> GroupState:
        if not self.members:
            return GroupState.EMPTY
        settled = all(m.request.at_once or m.synced_generation == self.generation for m in self.members.values())
        return GroupState.STABLE if settled and not self._handovers else GroupState.REBALANCING

    def knows(self, member_id: MemberId) -> bool:
        """True for an id that is in use or was fenced: a new member must get another one."""
        return member_id in self.members or member_id in self._fenced

    def is_new(self, request: JoinRequest) -> bool:
        """True if joining adds a member, rather than confirming or replacing one."""
        return request.member_id not in self.members and request.instance_id not in self._instances

    def member(self, member_id: MemberId) -> Member:
        """Raises MemberFenced or MemberNotFound."""
        member = self.members.get(member_id)
        if member is not None:
            return member
        instance = self._fenced.get(member_id)
        if instance is not None:
            raise MemberFenced(self.name, member_id, instance)
        raise MemberNotFound(self.name, member_id)

    def join(
        self, request: JoinRequest, new_id: MemberId, topics: Mapping[str, int], now_ms: int
    ) -> tuple[Member, Effects]:
        """Add a member, let it take over its instance, or take note that it is still there. `new_id` is used where the
        request names no member.

        Raises MemberFenced, InconsistentGroup, InvalidRequest, ResourceLimit; the group is then unchanged.
        """
        known = self._known(request)
        if known is None and len(self.members) >= self._max_members:
            raise ResourceLimit(f"group {self.name!r} has {self._max_members} members, which is the limit")
        self._agree_on_strategy(request, alone=self.members.keys() <= {known.id if known else ""})
        member_id = request.member_id or new_id
        if known is None:
            member = Member(member_id, request, joined_ms=now_ms, deadline_ms=0)
            self.members[member_id] = member
            if request.instance_id:
                self._instances[request.instance_id] = member_id
            changed = True
        else:
            member = known
            changed = member.request.subscription != request.subscription
            if member.id != member_id:
                self._take_over(member, member_id)
            # Joining again without the instance id does not end being that instance.
            member.request = replace(request, instance_id=member.request.instance_id)
        self.refresh(member_id, now_ms)
        if changed:
            self._rebalance(topics, now_ms)
        if request.at_once:
            # It cannot acknowledge, and has nothing to: what it was to lose is already taken from it.
            member.synced_generation = self.generation
            self.note_told(member_id)
        return member, self._effects()

    def leave(self, member_id: MemberId, topics: Mapping[str, int], now_ms: int) -> Effects:
        """Raises MemberFenced, MemberNotFound."""
        self._remove(self.member(member_id))
        self._rebalance(topics, now_ms)
        return self._effects()

    def member_of_instance(self, instance_id: str) -> MemberId:
        """Raises MemberNotFound."""
        member_id = self._instances.get(instance_id)
        if member_id is None:
            raise MemberNotFound(self.name, instance_id)
        return member_id

    def refresh(self, member_id: MemberId, now_ms: int) -> Member:
        """The member was heard of: its session starts again. Raises MemberFenced, MemberNotFound."""
        member = self.member(member_id)
        member.deadline_ms = now_ms + member.request.session_timeout_ms
        return member

    def attach(self, member_id: MemberId, now_ms: int) -> Stream:
        """Keep the member alive until `detach`. Raises MemberFenced, MemberNotFound."""
        stream = Stream()
        self.refresh(member_id, now_ms).streams.add(stream)
        return stream

    def detach(self, member_id: MemberId, stream: Stream, now_ms: int) -> None:
        """The session timeout starts now. A member that is gone or fenced has nothing to detach from."""
        member = self.members.get(member_id)
        if member is not None and stream in member.streams:
            member.streams.remove(stream)
            self.refresh(member_id, now_ms)

    def acknowledge(self, member_id: MemberId, generation: int, now_ms: int) -> Effects:
        """The member has let go of everything that `generation` does not give it.

        Raises MemberFenced, MemberNotFound, GenerationMismatch if the group is in another generation.
        """
        member = self.refresh(member_id, now_ms)
        if generation != self.generation:
            raise GenerationMismatch(self.name, generation, self.generation)
        member.synced_generation = generation
        for partition in member.held - member.target:
            self._release(partition)
            self._grant_to_target(partition)
        return self._effects()

    def assignment(self, member_id: MemberId) -> Assignment:
        """How things stand for the member; changes nothing. Raises MemberFenced, MemberNotFound."""
        member = self.member(member_id)
        return Assignment(
            generation=self.generation,
            granted=frozenset(member.held & member.target),
            revoked=frozenset(member.held - member.target),
            awaited=frozenset(member.target - member.held),
        )

    def note_told(self, member_id: MemberId) -> None:
        """The member is being answered with its present assignment."""
        member = self.members[member_id]
        member.told = member.grants

    def must_sync(self, member_id: MemberId, generation: int) -> bool:
        """True if the member, which believes to be in `generation`, does not know its present assignment."""
        member = self.member(member_id)
        return not (generation == self.generation == member.synced_generation and member.told == member.grants)

    def refusal(
        self, member_id: MemberId, generation: int, partition: TopicPartition, fencing: Fencing
    ) -> CursusError | None:
        """Why this member may not commit for the partition; None if it may. An empty id is somebody outside the group,
        who may commit where no live member reads.
        """
        if not member_id:
            free = partition not in self.holders and partition not in self.targets
            return None if free else NotOwner(self.name, "", *partition, self.generation)
        member = self.members[member_id]
        if partition in member.held or (fencing is Fencing.OWNERSHIP and partition in member.target):
            return None
        if fencing is Fencing.GENERATION and generation != self.generation:
            return GenerationMismatch(self.name, generation, self.generation)
        return NotOwner(self.name, member_id, *partition, self.generation)

    def expire(self, topics: Mapping[str, int], now_ms: int) -> Effects:
        """Remove the members whose session is over, all in one generation; seize what was not handed over in time."""
        expired = [m for m in self.members.values() if not m.streams and m.deadline_ms <= now_ms]
        for member in expired:
            self._remove(member)
        if expired:
            self._rebalance(topics, now_ms)
        overdue = [(p, self.holders[p]) for p, deadline_ms in self._handovers.items() if deadline_ms <= now_ms]
        for partition, _ in overdue:
            self._release(partition)
            self._grant_to_target(partition)
        return self._effects(tuple(member.id for member in expired), tuple(overdue))

    def topics_changed(self, topics: Mapping[str, int], now_ms: int) -> Effects:
        """Topics came or went or grew. Raises the generation only if that concerns a member of this group."""
        # Nobody is to read these any more, so no rebalance would find them; a new topic of the name must start free.
        for partition in [p for p in self._handovers if p.partition >= topics.get(p.topic, 0)]:
            self._release(partition)
        resolved = self._resolve(topics)
        partitions = _wanted(resolved, topics)
        if partitions != self._partitions or any(m.topics != resolved[m.id] for m in self.members.values()):
            self._rebalance(topics, now_ms)
        return self._effects()

    def next_deadline_ms(self) -> int | None:
        """When `expire` has to be called at the latest, as things stand."""
        sessions = (member.deadline_ms for member in self.members.values() if not member.streams)
        return min((*sessions, *self._handovers.values()), default=None)

    def _known(self, request: JoinRequest) -> Member | None:
        """The member this request speaks for: itself, or the one whose instance it takes over."""
        if request.member_id in self._fenced:
            raise MemberFenced(self.name, request.member_id, self._fenced[request.member_id])
        member = self.members.get(request.member_id)
        if member is None:
            return self.members.get(self._instances.get(request.instance_id, ""))
        if request.instance_id and request.instance_id != member.request.instance_id:
            raise InvalidRequest(f"member {member.id!r} joined as instance {member.request.instance_id!r}")
        return member

    def _agree_on_strategy(self, request: JoinRequest, *, alone: bool) -> None:
        current = self.strategy or Strategy.MODULO
        if request.strategy not in (None, current) and not alone:
            raise InconsistentGroup(
                f"group {self.name!r} assigns by {current.value!r}, not {request.strategy!r}", strategy=current.value
            )
        self.strategy = request.strategy or current

    def _take_over(self, member: Member, new_id: MemberId) -> None:
        """A newer process steps into the member's place: same partitions, same generation, another id."""
        old_id = member.id
        del self.members[old_id]
        self._fenced[old_id] = member.request.instance_id
        while len(self._fenced) > MAX_FENCED:
            self._fenced.popitem(last=False)
        member.id = new_id
        member.streams.clear()
        member.synced_generation = NOTHING_SYNCED
        self.members[new_id] = member
        self._instances[member.request.instance_id] = new_id
        self.targets.update(dict.fromkeys(member.target, new_id))
        self.holders.update(dict.fromkeys(member.held, new_id))
        self._woken |= {old_id, new_id}

    def _remove(self, member: Member) -> None:
        for partition in tuple(member.held):
            self._release(partition)
        del self.members[member.id]
        self._instances.pop(member.request.instance_id, None)
        self._woken.add(member.id)

    def _resolve(self, topics: Mapping[str, int]) -> dict[MemberId, frozenset[str]]:
        # Members of a group mostly subscribe alike, and matching a pattern against thousands of names is not free.
        resolved: dict[Subscription, frozenset[str]] = {}
        for member in self.members.values():
            subscription = member.request.subscription
            if subscription not in resolved:
                resolved[subscription] = subscription.resolve(topics)
        return {member.id: resolved[member.request.subscription] for member in self.members.values()}

    def _rebalance(self, topics: Mapping[str, int], now_ms: int) -> None:
        self.generation += 1
        self._raised = True
        self._woken.update(self.members)
        resolved = self._resolve(topics)
        self._partitions = _wanted(resolved, topics)
        members = {member.sort_key: member for member in self.members.values()}
        owners = ASSIGNORS[self.strategy or Strategy.MODULO](
            {key: resolved[member.id] for key, member in members.items()},
            self._partitions,
            {p: self.members[owner].sort_key for p, owner in self.targets.items() if owner in self.members},
        )
        self.targets = {partition: members[key].id for partition, key in owners.items()}
        for member in self.members.values():
            member.topics = resolved[member.id]
            member.target = set()
        for partition, owner in self.targets.items():
            self.members[owner].target.add(partition)
        self._start_handovers(topics, now_ms)

    def _start_handovers(self, topics: Mapping[str, int], now_ms: int) -> None:
        for partition, holder_id in tuple(self.holders.items()):
            target_id = self.targets.get(partition)
            if target_id == holder_id:
                self._handovers.pop(partition, None)
                continue
            holder = self.members[holder_id]
            exists = partition.partition < topics.get(partition.topic, 0)
            taken_at_once = target_id is not None and self.members[target_id].request.at_once
            if not exists or taken_at_once or holder.request.at_once:
                self._release(partition)
            else:
                # A handover that began in an earlier generation keeps its deadline: churn must not prolong it.
                self._handovers.setdefault(partition, now_ms + holder.request.rebalance_timeout_ms)
        for partition in self.targets.keys() - self.holders.keys():
            self._grant_to_target(partition)

    def _grant_to_target(self, partition: TopicPartition) -> None:
        target_id = self.targets.get(partition)
        if target_id is not None:
            member = self.members[target_id]
            member.held.add(partition)
            member.grants += 1
            self.holders[partition] = target_id
            self._woken.add(target_id)

    def _release(self, partition: TopicPartition) -> None:
        member = self.members[self.holders.pop(partition)]
        member.held.remove(partition)
        member.grants += 1
        self._handovers.pop(partition, None)
        self._woken.add(member.id)

    def _effects(
        self,
        expired: tuple[MemberId, ...] = (),
        seized: tuple[tuple[TopicPartition, MemberId], ...] = (),
    ) -> Effects:
        effects = Effects(self._raised, frozenset(self._woken), expired, seized)
        self._raised = False
        self._woken.clear()
        return effects


def _wanted(resolved: Mapping[MemberId, frozenset[str]], topics: Mapping[str, int]) -> dict[str, int]:
    return {topic: topics[topic] for topic in frozenset().union(*resolved.values())}
