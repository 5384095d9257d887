"""Committed offsets above the end of their log, when its partition is opened."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from cursus_broker.errors import OffsetRegression, StorageFailed
from cursus_broker.groups.api import OffsetCommit
from cursus_broker.groups.coordinator import GroupCoordinator
from cursus_broker.groups.truncation import MAX_LINES
from cursus_broker.log.api import Offset
from cursus_broker.metadata.model import CommittedOffset, StoredGroup, StoredTopic, TopicPartition
from cursus_broker.metadata.store import MetadataStore
from tests.unit.broker.groups.doubles import FakeTopics, World

P0, P1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)


@pytest.fixture
async def world() -> World:
    """A group that has read all 1,000 records of three partitions."""
    world = World({"t": 2, "u": 1})
    await world.coordinator.commit("readers", {place: OffsetCommit(1_000) for place in (P0, P1, U0)})
    return world


def restart_with(world: World, ends: dict[TopicPartition, int], epoch: int = 2) -> GroupCoordinator:
    """As after power loss: logs are opened in a new epoch and end where they end."""
    for place, end in ends.items():
        partition = world.topics.partition(*place)
        partition.next_offset, partition.synced_offset = Offset(end), end
        partition.leader_epoch, partition.cut_at = epoch, end
    world.restart()
    return world.coordinator


def shown(coordinator: GroupCoordinator) -> dict[TopicPartition, tuple[int, int | None]]:
    return {p: (c.next_offset, c.truncated_from) for p, c in coordinator.fetch_offsets("readers").items()}


async def test_an_offset_above_the_end_is_moved_to_it_and_the_old_one_kept(world: World) -> None:
    coordinator = restart_with(world, {P0: 5, P1: 1_000, U0: 1_001})
    await coordinator.partitions_opened()
    assert shown(coordinator) == {P0: (5, 1_000), P1: (1_000, None), U0: (1_000, None)}
    assert coordinator.fetch_offsets("readers")[P0].leader_epoch == 2
    assert coordinator.truncated_offsets == 1
    assert world.store.offsets["readers"] == coordinator.fetch_offsets("readers"), "it is durable"


async def test_commits_go_on_from_where_the_offset_was_moved_to(world: World) -> None:
    coordinator = restart_with(world, {P0: 5})
    await coordinator.partitions_opened()
    world.topics.partition(*P0).next_offset = Offset(8)
    world.topics.partition(*P0).synced_offset = 8
    assert isinstance((await coordinator.commit("readers", {P0: OffsetCommit(4)}))[P0], OffsetRegression)
    assert await coordinator.commit("readers", {P0: OffsetCommit(8)}) == {P0: None}


async def test_a_partition_that_could_not_be_opened_keeps_its_offset(world: World) -> None:
    world.topics.damaged.add(P0)
    coordinator = restart_with(world, {P1: 3})
    await coordinator.partitions_opened()
    assert shown(coordinator) == {P0: (1_000, None), P1: (3, 1_000), U0: (1_000, None)}


async def test_after_several_cuts_what_the_group_committed_is_kept(world: World) -> None:
    await restart_with(world, {P0: 500}).partitions_opened()
    coordinator = restart_with(world, {P0: 5}, epoch=3)
    await coordinator.partitions_opened()
    assert shown(coordinator)[P0] == (5, 1_000)


async def test_partitions_can_be_opened_one_by_one(world: World) -> None:
    coordinator = restart_with(world, {P0: 5, P1: 6})
    await coordinator.partitions_opened({P1: world.topics.partition(*P1)})
    assert shown(coordinator)[P0] == (1_000, None)
    assert shown(coordinator)[P1] == (6, 1_000)
    await coordinator.partitions_opened({P0: world.topics.partition(*P0)})
    assert shown(coordinator)[P0] == (5, 1_000)


async def test_a_store_that_refuses_is_reported_and_nothing_shown_as_moved(world: World) -> None:
    coordinator = restart_with(world, {P0: 5})
    world.store.failure = StorageFailed("disk full")
    with pytest.raises(StorageFailed):
        await coordinator.partitions_opened()
    assert shown(coordinator)[P0] == (1_000, None)


async def test_a_group_and_topic_is_told_in_one_line(world: World) -> None:
    coordinator = restart_with(world, {P0: 5, P1: 6, U0: 1_000})
    with capture_logs() as lines:
        await coordinator.partitions_opened()
    (line,) = [line for line in lines if line["event"] == "groups.offsets.truncated"]
    assert (line["group"], line["topic"], line["partitions"], line["records"]) == ("readers", "t", 2, 995 + 994)
    assert line["moved"] == ["0: 1000 -> 5", "1: 1000 -> 6"]


async def test_the_lines_of_many_groups_are_bounded() -> None:
    world = World({"t": 1})
    for number in range(MAX_LINES + 3):
        await world.coordinator.commit(f"group-{number}", {P0: OffsetCommit(1_000)})
    coordinator = restart_with(world, {P0: 0})
    with capture_logs() as lines:
        await coordinator.partitions_opened()
    assert len(lines) == MAX_LINES + 1
    assert lines[-1]["groups_and_topics"] == 3
    assert coordinator.truncated_offsets == MAX_LINES + 3


class CountedStore(MetadataStore):
    transactions = 0

    def _commit(self, writes):  # type: ignore[no-untyped-def]  # only counted here
        self.transactions += 1
        return super()._commit(writes)


@pytest.mark.parametrize("groups", [1, 1_500])
async def test_thirty_thousand_offsets_take_few_transactions(tmp_path: Path, groups: int) -> None:
    each = 30_000 // groups
    store = await CountedStore.open(tmp_path / "metadata.db")
    assert isinstance(store, CountedStore)
    try:
        await store.put_topic(StoredTopic("t", uuid.UUID(int=1), each, "{}", 0))
        offsets = {TopicPartition("t", number): CommittedOffset(1_000) for number in range(each)}
        writes = []
        for number in range(groups):
            writes += [
                store.put_group(StoredGroup(f"group-{number}", 1, "", 0)),
                store.commit_offsets(f"group-{number}", offsets),
            ]
            if len(writes) > 5_000:
                for write in writes:
                    await write
                writes = []
        for write in writes:
            await write
        topics = FakeTopics({"t": each})
        for place in offsets:
            topics.partition(*place).next_offset = Offset(5)
        coordinator = GroupCoordinator(store, topics, await store.load())
        store.transactions = 0
        await coordinator.partitions_opened()
        assert coordinator.truncated_offsets == 30_000
        # 10,000 offsets, or 1,000 groups, go into one.
        assert store.transactions <= 5
        found = (await store.load()).offsets
        assert all(one.next_offset == 5 for of_group in found.values() for one in of_group.values())
    finally:
        await store.close()
