"""What a consumer group is and how it changes: pure decisions, with `now_ms` passed in and effects handed back.

A rebalance sets a *target*: who is to read what in the new generation. A partition that changes hands stays *held* by
the member that has it until that member acknowledges the generation, goes away, or has had its rebalance timeout.
Only then it is granted to its target. So at every moment a partition has at most one holder.

What calls for a rebalance raises the *version* of the group. A small group is rebalanced within the same call. A large
one is *due* for a plan from `due_ms` on, and lives on as it is until the plan is applied; what members had that left,
and what topics had that are gone, is free at once. `settled_version` is the version that the last plan took in.

Invariants, between any two calls:
    a partition in some member's `held` is in no other member's
    a partition with a target and without a holder does not exist
    `_handovers` has a deadline for exactly the held partitions whose target is not their holder
    a partition that a member wants has a target, unless the group is due for a plan
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
from cursus_broker.groups.assignors import MemberId, Strategy, in_one_go
from cursus_broker.groups.members import NOTHING_SYNCED, JoinRequest, Member, Stream
from cursus_broker.groups.plan import MemberKey, Plan, Tempo
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
    since: int
    """The generation that last changed what the member is to read. One told and acknowledged since then is as good as
    the current one."""

    @property
    def complete(self) -> bool:
        return not self.revoked and not self.awaited

    def says_no_more_than(self, told: Assignment) -> bool:
        """True for a member that was told the other one and has nothing to do or to learn but a number."""
        return (self.since, self.granted, self.revoked, self.awaited) == (
            told.since,
            told.granted,
            told.revoked,
            told.awaited,
        )


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
        tempo: Tempo | None = None,
    ) -> None:
        self.name = name
        self.generation = generation
        self.strategy = strategy
        self.created_ms = created_ms
        self.rebalanced_ms: int | None = None
        """When the generation was raised last, in the clock of `now_ms`; None if that was in an earlier life."""
        self.members: dict[MemberId, Member] = {}
        self.targets: dict[TopicPartition, MemberId] = {}
        self.holders: dict[TopicPartition, MemberId] = {}
        self.version = 0
        self.settled_version = 0
        self.due_ms: int | None = None
        """When the group is to be planned anew; None if all is settled."""
        self._tempo = tempo or Tempo()
        self._rests_until_ms: int | None = None
        self._deadline_set_ms: int | None = None
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
        if self._handovers or self.due_ms is not None:
            return GroupState.REBALANCING
        synced = all(member.request.at_once or member.is_synced for member in self.members.values())
        return GroupState.STABLE if synced else GroupState.REBALANCING

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
            member = Member(member_id, request, joined_ms=now_ms, heard_ms=now_ms, deadline_ms=0)
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
        self._watch_deadline(self.refresh(member_id, now_ms).deadline_ms)
        if changed:
            self._changed(topics, now_ms)
            member.version = self.version
        if self.is_settled(member_id):
            self.note_joined(member_id)
        return member, self._effects()

    def is_settled(self, member_id: MemberId) -> bool:
        """True once what the member wants is taken into an assignment. Raises MemberFenced, MemberNotFound."""
        return self.member(member_id).version <= self.settled_version

    def note_joined(self, member_id: MemberId) -> None:
        """A settled member is being answered with its assignment."""
        member = self.members[member_id]
        if member.request.at_once:
            # It cannot acknowledge, and has nothing to: what it was to lose is already taken from it.
            member.synced_generation = self.generation
            self.note_told(member_id)

    def leave(self, member_id: MemberId, topics: Mapping[str, int], now_ms: int) -> Effects:
        """Raises MemberFenced, MemberNotFound."""
        self._remove(self.member(member_id))
        self._changed(topics, now_ms)
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
        member.heard_ms = now_ms
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
            self._watch_deadline(self.refresh(member_id, now_ms).deadline_ms)

    def acknowledge(
        self, member_id: MemberId, generation: int, now_ms: int, *, unchanged_since: bool = False
    ) -> Effects:
        """The member has let go of everything that `generation` does not give it. With `unchanged_since` that may be an
        earlier one, if the member is to read the same since then: it was not told of those that did not concern it.

        Raises MemberFenced, MemberNotFound, GenerationMismatch if the group is in another generation.
        """
        member = self.refresh(member_id, now_ms)
        oldest = member.target_generation if unchanged_since else self.generation
        if not oldest <= generation <= self.generation:
            raise GenerationMismatch(self.name, generation, self.generation)
        member.synced_generation = self.generation
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
            since=member.target_generation,
        )

    def note_told(self, member_id: MemberId) -> None:
        """The member is being answered with its present assignment."""
        member = self.members[member_id]
        member.told = member.grants

    def must_sync(self, member_id: MemberId, generation: int) -> bool:
        """True if the member, which believes to be in `generation`, does not know its present assignment."""
        member = self.member(member_id)
        return not (generation == self.generation == member.synced_generation and member.told == member.grants)

    def is_read(self, partition: TopicPartition) -> bool:
        """True if a live member reads the partition or is about to: what was left free belongs to one soon."""
        about_to = self.due_ms is not None and bool(self.members) and partition.topic in self._partitions
        return about_to or partition in self.holders or partition in self.targets

    def refusal(
        self, member_id: MemberId, generation: int, partition: TopicPartition, fencing: Fencing
    ) -> CursusError | None:
        """Why this member may not commit for the partition; None if it may. An empty id is somebody outside the group,
        who may commit where no live member reads.
        """
        if not member_id:
            return NotOwner(self.name, "", *partition, self.generation) if self.is_read(partition) else None
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
            self._changed(topics, now_ms)
        overdue = [(p, self.holders[p]) for p, deadline_ms in self._handovers.items() if deadline_ms <= now_ms]
        for partition, _ in overdue:
            self._release(partition)
            self._grant_to_target(partition)
        return self._effects(tuple(member.id for member in expired), tuple(overdue))

    def topics_changed(self, topics: Mapping[str, int], now_ms: int) -> Effects:
        """Topics came or went or grew. Raises the generation only if that concerns a member of this group."""
        # Free at once: a new topic of the name must find nobody who never asked for it.
        shrunk = {topic for topic, count in self._partitions.items() if topics.get(topic, 0) < count}
        shrunk.update(p.topic for p in self._handovers if p.partition >= topics.get(p.topic, 0))
        if shrunk:
            self._free_gone(shrunk, topics)
        if self.due_ms is not None or self._is_concerned(topics):
            self._changed(topics, now_ms)
        return self._effects()

    def next_deadline_ms(self) -> int | None:
        """When `expire` has to be called, or a plan made, at the latest, as things stand. Looks at everybody."""
        sessions = (member.deadline_ms for member in self.members.values() if not member.streams)
        due = () if self.due_ms is None else (self.due_ms,)
        return min((*sessions, *self._handovers.values(), *due), default=None)

    def take_deadline_ms(self) -> int | None:
        """The first deadline that was set since the last call. Those that moved away since are not missed: whoever
        comes by their old time finds nothing to do, and asks `next_deadline_ms`."""
        deadline_ms, self._deadline_set_ms = self._deadline_set_ms, None
        return deadline_ms

    def plan(self, topics: Mapping[str, int]) -> Plan:
        """Begin to work out the next assignment, from the group as it is now."""
        assert self.strategy is not None, "whoever joined first has decided it"
        return Plan(
            self.version,
            self.strategy,
            {member.sort_key: member.request.subscription for member in self.members.values()},
            dict(self.targets),
            {member.id: member.sort_key for member in self.members.values()},
            topics,
        )

    def apply(self, plan: Plan, topics: Mapping[str, int], now_ms: int) -> Effects:
        """Begin the generation that was planned. A plan that the group has left behind is applied as far as it holds:
        what it gives to somebody who is gone or wants something else, or of a topic that is gone, stays free, and the
        group is due again."""
        self._begin(plan, topics, now_ms)
        return self._effects()

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
        current = self.strategy or default_strategy(request)
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
        for partition in member.target:
            del self.targets[partition]
        for partition in tuple(member.held):
            self._release(partition)
            # Somebody else may be waiting for what it was still to hand over.
            self._grant_to_target(partition)
        del self.members[member.id]
        self._instances.pop(member.request.instance_id, None)
        self._woken.add(member.id)

    def _free_gone(self, topics_shrunk: set[str], topics: Mapping[str, int]) -> None:
        """Partitions that do not exist any more have neither target nor holder."""
        for partition in [p for p in self.targets if p.topic in topics_shrunk]:
            if partition.partition >= topics.get(partition.topic, 0):
                member = self.members[self.targets.pop(partition)]
                member.target.remove(partition)
                self._woken.add(member.id)
        for partition in [p for p in self.holders if p.topic in topics_shrunk]:
            if partition.partition >= topics.get(partition.topic, 0):
                self._release(partition)

    def _is_concerned(self, topics: Mapping[str, int]) -> bool:
        """True if the topics mean something else to a member than they did to the last plan."""
        if any(topics.get(topic) != count for topic, count in self._partitions.items()):
            return True
        alike = {member.request.subscription: member.topics for member in self.members.values()}
        return any(subscription.resolve(topics) != known for subscription, known in alike.items())

    def _changed(self, topics: Mapping[str, int], now_ms: int) -> None:
        """Something calls for a rebalance."""
        self.version += 1
        if self.due_ms is None:
            self.due_ms = now_ms if self._rests_until_ms is None else max(now_ms, self._rests_until_ms)
        if self._is_small(topics):
            plan = self.plan(topics)
            in_one_go(plan.work())
            self._begin(plan, topics, now_ms)
        else:
            self._watch_deadline(self.due_ms)

    def _is_small(self, topics: Mapping[str, int]) -> bool:
        """True if a rebalance is over at once. Finding that out is, too."""
        most = self._tempo.at_once_steps - len(self.members)
        if most < 0 or len(self.targets) > most:
            return False
        wanted: set[str] = set()
        for subscription in {member.request.subscription for member in self.members.values()}:
            if len(subscription.topics) > most or (subscription.pattern and len(topics) > most):
                return False
            wanted |= subscription.resolve(topics)
        return sum(topics[topic] for topic in wanted) <= most

    def _begin(self, plan: Plan, topics: Mapping[str, int], now_ms: int) -> None:
        self.generation += 1
        self.rebalanced_ms = now_ms
        self._raised = True
        self._woken.update(self.members)
        self.settled_version = plan.version
        self._partitions = plan.partitions
        self._rests_until_ms = now_ms + self._tempo.gather_ms(len(self.members) + sum(plan.partitions.values()))
        is_current = plan.version == self.version
        self.due_ms = None if is_current else self._rests_until_ms
        if self.due_ms is not None:
            self._watch_deadline(self.due_ms)
        members: dict[MemberKey | None, Member] = {}
        for member in self.members.values():
            if plan.subscriptions.get(member.sort_key) == member.request.subscription:
                members[member.sort_key] = member
                member.topics = plan.topics[member.sort_key]
                if not member.target_generation:
                    member.target_generation = self.generation
        for partition, key in plan.moves.items():
            exists = is_current or partition.partition < topics.get(partition.topic, 0)
            self._retarget(partition, members.get(key) if exists else None)
            self._start_handover(partition, now_ms)

    def _retarget(self, partition: TopicPartition, target: Member | None) -> None:
        before = self.targets.pop(partition, None)
        if before is not None:
            loser = self.members[before]
            loser.target.remove(partition)
            loser.target_generation = self.generation
        if target is not None:
            self.targets[partition] = target.id
            target.target.add(partition)
            target.target_generation = self.generation

    def _start_handover(self, partition: TopicPartition, now_ms: int) -> None:
        holder_id, target_id = self.holders.get(partition), self.targets.get(partition)
        if holder_id is None:
            self._grant_to_target(partition)
        elif holder_id == target_id:
            self._handovers.pop(partition, None)
        else:
            holder = self.members[holder_id]
            if holder.request.at_once or (target_id is not None and self.members[target_id].request.at_once):
                self._release(partition)
                self._grant_to_target(partition)
            elif partition not in self._handovers:
                # One that began in an earlier generation keeps its deadline: churn must not prolong it.
                self._handovers[partition] = deadline_ms = now_ms + holder.request.rebalance_timeout_ms
                self._watch_deadline(deadline_ms)

    def _watch_deadline(self, deadline_ms: int) -> None:
        if self._deadline_set_ms is None or deadline_ms < self._deadline_set_ms:
            self._deadline_set_ms = deadline_ms

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


def default_strategy(first: JoinRequest) -> Strategy:
    """How a new group shares its partitions if its first member names no strategy: moving none without need, which
    would cost everybody who reads it; but by `modulo`, as ever, in the groups of legacy members."""
    return Strategy.MODULO if first.at_once else Strategy.STICKY
