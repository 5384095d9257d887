"""Rebalances that are gathered, planned on a copy and applied later, against a model: the group may change at every
moment in between.

The steps of `test_group_state.py` see a group that is rebalanced within each call. Here it never is: joins wait,
planning goes on for a few turns of the event loop at a time, and everything else may happen to the group meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine
from typing import Any, TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cursus_broker.errors import GenerationMismatch, MemberFenced, MemberNotFound
from cursus_broker.groups.api import Joined, OffsetCommit
from cursus_broker.groups.assignors import Strategy
from cursus_broker.groups.members import JoinRequest, Subscription
from cursus_broker.groups.plan import Tempo
from cursus_broker.groups.state import Assignment, GroupState
from cursus_broker.metadata.model import TopicPartition
from tests.unit.broker.groups.doubles import World

GROUP = "readers"
TOPICS = ("orders", "payments", "refunds")
SESSION_MS = 60_000
HANDOVER_MS = 2_000
# Nothing happens at once, a rest of 100 ms for each member and partition, and a turn for the others after two steps.
TEMPO = Tempo(at_once_steps=-1, gather_us_per_step=100_000, max_gather_ms=1_000, slice_steps=2, told_together=1)
MANY_TURNS = 2_000

T = TypeVar("T")
subscriptions = st.frozensets(st.sampled_from(TOPICS), min_size=1)


class GatheredChurn(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.world = World({"orders": 3, "payments": 2}, tempo=TEMPO)
        self.requests: dict[str, JoinRequest] = {}  # live members by id, from the moment they ask
        self.joining: dict[str, asyncio.Task[Joined]] = {}
        self.running: asyncio.Task[None] | None = None
        self.told: dict[str, Assignment] = {}
        """What each member's stream was told last."""
        self.held: dict[TopicPartition, str] = {}
        self.may_move: set[str] = set()
        self.generation = 0
        self.names = iter(range(1_000_000))

    def teardown(self) -> None:
        tasks = [*self.joining.values(), *([self.running] if self.running else [])]
        for task in tasks:
            task.cancel()
        if tasks:
            self.run(_ended(tasks))
        self.loop.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    def turns(self, count: int) -> None:
        async def turn() -> None:
            for _ in range(count):
                await asyncio.sleep(0)

        self.run(turn())
        if self.running is not None and self.running.done():
            self.running.result()
            self.running = None
        for member_id, joining in list(self.joining.items()):
            if joining.done():
                del self.joining[member_id]
                self.answered(member_id, joining)

    def answered(self, member_id: str, joining: asyncio.Task[Joined]) -> None:
        """A join that is answered has its part in the generation that it names."""
        if member_id not in self.requests:
            # It was answered before it left, or was replaced, or is told so.
            assert isinstance(joining.exception(), MemberNotFound | MemberFenced | None)
            return
        joined = joining.result()
        assert joined.member_id == member_id
        assert 0 < joined.assignment.since <= joined.generation == joined.assignment.generation
        topics = self.requests[member_id].subscription.topics
        assert {place.topic for place in joined.assignment.granted} <= topics

    def assignment(self, member_id: str) -> Assignment:
        return self.world.coordinator.assignment(GROUP, member_id)

    def pick(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from(sorted(self.requests)), label="member")

    def is_due(self) -> bool:
        entry = self.world.coordinator._groups.get(GROUP)
        return entry is not None and entry.group.due_ms is not None

    # Steps

    @initialize(strategy=st.sampled_from(Strategy))
    def choose_strategy(self, strategy: Strategy) -> None:
        self.strategy = strategy

    def _join(self, member_id: str, topics: frozenset[str], at_once: bool, instance_id: str = "") -> None:
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
        self.requests[member_id] = request
        earlier = self.joining.pop(member_id, None)
        self.joining[member_id] = self.loop.create_task(self.world.coordinator.join(request))
        self.turns(1)
        if earlier is not None:
            self.run(_ended([earlier]))

    @precondition(lambda self: len(self.requests) < 6)
    @rule(topics=subscriptions, at_once=st.booleans())
    def join(self, topics: frozenset[str], at_once: bool) -> None:
        self._join(f"m{next(self.names)}", topics, at_once)

    @precondition(lambda self: len(self.requests) < 6)
    @rule(topics=subscriptions, instance=st.sampled_from(["i1", "i2"]))
    def start_instance(self, topics: frozenset[str], instance: str) -> None:
        before = next((m for m, r in self.requests.items() if r.instance_id == instance), None)
        new_id = f"{instance}-run-{next(self.names)}"
        if before is not None:
            del self.requests[before]
            self.told.pop(before, None)
        self._join(new_id, topics, False, instance)
        self.held = {p: new_id if m == before else m for p, m in self.held.items()}

    @precondition(lambda self: any(m not in self.joining for m in self.requests))
    @rule(data=st.data(), topics=subscriptions)
    def change_subscription(self, data: st.DataObject, topics: frozenset[str]) -> None:
        member_id = data.draw(st.sampled_from(sorted(self.requests.keys() - self.joining.keys())), label="member")
        before = self.requests[member_id]
        self._join(member_id, topics, before.at_once, before.instance_id)

    @precondition(lambda self: self.joining)
    @rule(data=st.data())
    def a_caller_that_waits_goes_away(self, data: st.DataObject) -> None:
        member_id = data.draw(st.sampled_from(sorted(self.joining)), label="member")
        joining = self.joining.pop(member_id)
        joining.cancel()
        self.run(_ended([joining]))
        try:
            self.assignment(member_id)
        except (MemberNotFound, MemberFenced):
            self.requests.pop(member_id, None)  # it was new, and had nothing yet
            self.told.pop(member_id, None)

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        member_id = self.pick(data)
        del self.requests[member_id]
        self.told.pop(member_id, None)
        self.run(self.world.coordinator.leave(GROUP, member_id))
        described = self.world.coordinator.describe(GROUP)
        assert all(member.id != member_id for member in described.members)

    @rule(turns=st.integers(1, 25))
    def planning_goes_on(self, turns: int) -> None:
        if self.running is None:
            self.running = self.loop.create_task(self._run_due())
        self.turns(turns)

    async def _run_due(self) -> None:
        self.world.coordinator.expire_due()
        await self.world.coordinator.rebalance_due()

    @rule(ms=st.sampled_from([1, 300, 1_000, HANDOVER_MS]))
    def pass_time(self, ms: int) -> None:
        async def pass_time() -> None:
            for member_id in self.requests:
                self.world.coordinator.refresh(GROUP, member_id)
            self.world.pass_time(ms)

        self.run(pass_time())
        self.may_move.update(self.requests)

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def a_stream_looks(self, data: st.DataObject) -> None:
        """As `Subscription.watch` does: it is told what concerns it, and nothing else."""
        member_id = self.pick(data)
        assignment = self.assignment(member_id)
        told = self.told.get(member_id)
        if told is None or not assignment.says_no_more_than(told):
            self.told[member_id] = assignment

    @precondition(lambda self: self.told)
    @rule(data=st.data())
    def a_stream_acknowledges_what_it_was_told(self, data: st.DataObject) -> None:
        """Refused only if it is to read something else since; and never lets go of what it was not told to."""
        member_id = data.draw(st.sampled_from(sorted(self.told)), label="member")
        told = self.told[member_id]

        async def acknowledge() -> None:
            before = self.assignment(member_id)
            try:
                await self.world.coordinator.acknowledge(GROUP, member_id, told.generation)
            except GenerationMismatch:
                assert before.since > told.generation
            else:
                assert before.since <= told.generation
                assert before.revoked <= told.revoked
                self.may_move.add(member_id)

        self.run(acknowledge())

    @rule(topic=st.sampled_from(TOPICS), more=st.integers(1, 3))
    def grow_topic(self, topic: str, more: int) -> None:
        self._set_topic(topic, self.world.topics.counts.get(topic, 0) + more)

    @rule(topic=st.sampled_from(TOPICS))
    def delete_topic(self, topic: str) -> None:
        self._set_topic(topic, None)
        self.held = {p: m for p, m in self.held.items() if p.topic != topic}

    def _set_topic(self, topic: str, count: int | None) -> None:
        async def change() -> None:
            self.world.set_topic(topic, count)

        self.run(change())

    @precondition(lambda self: self.requests and self.world.topics.counts)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        member_id = self.pick(data)
        counts = self.world.topics.counts
        topic = data.draw(st.sampled_from(sorted(counts)), label="topic")
        place = TopicPartition(topic, data.draw(st.integers(0, counts[topic] - 1), label="partition"))

        async def commit() -> None:
            assignment = self.assignment(member_id)
            outcome = await self.world.coordinator.commit(
                GROUP, {place: OffsetCommit(0)}, member_id=member_id, generation=assignment.generation
            )
            assert (outcome[place] is None) == (place in assignment.granted | assignment.revoked)

        self.run(commit())

    @rule()
    def everything_settles(self) -> None:
        """However it was disturbed: time passes, planning ends, everybody acknowledges."""
        for _ in range(3):
            self.pass_time(1_000)
            if self.running is None:
                self.running = self.loop.create_task(self._run_due())
            self.turns(MANY_TURNS)
            assert self.running is None, "planning ends"
        assert not self.joining, "every join is answered"
        assert not self.is_due()
        for member_id in self.requests:
            self.told[member_id] = self.assignment(member_id)
            self.run(self.world.coordinator.acknowledge(GROUP, member_id, self.told[member_id].generation))
        self.may_move.update(self.requests)
        wanted = frozenset[str]().union(*(r.subscription.topics for r in self.requests.values()))
        counts = self.world.topics.counts
        everything = {TopicPartition(t, n) for t in wanted & counts.keys() for n in range(counts[t])}
        granted: Counter[TopicPartition] = Counter()
        for member_id, request in self.requests.items():
            assignment = self.assignment(member_id)
            assert assignment.complete
            assert {place.topic for place in assignment.granted} <= request.subscription.topics
            granted.update(assignment.granted)
        assert granted == Counter(everything)
        if self.requests:
            assert self.world.coordinator.describe(GROUP).summary.state is GroupState.STABLE

    # What always holds

    @invariant()
    def the_generation_never_goes_back_and_is_stored(self) -> None:
        summaries = self.world.coordinator.list_groups()
        generation = summaries[0].generation if summaries else 0
        assert generation >= self.generation
        self.generation = generation

    @invariant()
    def a_partition_has_one_holder_and_moves_only_when_let_go(self) -> None:
        held: dict[TopicPartition, str] = {}
        for member_id in self.requests:
            assignment = self.assignment(member_id)
            for place in assignment.granted | assignment.revoked:
                assert place not in held, f"{place} has two holders"
                held[place] = member_id
        for place, before in self.held.items():
            after = held.get(place)
            if after != before and before in self.requests and before not in self.may_move:
                taker = self.requests.get(after or "")
                at_once = self.requests[before].at_once or (taker is not None and taker.at_once)
                assert at_once, f"{place} went from {before} to {after} without being let go"
        self.held = held
        self.may_move.clear()

    @invariant()
    def what_has_a_target_has_a_holder_and_what_is_settled_has_a_target(self) -> None:
        targets: Counter[TopicPartition] = Counter()
        for member_id in self.requests:
            assignment = self.assignment(member_id)
            targets.update(assignment.granted | assignment.awaited)
        assert not targets or max(targets.values()) == 1
        assert targets.keys() <= self.held.keys()
        if not self.is_due():
            counts = self.world.topics.counts
            wanted = frozenset[str]().union(*(r.subscription.topics for r in self.requests.values()))
            assert targets.keys() == {TopicPartition(t, n) for t in wanted & counts.keys() for n in range(counts[t])}


async def _ended(tasks: list[asyncio.Task[Any]]) -> None:
    await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.exception()


TestGatheredChurn = GatheredChurn.TestCase
TestGatheredChurn.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
