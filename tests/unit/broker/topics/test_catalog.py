from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from cursus_broker.app import Broker
from cursus_broker.errors import StorageFailed, TopicExists
from cursus_broker.metadata.store import MetadataStore
from cursus_broker.settings import BrokerSettings
from cursus_broker.topics.catalog import Catalog
from cursus_broker.topics.config import TopicConfig
from tests.harness.waiting import eventually

PutTopic = Callable[..., Awaitable[None]]


@pytest.fixture
async def catalog(tmp_path: Path) -> AsyncIterator[Catalog]:
    async with Broker.open(BrokerSettings(data_dir=tmp_path / "data")) as broker:
        yield broker.catalog


async def cancelled_while_storing(
    change: Callable[[], Awaitable[object]], monkeypatch: pytest.MonkeyPatch, put_topic: PutTopic
) -> None:
    """Begin the change, and leave when it has come to the metadata."""
    storing = asyncio.Event()

    def noted(*args: object) -> Awaitable[None]:
        storing.set()
        return put_topic(*args)

    monkeypatch.setattr(MetadataStore, "put_topic", noted)
    task = asyncio.ensure_future(change())
    await storing.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_change_is_finished_also_when_its_client_leaves(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_topic = MetadataStore.put_topic
    await cancelled_while_storing(lambda: catalog.create("orders", 1, TopicConfig()), monkeypatch, put_topic)
    await eventually(lambda: "orders" in catalog.names())
    with pytest.raises(TopicExists):
        await catalog.create("orders", 1, TopicConfig())
    await cancelled_while_storing(lambda: catalog.add_partitions("orders", 3), monkeypatch, put_topic)
    await eventually(lambda: catalog.partition_count("orders") == 3)


@pytest.mark.parametrize("what", ["create", "add"])
async def test_a_change_that_could_not_be_stored_may_be_tried_again(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    await catalog.create("old", 1, TopicConfig())

    async def change() -> None:
        await (catalog.create("new", 2, TopicConfig()) if what == "create" else catalog.add_partitions("old", 2))

    def refuse(*_: object) -> Awaitable[None]:
        raise StorageFailed("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(MetadataStore, "put_topic", refuse)
        with pytest.raises(StorageFailed):
            await change()
    assert catalog.total_partitions == 1
    await change()
    topic = catalog.topic("new" if what == "create" else "old")
    assert [one.leader_epoch > 0 for one in topic.healthy()] == [True, True]


async def test_topics_asked_for_by_name_are_found_without_the_others(catalog: Catalog) -> None:
    for name in ("refunds", "orders", "lines"):
        await catalog.create(name, 1, TopicConfig())
    assert [topic.name for topic in catalog.topics(["refunds", "none", "lines", "lines"])] == ["lines", "refunds"]
    assert [topic.name for topic in catalog.topics()] == ["lines", "orders", "refunds"]


async def test_a_change_is_told_with_the_name_of_its_topic(catalog: Catalog) -> None:
    told: list[str] = []
    catalog.on_change(told.append)
    await catalog.create("orders", 1, TopicConfig())
    await catalog.add_partitions("orders", 2)
    await catalog.delete("orders")
    assert told == ["orders"] * 3
