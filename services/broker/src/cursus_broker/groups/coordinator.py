"""The group coordinator: the shell around `state.Group`, with a clock, the store and the wake-ups.

State changes happen without an await in between, so a caller that goes away leaves no half a change. A generation is
durable before anybody is told of it, an offset before its commit is answered.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import structlog

from cursus_broker.errors import (
    CursusError,
    GenerationMismatch,
    GroupNotEmpty,
    ResourceLimit,
    StorageFailed,
)
from cursus_broker.groups.api import GroupLimits, GroupStore, Heartbeat, Joined, Topics
from cursus_broker.groups.assignors import MemberId
from cursus_broker.groups.commits import Commits
from cursus_broker.groups.deadlines import DeadlineQueue
from cursus_broker.groups.entry import GroupEntry, GroupTable
from cursus_broker.groups.interest import Interest
from cursus_broker.groups.members import JoinRequest, Stream
from cursus_broker.groups.plan import Tempo
from cursus_broker.groups.rebalancer import Rebalancer
from cursus_broker.groups.state import Assignment, Effects, Group
from cursus_broker.groups.truncation import Truncation
from cursus_broker.groups.views import Clock, GroupDescription, GroupSummary, OffsetView, describe_member, summarize
from cursus_broker.groups.watch import GroupWatch
from cursus_broker.metadata.model import Snapshot, TopicPartition

log = structlog.get_logger(__name__)

MAX_SYNC_WAIT_MS: Final = 60_000
MAX_ID_DRAWS: Final = 16
MAX_ID_PREFIX_CHARS: Final = 200  # leaves room for the token within the bounds of a member id


def monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


class GroupCoordinator:
    """All consumer groups of the broker. Lives on one event loop; `run` must run for sessions to end."""

    def __init__(
        self,
        store: GroupStore,
        topics: Topics,
        snapshot: Snapshot,
        *,
        limits: GroupLimits | None = None,
        tempo: Tempo | None = None,
        now_ms: Callable[[], int] = monotonic_ms,
        time_ms: Callable[[], int] = wall_ms,
        new_token: Callable[[], str] = lambda: secrets.token_hex(4),
    ) -> None:
        """Groups come back from the snapshot with generation and offsets, and without members: those join again."""
        self._store = store
        self._topics = topics
        self._limits = limits or GroupLimits()
        self._now_ms = now_ms
        self._time_ms = time_ms
        self._new_token = new_token
        tempo = tempo or Tempo()
        self._groups = GroupTable(store, self._limits, snapshot, tempo)
        self.rebalancer = Rebalancer(tempo, now_ms, self._planned)
        self._deadlines = DeadlineQueue()
        self._deadline_moved = asyncio.Event()
        self._counts = self._topic_counts()
        self._interest = Interest()
        # Offsets: what these promise is said in `commits.py` and `truncation.py`.
        commits = Commits(self._groups, topics, self._limits, now_ms, time_ms)
        self.commit = commits.commit
        self.fetch_offsets = commits.fetch
        self.reset_offsets = commits.reset
        self._truncation = Truncation(self._groups, topics)
        self.partitions_opened = self._truncation.partitions_opened

    # Membership

    async def join(self, request: JoinRequest) -> Joined:
        """Become a member, take over an instance, or say that nothing changed.

        Raises InvalidRequest, InconsistentGroup, MemberFenced, ResourceLimit, StorageFailed.
        """
        request.validate()
        entry = self._groups.get_or_new(request.group, self._time_ms())
        group = entry.group
        newcomer = group.is_new(request)
        strategy_before = group.strategy
        member, effects = group.join(request, self._new_id(group, request), self._counts, self._now_ms())
        self._groups.keep(entry)
        if group.strategy is not strategy_before:
            entry.row.changed()
        self._interest.add(group.name, request.subscription)
        member_id = member.id
        self._apply(entry, effects, "a member joined" if newcomer else "a member came back otherwise", member_id)
        if not group.is_settled(member_id):
            await self._settled(entry, member_id, newcomer)
        assert group.strategy is not None, "joining decides it"
        joined = Joined(member_id, group.generation, group.strategy, group.assignment(member_id))
        try:
            await entry.row.durable()
        except CursusError:
            if newcomer and joined.member_id in group.members:
                # Nobody will ever speak for this member: the caller does not learn its id.
                left = group.leave(joined.member_id, self._counts, self._now_ms())
                self._apply(entry, left, "a member could not be stored", joined.member_id)
            raise
        return joined

    async def sync(self, group: str, member_id: MemberId, generation: int, max_wait_ms: int) -> Assignment:
        """Acknowledge `generation`, which says that the member let go of everything it does not get in it, and wait up
        to `max_wait_ms` (bounded to a minute) until all of it is granted. Waiting keeps the session alive.

        Raises MemberNotFound, MemberFenced, StorageFailed; GenerationMismatch also if the group moves on while waiting.
        """
        entry = self._groups.of_member(group, member_id)
        state = entry.group
        deadline = asyncio.get_running_loop().time() + min(max(max_wait_ms, 0), MAX_SYNC_WAIT_MS) / 1000
        self._apply(entry, state.acknowledge(member_id, generation, self._now_ms()), "a member let go", member_id)
        watch = self.watch(group, member_id)
        with self.attached(group, member_id):
            await entry.row.durable()
            while not (assignment := self._in_generation(state, member_id, generation)).complete:
                if not await watch.changed(deadline):
                    break
        state.note_told(member_id)
        return assignment

    async def heartbeat(self, group: str, member_id: MemberId, generation: int) -> Heartbeat:
        """Keep the session alive. An old generation is no error, only a reason to sync.

        Raises MemberNotFound, MemberFenced, StorageFailed.
        """
        entry = self._groups.of_member(group, member_id)
        entry.group.refresh(member_id, self._now_ms())
        answer = Heartbeat(entry.group.generation, entry.group.must_sync(member_id, generation))
        await entry.row.durable()
        return answer

    async def acknowledge(self, group: str, member_id: MemberId, generation: int) -> None:
        """As `sync` without waiting, for a member that is told of every change of what it is to read: it may name the
        last generation that it was told of.

        Raises MemberNotFound, MemberFenced, StorageFailed; GenerationMismatch if it is to read something else since.
        """
        entry = self._groups.of_member(group, member_id)
        let_go = entry.group.acknowledge(member_id, generation, self._now_ms(), unchanged_since=True)
        self._apply(entry, let_go, "a member let go", member_id)
        entry.group.note_told(member_id)
        await entry.row.durable()

    def refresh(self, group: str, member_id: MemberId) -> None:
        """Count a call that names the member as a sign of life. Raises MemberNotFound, MemberFenced."""
        self._groups.of_member(group, member_id).group.refresh(member_id, self._now_ms())

    async def leave(self, group: str, member_id: MemberId = "", *, instance_id: str = "") -> None:
        """Remove the member, or the one that runs as `instance_id`.

        Raises MemberNotFound, MemberFenced, StorageFailed.
        """
        entry = self._groups.of_member(group, member_id or instance_id)
        leaving = member_id or entry.group.member_of_instance(instance_id)
        self._apply(entry, entry.group.leave(leaving, self._counts, self._now_ms()), "a member left", leaving)
        await entry.row.durable()

    def assignment(self, group: str, member_id: MemberId) -> Assignment:
        """How things stand for the member, without acknowledging anything. Raises MemberNotFound, MemberFenced."""
        return self._groups.of_member(group, member_id).group.assignment(member_id)

    def watch(self, group: str, member_id: MemberId) -> GroupWatch:
        """Observe the member from now on. Raises MemberNotFound, MemberFenced."""
        entry = self._groups.of_member(group, member_id)
        entry.group.member(member_id)
        return GroupWatch(entry.signal(member_id))

    @contextmanager
    def attached(self, group: str, member_id: MemberId) -> Iterator[None]:
        """Keep the member alive while a stream of it is open; its session timeout starts when the last one ends.

        Raises MemberNotFound, MemberFenced, on entering only.
        """
        stream = self.attach(group, member_id)
        try:
            yield
        finally:
            self.detach(group, member_id, stream)

    def attach(self, group: str, member_id: MemberId) -> Stream:
        """For callers that cannot use `attached`. Raises MemberNotFound, MemberFenced."""
        return self._groups.of_member(group, member_id).group.attach(member_id, self._now_ms())

    def detach(self, group: str, member_id: MemberId, stream: Stream) -> None:
        """End what `attach` began. Fine for a member that is gone."""
        entry = self._groups.get(group)
        if entry is not None:
            entry.group.detach(member_id, stream, self._now_ms())
            self._schedule(entry)

    # Looking and deleting

    @property
    def truncated_offsets(self) -> int:
        """Committed offsets that were moved back because their log had lost what they stood for."""
        return self._truncation.moved_offsets

    def list_groups(self) -> list[GroupSummary]:
        return sorted((summarize(entry.group) for entry in self._groups), key=lambda one: one.name)

    def describe(self, group: str) -> GroupDescription:
        """Raises GroupNotFound."""
        entry = self._groups.existing(group)
        state, committed = entry.group, entry.offsets.committed
        offsets: dict[TopicPartition, OffsetView] = {}
        for partition in sorted(committed.keys() | state.targets.keys()):
            if partition.partition < (self._topics.partition_count(partition.topic) or 0):
                earliest, log_next = self._topics.bounds(*partition)
                owner = state.targets.get(partition, "")
                offsets[partition] = OffsetView(committed.get(partition), owner, earliest, log_next)
        clock = Clock(self._now_ms(), self._time_ms())
        members = tuple(describe_member(state, state.members[member_id], clock) for member_id in sorted(state.members))
        rebalanced_ms = None if state.rebalanced_ms is None else clock.since_1970(state.rebalanced_ms)
        return GroupDescription(summarize(state), members, offsets, rebalanced_ms)

    async def delete_group(self, group: str) -> None:
        """Forget the group and its offsets. Raises GroupNotFound, GroupNotEmpty, StorageFailed."""
        entry = self._groups.existing(group)
        if entry.group.members:
            raise GroupNotEmpty(group, len(entry.group.members))
        deleted = self._store.delete_group(group)
        # Gone from here on: whoever joins while the disk works makes a new group, stored after the deletion.
        self._groups.remove(group)
        try:
            await deleted
        except StorageFailed:
            self._groups.keep(entry)
            raise
        log.info("groups.deleted", group=group)

    # Changes from outside

    def topic_changed(self, topic: str) -> None:
        """The topic was created, deleted or given more partitions: call after each single change."""
        count = self._topics.partition_count(topic)
        counts = {**self._counts, topic: count or 0}
        if not count:
            del counts[topic]
        self._counts = counts
        # A member may still hold partitions of a topic that it does not subscribe to any more, and a group has offsets
        # of topics that nobody reads: a deletion concerns them all.
        names = self._interest.in_topic(topic) if count else [entry.group.name for entry in self._groups]
        now_ms = self._now_ms()
        for name in names:
            entry = self._groups.get(name)
            if entry is None:
                continue
            if not count:
                entry.offsets.forget_topics({topic})
            if entry.group.members:
                self._apply(entry, entry.group.topics_changed(counts, now_ms), "topics or partitions changed")

    async def run(self) -> None:
        """End sessions and overdue handovers when their time comes. Runs until cancelled."""
        while True:
            self._deadline_moved.clear()
            next_ms = self.expire_due()
            if self.rebalancer.is_due:
                await self.rebalance_due()
                continue
            delay = None if next_ms is None else max(0, next_ms - self._now_ms()) / 1000
            try:
                async with asyncio.timeout(delay):
                    await self._deadline_moved.wait()
            except TimeoutError:
                continue

    async def rebalance_due(self) -> None:
        """Rebalance the groups that `expire_due` found to be due."""
        await self.rebalancer.run(lambda: self._counts)

    def expire_due(self) -> int | None:
        """End what is over now, note who is due for a rebalance, and answer when to look again (None: when something
        has changed)."""
        now_ms = self._now_ms()
        for name in self._deadlines.take_due(now_ms):
            entry = self._groups.get(name)
            if entry is not None:
                effects = entry.group.expire(self._counts, now_ms)
                self._apply(entry, effects, _why_expired(effects) or entry.due_reason)
                self.rebalancer.note(entry, now_ms)
                if (next_ms := entry.group.next_deadline_ms()) is not None:
                    self._deadlines.require(name, next_ms)
                for member_id in effects.expired:
                    log.info("groups.member.expired", group=name, member=member_id)
                for partition, member_id in effects.seized:
                    log.warning("groups.partition.seized", group=name, member=member_id, partition=str(partition))
        return self._deadlines.next_ms()

    # Inside

    def _topic_counts(self) -> dict[str, int]:
        counts = ((name, self._topics.partition_count(name)) for name in self._topics.names())
        return {name: count for name, count in counts if count}

    def _new_id(self, group: Group, request: JoinRequest) -> MemberId:
        prefix = "".join(request.client_id.split())[:MAX_ID_PREFIX_CHARS] or "member"
        for _ in range(MAX_ID_DRAWS):
            if not group.knows(member_id := f"{prefix}-{self._new_token()}"):
                return member_id
        raise ResourceLimit(f"no free member id was found for group {group.name!r}")

    def _in_generation(self, group: Group, member_id: MemberId, generation: int) -> Assignment:
        assignment = group.assignment(member_id)
        if assignment.generation != generation:
            raise GenerationMismatch(group.name, generation, assignment.generation)
        return assignment

    def _apply(self, entry: GroupEntry, effects: Effects, reason: str, member_id: MemberId = "") -> None:
        """`reason` is why the group changed, for operators who wonder about its rebalances."""
        if effects.generation_raised:
            self._rebalanced(entry, reason, member_id)
        elif entry.group.due_ms is not None:
            entry.due_reason = reason
        for member_id in effects.woken:
            entry.wake(member_id)
        self._schedule(entry)

    def _rebalanced(self, entry: GroupEntry, reason: str, member_id: MemberId = "") -> None:
        group = entry.group
        entry.row.changed()
        self._interest.update(group)
        log.info(
            "groups.rebalanced",
            group=group.name,
            generation=group.generation,
            reason=reason,
            members=len(group.members),
            **({"member": member_id} if member_id else {}),
        )

    def _planned(self, entry: GroupEntry) -> None:
        """A plan was applied. Of all that has called for it the last is told."""
        self._rebalanced(entry, entry.due_reason)
        self._schedule(entry)

    async def _settled(self, entry: GroupEntry, member_id: MemberId, newcomer: bool) -> None:
        """Wait until the member has its part in an assignment. Raises MemberFenced, MemberNotFound."""
        watch = GroupWatch(entry.signal(member_id))
        stream = entry.group.attach(member_id, self._now_ms())
        try:
            while not entry.group.is_settled(member_id):
                await watch.changed(None)
        except asyncio.CancelledError:
            if newcomer and member_id in entry.group.members and not entry.group.is_settled(member_id):
                # It has nothing yet, and the caller may not even know its id.
                left = entry.group.leave(member_id, self._counts, self._now_ms())
                self._apply(entry, left, "a member went before it was served", member_id)
            raise
        finally:
            entry.group.detach(member_id, stream, self._now_ms())
            self._schedule(entry)
        entry.group.note_joined(member_id)

    def _schedule(self, entry: GroupEntry) -> None:
        deadline_ms = entry.group.take_deadline_ms()
        if deadline_ms is not None and self._deadlines.require(entry.group.name, deadline_ms):
            self._deadline_moved.set()


def _why_expired(effects: Effects) -> str:
    """Why time has changed the group; empty if it has not."""
    if effects.expired:
        return "sessions timed out"
    return "a handover was overdue" if effects.seized else ""
