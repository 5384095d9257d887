from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from cursus_broker.app import Broker
from cursus_broker.consume.credit import Credit
from cursus_broker.consume.fetch import Edge
from cursus_broker.consume.subscription import Reading, Subscription
from cursus_broker.errors import CursusError
from cursus_broker.groups.members import JoinRequest
from cursus_broker.groups.members import Subscription as Topics
from cursus_broker.groups.state import Assignment
from cursus_broker.log.api import Batch, Entry
from cursus_broker.log.entry import crc32c
from cursus_broker.metadata.model import TopicPartition
from cursus_broker.settings import BrokerSettings
from cursus_broker.topics.config import TopicConfig
from cursus_broker.topics.partition import Partition
from cursus_broker.topics.topic import Topic
from tests.harness.waiting import eventually

ORDERS = TopicPartition("orders", 0)


class SlowOutbox:
    """Takes note of assignments, and takes the first one only when it is allowed to."""

    def __init__(self) -> None:
        self.told: list[dict[TopicPartition, tuple[int, int]]] = []
        self.begun = asyncio.Event()
        self.allowed = asyncio.Event()
        self.second = asyncio.Event()

    async def assignment(
        self, assignment: Assignment, readings: Mapping[TopicPartition, Reading], revoked: Sequence[TopicPartition]
    ) -> None:
        self.told.append({place: (one.offset, one.partition.leader_epoch) for place, one in readings.items()})
        self.begun.set()
        await self.allowed.wait()
        if len(self.told) > 1:
            self.second.set()

    async def batches(self, partition: Partition, entries: Sequence[Entry]) -> None: ...

    async def failed(self, place: TopicPartition, error: CursusError) -> None: ...


async def test_a_topic_deleted_and_created_anew_behind_the_members_back_begins_again_in_its_new_epoch(
    tmp_path: Path,
) -> None:
    settings = BrokerSettings(data_dir=tmp_path / "data")
    async with Broker.open(settings) as broker:
        topic = await broker.catalog.create("orders", 1, TopicConfig())
        topic.partition(0).append(Batch(b"old", 5, crc32c(b"old")), 0)
        old = topic.partition(0).leader_epoch
        request = JoinRequest("readers", Topics(topics=frozenset({"orders"})))
        joined = await broker.coordinator.join(request)
        outbox = SlowOutbox()
        subscription = Subscription(
            broker.coordinator,
            broker.catalog,
            "readers",
            joined.member_id,
            Edge.LATEST,
            Credit(),
            1_000,
            outbox,
            lambda _: None,
        )
        watching = asyncio.create_task(subscription.watch())
        try:
            await outbox.begun.wait()
            await broker.catalog.delete("orders")
            topic = await broker.catalog.create("orders", 1, TopicConfig())
            outbox.allowed.set()
            await outbox.second.wait()
        finally:
            watching.cancel()
        new = topic.partition(0).leader_epoch
        assert new > old
        assert outbox.told == [{ORDERS: (5, old)}, {ORDERS: (0, new)}]


class Deliveries:
    """Takes everything, and says when so many responses with batches have come."""

    def __init__(self) -> None:
        self.assigned = asyncio.Event()
        self.lost: list[TopicPartition] = []
        self.got: list[tuple[int, int]] = []
        self._arrived = asyncio.Condition()

    async def assignment(
        self, assignment: Assignment, readings: Mapping[TopicPartition, Reading], revoked: Sequence[TopicPartition]
    ) -> None:
        self.assigned.set()

    async def batches(self, partition: Partition, entries: Sequence[Entry]) -> None:
        self.got += [(partition.id, entry.header.base_offset) for entry in entries]
        async with self._arrived:
            self._arrived.notify_all()

    async def failed(self, place: TopicPartition, error: CursusError) -> None:
        self.lost.append(place)
        async with self._arrived:
            self._arrived.notify_all()

    async def until(self, reached: Callable[[], bool]) -> None:
        async with self._arrived:
            await self._arrived.wait_for(reached)


