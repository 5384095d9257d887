"""Where a consumer is while it hands out a large batch, and what it does in the middle of one."""

from __future__ import annotations

from typing import Any

import pytest

from cursus_grpc import Admin, Consumer, Producer, TopicPartition, errors
from cursus_grpc.testing import Broker
from tests.harness.waiting import eventually
from tests.integration.client.faces import Face

COUNT = 5_000


@pytest.fixture
def place(admin: Admin, broker: Broker, name: str) -> TopicPartition:
    """A partition with a few batches of thousands of records each, of one shape and of several."""
    admin.create_topic(name, 1)
    with Producer(broker.address) as producer:
        for number in range(COUNT):
            value = b"%05d" % number if number < COUNT // 2 else b"%d" % number * (number % 7 + 1)
            producer.send(name, value, key=b"key-%d" % (number % 3))
    return TopicPartition(name, 0)


def committed(admin: Admin, group: str, place: TopicPartition) -> int | None:
    found = admin.fetch_offsets(group).get(place)
    return None if found is None else found.offset


def offsets(records: list[Any]) -> list[int]:
    return [record.offset for record in records]


async def test_position_and_commit_in_the_middle_of_a_batch(
    face: Face, admin: Admin, broker: Broker, place: TopicPartition
) -> None:
    async with face.consumer(broker.address, group=place.topic, topics=[place.topic]) as consumer:
        assert offsets(await consumer.take(1_234)) == list(range(1_234))
        assert await consumer.position(place) == 1_234
        await consumer.commit()
        assert committed(admin, place.topic, place) == 1_234
        assert (await consumer.poll(5.0)).offset == 1_234
        assert offsets(await consumer.poll_batch(100, 5.0)) == list(range(1_235, 1_335))
        assert await consumer.position(place) == 1_335
        assert offsets(await consumer.take(3_000)) == list(range(1_335, 4_335))


@pytest.mark.parametrize("fails", [False, True])
async def test_what_is_committed_when_a_consumer_ends_in_the_middle_of_a_batch(
    face: Face, admin: Admin, broker: Broker, place: TopicPartition, fails: bool
) -> None:
    """The record in hand counts as processed if the block is left in good order, and not if it failed."""

    class Failed(Exception):
        pass

    try:
        async with face.consumer(broker.address, group=place.topic, topics=[place.topic]) as consumer:
            await consumer.take(777)
            if fails:
                raise Failed
    except Failed:
        pass
    assert committed(admin, place.topic, place) == (776 if fails else 777)


async def test_the_client_commits_by_itself_what_is_before_the_record_in_hand(
    face: Face, admin: Admin, broker: Broker, place: TopicPartition
) -> None:
    """On its own thread, which looks at where the application's thread is."""
    options = {"group": place.topic, "topics": [place.topic], "auto_commit_interval_ms": 20.0}
    async with face.consumer(broker.address, **options) as consumer:
        await consumer.take(777)
        await eventually(lambda: committed(admin, place.topic, place) == 776)


async def test_seek_and_pause_take_effect_with_the_next_record(
    face: Face, broker: Broker, place: TopicPartition
) -> None:
    async with face.consumer(broker.address) as consumer:
        await consumer.assign({place: 0})
        await consumer.take(10)
        await consumer.seek(place, 3_000)
        assert offsets(await consumer.take(5)) == list(range(3_000, 3_005))
        await consumer.pause(place)
        assert await consumer.poll(0.1) is None
        assert await consumer.position(place) == 3_005
        await consumer.resume(place)
        assert offsets(await consumer.take(5)) == list(range(3_005, 3_010))


async def test_a_range_ends_in_the_middle_of_a_batch(face: Face, broker: Broker, place: TopicPartition) -> None:
    async with face.consumer(broker.address) as consumer:
        assert offsets(await consumer.range(place.topic, 0, 1_000, 2_345)) == list(range(1_000, 2_345))


def test_an_iterator_shares_its_place_with_all_other_ways_to_read(broker: Broker, place: TopicPartition) -> None:
    """It used to hand out again what was left of its batch when it was left for `poll_batch`."""
    with Consumer(broker.address) as consumer:
        consumer.assign({place: 0})
        first, second = iter(consumer), iter(consumer)
        assert [next(first).offset, next(second).offset, next(first).offset] == [0, 1, 2]
        assert offsets(consumer.poll_batch(5)) == [3, 4, 5, 6, 7]
        assert [next(second).offset, next(first).offset] == [8, 9]


def test_an_iterator_of_a_closed_consumer_says_so(broker: Broker, place: TopicPartition) -> None:
    with Consumer(broker.address) as consumer:
        consumer.assign({place: 0})
        records = iter(consumer)
        next(records)
    with pytest.raises(errors.ClientClosed):
        next(records)
