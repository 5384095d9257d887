from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

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
