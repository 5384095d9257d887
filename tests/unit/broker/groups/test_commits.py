"""Commits that have to wait for the disk, and what may happen meanwhile."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from cursus_broker.errors import (
    CursusError,
    GroupNotEmpty,
    LogTruncated,
    MemberFenced,
    MemberNotFound,
    NotOwner,
    OffsetRegression,
    PartitionDamaged,
    StorageFailed,
    TopicNotFound,
)
from cursus_broker.groups.api import OffsetCommit
from cursus_broker.log.api import Offset
from cursus_broker.metadata.model import CommittedOffset, TopicPartition
from tests.unit.broker.groups.doubles import World, request

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
Outcomes = dict[TopicPartition, CursusError | None]


@pytest.fixture
async def world() -> World:
    """A member `a` that owns both partitions of a topic; 10 records of each are not synced."""
    world = World({"t": 2})
    await world.coordinator.join(request("t", member_id="a"))
    for place in (P0, P1):
        world.topics.partition(*place).synced_offset = 990
    return world


def committing(
    world: World, offsets: dict[TopicPartition, int], member_id: str = "a", epoch: int | None = None
) -> asyncio.Task[Outcomes]:
    commits = {place: OffsetCommit(offset, leader_epoch=epoch) for place, offset in offsets.items()}
    generation = 1 if member_id else 0
    return asyncio.create_task(world.coordinator.commit("readers", commits, member_id=member_id, generation=generation))


async def until_idle() -> None:
    """Let every task go as far as it can without the disk."""
    for _ in range(10):
        await asyncio.sleep(0)


def stored(world: World) -> dict[TopicPartition, int]:
    return {place: one.next_offset for place, one in world.store.offsets.get("readers", {}).items()}


async def test_a_commit_is_stored_only_when_its_log_is_synced_up_to_it(world: World) -> None:
    commit = committing(world, {P0: 995})
    await until_idle()
    assert not commit.done()
    assert stored(world) == {}
    world.topics.partition(*P0).sync(994)
    await until_idle()
    assert stored(world) == {}
    world.topics.partition(*P0).sync(995)
    assert await commit == {P0: None}
    assert stored(world) == {P0: 995}


async def test_a_commit_of_synced_records_asks_for_no_sync_and_is_with_the_store_in_one_step(world: World) -> None:
    world.store.hold()
    commit = world.coordinator.commit("readers", {P0: OffsetCommit(990)}, member_id="a", generation=1)
    running = asyncio.ensure_future(commit)
    await asyncio.sleep(0)
    world.store.release()
    assert stored(world) == {P0: 990}, "it was submitted before anything was awaited"
    assert await running == {P0: None}
    assert world.topics.partition(*P0).asked == []


async def test_a_commit_that_is_refused_asks_for_no_sync(world: World) -> None:
    world.topics.partition(*P1).synced_offset = 1_000
    assert await committing(world, {P1: 999}) == {P1: None}
    world.topics.partition(*P1).synced_offset = 990
    assert isinstance((await committing(world, {P1: 998}))[P1], OffsetRegression)
    assert isinstance((await committing(world, {P0: 1_000}, member_id=""))[P0], NotOwner)
    assert world.topics.partition(*P0).asked == world.topics.partition(*P1).asked == []


async def test_all_logs_of_a_commit_are_asked_before_it_waits(world: World) -> None:
    commit = committing(world, {P0: 1_000, P1: 999})
    await asyncio.sleep(0)
    assert (world.topics.partition(*P0).asked, world.topics.partition(*P1).asked) == ([1_000], [999])
    world.topics.partition(*P0).sync(1_000)
    await until_idle()
    assert stored(world) == {}
    world.topics.partition(*P1).sync(1_000)
    assert await commit == {P0: None, P1: None}


@pytest.mark.parametrize("failed_before", [True, False])
async def test_a_failed_log_refuses_its_own_partition_only(world: World, failed_before: bool) -> None:
    if failed_before:
        world.topics.partition(*P0).fail()
    commit = committing(world, {P0: 1_000, P1: 1_000})
    await until_idle()
    world.topics.partition(*P0).fail()
    world.topics.partition(*P1).sync(1_000)
    outcomes = await commit
    assert isinstance(outcomes[P0], StorageFailed)
    assert outcomes[P1] is None
    assert stored(world) == {P1: 1_000}


async def test_below_its_synced_offset_a_failed_log_takes_commits(world: World) -> None:
    world.topics.partition(*P0).fail()
    assert await committing(world, {P0: 990}) == {P0: None}


async def test_a_damaged_partition_refuses_itself_only(world: World) -> None:
    world.topics.damaged.add(P0)
    outcomes = await committing(world, {P0: 0, P1: 5})
    assert isinstance(outcomes[P0], PartitionDamaged)
    assert outcomes[P1] is None


async def test_a_member_that_left_while_its_commit_waited_has_committed_nothing(world: World) -> None:
    commit = committing(world, {P0: 1_000})
    await until_idle()
    await world.coordinator.leave("readers", "a")
    world.topics.partition(*P0).sync(1_000)
    with pytest.raises(MemberNotFound):
        await commit
    assert stored(world) == {}


async def test_a_member_that_was_fenced_while_its_commit_waited_has_committed_nothing() -> None:
    world = World({"t": 1})
    await world.coordinator.join(request("t", member_id="a", instance_id="i"))
    world.topics.partition(*P0).synced_offset = 0
    commit = committing(world, {P0: 1_000})
    await until_idle()
    await world.coordinator.join(request("t", member_id="b", instance_id="i"))
    world.topics.partition(*P0).sync(1_000)
    with pytest.raises(MemberFenced):
        await commit
    assert stored(world) == {}


async def test_a_partition_that_was_handed_over_while_a_commit_waited_keeps_the_older_offset(world: World) -> None:
    commit = committing(world, {P0: 1_000, P1: 1_000})
    await until_idle()
    await world.coordinator.join(request("t", member_id="b"))
    await world.coordinator.sync("readers", "a", 2, 0)
    for place in (P0, P1):
        world.topics.partition(*place).sync(1_000)
    outcomes = await commit
    assert [type(outcomes[place]).__name__ for place in (P0, P1)] == ["NoneType", "GenerationMismatch"]
    assert stored(world) == {P0: 1_000}


async def test_a_commit_that_waited_does_not_go_back_behind_one_that_came_meanwhile(world: World) -> None:
    """The lower commit waits for its own log and for a slow one, and the higher one overtakes it."""
    slow = committing(world, {P0: 995, P1: 1_000})
    await until_idle()
    fast = committing(world, {P0: 998})
    await until_idle()
    world.topics.partition(*P0).sync(1_000)
    assert await fast == {P0: None}
    world.topics.partition(*P1).sync(1_000)
    outcomes = await slow
    assert isinstance(outcomes[P0], OffsetRegression)
    assert outcomes[P1] is None
    assert stored(world) == {P0: 998, P1: 1_000}


async def test_a_topic_deleted_while_a_commit_waited_is_not_found(world: World) -> None:
    commit = committing(world, {P0: 1_000})
    await until_idle()
    log = world.topics.partition(*P0)
    world.set_topic("t", None)
    log.fail()  # a log that is deleted syncs no more
    assert isinstance((await commit)[P0], TopicNotFound)


async def test_a_topic_deleted_and_created_anew_while_a_commit_waited_takes_nothing_of_it(world: World) -> None:
    commit = committing(world, {P0: 1_000})
    await until_idle()
    log = world.topics.partition(*P0)
    world.set_topic("t", None)
    world.set_topic("t", 2)
    log.sync(1_000)
    assert isinstance((await commit)[P0], TopicNotFound)
    assert stored(world) == {}


async def test_a_caller_that_goes_away_while_it_waits_leaves_the_others_alone(world: World) -> None:
    leaving, staying = committing(world, {P0: 1_000}), committing(world, {P0: 999})
    await until_idle()
    leaving.cancel()
    await asyncio.wait([leaving])
    world.topics.partition(*P0).sync(1_000)
    assert await staying == {P0: None}
    assert stored(world) == {P0: 999}


async def test_a_commit_from_before_a_cut_is_refused_with_where_to_go_on(world: World) -> None:
    log = world.topics.partition(*P0)
    log.leader_epoch, log.cut_at, log.synced_offset = 7, 500, 1_000
    refused = (await committing(world, {P0: 600}, epoch=6))[P0]
    assert isinstance(refused, LogTruncated)
    assert refused.metadata["offset"] == "500"
    # Also where the log has not grown as far again: what is wrong is not the number.
    assert isinstance((await committing(world, {P0: 2_000}, epoch=6))[P0], LogTruncated)
    assert await committing(world, {P0: 500}, epoch=6) == {P0: None}
    assert await committing(world, {P0: 600}, epoch=7) == {P0: None}
    assert world.coordinator.fetch_offsets("readers")[P0].leader_epoch == 7


async def test_the_epoch_is_judged_again_after_the_wait(world: World) -> None:
    log = world.topics.partition(*P0)
    commit = committing(world, {P0: 1_000}, epoch=1)
    await until_idle()
    log.leader_epoch, log.cut_at = 2, 500
    log.sync(1_000)
    assert isinstance((await commit)[P0], LogTruncated)
    assert stored(world) == {}


# Resets


async def test_a_reset_waits_for_the_log_as_a_commit_does(world: World) -> None:
    await world.coordinator.leave("readers", "a")
    reset = asyncio.create_task(world.coordinator.reset_offsets("readers", {P0: 1_000, P1: 3}))
    await until_idle()
    assert stored(world) == {}
    world.topics.partition(*P0).sync(1_000)
    await reset
    assert stored(world) == {P0: 1_000, P1: 3}
    assert world.topics.partition(*P1).asked == []


async def test_a_preview_of_a_reset_asks_for_no_sync(world: World) -> None:
    await world.coordinator.leave("readers", "a")
    await world.coordinator.reset_offsets("readers", {P0: 1_000}, dry_run=True)
    assert world.topics.partition(*P0).asked == []


async def test_a_reset_over_a_failed_log_changes_nothing(world: World) -> None:
    await world.coordinator.leave("readers", "a")
    reset = asyncio.create_task(world.coordinator.reset_offsets("readers", {P0: 1_000, P1: 3}))
    await until_idle()
    world.topics.partition(*P0).fail()
    with pytest.raises(StorageFailed):
        await reset
    assert stored(world) == {}


async def test_a_member_that_came_while_a_reset_waited_is_not_reset(world: World) -> None:
    await world.coordinator.leave("readers", "a")
    reset = asyncio.create_task(world.coordinator.reset_offsets("readers", {P0: 1_000}))
    await until_idle()
    await world.coordinator.join(request("t", member_id="b"))
    world.topics.partition(*P0).sync(1_000)
    with pytest.raises(GroupNotEmpty):
        await reset
    assert stored(world) == {}


async def test_a_topic_created_anew_while_a_reset_waited_is_not_reset(world: World) -> None:
    await world.coordinator.leave("readers", "a")
    reset = asyncio.create_task(world.coordinator.reset_offsets("readers", {P0: 1_000}))
    await until_idle()
    log = world.topics.partition(*P0)
    world.set_topic("t", None)
    world.set_topic("t", 2)
    log.sync(1_000)
    with pytest.raises(TopicNotFound):
        await reset
    assert stored(world) == {}


@pytest.mark.parametrize("ends_it", ["commit", "reset"])
async def test_what_was_truncated_is_shown_until_the_next_commit_or_reset(world: World, ends_it: str) -> None:
    world.topics.partition(*P0).synced_offset = 1_000
    await world.coordinator.leave("readers", "a")
    await world.coordinator.commit("readers", {P0: OffsetCommit(1_000, "note")})
    world.topics.partition(*P0).next_offset = Offset(700)
    world.restart()
    await world.coordinator.partitions_opened()
    moved = world.coordinator.fetch_offsets("readers")[P0]
    assert moved == replace(CommittedOffset(700, "note", world.clock.now_ms, 1), truncated_from=1_000)
    assert world.coordinator.describe("readers").offsets[P0].committed == moved
    if ends_it == "commit":
        await world.coordinator.commit("readers", {P0: OffsetCommit(700)})
    else:
        await world.coordinator.reset_offsets("readers", {P0: 700})
    assert world.coordinator.fetch_offsets("readers")[P0].truncated_from is None
