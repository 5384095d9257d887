"""Many members join a large group at once. What is checked is how much work that makes, never how long it takes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import pytest

from cursus_broker.errors import MemberNotFound, NotOwner
from cursus_broker.groups.api import OffsetCommit
from cursus_broker.groups.assignors import RUN_STEPS, Strategy
from cursus_broker.groups.coordinator import GroupCoordinator
from cursus_broker.groups.rebalancer import MAX_TRIES
from cursus_broker.groups.state import Assignment, GroupState
from cursus_broker.metadata.model import TopicPartition
from tests.unit.broker.groups.doubles import World, request

PARTITIONS = 2_000
MEMBERS = 500
MAX_TURNS = 100_000


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """Its sessions and rebalances run, on a clock that stands still until a test moves it."""
    world = World({"t": PARTITIONS})
    running = asyncio.create_task(world.coordinator.run())
    yield world
    running.cancel()
    await asyncio.wait([running])


@pytest.fixture
def coordinator(world: World) -> GroupCoordinator:
    return world.coordinator


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(MAX_TURNS):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it does not come true")


def storm(world: World, members: range) -> list[asyncio.Task[object]]:
    coordinator = world.coordinator
    return [asyncio.create_task(coordinator.join(request("t", member_id=f"m{n:03d}"))) for n in members]


async def rest_is_over(world: World, joins: list[asyncio.Task[object]]) -> None:
    """Let time pass until everybody is answered, and let everybody acknowledge."""
    world.clock.now_ms += 1_000
    world.coordinator._deadline_moved.set()
    await until(lambda: all(join.done() for join in joins))


class StreamMember:
    """Does what a Subscribe stream does when it is woken, and counts what it would send."""

    def __init__(self, coordinator: GroupCoordinator, member_id: str) -> None:
        self.sent = 0
        self._coordinator = coordinator
        self._id = member_id

    async def run(self) -> None:
        watch = self._coordinator.watch("readers", self._id)
        told: Assignment | None = None
        while True:
            assignment = self._coordinator.assignment("readers", self._id)
            if told is None or not assignment.says_no_more_than(told):
                told = assignment
                self.sent += 1
                await self._coordinator.acknowledge("readers", self._id, assignment.generation)
            else:
                await watch.changed(None)


async def test_a_storm_costs_a_few_rebalances_in_short_runs(world: World, coordinator: GroupCoordinator) -> None:
    joins = storm(world, range(MEMBERS))
    await until(lambda: joins[0].done())
    await rest_is_over(world, joins)
    work = coordinator.rebalancer
    assert work.plans_applied <= 2, "one for the first, one for all the others"
    assert work.plans_begun <= work.plans_applied + MAX_TRIES
    assert work.longest_planned <= max(RUN_STEPS, PARTITIONS)
    assert work.members_told <= 2 * MEMBERS
    shares = {len(assignment.granted | assignment.awaited) for assignment in assignments(coordinator)}
    assert shares == {PARTITIONS // MEMBERS}


def assignments(coordinator: GroupCoordinator) -> list[Assignment]:
    return [coordinator.assignment("readers", f"m{n:03d}") for n in range(MEMBERS)]


async def test_one_more_member_concerns_only_those_that_give_it_something(
    world: World, coordinator: GroupCoordinator
) -> None:
    await rest_is_over(world, storm(world, range(MEMBERS - 1)))
    members = [StreamMember(coordinator, f"m{n:03d}") for n in range(MEMBERS - 1)]
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(member.run()) for member in members]
        await until(lambda: coordinator.list_groups()[0].state is GroupState.STABLE)
        before = sum(member.sent for member in members)
        await rest_is_over(world, storm(world, range(MEMBERS - 1, MEMBERS)))
        await coordinator.acknowledge("readers", f"m{MEMBERS - 1:03d}", coordinator.list_groups()[0].generation)
        await until(lambda: coordinator.list_groups()[0].state is GroupState.STABLE)
        for task in running:
            task.cancel()
    assert 0 < sum(member.sent for member in members) - before <= 2 * (PARTITIONS // MEMBERS)


async def test_the_first_join_of_a_quiet_group_does_not_wait(world: World, coordinator: GroupCoordinator) -> None:
    first = await coordinator.join(request("t", member_id="a"))
    assert (first.generation, len(first.assignment.granted)) == (1, PARTITIONS)
    second = asyncio.create_task(coordinator.join(request("t", member_id="b")))
    await until(lambda: coordinator.list_groups()[0].members == 2)
    assert not second.done(), "it came soon after the first"
    assert coordinator.list_groups()[0].state is GroupState.REBALANCING
    world.clock.now_ms += 1_000
    coordinator._deadline_moved.set()
    assert (await second).generation == 2
    world.clock.now_ms += 1_000
    third = await coordinator.join(request("t", member_id="c"))
    assert third.generation == 3, "the group was quiet"


async def test_a_legacy_join_is_answered_with_the_generation_of_its_assignment(
    world: World, coordinator: GroupCoordinator
) -> None:
    legacy = replace(request("t", member_id="old"), at_once=True, strategy=Strategy.MODULO)
    await coordinator.join(legacy)
    others = [asyncio.create_task(coordinator.join(replace(legacy, member_id=f"old{n}"))) for n in range(3)]
    await until(lambda: coordinator.list_groups()[0].members == 4)
    assert not any(other.done() for other in others)
    await rest_is_over(world, list(others))
    for number, other in enumerate(others):
        joined = other.result()
        assert joined.generation == 2
        assert len(joined.assignment.granted) == PARTITIONS // 4
        assert not (await coordinator.heartbeat("readers", f"old{number}", 2)).must_sync


async def test_a_leave_frees_at_once_what_is_given_to_others_later(world: World, coordinator: GroupCoordinator) -> None:
    await rest_is_over(world, storm(world, range(2)))
    await coordinator.acknowledge("readers", "m000", coordinator.list_groups()[0].generation)
    assert len(coordinator.assignment("readers", "m001").granted) == PARTITIONS // 2
    await coordinator.leave("readers", "m000")
    assert all(view.owner != "m000" for view in coordinator.describe("readers").offsets.values())
    freed = next(TopicPartition("t", n) for n in range(PARTITIONS) if not is_granted(coordinator, "m001", n))
    outcome = await coordinator.commit("readers", {freed: OffsetCommit(1)})
    assert isinstance(outcome[freed], NotOwner), "somebody is about to read it"
    world.clock.now_ms += 1_000
    coordinator._deadline_moved.set()
    await until(lambda: len(coordinator.assignment("readers", "m001").granted) == PARTITIONS)


def is_granted(coordinator: GroupCoordinator, member_id: str, number: int) -> bool:
    return TopicPartition("t", number) in coordinator.assignment("readers", member_id).granted


async def test_a_handover_has_its_time_from_the_generation_that_asks_for_it(
    world: World, coordinator: GroupCoordinator
) -> None:
    await coordinator.join(request("t", member_id="a"))
    joining = asyncio.create_task(coordinator.join(replace(request("t", member_id="b"), rebalance_timeout_ms=10_000)))
    await until(lambda: coordinator.list_groups()[0].members == 2)
    world.clock.now_ms += 900
    coordinator._deadline_moved.set()
    await joining
    world.pass_time(9_999)
    assert coordinator.assignment("readers", "a").revoked
    world.pass_time(1)
    assert not coordinator.assignment("readers", "a").revoked


async def test_a_group_in_which_somebody_joins_all_the_time_is_rebalanced_all_the_same(
    world: World, coordinator: GroupCoordinator
) -> None:
    """Every turn of the loop has another join, so that no plan is ever up to date when it is ready."""
    await coordinator.join(request("t", member_id="a"))
    world.clock.now_ms += 1_000
    joins: list[asyncio.Task[object]] = []
    while coordinator.rebalancer.plans_applied < 2:
        assert len(joins) < 900, "it never ends"
        joins.append(asyncio.create_task(coordinator.join(request("t", member_id=f"n{len(joins)}"))))
        await asyncio.sleep(0)
    assert coordinator.rebalancer.plans_begun <= 2 + MAX_TRIES
    await until(lambda: any(join.done() for join in joins))
    assert not all(join.done() for join in joins), "those that came too late are next"
    await rest_is_over(world, joins)


async def test_a_caller_that_goes_away_while_it_waits_leaves_no_member_behind(
    world: World, coordinator: GroupCoordinator
) -> None:
    await coordinator.join(request("t", member_id="a"))
    waiting = asyncio.create_task(coordinator.join(request("t", member_id="b")))
    await until(lambda: coordinator.list_groups()[0].members == 2)
    waiting.cancel()
    await asyncio.wait([waiting])
    with pytest.raises(MemberNotFound):
        coordinator.assignment("readers", "b")


async def test_a_topic_that_comes_while_the_first_to_want_it_is_planned_for_is_shared_too(
    world: World, coordinator: GroupCoordinator
) -> None:
    """The group is told of topics that its members subscribe to, also those that no plan has counted yet."""
    await rest_is_over(world, storm(world, range(1)))
    work = coordinator.rebalancer
    begun, applied = work.plans_begun, work.plans_applied
    late = asyncio.create_task(coordinator.join(request("t", "new", member_id="m001")))
    await until(lambda: len(coordinator.describe("readers").members) == 2)
    world.clock.now_ms += 1_000
    coordinator._deadline_moved.set()
    await until(lambda: work.plans_begun > begun)
    assert work.plans_applied == applied, "the plan is being worked out"
    world.set_topic("new", 4)
    await rest_is_over(world, [late])

    def shared() -> int:
        found = coordinator.assignment("readers", "m001")
        return sum(partition.topic == "new" for partition in found.granted | found.awaited)

    world.clock.now_ms += 1_000
    coordinator._deadline_moved.set()
    await until(lambda: shared() == 4)
