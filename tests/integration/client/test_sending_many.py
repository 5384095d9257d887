"""Many records with one call: as much in order, and as surely stored once, as if they were sent one by one."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest

from cursus_grpc import Admin, TopicConfig, TopicPartition, errors
from cursus_grpc._consumer_settings import ConsumerSettings
from cursus_grpc._producer_settings import ProducerSettings
from cursus_grpc.testing import Broker
from cursus_proto.partitioner import partition_for_key
from tests.integration.client.faces import Face

NOBODY = "127.0.0.1:1"


async def read_all(face: Face, broker: Broker, topic: str, partition: int) -> list[Any]:
    async with face.consumer(broker.address) as consumer:
        return list(await consumer.range(topic, partition))


async def result(face: Face, deliveries: Any) -> Any:
    return await face.result(deliveries)


async def errors_of(deliveries: Any) -> dict[int, errors.CursusError]:
    found = deliveries.errors()
    return dict(await found) if asyncio.iscoroutine(found) else dict(found)


async def test_many_records_are_stored_in_order_and_tell_where(face: Face, broker: Broker, topic: str) -> None:
    values = [b"%d" % number * (number % 40) for number in range(20_000)]
    async with face.producer(broker.address, batch_records=1_000, acks="all") as producer:
        deliveries = await producer.send_many(topic, values)
        assert len(deliveries) == 20_000
        places = await result(face, deliveries)
        assert deliveries.done()
    stored = {
        (partition, record.offset): record.value
        for partition in range(2)
        for record in await read_all(face, broker, topic, partition)
    }
    assert [stored[place.partition, place.offset] for place in places] == values
    assert len(stored) == 20_000
    assert {place.partition for place in places} == {0, 1}
    assert (places[-1], list(places[:2])) == (places[19_999], [places[0], places[1]])


async def test_keys_keep_their_partition_and_their_order(face: Face, broker: Broker, topic: str) -> None:
    keys = [None if number % 7 == 0 else f"key-{number % 11}" for number in range(9_000)]
    async with face.producer(broker.address, batch_records=700) as producer:
        await producer.send(topic, b"-1", "key-1")
        deliveries = await producer.send_many(topic, [b"%d" % number for number in range(9_000)], keys)
        await producer.send(topic, b"9000", "key-1")
        assert len(await result(face, deliveries)) == 9_000
    seen = 0
    for partition in range(2):
        found = await read_all(face, broker, topic, partition)
        seen += len(found)
        for key in {record.key for record in found if record.key is not None}:
            assert partition_for_key(key, 2) == partition
            numbers = [int(record.value) for record in found if record.key == key]
            assert numbers == sorted(numbers)
    assert seen == 9_002


async def test_null_empty_text_and_bytes_arrive_as_they_were_sent(face: Face, broker: Broker, topic: str) -> None:
    async with face.producer(broker.address) as producer:
        await producer.send_many(topic, [None, b"", "ü", bytearray(b"a"), b"x" * 3_000], partition=1)
        await producer.send_many(topic, [b"v", None, b"v"], [b"", "k", None], partition=0)
        assert len(await producer.send_many(topic, [])) == 0
    assert [record.value for record in await read_all(face, broker, topic, 1)] == [
        None, b"", "ü".encode(), b"a", b"x" * 3_000,
    ]  # fmt: skip
    found = [(record.key, record.value) for record in await read_all(face, broker, topic, 0)]
    assert found == [(b"", b"v"), (b"k", None), (None, b"v")]


async def test_arrow_columns_are_sent_as_they_are(face: Face, broker: Broker, topic: str) -> None:
    pa = pytest.importorskip("pyarrow")
    values = pa.array([f"{number}" if number % 5 else None for number in range(10_000)])
    keys = pa.chunked_array([pa.array([b"a"] * 4_000), pa.array([b"b"] * 6_000)])
    async with face.producer(broker.address) as producer:
        await result(face, await producer.send_many(topic, values[10:], keys[10:]))
    found = [record for partition in range(2) for record in await read_all(face, broker, topic, partition)]
    for key, begin, end in ((b"a", 10, 4_000), (b"b", 4_000, 10_000)):
        expected = [None if number % 5 == 0 else b"%d" % number for number in range(begin, end)]
        assert [record.value for record in found if record.key == key] == expected


async def test_of_what_are_no_records_none_is_taken(face: Face, broker: Broker, topic: str) -> None:
    good = [b"x"] * 5_000
    async with face.producer(broker.address, buffer_bytes=1_000_000) as producer:
        for wrong in ([*good, 7], "text", b"bytes", (one for one in good), 7, [*good, "\ud800"]):
            with pytest.raises((TypeError, ValueError)):
                await producer.send_many(topic, wrong, partition=0)
        with pytest.raises(ValueError, match="5000 values and 2 keys"):
            await producer.send_many(topic, good, [b"k", b"k"])
        with pytest.raises(errors.PartitionNotFound):
            await producer.send_many(topic, good, partition=-1)
        with pytest.raises(errors.RecordTooLarge):
            await producer.send_many(topic, [*good, b"x" * 1_000_001])
    assert await read_all(face, broker, topic, 0) == await read_all(face, broker, topic, 1) == []


async def test_records_that_cannot_go_anywhere_fail_and_the_others_are_stored(
    face: Face, broker: Broker, admin: Admin, name: str
) -> None:
    async with face.producer(broker.address) as producer:
        failed = await errors_of(await producer.send_many(name, [b"x"] * 5_000))
        assert {type(error) for error in failed.values()} == {errors.TopicNotFound}
        assert sorted(failed) == list(range(5_000))
        await asyncio.to_thread(admin.create_topic, name, 1, TopicConfig(max_value_bytes=100))
        failed = await errors_of(await producer.send_many(name, [b"x"] * 10, partition=1))
        assert {type(error) for error in failed.values()} == {errors.PartitionNotFound}
        refused = await producer.send_many(name, [b"x" * 200])
        with pytest.raises(errors.RecordTooLarge):
            await result(face, refused)
        assert len(await result(face, await producer.send_many(name, [b"x"] * 10))) == 10
        assert (await producer.statistics()).records_failed == 5_011
    assert len(await read_all(face, broker, name, 0)) == 10


async def test_a_full_buffer_is_waited_for_or_raised_before_anything_is_taken(
    face: Face, broker: Broker, topic: str
) -> None:
    values = [b"%05d" % number * 20 for number in range(20_000)]
    async with face.producer(broker.address, buffer_bytes=100_000) as producer:
        await result(face, await producer.send_many(topic, values, partition=0))
    assert [record.value for record in await read_all(face, broker, topic, 0)] == values
    async with face.producer(broker.address, buffer_bytes=100_000, on_full="raise") as producer:
        with pytest.raises(errors.BufferFull):
            await producer.send_many(topic, values, partition=1)
    assert await read_all(face, broker, topic, 1) == []


async def test_without_room_in_time_nothing_is_left_untold(face: Face) -> None:
    told: list[Any] = []
    options = {"buffer_bytes": 100_000, "max_block_s": 0.05, "on_delivery": lambda _, error: told.append(error)}
    async with face.producer(NOBODY, **options) as producer:
        deliveries = await producer.send_many("t", [b"x" * 1_000] * 1_000)
        with pytest.raises(errors.BufferFull):
            await producer.send_many("t", [b"x" * 50_000])
        await producer.close(timeout_s=0.0)
        failed = await errors_of(deliveries)
    assert len(failed) == len(told) == 1_000
    assert {type(error) for error in failed.values()} == {errors.BufferFull, errors.ClientClosed}


async def test_records_sent_before_there_is_a_broker_are_stored_once_over_its_deaths(face: Face) -> None:
    """The broker refuses, dies in the middle and comes back: every record is stored once and in order."""
    with Broker(in_process=True) as broker:
        with Admin(broker.address) as admin:
            admin.create_topic("t", 2)
        await asyncio.to_thread(broker.kill)
        async with face.producer(broker.address, batch_records=500, acks="all") as producer:
            keys = [b"%d" % (number % 2) for number in range(30_000)]
            deliveries = await producer.send_many("t", [b"%d" % number for number in range(30_000)], keys)
            await asyncio.to_thread(broker.restart)
            broker.refuse("WRITE_TIMEOUT", times=5)
            more = await producer.send_many("t", [b"%d" % number for number in range(30_000, 60_000)], keys)
            await asyncio.to_thread(broker.kill)
            await asyncio.to_thread(broker.restart)
            await result(face, deliveries)
            await result(face, more)
        found = {partition: await read_all(face, broker, "t", partition) for partition in range(2)}
        for last in (b"0", b"1"):
            partition = partition_for_key(last, 2)
            numbers = [int(record.value) for record in found[partition] if record.key == last]
            assert numbers == list(range(int(last), 60_000, 2))
        assert sum(map(len, found.values())) == 60_000


async def test_send_and_wait_returns_the_place(face: Face, broker: Broker, topic: str) -> None:
    async with face.producer(broker.address) as producer:
        first = await producer.send_and_wait(topic, b"a", "k", headers={"a": b"1"}, partition=1)
        second = await producer.send_and_wait(topic, b"b", partition=1)
        with pytest.raises(errors.PartitionNotFound):
            await producer.send_and_wait(topic, b"c", partition=9)
    assert [place[:3] for place in (first, second)] == [(topic, 1, 0), (topic, 1, 1)]


async def test_serializers_are_asked_for_everything_but_null(face: Face, broker: Broker, topic: str) -> None:
    async with face.producer(broker.address, value_serializer=json.dumps, key_serializer=str) as producer:
        await producer.send(topic, {"a": 1}, 7, partition=0)
        await producer.send(topic, None, 7, partition=0)
        await producer.send_many(topic, [[1], None, "x"], [1, 2, None], partition=0)
        with pytest.raises(TypeError, match="not JSON serializable"):
            await producer.send(topic, object(), partition=0)
        with pytest.raises(TypeError, match="not JSON serializable"):
            await producer.send_many(topic, [1, object()], partition=0)
    async with face.consumer(broker.address, value_deserializer=json.loads, key_deserializer=int) as consumer:
        found = await consumer.range(topic, 0)
        assert [(record.key, record.value) for record in found] == [
            (7, {"a": 1}), (7, None), (1, [1]), (2, None), (None, "x"),
        ]  # fmt: skip
        assert (found[0].raw_key, found[0].raw_value) == (b"7", b'{"a": 1}')


async def test_what_cannot_be_deserialized_keeps_nobody_from_the_rest(face: Face, broker: Broker, topic: str) -> None:
    async with face.producer(broker.address) as producer:
        await producer.send_many(topic, [b"1", b"one", b"2"], partition=0)
    async with face.consumer(broker.address, group=topic, topics=[topic], value_deserializer=int) as consumer:
        one, wrong, two = await consumer.take(3)
        assert (one.value, two.value) == (1, 2)
        with pytest.raises(errors.DeserializerFailed, match=r"value at offset 1 of .*invalid literal") as failed:
            _ = wrong.value
        assert isinstance(failed.value.__cause__, ValueError)
        assert wrong.raw_value == b"one"


async def test_a_partitioner_chooses_where_no_partition_is_named(
    face: Face, broker: Broker, admin: Admin, name: str
) -> None:
    await asyncio.to_thread(admin.create_topic, name, 4)

    def choose(topic: str, key: bytes | None, partition_count: int) -> int | None:
        assert (topic, partition_count) == (name, 4)
        return None if key is None else int(key)

    async with face.producer(broker.address, partitioner=choose) as producer:
        for _ in range(2):  # before the partitions are known, and afterwards
            sent = [await producer.send(name, b"x", b"%d" % number) for number in (3, 1)]
            sent.append(await producer.send(name, b"x", b"3", partition=2))
            assert [(await face.result(one)).partition for one in sent] == [3, 1, 2]
            many = await result(face, await producer.send_many(name, [b"x"] * 4, [b"0", b"1", b"2", b"3"]))
            assert [place.partition for place in many] == [0, 1, 2, 3]
        for wrong in (b"4", b"-1", b"what"):
            with pytest.raises(errors.PartitionerFailed):
                await producer.send(name, b"x", wrong)
            with pytest.raises(errors.PartitionerFailed):
                await producer.send_many(name, [b"x", b"x"], [b"0", wrong])
    async with face.producer(broker.address, partitioner=choose) as producer:
        early = await producer.send(name, b"x", b"4")
        with pytest.raises(errors.PartitionerFailed, match=r"chose 4 for topic .*, which has 4"):
            await face.result(early)


async def test_statistics_tell_what_was_done_and_how_far_one_is(face: Face, broker: Broker, topic: str) -> None:
    told: list[Any] = []
    was_told = threading.Event()

    def note(statistics: Any) -> None:
        told.append(statistics)
        was_told.set()

    async with face.producer(broker.address, on_statistics=note, statistics_interval_s=0.01) as producer:
        await result(face, await producer.send_many(topic, [b"x" * 10] * 100, partition=1))
        now = await producer.statistics()
        assert (now.records_stored, now.bytes_stored, now.records_failed) == (100, 1_400, 0)
        assert (now.batches_in_flight, now.buffered_bytes) == (0, 0)
        assert await asyncio.to_thread(was_told.wait, 60.0)
    was_told.clear()
    async with face.consumer(broker.address, on_statistics=note, statistics_interval_s=0.01) as consumer:
        await consumer.assign([TopicPartition(topic, 1)])
        await consumer.take(40)
        now = await consumer.statistics()
        assert (now.records_received, now.bytes_received) == (100, 1_400)
        assert now.partitions == {(topic, 1): (40, 100)}
        assert now.partitions[TopicPartition(topic, 1)].lag == 60
        assert await asyncio.to_thread(was_told.wait, 60.0)
    for settings in (ProducerSettings, ConsumerSettings):
        with pytest.raises(ValueError, match="statistics_interval_s"):
            settings(statistics_interval_s=0)
