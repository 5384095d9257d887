from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from cursus_broker.errors import (
    GenerationMismatch,
    GroupNotEmpty,
    GroupNotFound,
    InvalidRequest,
    MemberFenced,
    MemberNotFound,
    NotOwner,
    PartitionNotFound,
    ResourceLimit,
    StorageFailed,
    TopicNotFound,
)
from cursus_broker.groups.api import GroupLimits, OffsetCommit
from cursus_broker.groups.assignors import Strategy
from cursus_broker.groups.coordinator import GroupCoordinator
from cursus_broker.groups.offsets import OffsetReset
from cursus_broker.groups.state import Assignment, GroupState
from cursus_broker.groups.views import Clock
from cursus_broker.metadata.model import TopicPartition
from tests.unit.broker.groups.doubles import World, partitions, request

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
LONG_MS = 60_000


@pytest.fixture
async def world() -> World:
    return World({"t": 4})


@pytest.fixture
def coordinator(world: World) -> GroupCoordinator:
    return world.coordinator


async def join(world: World, member_id: str, **changes: object) -> Assignment:
    joined = await world.coordinator.join(replace(request("t", member_id=member_id), **changes))  # type: ignore[arg-type]  # any field
    return joined.assignment


def waiting_sync(world: World, member_id: str, generation: int) -> asyncio.Task[Assignment]:
    return asyncio.create_task(world.coordinator.sync("readers", member_id, generation, LONG_MS))


async def test_a_member_without_an_id_gets_one_that_shows_its_client(coordinator: GroupCoordinator) -> None:
    joined = await coordinator.join(replace(request("t"), client_id="billing app"))
    assert joined.member_id == "billingapp-00000001"
    assert (joined.generation, joined.strategy) == (1, Strategy.STICKY)
    assert joined.assignment.granted == partitions("t", 0, 1, 2, 3)


async def test_a_sync_waits_until_the_others_have_let_go(world: World, coordinator: GroupCoordinator) -> None:
    await join(world, "a")
    await join(world, "b")
    waiting = waiting_sync(world, "b", 2)
    await asyncio.sleep(0)
    await coordinator.sync("readers", "a", 2, 0)
    assert (await waiting).granted == partitions("t", 1, 3)
    assert not (await coordinator.heartbeat("readers", "b", 2)).must_sync


async def test_a_sync_answers_what_there_is_when_its_time_is_over(world: World, coordinator: GroupCoordinator) -> None:
    await join(world, "a")
    await join(world, "b")
    assignment = await coordinator.sync("readers", "b", 2, 0)
    assert assignment.granted == frozenset()
    assert not assignment.complete


async def test_a_waiting_sync_learns_that_the_group_moved_on(world: World) -> None:
    await join(world, "a")
    await join(world, "b")
    waiting = waiting_sync(world, "b", 2)
    await asyncio.sleep(0)
    await join(world, "c")
    with pytest.raises(GenerationMismatch, match="generation 3"):
        await waiting


async def test_a_waiting_sync_of_a_fenced_member_ends(world: World) -> None:
    await join(world, "a")
    await join(world, "b", instance_id="i")
    waiting = waiting_sync(world, "b", 2)
    await asyncio.sleep(0)
    await join(world, "b2", instance_id="i")
    with pytest.raises(MemberFenced):
        await waiting


async def test_waiting_for_a_sync_keeps_the_session_alive(world: World, coordinator: GroupCoordinator) -> None:
    await join(world, "a", session_timeout_ms=600_000, rebalance_timeout_ms=600_000)
    await join(world, "b", session_timeout_ms=1_000)
    waiting = waiting_sync(world, "b", 2)
    await asyncio.sleep(0)
    world.pass_time(5_000)
    await coordinator.sync("readers", "a", 2, 0)
    assert (await waiting).complete


