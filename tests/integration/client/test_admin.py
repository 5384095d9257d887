"""Topics, groups and the cluster, whichever face asks."""

from __future__ import annotations

import pytest

from cursus_grpc import BEGINNING, END, Timestamp, TopicConfig, TopicPartition, errors
from cursus_grpc.testing import Broker
from cursus_grpc.types import OffsetAndMetadata
from cursus_proto import chain
from cursus_proto import records as record_sets
from cursus_proto.v1 import records_pb2
from tests.harness.clients import Client
from tests.integration.client.faces import Face


async def test_a_topic_lives_from_its_creation_to_its_deletion(face: Face, broker: Broker, name: str) -> None:
    async with face.admin(broker.address) as admin:
        created = await admin.create_topic(name, 2, TopicConfig(retention_ms=5_000, labels={"team": "a"}))
        assert (created.name, created.partition_count) == (name, 2)
        assert created.config == TopicConfig(retention_ms=5_000, labels={"team": "a"})
        with pytest.raises(errors.TopicExists):
            await admin.create_topic(name)
        assert created in await admin.list_topics()
        updated = await admin.update_topic(
            name, TopicConfig(retention_bytes=10**6, labels={"team": "", "tier": "1"}), reset_fields=["retention_ms"]
        )
        assert updated.config == TopicConfig(retention_bytes=10**6, labels={"tier": "1"})
        assert (await admin.add_partitions(name, 3)).partition_count == 3
        with pytest.raises(errors.InvalidPartitionCount):
            await admin.add_partitions(name, 1)
        described = await admin.describe_topic(name)
        assert [part.partition for part in described.partitions] == [0, 1, 2]
        assert all(part.damage == "" and part.next_offset == 0 for part in described.partitions)
        await admin.delete_topic(name)
        with pytest.raises(errors.TopicNotFound):
            await admin.describe_topic(name)


async def test_bad_names_and_configurations_have_their_own_exceptions(face: Face, broker: Broker, name: str) -> None:
    async with face.admin(broker.address) as admin:
        with pytest.raises(errors.InvalidTopicName):
            await admin.create_topic("no spaces please")
        with pytest.raises(errors.InvalidPartitionCount):
            await admin.create_topic(name, -1)
        with pytest.raises(errors.InvalidTopicConfig):
            await admin.create_topic(name, 1, TopicConfig(segment_bytes=-5))


async def test_offsets_are_found_and_records_deleted(face: Face, broker: Broker, topic: str) -> None:
    async with face.producer(broker.address) as producer:
        for _ in range(5):
            await producer.send(topic, b"x", partition=0)
    async with face.admin(broker.address) as admin:
        assert (await admin.list_offsets(topic, END))[0].offset == 5
        assert (await admin.list_offsets(topic, BEGINNING, [1]))[1].offset == 0
        at_start = (await admin.list_offsets(topic, Timestamp(0)))[0]
        assert at_start.offset == 0
        assert at_start.append_time_ms is not None
        assert (await admin.list_offsets(topic, END))[0].append_time_ms is None
        assert await admin.delete_records(topic, {0: 3}) == {0: 3}
        assert (await admin.list_offsets(topic, BEGINNING))[0].offset == 3
        with pytest.raises(errors.OffsetOutOfRange):
            await admin.delete_records(topic, {0: 99})


async def test_a_group_is_described_moved_and_deleted(face: Face, broker: Broker, topic: str) -> None:
    place = TopicPartition(topic, 0)
    async with face.producer(broker.address) as producer:
        for _ in range(5):
            await producer.send(topic, b"x", partition=0)
    async with face.admin(broker.address) as admin:
        async with face.consumer(broker.address, group=topic, topics=[topic], client_id="reader") as consumer:
            await consumer.take(3)
            await consumer.commit()
            described = await admin.describe_group(topic)
            (member,) = described.members
            assert member.client_id == "reader"
            assert described.rebalanced_ms is not None
            assert 0 < member.joined_ms <= member.last_heartbeat_ms
            by_place = {part.partition: part for part in described.partitions}
            assert (by_place[place].committed_offset, by_place[place].lag_records) == (3, 2)
            with pytest.raises(errors.GroupNotEmpty):
                await admin.delete_group(topic)
            with pytest.raises(errors.GroupNotEmpty):
                await admin.reset_offsets(topic, {topic: BEGINNING})
        assert topic in [group.name for group in await admin.list_groups()]
        preview = await admin.reset_offsets(topic, {place: 1}, dry_run=True)
        assert [(change.partition, change.before, change.after) for change in preview] == [(place, 3, 1)]
        assert (await admin.fetch_offsets(topic, [place]))[place].offset == 3
        await admin.reset_offsets(topic, {topic: BEGINNING})
        assert (await admin.fetch_offsets(topic))[place].offset == 0
        await admin.commit_offsets(topic, {place: 2})
        assert (await admin.fetch_offsets(topic))[place].offset == 2
        await admin.delete_group(topic)
        with pytest.raises(errors.GroupNotFound):
            await admin.describe_group(topic)


