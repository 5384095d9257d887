"""What a producer does on a healthy broker, whichever face it has."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cursus_grpc import Admin, TopicConfig, TopicPartition, errors
from cursus_grpc.testing import Broker
from cursus_proto.partitioner import partition_for_key
from tests.integration.client.faces import Face


async def read_all(face: Face, broker: Broker, topic: str, partition: int) -> list[Any]:
    async with face.consumer(broker.address) as consumer:
        return list(await consumer.range(topic, partition))


async def test_a_record_arrives_as_it_was_sent(face: Face, broker: Broker, topic: str) -> None:
    async with face.producer(broker.address) as producer:
        delivery = await producer.send(
            topic,
            b"value",
            b"key",
            timestamp_ms=1_700_000_000_000,
            headers=[("a", b"1"), ("a", b"2")],
            event_type="created",
            schema_version=3,
            aggregate_version=4,
            metadata=b"note",
            partition=1,
        )
        stored = await face.result(delivery)
    assert stored[:3] == (topic, 1, 0)
    (record,) = await read_all(face, broker, topic, 1)
    assert (record.offset, record.key, record.value) == (0, b"key", b"value")
    assert (record.timestamp_ms, record.append_time_ms) == (1_700_000_000_000, stored.timestamp_ms)
    assert record.headers == (("a", b"1"), ("a", b"2"))
    assert (record.event_type, record.schema_version, record.aggregate_version) == (b"created", 3, 4)
    assert record.metadata == b"note"


async def test_null_empty_and_some_arrive_as_they_were_sent(face: Face, broker: Broker, topic: str) -> None:
    values = [None, b"", b"v", "", None]
    headers = [("null", None), ("empty", b"")]
    async with face.producer(broker.address) as producer:
        for value in values:
            await producer.send(topic, value, b"k", partition=0)
            await producer.send(topic, value, headers=headers, partition=1)
        await producer.flush()
        with pytest.raises(TypeError):
            await producer.send(topic)  # a null has to be said
    for partition in range(2):
        found = await read_all(face, broker, topic, partition)
        assert [record.value for record in found] == [None, b"", b"v", b"", None]
        assert {record.headers for record in found} == ({tuple(headers)} if partition else {()})


@pytest.mark.parametrize("compression", ["none", "gzip", "zstd", "lz4", "snappy"])
@pytest.mark.parametrize("acks", [0, 1, "all"])
async def test_every_codec_and_every_kind_of_acknowledgement_stores(
    face: Face, broker: Broker, topic: str, compression: str, acks: int | str
) -> None:
    values = [b"%d" % number * 50 for number in range(300)]
    async with face.producer(broker.address, compression=compression, acks=acks, batch_bytes=8_000) as producer:
        deliveries = [await producer.send(topic, value, partition=0) for value in values]
        offsets = [(await face.result(delivery)).offset for delivery in deliveries]
    assert offsets == list(range(300))
    assert [record.value for record in await read_all(face, broker, topic, 0)] == values


async def test_keys_keep_their_order_and_their_partition(face: Face, broker: Broker, topic: str) -> None:
    async with face.producer(broker.address, batch_records=7) as producer:
        for number in range(200):
            await producer.send(topic, b"%d" % number, f"key-{number % 5}")
    for partition in range(2):
        found = await read_all(face, broker, topic, partition)
        for key in {record.key for record in found}:
            assert partition_for_key(key, 2) == partition
            numbers = [int(record.value) for record in found if record.key == key]
            assert numbers == sorted(numbers)
            assert len(numbers) == 40


async def test_equal_records_are_all_stored(face: Face, broker: Broker, topic: str) -> None:
    async with face.producer(broker.address) as producer:
        for _ in range(5):
            await face.result(await producer.send(topic, b"same", partition=0))
    assert len(await read_all(face, broker, topic, 0)) == 5


async def test_lingering_records_share_a_batch_and_flush_does_not_wait_for_it(
    face: Face, broker: Broker, topic: str
) -> None:
    async with face.producer(broker.address, linger_ms=600_000) as producer:
        deliveries = [await producer.send(topic, b"x", partition=0) for _ in range(10)]
        assert not deliveries[0].done()
        assert await producer.flush(timeout_s=60.0)
        times = {(await face.result(delivery)).timestamp_ms for delivery in deliveries}
    assert len(times) == 1


async def test_callbacks_tell_of_every_record(face: Face, broker: Broker, topic: str) -> None:
    told: list[Any] = []
    single: list[Any] = []
    async with face.producer(
        broker.address, on_delivery=lambda metadata, error: told.append((metadata, error))
    ) as producer:
        deliveries = [await producer.send(topic, b"x", partition=0) for _ in range(20)]
        deliveries[3].add_done_callback(single.append)
    assert sorted(metadata.offset for metadata, error in told if error is None) == list(range(20))
    assert single == [deliveries[3]]


async def test_new_partitions_are_found(face: Face, broker: Broker, admin: Admin, topic: str) -> None:
    async with face.producer(broker.address) as producer:
        await face.result(await producer.send(topic, b"x"))
        await asyncio.to_thread(admin.add_partitions, topic, 5)
        stored = await face.result(await producer.send(topic, b"x", partition=4))
        assert stored.partition == 4
        with pytest.raises(errors.PartitionNotFound):
            await face.result(await producer.send(topic, b"x", partition=5))
        with pytest.raises(errors.PartitionNotFound):
            await producer.send(topic, b"x", partition=-1)


async def test_a_topic_made_anew_is_written_from_its_beginning(
    face: Face, broker: Broker, admin: Admin, topic: str
) -> None:
    async with face.producer(broker.address) as producer:
        for _ in range(3):
            await face.result(await producer.send(topic, b"old", partition=0))
        await asyncio.to_thread(admin.delete_topic, topic)
        await asyncio.to_thread(admin.create_topic, topic, 1)
        stored = [await face.result(await producer.send(topic, b"new", partition=0)) for _ in range(3)]
    assert [one.offset for one in stored] == [0, 1, 2]


async def test_a_value_that_the_topic_refuses_fails_alone(face: Face, broker: Broker, admin: Admin, name: str) -> None:
    await asyncio.to_thread(admin.create_topic, name, 1, TopicConfig(max_value_bytes=100))
    async with face.producer(broker.address, batch_records=1) as producer:
        sizes = [10, 200, 20, 200, 30]
        deliveries = [await producer.send(name, b"x" * size) for size in sizes]
        offsets: list[int | None] = []
        for delivery in deliveries:
            try:
                offsets.append((await face.result(delivery)).offset)
            except errors.RecordTooLarge:
                offsets.append(None)
    assert offsets == [0, None, 1, None, 2]
    assert [len(record.value) for record in await read_all(face, broker, name, 0)] == [10, 20, 30]


async def test_many_tasks_or_threads_may_share_a_producer(face: Face, broker: Broker, topic: str) -> None:
    async with face.producer(broker.address) as producer:

        async def work(worker: int) -> list[Any]:
            deliveries = [await producer.send(topic, b"%d %d" % (worker, n), b"%d" % worker) for n in range(50)]
            return [await face.result(delivery) for delivery in deliveries]

        stored = await asyncio.gather(*(work(worker) for worker in range(8)))
    for places in stored:
        assert [place.offset for place in places] == sorted(place.offset for place in places)
    used = {TopicPartition(*place[:2]) for places in stored for place in places}
    assert sum([len(await read_all(face, broker, *place)) for place in used]) == 400
