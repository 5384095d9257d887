"""Ages of what groups have still to read, on a broker's own catalog and coordinator."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import google_crc32c
import pytest

from cursus_broker.app import Broker
from cursus_broker.groups.api import OffsetCommit
from cursus_broker.log.api import Batch
from cursus_broker.metadata.model import TopicPartition
from cursus_broker.observability import lag
from cursus_broker.observability.lag import LagAges
from cursus_broker.settings import BrokerSettings
from cursus_broker.topics.config import TopicConfig

NOW_S = 1_000.0


class Stage:
    """A broker with topics, and ages as of NOW_S."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.ages = LagAges(broker.catalog, broker.coordinator, clock=lambda: NOW_S)

    async def topic(self, name: str, partitions: int = 1) -> None:
        await self.broker.catalog.create(name, partitions, TopicConfig())

    def append(self, topic: str, partition: int, *at_s: float) -> None:
        for second in at_s:
            batch = Batch(b"x", 1, google_crc32c.value(b"x"))
            self.broker.catalog.partition(topic, partition).append(batch, int(second * 1000))

    async def commit(self, group: str, topic: str, partition: int, offset: int) -> None:
        place = TopicPartition(topic, partition)
        assert await self.broker.coordinator.commit(group, {place: OffsetCommit(offset)}) == {place: None}

    async def look(self) -> dict[tuple[str, str], float]:
        await self.ages.look()
        return dict(self.ages.seconds())


@asynccontextmanager
async def staged(tmp_path: Path, tail_records: int) -> AsyncIterator[Stage]:
    settings = BrokerSettings(data_dir=tmp_path / "data")
    settings = replace(settings, consume=replace(settings.consume, tail_records=tail_records))
    async with Broker.open(settings) as broker:
        yield Stage(broker)


@pytest.mark.parametrize("tail_records", [1_000, 0], ids=["in-memory", "on-disk"])
async def test_the_age_is_that_of_the_oldest_unread_record_of_any_partition(tmp_path: Path, tail_records: int) -> None:
    async with staged(tmp_path, tail_records) as stage:
        await stage.topic("orders", 3)
        stage.append("orders", 0, 100.0, 400.0)
        stage.append("orders", 1, 700.0)
        stage.append("orders", 2, 50.0)
        await stage.commit("readers", "orders", 0, 1)
        await stage.commit("readers", "orders", 1, 0)
        await stage.commit("readers", "orders", 2, 1)
        assert await stage.look() == {("readers", "orders"): 600.0}
        await stage.commit("readers", "orders", 0, 2)
        assert await stage.look() == {("readers", "orders"): 300.0}
        await stage.commit("readers", "orders", 1, 1)
        assert await stage.look() == {("readers", "orders"): 0.0}


async def test_a_topic_made_anew_is_not_given_the_age_of_its_predecessor(tmp_path: Path) -> None:
    async with staged(tmp_path, 1_000) as stage:
        await stage.topic("orders")
        stage.append("orders", 0, 100.0)
        await stage.commit("readers", "orders", 0, 0)
        assert await stage.look() == {("readers", "orders"): 900.0}
        await stage.broker.catalog.delete("orders")
        await stage.topic("orders")
        stage.append("orders", 0, 990.0)
        await stage.commit("readers", "orders", 0, 0)
        assert await stage.look() == {("readers", "orders"): 10.0}


async def test_what_a_round_does_not_reach_on_disk_the_next_ones_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lag, "LOOKUPS_A_ROUND", 2)
    async with staged(tmp_path, 0) as stage:
        groups = [f"group-{number}" for number in range(5)]
        await stage.topic("orders")
        stage.append("orders", 0, 100.0, 200.0)
        for group in groups:
            await stage.commit(group, "orders", 0, 0)
        for _ in range(3):
            ages = await stage.look()
        assert ages == {(group, "orders"): 900.0 for group in groups}
        for group in groups:
            await stage.commit(group, "orders", 0, 1)
        ages = await stage.look()
        # Never younger than the truth: who is not looked up keeps the older record's age.
        assert sorted(ages.values()) == [800.0, 800.0, 900.0, 900.0, 900.0]
        for _ in range(2):
            ages = await stage.look()
        assert ages == {(group, "orders"): 800.0 for group in groups}


async def test_a_group_or_topic_that_is_gone_has_no_age(tmp_path: Path) -> None:
    async with staged(tmp_path, 1_000) as stage:
        await stage.topic("orders")
        await stage.topic("refunds")
        for topic in ("orders", "refunds"):
            stage.append(topic, 0, 100.0)
            await stage.commit("readers", topic, 0, 0)
        await stage.commit("others", "orders", 0, 1)
        assert set(await stage.look()) == {("readers", "orders"), ("readers", "refunds"), ("others", "orders")}
        await stage.broker.catalog.delete("refunds")
        await stage.broker.coordinator.delete_group("others")
        assert await stage.look() == {("readers", "orders"): 900.0}
