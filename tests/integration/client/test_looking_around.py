"""What a consumer can be asked besides records, and how it lets go."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from cursus_grpc import Admin, Producer, TopicPartition, errors
from cursus_grpc.testing import Broker
from tests.integration.client.faces import Face


@pytest.fixture
def filled(broker: Broker, admin: Admin, topic: str) -> str:
    """Ten records in partition 0, of which the first three are deleted, and five in partition 1."""
    with Producer(broker.address) as producer:
        for number in range(15):
            producer.send(topic, b"%d" % number, partition=0 if number < 10 else 1)
    admin.delete_records(topic, {0: 3})
    return topic


async def test_offsets_are_looked_up_without_being_assigned(face: Face, broker: Broker, filled: str) -> None:
    zero, one = TopicPartition(filled, 0), TopicPartition(filled, 1)
    async with face.consumer(broker.address) as consumer:
        assert await consumer.beginning_offsets([zero, one]) == {zero: 3, one: 0}
        assert await consumer.end_offsets([zero, (filled, 1)]) == {zero: 10, one: 5}
        assert await consumer.end_offsets([]) == {}
        later_ms = int(time.time() * 1000) + 3_600_000
        assert await consumer.offsets_for_times({zero: 0, one: later_ms}) == {zero: 3, one: None}
        with pytest.raises(errors.PartitionNotFound):
            await consumer.end_offsets([TopicPartition(filled, 9)])
        with pytest.raises(errors.TopicNotFound):
            await consumer.beginning_offsets([TopicPartition("nothing", 0)])


async def test_records_come_by_partition(face: Face, broker: Broker, filled: str) -> None:
    found: dict[TopicPartition, list[int]] = {}
    async with face.consumer(broker.address, group=filled, topics=[filled]) as consumer:
        while sum(map(len, found.values())) < 12:
            for partition, records in (await consumer.poll_many(max_records=4, timeout_s=60.0)).items():
                assert {(record.topic, record.partition) for record in records} == {partition}
                found.setdefault(partition, []).extend(record.offset for record in records)
    assert found == {TopicPartition(filled, 0): list(range(3, 10)), TopicPartition(filled, 1): list(range(5))}


async def test_what_is_paused_and_subscribed_can_be_asked(face: Face, broker: Broker, filled: str) -> None:
    async with face.consumer(broker.address, group=filled) as consumer:
        assert await consumer.subscription() is None
        assert await consumer.paused() == set()
        await consumer.subscribe([filled], pattern="other-.*")
        assert await consumer.subscription() == ({filled}, "other-.*")
        await consumer.take(1)
        await consumer.pause((filled, 1))
        assert await consumer.paused() == {(filled, 1)}
        await consumer.resume((filled, 1))
        assert await consumer.paused() == set()


async def test_an_unsubscribed_consumer_has_left_and_may_begin_anew(
    face: Face, broker: Broker, admin: Admin, filled: str
) -> None:
    told: list[Any] = []
    async with face.consumer(broker.address, group=filled, topics=[filled], on_revoked=told.append) as consumer:
        while len(await consumer.assignment()) < 2:
            await consumer.poll(timeout_s=0.1)
        before = await consumer.committed([TopicPartition(filled, 0), TopicPartition(filled, 1)])
        assert all(one.offset is None for one in before.values())
        await consumer.unsubscribe()
        assert [sorted(partitions) for partitions in told] == [[(filled, 0), (filled, 1)]]
        assert await consumer.assignment() == set()
        assert await consumer.subscription() is None
        with pytest.raises(ValueError, match="nothing to read"):
            await consumer.poll()
        group = await asyncio.to_thread(admin.describe_group, filled)
        assert group.summary.member_count == 0

        await consumer.assign({TopicPartition(filled, 1): 2})
        assert [record.value for record in await consumer.take(3)] == [b"12", b"13", b"14"]
        await consumer.unsubscribe()
        await consumer.subscribe([filled])
        assert len(await consumer.take(2)) == 2


async def test_unsubscribing_commits_what_was_processed_and_nothing_else(
    face: Face, broker: Broker, admin: Admin, filled: str
) -> None:
    """The record in hand is not: it comes again."""
    async with face.consumer(broker.address, group=filled) as consumer:
        await consumer.subscribe([filled])
        await consumer.take(12)
        await consumer.unsubscribe()
    committed = await asyncio.to_thread(admin.fetch_offsets, filled)
    left = 15 - sum(one.offset or 0 for one in committed.values())
    assert left == 1
    async with face.consumer(broker.address, group=filled, topics=[filled]) as consumer:
        assert len(await consumer.take(1)) == 1


async def test_two_members_share_what_one_of_them_left(face: Face, broker: Broker, filled: str) -> None:
    async with (
        face.consumer(broker.address, group=filled, topics=[filled]) as first,
        face.consumer(broker.address, group=filled, topics=[filled]) as second,
    ):
        while not (await first.assignment() and await second.assignment()):
            await first.poll(timeout_s=0.1)
            await second.poll(timeout_s=0.1)
        await first.unsubscribe()
        while len(await second.assignment()) < 2:
            await second.poll(timeout_s=0.1)