async def test_a_heartbeat_with_an_old_generation_says_to_sync_and_counts(
    world: World, coordinator: GroupCoordinator
) -> None:
    await join(world, "a")
    await join(world, "b")
    world.pass_time(29_999)
    answer = await coordinator.heartbeat("readers", "a", 1)
    assert (answer.generation, answer.must_sync) == (2, True)
    world.pass_time(29_999)
    assert [member.id for member in coordinator.describe("readers").members] == ["a"]


async def test_a_session_ends_by_itself_and_the_watch_tells(world: World) -> None:
    """On the real clock and the real loop: the shortest session there is."""
    coordinator = GroupCoordinator(world.store, world.topics, world.store.snapshot())
    running = asyncio.create_task(coordinator.run())
    try:
        await coordinator.join(request("t", member_id="stays"))
        await coordinator.join(replace(request("t", member_id="dies"), session_timeout_ms=1_000))
        watch = coordinator.watch("readers", "dies")
        assert await watch.changed(asyncio.get_running_loop().time() + 60)
        with pytest.raises(MemberNotFound):
            coordinator.assignment("readers", "dies")
        assert coordinator.assignment("readers", "stays").complete
    finally:
        running.cancel()
        await asyncio.wait([running])


async def test_a_stream_that_ends_starts_the_session_timeout(world: World, coordinator: GroupCoordinator) -> None:
    await join(world, "a")
    with coordinator.attached("readers", "a"):
        world.pass_time(10**6)
        assert coordinator.describe("readers").members
    world.pass_time(30_000)
    assert coordinator.describe("readers").members == ()


async def test_a_new_generation_is_durable_before_it_is_told(world: World, coordinator: GroupCoordinator) -> None:
    await join(world, "a")
    world.store.hold()
    joining = asyncio.create_task(coordinator.join(request("t", member_id="b")))
    beating = asyncio.create_task(coordinator.heartbeat("readers", "a", 1))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not joining.done()
    assert not beating.done()
    world.store.release()
    assert (await joining).generation == (await beating).generation == world.store.groups["readers"].generation == 2


async def test_a_cancelled_caller_does_not_disturb_others_that_wait_for_the_same_write(
    world: World, coordinator: GroupCoordinator
) -> None:
    await join(world, "a")
    world.store.hold()
    joining = asyncio.create_task(coordinator.join(request("t", member_id="b")))
    beating = asyncio.create_task(coordinator.heartbeat("readers", "a", 1))
    await asyncio.sleep(0)
    joining.cancel()
    await asyncio.wait([joining])
    world.store.release()
    assert (await beating).generation == 2


async def test_a_join_that_cannot_be_stored_leaves_no_ghost(world: World, coordinator: GroupCoordinator) -> None:
    await join(world, "a")
    world.store.failure = StorageFailed("disk full")
    with pytest.raises(StorageFailed):
        await coordinator.join(request("t"))
    assert coordinator.assignment("readers", "a").granted == partitions("t", 0, 1, 2, 3)
    world.store.failure = None
    answer = await coordinator.heartbeat("readers", "a", 1)
    assert world.store.groups["readers"].generation == answer.generation


async def test_the_generation_and_the_offsets_outlive_the_broker(world: World) -> None:
    await join(world, "a", strategy=Strategy.STICKY)
    await world.coordinator.commit("readers", {P0: OffsetCommit(7, "note")}, member_id="a", generation=1)
    world.restart()
    assert world.coordinator.fetch_offsets("readers")[P0].next_offset == 7
    assert world.coordinator.list_groups()[0].state is GroupState.EMPTY
    with pytest.raises(MemberNotFound):
        await world.coordinator.heartbeat("readers", "a", 1)
    joined = await world.coordinator.join(request("t"))
    assert (joined.generation, joined.strategy) == (2, Strategy.STICKY)


