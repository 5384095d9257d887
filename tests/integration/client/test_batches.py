"""Ready-made sets: sent under the numbers they came with, whatever happens on the way."""

from __future__ import annotations

import asyncio

import pytest

from cursus_grpc import AsyncConsumer, TopicPartition
from cursus_grpc.batches import BatchPublisher, NumberedSet
from cursus_grpc.errors import (
    ClientClosed,
    CursusError,
    DeliveryTimeout,
    ProducerFenced,
    SequenceConflict,
    TopicNotFound,
)
from cursus_grpc.testing import Broker
from cursus_proto.records import encode_record
from tests.integration.client.proxy import Faults, faulty_proxy


def numbered(topic: str, sets: int, *, rows: int = 3, partition: int = 0, epoch: int = 0) -> list[NumberedSet]:
    return [
        NumberedSet.of(
            TopicPartition(topic, partition),
            b"producer",
            epoch,
            number * rows,
            b"".join(encode_record(b"%d" % row) for row in range(number * rows, number * rows + rows)),
            rows,
        )
        for number in range(sets)
    ]


async def stored(broker: Broker, topic: str, partition: int = 0) -> list[bytes | None]:
    async with AsyncConsumer(broker.address) as consumer:
        return [record.value async for record in consumer.range(topic, partition)]


def publish(address: str, sets: list[NumberedSet]) -> None:
    with BatchPublisher(address) as publisher:
        publisher.publish(sets)
        publisher.flush()


async def test_a_repetition_is_stored_once(broker: Broker, topic: str) -> None:
    for _ in range(2):
        await asyncio.to_thread(publish, broker.address, numbered(topic, 40))
    assert await stored(broker, topic) == [b"%d" % row for row in range(120)]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "faults",
    [Faults(lose_request=0.02), Faults(lose_answer=0.2), Faults(lose_request=0.02, lose_answer=0.05)],
    ids=["requests", "answers", "both"],
)
async def test_broken_streams_cost_nothing_and_repeat_nothing(
    broker: Broker, topic: str, faults: Faults, seed: int
) -> None:
    faults.happened = 0
    sets = [one for pair in zip(numbered(topic, 300), numbered(topic, 300, partition=1), strict=True) for one in pair]
    async with faulty_proxy(broker.address, faults, seed) as address:
        await asyncio.to_thread(publish, address, sets)
    assert faults.happened > 0
    for partition in (0, 1):
        assert await stored(broker, topic, partition) == [b"%d" % row for row in range(900)]


def test_refusals_are_told_and_the_others_go_on(broker: Broker, topic: str) -> None:
    first, second, third = numbered(topic, 3)
    other = NumberedSet.of(first.place, b"producer", 0, 0, b"".join([encode_record(b"other")] * 3), 3)
    refused: list[tuple[NumberedSet, CursusError]] = []
    with BatchPublisher(broker.address, on_refused=lambda *told: refused.append(told)) as publisher:
        publisher.publish([first, other, second])
        publisher.flush()
        assert [(one is other, type(error)) for one, error in refused] == [(True, SequenceConflict)]
        publisher.publish(numbered(topic, 1, epoch=1))
        publisher.publish([third])
        publisher.flush()
    assert type(refused[1][1]) is ProducerFenced


def test_without_a_callback_a_refusal_is_raised(broker: Broker, topic: str) -> None:
    (first,) = numbered(topic, 1)
    other = NumberedSet.of(first.place, b"producer", 0, 0, encode_record(b"other"), 1)
    with pytest.raises(SequenceConflict):
        publish(broker.address, [first, other])


def test_what_cannot_be_sent_fails(broker: Broker, topic: str) -> None:
    with pytest.raises(TopicNotFound):
        publish(broker.address, numbered("nowhere", 1))
    with BatchPublisher("127.0.0.1:1", timeout_s=0.2, request_timeout_s=0.2) as publisher:
        publisher.publish(numbered(topic, 1))
        with pytest.raises(DeliveryTimeout):
            publisher.flush()
        publisher.close()
        with pytest.raises((ClientClosed, DeliveryTimeout)):
            publisher.publish(numbered(topic, 1))


def test_large_sets_pass_a_small_window(broker: Broker, topic: str) -> None:
    payload = encode_record(b"x" * 100_000)
    sets = [NumberedSet.of(TopicPartition(topic, 0), b"producer", 0, number, payload, 1) for number in range(20)]
    with BatchPublisher(broker.address, window_bytes=1_000) as publisher:
        publisher.publish(sets)
        publisher.flush()
        publisher.publish(sets)
        publisher.flush()
