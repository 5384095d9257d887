"""The broker is killed under load, again and again, while producers and consumers work.

Every delivery tells the truth; each record is stored exactly once and in per-key order; the group's consumer is handed
everything at least once. The moments are chosen by progress, not by a clock.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from cursus_grpc import Admin, AsyncConsumer, AsyncProducer, Consumer, Producer, RecordMetadata, TopicPartition
from cursus_grpc.testing import Broker
from tests.harness.waiting import eventually

pytestmark = pytest.mark.slow

TOPIC = "orders"
PARTITIONS = 3
KEYS = 11
KILLS = 4
RECORDS_A_LIFE = 1_500


async def kill_while(broker: Broker, progress: Callable[[], int], load: Awaitable[Any]) -> None:
    """Kill and restart the broker each time another life's worth of records has been acknowledged."""
    for life in range(KILLS):
        await eventually(lambda life=life: progress() >= (life + 1) * RECORDS_A_LIFE)  # type: ignore[misc]  # bound now
        await asyncio.to_thread(broker.kill)
        await asyncio.to_thread(broker.restart)
    await load


async def stored(broker: Broker) -> dict[TopicPartition, list[bytes]]:
    async with AsyncConsumer(broker.address) as consumer:
        return {
            TopicPartition(TOPIC, partition): [record.value or b"" async for record in consumer.range(TOPIC, partition)]
            for partition in range(PARTITIONS)
        }


def check(found: dict[TopicPartition, list[bytes]], places: list[RecordMetadata]) -> None:
    """Record i was sent as number i with key i % KEYS, and acknowledged at places[i]."""
    numbers = {place: [int(value) for value in values] for place, values in found.items()}
    assert sorted(itertools.chain.from_iterable(numbers.values())) == list(range(len(places)))
    for number, place in enumerate(places):
        assert numbers[TopicPartition(*place[:2])][place.offset] == number
    for one in numbers.values():
        for key in range(KEYS):
            of_key = [number for number in one if number % KEYS == key]
            assert of_key == sorted(of_key)


@pytest.mark.parametrize("acks", [1, "all"])
async def test_asyncio_clients_over_a_broker_that_is_killed(acks: Any) -> None:
    with Broker() as broker:
        await asyncio.to_thread(create_topic, broker)
        acknowledged = itertools.count()
        progress = [0]

        def count(metadata: RecordMetadata | None, error: Exception | None) -> None:
            assert error is None
            progress[0] = next(acknowledged) + 1

        seen: set[bytes] = set()
        total = KILLS * RECORDS_A_LIFE + RECORDS_A_LIFE

        async def produce() -> list[RecordMetadata]:
            async with AsyncProducer(broker.address, acks=acks, batch_records=40, on_delivery=count) as producer:
                deliveries = []
                for number in range(total):
                    deliveries.append(await producer.send(TOPIC, b"%d" % number, b"%d" % (number % KEYS)))
                    # Not ahead of the kills: they are to meet batches in every state.
                    if number - progress[0] > RECORDS_A_LIFE // 2:
                        await deliveries[progress[0]]
                return [await delivery for delivery in deliveries]

        async def consume() -> None:
            async with AsyncConsumer(broker.address, group="g", topics=[TOPIC], auto_commit_interval_ms=50) as consumer:
                async for record in consumer:
                    seen.add(record.value or b"")
                    if len(seen) == total:
                        return

        producing = asyncio.ensure_future(produce())
        consuming = asyncio.ensure_future(consume())
        await kill_while(broker, lambda: progress[0], producing)
        await asyncio.wait_for(consuming, 120.0)
        check(await stored(broker), producing.result())


async def test_blocking_clients_over_a_broker_that_is_killed() -> None:
    with Broker() as broker:
        await asyncio.to_thread(create_topic, broker)
        total = KILLS * RECORDS_A_LIFE + RECORDS_A_LIFE
        progress = [0]
        seen: set[bytes] = set()

        def produce() -> list[RecordMetadata]:
            with Producer(broker.address, batch_records=40) as producer:
                deliveries = []
                for number in range(total):
                    deliveries.append(producer.send(TOPIC, b"%d" % number, b"%d" % (number % KEYS)))
                    while number - progress[0] > RECORDS_A_LIFE // 2:
                        deliveries[progress[0]].result()
                        progress[0] += 1
                while progress[0] < total:
                    deliveries[progress[0]].result()
                    progress[0] += 1
                return [delivery.result() for delivery in deliveries]

        def consume() -> None:
            with Consumer(broker.address, group="g", topics=[TOPIC], auto_commit_interval_ms=50) as consumer:
                for record in consumer:
                    seen.add(record.value or b"")
                    if len(seen) == total:
                        return

        producing = asyncio.ensure_future(asyncio.to_thread(produce))
        consuming = asyncio.ensure_future(asyncio.to_thread(consume))
        await kill_while(broker, lambda: progress[0], producing)
        await asyncio.wait_for(consuming, 120.0)
        check(await stored(broker), producing.result())


def create_topic(broker: Broker) -> None:
    with Admin(broker.address) as admin:
        admin.create_topic(TOPIC, PARTITIONS)
