"""Group churn against a model: members join, leave, die, return, acknowledge and commit in any order."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cursus_broker.errors import GenerationMismatch, NotOwner, OffsetRegression
from cursus_broker.groups.api import OffsetCommit
from cursus_broker.groups.assignors import Strategy
from cursus_broker.groups.members import JoinRequest, Subscription
from cursus_broker.groups.state import Assignment, Fencing, GroupState
from cursus_broker.metadata.model import TopicPartition
from tests.unit.broker.groups.doubles import World

GROUP = "readers"
TOPICS = ("orders", "payments", "refunds")
SESSION_MS = 5_000
HANDOVER_MS = 2_000

T = TypeVar("T")
Shape = tuple[dict[str, frozenset[str]], dict[str, int]]
subscriptions = st.frozensets(st.sampled_from(TOPICS), min_size=1)


class GroupChurn(RuleBasedStateMachine):
    """The model knows who should be a member and what they asked for. Everything else is read through the coordinator's
    public methods and compared before and after each step.
    """

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.world = World({"orders": 3, "payments": 1})
        self.requests: dict[str, JoinRequest] = {}  # live members by id
        self.heard_ms: dict[str, int] = {}
        self.generation = 0
        self.shape = self._shape()
        self.held: dict[TopicPartition, str] = {}
        self.committed: dict[TopicPartition, int] = {}
        self.may_move: set[str] = set()
        self.agreed: Strategy | None = None
        self.names = iter(range(1_000_000))

    def teardown(self) -> None:
        self.loop.close()

    # Reading

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    def call(self, step: Callable[[], None]) -> None:
        """A plain call, made where the coordinator lives; writes nobody waits for settle before it returns."""

        async def work() -> None:
            step()
            await asyncio.sleep(0)

        self.run(work())

    def assignment(self, member_id: str) -> Assignment:
        return self.world.coordinator.assignment(GROUP, member_id)

    def held_now(self) -> dict[TopicPartition, str]:
        held: dict[TopicPartition, str] = {}
        for member_id in self.requests:
            assignment = self.assignment(member_id)
            for partition in assignment.granted | assignment.revoked:
                assert partition not in held, f"{partition} has two holders"
                held[partition] = member_id
        return held

    def _shape(self) -> Shape:
        """What the generation depends on: who wants what, and how many partitions that is."""
        members = {r.instance_id or m: r.subscription.topics for m, r in self.requests.items()}
        wanted = frozenset[str]().union(*members.values())
        return members, {t: n for t, n in self.world.topics.counts.items() if t in wanted}

    def pick(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from(sorted(self.requests)), label="member")

    def heard(self, member_id: str) -> None:
        self.heard_ms[member_id] = self.world.clock.now_ms

    # Steps

    @initialize(strategy=st.sampled_from((*Strategy, None)))
    def choose_strategy(self, strategy: Strategy | None) -> None:
        """None: nobody asks for one."""
        self.strategy = strategy

    def _join(self, topics: frozenset[str], instance_id: str, member_id: str, at_once: bool) -> str:
        request = JoinRequest(
            GROUP,
            Subscription(topics),
            member_id=member_id,
            instance_id=instance_id,
            strategy=self.strategy,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=HANDOVER_MS,
            at_once=at_once,
        )
        joined = self.run(self.world.coordinator.join(request)).member_id
        self.agreed = self.agreed or self.strategy or (Strategy.MODULO if at_once else Strategy.STICKY)
        self.requests[joined] = request
        self.heard(joined)
        return joined

    @precondition(lambda self: len(self.requests) < 6)
    @rule(topics=subscriptions, at_once=st.booleans())
    def join(self, topics: frozenset[str], at_once: bool) -> None:
        self._join(topics, "", "", at_once)

    @precondition(lambda self: len(self.requests) < 6)
    @rule(topics=subscriptions, instance=st.sampled_from(["i1", "i2"]))
    def start_instance(self, topics: frozenset[str], instance: str) -> None:
        """A static member comes for the first time, returns, or comes twice."""
        before = next((m for m, r in self.requests.items() if r.instance_id == instance), None)
        new_id = self._join(topics, instance, f"{instance}-run-{next(self.names)}", at_once=False)
        if before is not None:
            del self.requests[before]
            self.held = {p: new_id if m == before else m for p, m in self.held.items()}

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def join_again_unchanged(self, data: st.DataObject) -> None:
        member_id = self.pick(data)
        self.run(self.world.coordinator.join(_again(self.requests[member_id], member_id)))
        self.heard(member_id)

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), topics=subscriptions)
    def change_subscription(self, data: st.DataObject, topics: frozenset[str]) -> None:
        member_id = self.pick(data)
        before = self.requests[member_id]
        self._join(topics, before.instance_id, member_id, before.at_once)

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        member_id = self.pick(data)
        self.run(self.world.coordinator.leave(GROUP, member_id))
        del self.requests[member_id]

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        member_id = self.pick(data)
        self.run(self.world.coordinator.sync(GROUP, member_id, self.generation, 0))
        self.heard(member_id)
        self.may_move.add(member_id)
        assert not self.assignment(member_id).revoked

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def acknowledge_an_old_generation(self, data: st.DataObject) -> None:
        member_id = self.pick(data)
        with pytest.raises(GenerationMismatch) as mismatch:
            self.run(self.world.coordinator.sync(GROUP, member_id, self.generation - 1, 0))
        assert mismatch.value.metadata["current"] == str(self.generation)
        self.heard(member_id)

    @rule(data=st.data(), ms=st.sampled_from([1, 700, HANDOVER_MS, SESSION_MS - 1, SESSION_MS]))
    def pass_time(self, data: st.DataObject, ms: int) -> None:
        """Some members are heard of first; whoever was silent for too long dies, all in one generation."""
        for member_id in sorted(self.requests):
            if data.draw(st.booleans(), label=f"{member_id} is heard"):
                self.run(self.world.coordinator.heartbeat(GROUP, member_id, self.generation))
                self.heard(member_id)
        self.call(lambda: self.world.pass_time(ms))
        now_ms = self.world.clock.now_ms
        for member_id in [m for m in self.requests if self.heard_ms[m] + SESSION_MS <= now_ms]:
            del self.requests[member_id]
        if ms >= 1:  # whether a handover is overdue is checked by the unit tests; here time excuses the move
            self.may_move.update(self.requests)

    @rule(topic=st.sampled_from(TOPICS), more=st.integers(1, 3))
    def grow_topic(self, topic: str, more: int) -> None:
        grown = self.world.topics.counts.get(topic, 0) + more
        self.call(lambda: self.world.set_topic(topic, grown))

    @rule(topic=st.sampled_from(TOPICS))
    def delete_topic(self, topic: str) -> None:
        self.call(lambda: self.world.set_topic(topic, None))
        self.held = {p: m for p, m in self.held.items() if p.topic != topic}
        self.committed = {p: o for p, o in self.committed.items() if p.topic != topic}

    @rule()
    def restart_broker(self) -> None:
        self.world.restart()
        self.requests.clear()
        self.held.clear()
        self.shape = self._shape()  # members are lost without a generation: nobody is left to be told

    @precondition(lambda self: self.requests and self.world.topics.counts)
    @rule(data=st.data(), offset=st.integers(0, 20), behind=st.integers(0, 1))
    def commit(self, data: st.DataObject, offset: int, behind: int) -> None:
        member_id = self.pick(data)
        partition = self.some_partition(data)
        held = self.held.get(partition) == member_id
        outcome = self.run(
            self.world.coordinator.commit(
                GROUP, {partition: OffsetCommit(offset)}, member_id=member_id, generation=self.generation - behind
            )
        )[partition]
        self.heard(member_id)
        if not held:
            assert isinstance(outcome, GenerationMismatch if behind else NotOwner)
        else:
            self.expect_monotonic(partition, offset, outcome)

    @precondition(lambda self: self.world.topics.counts)
    @rule(data=st.data(), offset=st.integers(0, 20))
    def commit_from_outside(self, data: st.DataObject, offset: int) -> None:
        partition = self.some_partition(data)
        owned = any(partition in a.granted | a.revoked | a.awaited for a in map(self.assignment, self.requests))
        commit = {partition: OffsetCommit(offset)}
        outcome = self.run(self.world.coordinator.commit(GROUP, commit, fencing=Fencing.OWNERSHIP))[partition]
        if owned:
            assert isinstance(outcome, NotOwner)
        else:
            self.expect_monotonic(partition, offset, outcome)

    def some_partition(self, data: st.DataObject) -> TopicPartition:
        counts = self.world.topics.counts
        topic = data.draw(st.sampled_from(sorted(counts)), label="topic")
        return TopicPartition(topic, data.draw(st.integers(0, counts[topic] - 1), label="partition"))

    def expect_monotonic(self, partition: TopicPartition, offset: int, outcome: object) -> None:
        if offset < self.committed.get(partition, 0):
            assert isinstance(outcome, OffsetRegression)
        else:
            assert outcome is None
            self.committed[partition] = offset

    @precondition(lambda self: self.requests)
    @rule()
    def everybody_acknowledges(self) -> None:
        for member_id in self.requests:
            self.run(self.world.coordinator.sync(GROUP, member_id, self.generation, 0))
            self.heard(member_id)
        self.may_move.update(self.requests)
        counts = self._shape()[1]
        everything = {TopicPartition(topic, number) for topic, n in counts.items() for number in range(n)}
        assert self.held_now().keys() == everything
        assert all(self.assignment(member_id).complete for member_id in self.requests)
        assert self.world.coordinator.describe(GROUP).summary.state is GroupState.STABLE

    # What always holds

    @invariant()
    def generation_rises_by_one_and_only_for_a_reason(self) -> None:
        summaries = self.world.coordinator.list_groups()
        generation = summaries[0].generation if summaries else 0
        shape = self._shape()
        assert generation == self.generation + (shape != self.shape)
        stored = self.world.store.groups.get(GROUP)
        assert (stored.generation if stored else 0) == generation
        self.generation, self.shape = generation, shape

    @invariant()
    def partitions_move_only_when_let_go(self) -> None:
        held = self.held_now()
        for partition, before in self.held.items():
            after = held.get(partition)
            if after != before and before in self.requests and before not in self.may_move:
                taker = self.requests.get(after or "")
                at_once = self.requests[before].at_once or (taker is not None and taker.at_once)
                assert at_once, f"{partition} went from {before} to {after} without being let go"
        self.held = held
        self.may_move.clear()

    @invariant()
    def every_wanted_partition_has_one_target_and_a_holder(self) -> None:
        targets: Counter[TopicPartition] = Counter()
        for member_id, request in self.requests.items():
            assignment = self.assignment(member_id)
            target = assignment.granted | assignment.awaited
            assert {partition.topic for partition in target} <= request.subscription.topics
            targets.update(target)
        counts = self._shape()[1]
        everything = {TopicPartition(topic, number) for topic, n in counts.items() for number in range(n)}
        assert targets == Counter(everything)
        assert self.held_now().keys() >= everything

    @invariant()
    def the_strategy_is_the_first_members_and_stays(self) -> None:
        assert [group.strategy for group in self.world.coordinator.list_groups()] in ([], [self.agreed])

    @invariant()
    def targets_are_balanced(self) -> None:
        targets = {m: a.granted | a.awaited for m in self.requests for a in [self.assignment(m)]}
        if self.agreed is Strategy.STICKY:
            if len({r.subscription for r in self.requests.values()}) == 1:
                assert _spread([len(target) for target in targets.values()]) <= 1
            return
        for topic in self.world.topics.counts:
            subscribed = [m for m, r in self.requests.items() if topic in r.subscription.topics]
            assert _spread([sum(p.topic == topic for p in targets[m]) for m in subscribed]) <= 1

    @invariant()
    def committed_offsets_are_what_was_accepted(self) -> None:
        fetched = self.world.coordinator.fetch_offsets(GROUP)
        assert {partition: committed.next_offset for partition, committed in fetched.items()} == self.committed


def _again(request: JoinRequest, member_id: str) -> JoinRequest:
    return JoinRequest(
        request.group,
        request.subscription,
        member_id=member_id,
        instance_id=request.instance_id,
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        at_once=request.at_once,
    )


def _spread(counts: list[int]) -> int:
    return max(counts, default=0) - min(counts, default=0)


TestGroupChurn = GroupChurn.TestCase
TestGroupChurn.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