async def test_each_partition_of_a_commit_is_answered_for_itself(world: World, coordinator: GroupCoordinator) -> None:
    await join(world, "a")
    outcomes = await coordinator.commit(
        "readers",
        {
            P0: OffsetCommit(5),
            P1: OffsetCommit(1_001),
            TopicPartition("t", 2): OffsetCommit(-1),
            TopicPartition("t", 3): OffsetCommit(1, "x" * 4_097),
            TopicPartition("t", 4): OffsetCommit(0),
            TopicPartition("t", -1): OffsetCommit(0),
            TopicPartition("nowhere", 0): OffsetCommit(0),
        },
        member_id="a",
        generation=1,
    )
    assert [type(outcome) if outcome else None for outcome in outcomes.values()] == [
        None,
        InvalidRequest,
        InvalidRequest,
        InvalidRequest,
        PartitionNotFound,
        PartitionNotFound,
        TopicNotFound,
    ]
    assert list(coordinator.fetch_offsets("readers")) == [P0]


async def test_a_simple_consumer_makes_a_group_by_committing(coordinator: GroupCoordinator) -> None:
    assert coordinator.fetch_offsets("spark") == {}
    await coordinator.commit("spark", {TopicPartition("nowhere", 0): OffsetCommit(1)})
    assert coordinator.list_groups() == []
    assert await coordinator.commit("spark", {P0: OffsetCommit(3)}) == {P0: None}
    assert [(g.name, g.state, g.strategy) for g in coordinator.list_groups()] == [("spark", GroupState.EMPTY, None)]
    assert list(coordinator.fetch_offsets("spark", [P0, P1])) == [P0]


async def test_a_simple_consumer_may_not_commit_over_a_member(world: World, coordinator: GroupCoordinator) -> None:
    await join(world, "a")
    assert isinstance((await coordinator.commit("readers", {P0: OffsetCommit(3)}))[P0], NotOwner)


async def test_a_reset_goes_back_but_not_under_a_live_member(world: World, coordinator: GroupCoordinator) -> None:
    await join(world, "a")
    await coordinator.commit("readers", {P0: OffsetCommit(9)}, member_id="a", generation=1)
    with pytest.raises(GroupNotEmpty):
        await coordinator.reset_offsets("readers", {P0: 0})
    await coordinator.leave("readers", "a")

    planned = await coordinator.reset_offsets("readers", {P0: 2, P1: 0}, dry_run=True)
    assert planned == {P0: OffsetReset(9, 2), P1: OffsetReset(None, 0)}
    assert coordinator.fetch_offsets("readers")[P0].next_offset == 9

    assert await coordinator.reset_offsets("readers", {P0: 2, P1: 0}) == planned
    assert {p: c.next_offset for p, c in coordinator.fetch_offsets("readers").items()} == {P0: 2, P1: 0}
    assert await coordinator.reset_offsets("nobody", {P0: 0}) == {P0: OffsetReset(None, 0)}, "the group is created"
    with pytest.raises(InvalidRequest):
        await coordinator.reset_offsets("readers", {P0: 1_001})


async def test_a_group_is_deleted_only_when_it_is_empty(world: World, coordinator: GroupCoordinator) -> None:
    await join(world, "a", instance_id="i")
    await coordinator.commit("readers", {P0: OffsetCommit(9)}, member_id="a", generation=1)
    with pytest.raises(GroupNotEmpty):
        await coordinator.delete_group("readers")
    await coordinator.leave("readers", instance_id="i")
    await coordinator.delete_group("readers")
    with pytest.raises(GroupNotFound):
        coordinator.describe("readers")
    assert (world.store.groups, world.store.offsets) == ({}, {})


async def test_a_group_that_could_not_be_deleted_is_still_there(world: World, coordinator: GroupCoordinator) -> None:
    await coordinator.commit("readers", {P0: OffsetCommit(9)})
    world.store.failure = StorageFailed("disk full")
    with pytest.raises(StorageFailed):
        await coordinator.delete_group("readers")
    assert coordinator.fetch_offsets("readers")[P0].next_offset == 9


