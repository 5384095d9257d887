"""What the coordinator relies on in a store, kept by the real one and by the stand-in of these tests alike."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cursus_broker.errors import CursusError, GroupNotFound, TopicNotFound
from cursus_broker.groups.api import GroupStore
from cursus_broker.metadata.model import CommittedOffset, StoredGroup, StoredTopic, TopicPartition
from cursus_broker.metadata.store import MetadataStore
from tests.unit.broker.groups.doubles import FakeTopics, MemoryStore

READERS = StoredGroup("readers", 1, "modulo", 0)
P0, GONE = TopicPartition("t", 0), TopicPartition("gone", 0)


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[GroupStore]:
    if request.param == "memory":
        yield MemoryStore(FakeTopics({"t": 1}))
        return
    real = await MetadataStore.open(tmp_path / "metadata.db")
    await real.put_topic(StoredTopic("t", uuid.UUID(int=1), 1, "{}", 0))
    yield real
    await real.close()


async def test_a_write_refers_to_those_submitted_before_it(store: GroupStore) -> None:
    group, commit = store.put_group(READERS), store.commit_offsets("readers", {P0: CommittedOffset(1)})
    await commit
    await group


async def test_offsets_need_their_group_and_their_topic(store: GroupStore) -> None:
    with pytest.raises(GroupNotFound):
        await store.commit_offsets("readers", {P0: CommittedOffset(1)})
    await store.put_group(READERS)
    with pytest.raises(TopicNotFound) as refusal:
        await store.commit_offsets("readers", {P0: CommittedOffset(1), GONE: CommittedOffset(1)})
    assert refusal.value.metadata["topic"] == "gone"
    await store.delete_group("readers")
    with pytest.raises(GroupNotFound):
        await store.commit_offsets("readers", {P0: CommittedOffset(1)})


async def test_outcomes_are_told_in_order_before_anybody_goes_on(store: GroupStore) -> None:
    told: list[CursusError | None] = []
    waits = [
        asyncio.ensure_future(store.put_group(READERS, told.append)),
        asyncio.ensure_future(store.commit_offsets("nobody", {P0: CommittedOffset(1)}, told.append)),
        asyncio.ensure_future(store.commit_offsets("readers", {P0: CommittedOffset(1)}, told.append)),
    ]
    waits[2].cancel()
    await asyncio.wait(waits[:2])
    while len(told) < 3:
        await store.put_group(READERS)
    assert [type(outcome) for outcome in told] == [type(None), GroupNotFound, type(None)]
    assert isinstance(waits[1].exception(), GroupNotFound)
