"""Dropped connections and repeated answers under load: every delivery tells the truth, every record is there once and
in order, and consumers go on where they were."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from cursus_grpc import AsyncConsumer, AsyncProducer, TopicPartition
from cursus_grpc.testing import Broker
from tests.integration.client.faces import Face
from tests.integration.client.proxy import Faults, faulty_proxy

RECORDS = 3_000
KEYS = 7


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """One that answers readers in small pieces, each of which may be the last of its stream."""
    with Broker("--consume-response-bytes", "300") as running:
        yield running


async def stored(broker: Broker, topic: str) -> dict[TopicPartition, list[bytes]]:
    async with AsyncConsumer(broker.address) as consumer:
        return {
            TopicPartition(topic, partition): [record.value or b"" async for record in consumer.range(topic, partition)]
            for partition in range(2)
        }


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "faults",
    [
        Faults(lose_request=0.02),
        Faults(lose_answer=0.2),  # several batches are answered at once
        Faults(repeat_answer=0.2),
        Faults(lose_request=0.01, lose_answer=0.03, repeat_answer=0.05),
    ],
    ids=["requests", "answers", "repeated", "everything"],
)
async def test_records_are_stored_once_in_order_at_the_offsets_told(
    face: Face, broker: Broker, topic: str, faults: Faults, seed: int
) -> None:
    faults.happened = 0
    async with (
        faulty_proxy(broker.address, faults, seed) as address,
        face.producer(address, batch_records=9, max_in_flight=8) as producer,
    ):
        deliveries = [
            await producer.send(topic, b"%d" % number, b"key-%d" % (number % KEYS)) for number in range(RECORDS)
        ]
        places = [await face.result(delivery) for delivery in deliveries]
    assert faults.happened > 0
    found = await stored(broker, topic)
    assert sum(map(len, found.values())) == RECORDS
    for number, place in enumerate(places):
        assert found[TopicPartition(*place[:2])][place.offset] == b"%d" % number
    for values in found.values():
        numbers = [int(value) for value in values]
        for key in range(KEYS):
            of_key = [number for number in numbers if number % KEYS == key]
            assert of_key == sorted(of_key)


@pytest.mark.parametrize("group", [True, False], ids=["group", "assigned"])
async def test_a_consumer_on_a_bad_line_hands_out_everything_once_and_in_order(
    face: Face, broker: Broker, topic: str, group: bool
) -> None:
    """Without a rebalance there is no reason for a repetition: the consumer knows where it was."""
    async with AsyncProducer(broker.address, batch_records=5) as producer:
        for number in range(RECORDS):
            await producer.send(topic, b"%d" % number, partition=number % 2)
    faults = Faults(lose_answer=0.1)
    async with faulty_proxy(broker.address, faults) as address:
        options = {"prefetch_bytes": 400, "group": topic if group else None}
        async with face.consumer(address, **options) as consumer:
            if group:
                await consumer.subscribe([topic])
            else:
                await consumer.assign([TopicPartition(topic, 0), TopicPartition(topic, 1)])
            found: list[Any] = await consumer.take(RECORDS)
            faults.lose_answer = 0.0
    assert faults.happened > 0
    for partition in range(2):
        numbers = [int(record.value) for record in found if record.partition == partition]
        assert numbers == list(range(partition, RECORDS, 2))


async def test_a_broken_member_that_started_at_the_end_skips_nothing(broker: Broker, topic: str) -> None:
    """Nothing is committed, and the reset policy would skip what was published while the line was down."""
    faults = Faults()
    async with (
        faulty_proxy(broker.address, faults) as address,
        AsyncConsumer(address, group=topic, topics=[topic], reset="latest", auto_commit=False) as consumer,
        AsyncProducer(broker.address) as producer,
    ):
        while len(consumer.assignment()) < 2:
            assert await consumer.poll(0.05) is None
        numbers: list[int] = []
        for number in range(30):
            faults.lose_answer = 1.0 if number % 3 == 0 else 0.0
            await (await producer.send(topic, b"%d" % number, partition=0))
            if number % 3 != 0:
                record = await consumer.poll(60.0)
                assert record is not None
                numbers.append(int(record.value or b""))
        faults.lose_answer = 0.0
        while len(numbers) < 30:
            record = await consumer.poll(60.0)
            assert record is not None
            numbers.append(int(record.value or b""))
    assert numbers == list(range(30))


async def test_leaving_a_group_warns_of_nothing_however_the_stream_ends(
    face: Face, broker: Broker, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """With a large record on its way the broker cuts the stream off, and `consume --count 1` warned that it would try
    again."""
    async with AsyncProducer(broker.address) as producer:
        await producer.send(topic, b"a", partition=0)
    faults = Faults(cut_when_done=True)
    with caplog.at_level(logging.WARNING, "cursus_grpc"):
        async with (
            faulty_proxy(broker.address, faults) as address,
            face.consumer(address, group=topic, topics=[topic]) as consumer,
        ):
            record = await consumer.poll(60)
            assert record is not None
            assert record.value == b"a"
    assert faults.happened > 0
    assert caplog.messages == []