async def test_a_description_shows_members_owners_and_lag(world: World, coordinator: GroupCoordinator) -> None:
    await join(world, "a", client_id="app", host="ipv4:10.0.0.1:555")
    await coordinator.commit("readers", {P0: OffsetCommit(400)}, member_id="a", generation=1)
    await coordinator.sync("readers", "a", 1, 0)
    description = coordinator.describe("readers")
    (member,) = description.members
    assert (member.client_id, member.host, member.synced) == ("app", "ipv4:10.0.0.1:555", True)
    assert description.summary.state is GroupState.STABLE
    assert [(view.owner, view.lag_records) for view in description.offsets.values()] == [
        ("a", 600),
        ("a", 1_000),
        ("a", 1_000),
        ("a", 1_000),
    ]


async def test_a_description_tells_when_members_joined_and_were_heard_of(
    world: World, coordinator: GroupCoordinator
) -> None:
    began_ms = world.clock()
    await join(world, "a")
    world.pass_time(3_000)
    await coordinator.heartbeat("readers", "a", 1)
    world.pass_time(1_000)
    description = coordinator.describe("readers")
    (member,) = description.members
    assert (member.joined_ms, member.heard_ms) == (began_ms, began_ms + 3_000)
    assert description.rebalanced_ms == began_ms
    with coordinator.attached("readers", "a"):
        world.pass_time(2_000)
        (member,) = coordinator.describe("readers").members
        assert member.heard_ms == began_ms + 6_000, "an open stream is a sign of life all the time"


def test_times_are_told_by_the_clock_of_people_however_it_was_set_meanwhile() -> None:
    assert Clock(now_ms=5_000, time_ms=1_700_000_000_000).since_1970(3_000) == 1_699_999_998_000


async def test_a_group_that_only_keeps_offsets_never_rebalanced(coordinator: GroupCoordinator) -> None:
    await coordinator.commit("readers", {P0: OffsetCommit(9)})
    assert coordinator.describe("readers").rebalanced_ms is None


async def test_a_deleted_topic_leaves_assignments_and_offsets(world: World, coordinator: GroupCoordinator) -> None:
    await join(world, "a")
    await coordinator.commit("readers", {P0: OffsetCommit(9)}, member_id="a", generation=1)
    watch = coordinator.watch("readers", "a")
    world.set_topic("t", None)
    assert await watch.changed(None)
    assert coordinator.assignment("readers", "a").granted == frozenset()
    assert coordinator.fetch_offsets("readers") == {}
    world.set_topic("t", 2)
    assert coordinator.assignment("readers", "a").granted == partitions("t", 0, 1)
    assert coordinator.fetch_offsets("readers") == {}


async def test_a_pattern_takes_in_topics_as_they_appear(world: World, coordinator: GroupCoordinator) -> None:
    joined = await coordinator.join(replace(request("t"), subscription=replace(request().subscription, pattern="or.*")))
    assert joined.assignment.granted == frozenset()
    world.set_topic("orders", 1)
    world.set_topic("refunds", 1)
    assignment = coordinator.assignment("readers", joined.member_id)
    assert (assignment.generation, assignment.granted) == (2, partitions("orders", 0))


async def test_there_are_only_so_many_groups() -> None:
    coordinator = World({"t": 1}, GroupLimits(max_groups=1)).coordinator
    await coordinator.commit("one", {P0: OffsetCommit(1)})
    with pytest.raises(ResourceLimit):
        await coordinator.commit("two", {P0: OffsetCommit(1)})
    with pytest.raises(ResourceLimit):
        await coordinator.join(request("t", group="two"))


async def test_a_refused_join_makes_no_group(coordinator: GroupCoordinator) -> None:
    with pytest.raises(InvalidRequest):
        await coordinator.join(request())
    assert coordinator.list_groups() == []
    with pytest.raises(MemberNotFound):
        await coordinator.leave("readers", "nobody")