@asynccontextmanager
async def subscribed(
    broker: Broker, partitions: int, credit: Credit, response_bytes: int = 1_000
) -> AsyncIterator[tuple[Topic, Subscription, Deliveries]]:
    """A member that owns all partitions of a topic, and has looked at each of them."""
    topic = await broker.catalog.create("orders", partitions, TopicConfig())
    sessions = asyncio.create_task(broker.coordinator.run())  # large groups are rebalanced there
    joined = await broker.coordinator.join(JoinRequest("readers", Topics(topics=frozenset({"orders"}))))
    sessions.cancel()
    outbox = Deliveries()
    subscription = Subscription(
        broker.coordinator,
        broker.catalog,
        "readers",
        joined.member_id,
        Edge.EARLIEST,
        credit,
        response_bytes,
        outbox,
        lambda _: None,
    )
    tasks = [asyncio.create_task(subscription.watch()), asyncio.create_task(subscription.deliver())]
    try:
        await outbox.assigned.wait()
        append(topic, 0)
        await outbox.until(lambda: bool(outbox.got))
        yield topic, subscription, outbox
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def append(topic: Topic, partition: int, payload: bytes = b"set") -> None:
    topic.partition(partition).append(Batch(payload, 1, crc32c(payload)), 0)


@pytest.mark.parametrize("partitions", [1, 200])
async def test_a_batch_costs_as_many_looks_at_partitions_however_many_the_member_owns(
    tmp_path: Path, partitions: int
) -> None:
    async with (
        Broker.open(BrokerSettings(data_dir=tmp_path / "data")) as broker,
        subscribed(broker, partitions, Credit()) as (topic, subscription, outbox),
    ):
        await eventually(lambda: subscription.looks > partitions)
        before = subscription.looks
        for number in range(1, 21):
            append(topic, number % partitions)
            await outbox.until(lambda number=number: len(outbox.got) > number)  # type: ignore[misc]
        # One that finds the batch and one that finds nothing behind it; the last may be still to come.
        assert subscription.looks - before <= 2 * 20


async def test_a_busy_partition_does_not_starve_the_others(tmp_path: Path) -> None:
    credit = Credit()
    credit.grant(1, 0)
    async with (
        Broker.open(BrokerSettings(data_dir=tmp_path / "data")) as broker,
        subscribed(broker, 3, credit, response_bytes=1) as (topic, _, outbox),
    ):
        for _ in range(10):
            append(topic, 0)
        append(topic, 1)
        append(topic, 2)
        credit.grant(6, 0)
        await outbox.until(lambda: len(outbox.got) == 7)
        assert {partition for partition, _ in outbox.got[1:6]} == {0, 1, 2}
        offsets = [offset for partition, offset in outbox.got if partition == 0]
        assert offsets == list(range(len(offsets)))
        credit.grant(100, 0)
        await outbox.until(lambda: len(outbox.got) == 13)


async def test_without_credit_nothing_is_sent_and_with_it_nothing_is_missing(tmp_path: Path) -> None:
    credit = Credit()
    credit.grant(1, 0)
    async with (
        Broker.open(BrokerSettings(data_dir=tmp_path / "data")) as broker,
        subscribed(broker, 4, credit) as (topic, _, outbox),
    ):
        for number in range(40):
            append(topic, number % 4)
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(outbox.got) == 1
        credit.grant(1_000, 0)
        await outbox.until(lambda: len(outbox.got) == 41)
        for partition in range(4):
            offsets = [offset for one, offset in outbox.got if one == partition]
            assert offsets == list(range(len(offsets)))


async def test_deleting_a_topic_is_said_for_each_partition_and_leaves_no_listener(tmp_path: Path) -> None:
    async with (
        Broker.open(BrokerSettings(data_dir=tmp_path / "data")) as broker,
        subscribed(broker, 5, Credit()) as (topic, _, outbox),
    ):
        tails = [topic.partition(number).tail for number in range(5)]
        await broker.catalog.delete("orders")
        await eventually(lambda: not any(len(tail.bell) for tail in tails))
        assert set(outbox.lost) <= {TopicPartition("orders", number) for number in range(5)}