async def test_a_static_member_is_removed_by_its_instance_id(face: Face, broker: Broker, topic: str) -> None:
    async with face.admin(broker.address) as admin:
        async with face.consumer(broker.address, group=topic, topics=[topic], instance_id="one") as consumer:
            await consumer.poll(0.5)
        assert len((await admin.describe_group(topic)).members) == 1
        await admin.remove_member(topic, instance_id="one")
        assert (await admin.describe_group(topic)).members == ()
        with pytest.raises(errors.MemberNotFound):
            await admin.remove_member(topic, instance_id="one")


async def test_the_cluster_describes_itself(face: Face, broker: Broker, topic: str) -> None:
    async with face.admin(broker.address) as admin:
        cluster = await admin.describe_cluster([topic, "no-such-topic"])
        assert [leaders.name for leaders in cluster.topics] == [topic]
        assert [part.leader_id for part in cluster.topics[0].partitions] == [0, 0]
        info = await admin.broker_info()
        assert info.cluster_id == cluster.cluster_id
        assert info.topic_count >= 1
        assert info.disk_total_bytes > info.disk_free_bytes > 0


async def test_more_than_one_request_may_name_is_split(face: Face, broker: Broker, topic: str) -> None:
    places = [TopicPartition(topic, number) for number in range(10_001)]
    async with face.admin(broker.address) as admin:
        assert list(await admin.list_offsets(topic, END, [0] * 10_001)) == [0]
        committed = await admin.fetch_offsets("many", places)
        assert committed.keys() == set(places)
        with pytest.raises(errors.CommitFailed) as failed:
            await admin.commit_offsets("many", dict.fromkeys(places, 0))
        assert failed.value.errors.keys() == set(places[2:])
        notes = {place: OffsetAndMetadata(0, "n" * 4_000) for place in places[2:2_002]}
        with pytest.raises(errors.CommitFailed) as failed:
            await admin.commit_offsets("many", notes)
        assert failed.value.errors.keys() == notes.keys()
        with pytest.raises(errors.PartitionNotFound):
            await admin.reset_offsets("many", dict.fromkeys(places, BEGINNING))
        found = await admin.describe_cluster([topic, *(f"missing-{number}" for number in range(10_000))])
        assert [one.name for one in found.topics] == [topic]


async def test_a_reset_in_several_requests_is_tried_before_any_of_it_is_done(
    face: Face, broker: Broker, name: str
) -> None:
    async with face.admin(broker.address) as admin:
        await admin.create_topic(name, 1)
        async with face.producer(broker.address) as producer:
            await producer.send(name, b"x", partition=0)
        await admin.commit_offsets("careful", {TopicPartition(name, 0): 1})
        to = dict.fromkeys([TopicPartition(name, number) for number in range(10_001)], BEGINNING)
        with pytest.raises(errors.PartitionNotFound):
            await admin.reset_offsets("careful", to)
        committed = await admin.fetch_offsets("careful")
        assert committed[TopicPartition(name, 0)].offset == 1


async def producer_ids(broker: Broker, topic: str) -> list[bytes]:
    """Who sent the batches of partition 0."""
    async with Client.connect(broker.address) as client:
        return [batch.producer_id for batch in (await client.fetch(topic, 0, 0)).batches]


async def test_producers_are_described_and_released(face: Face, broker: Broker, topic: str) -> None:
    async with face.producer(broker.address, batch_records=1) as producer:
        for number in range(3):
            await face.result(await producer.send(topic, b"%d" % number, partition=0))
        (name,) = set(await producer_ids(broker, topic))
        checksum = chain.EMPTY
        for number in range(3):
            packed = record_sets.pack([records_pb2.Record(value=b"%d" % number)])
            checksum = chain.extend(checksum, number, 1, record_sets.checksum(packed))
        async with face.admin(broker.address) as admin:
            unknown = [b"unknown %d" % number for number in range(1_500)]
            found = await admin.describe_producers(topic, 0, [*unknown, name])
            assert found.keys() == {name}
            state = found[name]
            assert (state.epoch, state.next_sequence, state.checksum, state.incomplete) == (0, 3, checksum, False)
            assert state.last_append_time_ms > 0
            assert await admin.release_producers(topic, 0, dict.fromkeys([*unknown, name], 0)) == 1
            assert await admin.describe_producers(topic, 0, [name]) == {}
            with pytest.raises(errors.PartitionNotFound):
                await admin.describe_producers(topic, 99, [name])
        # Nothing of it was in flight: it goes on in a new epoch.
        assert (await face.result(await producer.send(topic, b"3", partition=0))).offset == 3
        async with face.admin(broker.address) as admin:
            assert (await admin.describe_producers(topic, 0, [name]))[name].epoch == 1
