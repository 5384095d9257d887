from __future__ import annotations

import asyncio

import pytest

from cursus_broker.errors import OffsetRegression, StorageFailed, TopicNotFound
from cursus_broker.groups.offsets import GroupOffsets
from cursus_broker.metadata.model import CommittedOffset, StoredGroup, TopicPartition
from tests.unit.broker.groups.doubles import FakeTopics, MemoryStore

P0, P1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)


@pytest.fixture
def topics() -> FakeTopics:
    return FakeTopics({"t": 2, "u": 1})


@pytest.fixture
def store(topics: FakeTopics) -> MemoryStore:
    store = MemoryStore(topics)
    store.groups["g"] = StoredGroup("g", 1, "modulo", 0)
    return store


@pytest.fixture
def offsets(store: MemoryStore) -> GroupOffsets:
    return GroupOffsets("g", store, {})


async def test_an_offset_is_shown_only_once_it_is_durable(store: MemoryStore, offsets: GroupOffsets) -> None:
    store.hold()
    commit = asyncio.ensure_future(offsets.commit({P0: CommittedOffset(5)}))
    await asyncio.sleep(0)
    assert offsets.committed == {}
    store.release()
    assert await commit == {P0: None}
    assert offsets.committed == {P0: CommittedOffset(5)}


async def test_a_lower_offset_is_refused_even_while_the_higher_is_on_its_way(
    store: MemoryStore, offsets: GroupOffsets
) -> None:
    store.hold()
    higher = asyncio.ensure_future(offsets.commit({P0: CommittedOffset(9)}))
    await asyncio.sleep(0)
    assert isinstance((await offsets.commit({P0: CommittedOffset(8)}))[P0], OffsetRegression)
    same = asyncio.ensure_future(offsets.commit({P0: CommittedOffset(9)}))
    await asyncio.sleep(0)
    store.release()
    assert (await higher, await same) == ({P0: None}, {P0: None})
    assert store.offsets["g"] == offsets.committed == {P0: CommittedOffset(9)}


async def test_a_failed_commit_shows_nothing_and_blocks_nothing(store: MemoryStore, offsets: GroupOffsets) -> None:
    await offsets.commit({P0: CommittedOffset(1)})
    store.failure = StorageFailed("disk full")
    with pytest.raises(StorageFailed):
        await offsets.commit({P0: CommittedOffset(9)})
    assert offsets.committed == {P0: CommittedOffset(1)}
    store.failure = None
    assert await offsets.commit({P0: CommittedOffset(2)}) == {P0: None}


async def test_a_caller_that_goes_away_does_not_part_memory_from_disk(
    store: MemoryStore, offsets: GroupOffsets
) -> None:
    store.hold()
    commit = asyncio.ensure_future(offsets.commit({P0: CommittedOffset(5)}))
    await asyncio.sleep(0)
    commit.cancel()
    with pytest.raises(asyncio.CancelledError):
        await commit
    store.release()
    assert store.offsets["g"] == offsets.committed == {P0: CommittedOffset(5)}


async def test_a_topic_deleted_on_the_way_costs_only_its_own_partitions(
    topics: FakeTopics, store: MemoryStore, offsets: GroupOffsets
) -> None:
    store.hold()
    commit = asyncio.ensure_future(offsets.commit({P0: CommittedOffset(5), U0: CommittedOffset(6)}))
    await asyncio.sleep(0)
    del topics.counts["u"]
    offsets.forget_topics({"u"})
    store.release()
    outcomes = await commit
    assert outcomes[P0] is None
    assert isinstance(outcomes[U0], TopicNotFound)
    assert offsets.committed == {P0: CommittedOffset(5)}


async def test_a_commit_that_goes_again_never_overtakes_one_that_came_between(
    topics: FakeTopics, store: MemoryStore, offsets: GroupOffsets
) -> None:
    """The first commit has to be sent twice, because a topic in it is gone; a higher one arrives in between."""
    store.hold()
    first = asyncio.ensure_future(offsets.commit({P0: CommittedOffset(5), U0: CommittedOffset(6)}))
    await asyncio.sleep(0)
    del topics.counts["u"]
    store.release()
    second = offsets.commit({P0: CommittedOffset(7)})
    assert await second == {P0: None}
    outcomes = await first
    assert isinstance(outcomes[P0], OffsetRegression)
    assert store.offsets["g"][P0] == offsets.committed[P0] == CommittedOffset(7)


async def test_a_write_for_a_forgotten_topic_is_not_shown_for_its_successor(
    store: MemoryStore, offsets: GroupOffsets
) -> None:
    store.hold()
    commit = asyncio.ensure_future(offsets.commit({U0: CommittedOffset(5)}))
    await asyncio.sleep(0)
    offsets.forget_topics({"u"})
    store.release()
    await commit
    assert offsets.committed == {}
    assert offsets.regression(U0, 0) is None


async def test_a_reset_goes_back_and_later_commits_start_from_there(offsets: GroupOffsets) -> None:
    await offsets.commit({P0: CommittedOffset(9), P1: CommittedOffset(9)})
    await offsets.reset({P0: CommittedOffset(2)})
    assert offsets.committed == {P0: CommittedOffset(2), P1: CommittedOffset(9)}
    assert await offsets.commit({P0: CommittedOffset(3)}) == {P0: None}
