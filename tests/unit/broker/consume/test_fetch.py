"""Fetches of many partitions: how often each is looked at, and what the limits let in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from cursus_broker.app import Broker
from cursus_broker.consume.arrivals import Arrivals
from cursus_broker.consume.fetch import Collection, Fetcher, FetchPart
from cursus_broker.errors import TopicNotFound
from cursus_broker.log.api import Batch
from cursus_broker.log.entry import crc32c
from cursus_broker.settings import BrokerSettings
from cursus_broker.topics.config import TopicConfig
from cursus_broker.topics.topic import Topic
from tests.harness.waiting import eventually


@asynccontextmanager
async def orders(tmp_path: Path, partitions: int) -> AsyncIterator[tuple[Broker, Topic, list[FetchPart]]]:
    """A topic, and a fetch of all of it from the beginning."""
    async with Broker.open(BrokerSettings(data_dir=tmp_path / "data")) as broker:
        topic = await broker.catalog.create("orders", partitions, TopicConfig())
        yield broker, topic, [FetchPart("orders", number, 0, 0) for number in range(partitions)]


def append(topic: Topic, partition: int, size: int = 10, records: int = 1) -> None:
    payload = b"x" * size
    topic.partition(partition).append(Batch(payload, records, crc32c(payload)), 0)


async def test_a_wait_looks_again_only_at_the_partitions_that_changed(tmp_path: Path) -> None:
    async with orders(tmp_path, 50) as (broker, topic, parts):
        collection = Collection(broker.catalog, parts, 1_000, 1_000)
        arrivals: Arrivals[int] = Arrivals()
        await collection.look_at_all()
        await collection.watch_all(arrivals)
        for _ in range(3):
            append(topic, 7)
            append(topic, 31)
            while (index := arrivals.take()) is not None:
                await collection.look_at(index)
        assert collection.looks == 50 + 3 * 2
        assert [len(one.entries) for one in collection.fetched if one.entries] == [3, 3]
        assert [entry.header.base_offset for entry in collection.fetched[7].entries] == [0, 1, 2]
        assert collection.size == 60


async def test_what_arrives_between_looking_and_watching_is_not_missed(tmp_path: Path) -> None:
    async with orders(tmp_path, 3) as (broker, topic, parts):
        collection = Collection(broker.catalog, parts, 1_000, 1_000)
        await collection.look_at_all()
        append(topic, 1)
        arrivals: Arrivals[int] = Arrivals()
        await collection.watch_all(arrivals)
        assert arrivals.take() == 1


async def test_a_wait_gathers_up_to_min_bytes_and_leaves_no_listener(tmp_path: Path) -> None:
    async with orders(tmp_path, 3) as (broker, topic, parts):
        fetching = asyncio.create_task(
            Fetcher(broker.catalog, 1_000).fetch(parts, max_wait_ms=60_000, min_bytes=30, max_bytes=0, max_records=0)
        )
        tails = [topic.partition(number).tail for number in range(3)]
        await eventually(lambda: all(len(tail.bell) for tail in tails))
        for number in (2, 0, 2):
            assert not fetching.done()
            append(topic, number)
            for _ in range(5):
                await asyncio.sleep(0)
        assert [len(one.entries) for one in await fetching] == [1, 0, 2]
        assert not any(len(tail.bell) for tail in tails)


@pytest.mark.parametrize(
    ("part_limit", "max_bytes", "max_records", "kept"),
    [(0, 25, 0, 2), (25, 1_000, 0, 2), (20, 1_000, 0, 2), (0, 1_000, 2, 2), (5, 1_000, 0, 1), (0, 5, 0, 1)],
)
async def test_a_wait_ends_when_a_limit_leaves_no_room_and_keeps_to_it(
    tmp_path: Path, part_limit: int, max_bytes: int, max_records: int, kept: int
) -> None:
    async with orders(tmp_path, 2) as (broker, topic, _):
        parts = [FetchPart("orders", number, 0, part_limit) for number in range(2)]
        fetching = asyncio.create_task(
            Fetcher(broker.catalog, 1_000).fetch(
                parts, max_wait_ms=60_000, min_bytes=1_000, max_bytes=max_bytes, max_records=max_records
            )
        )
        await asyncio.sleep(0)
        for _ in range(3):
            append(topic, 0)
            for _ in range(5):
                await asyncio.sleep(0)
        assert [len(one.entries) for one in await fetching] == [kept, 0]


async def test_a_topic_that_is_deleted_ends_the_wait_with_its_error(tmp_path: Path) -> None:
    async with orders(tmp_path, 2) as (broker, topic, parts):
        fetching = asyncio.create_task(
            Fetcher(broker.catalog, 1_000).fetch(parts, max_wait_ms=60_000, min_bytes=1, max_bytes=0, max_records=0)
        )
        await eventually(lambda: len(topic.partition(1).tail.bell))
        await broker.catalog.delete("orders")
        assert [type(one.error) for one in await fetching] == [TopicNotFound, TopicNotFound]
