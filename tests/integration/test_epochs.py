"""Leader epochs over the wire: who carries them, when they rise, and what a reader of an older one is told."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cursus_proto.v1 import cluster_service_pb2 as cluster_pb
from cursus_proto.v1 import topic_service_pb2 as topic_pb
from cursus_proto.v1.publish_service_pb2 import ACKS_ALL
from cursus_proto.v1.records_pb2 import OFFSET_EDGE_EARLIEST, OFFSET_EDGE_LATEST, OffsetSpec
from tests.harness.clients import Client
from tests.harness.processes import BrokerProcess
from tests.harness.refusals import OUT_OF_RANGE, TRUNCATED, Refusal, refusal, refusal_of
from tests.harness.streams import ConsumeStream, Member, within_deadline

LATEST = OffsetSpec(edge=OFFSET_EDGE_LATEST)
EARLIEST = OffsetSpec(edge=OFFSET_EDGE_EARLIEST)


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[BrokerProcess]:
    """One that syncs only what is asked to be synced."""
    args = ("--log-linger-ms", "60s", "--log-flush-records", "1000000")
    async with BrokerProcess.start(tmp_path / "data", *args) as process:
        yield process


async def listed(client: Client, topic: str, partition: int = 0, at: OffsetSpec = LATEST) -> topic_pb.ListedOffset:
    request = topic_pb.ListOffsetsRequest(topic=topic, partitions=[partition], at=at)
    return (await client.topics.ListOffsets(request)).offsets[0]


async def epochs_of(client: Client, topic: str) -> list[int]:
    response = await client.cluster.GetMetadata(cluster_pb.GetMetadataRequest(topics=[topic]))
    return [partition.leader_epoch for partition in response.topics[0].partitions]


async def consume_refused(client: Client, topic: str, **fields: object) -> Refusal:
    async def started() -> None:
        async with ConsumeStream.open(client, topic, 0, **fields):
            pass

    return await refusal(within_deadline(started()))


async def recreate(client: Client, topic: str) -> None:
    await client.topics.DeleteTopic(topic_pb.DeleteTopicRequest(name=topic))
    await client.create_topic(topic)


async def test_every_way_to_read_tells_the_epoch_of_its_partition(broker: BrokerProcess) -> None:
    async with Client.connect(broker.grpc) as client:
        await client.create_topic("orders", 2)
        await client.create_topic("other")
        first, second = await epochs_of(client, "orders")
        (other,) = await epochs_of(client, "other")
        assert 0 < first == second < other
        await client.publish("orders", [b"x"])
        assert (await client.fetch("orders", 0, 0)).leader_epoch == first
        assert (await client.fetch("other", 0, 0)).leader_epoch == other
        assert (await listed(client, "other")).leader_epoch == other
        async with ConsumeStream.open(client, "orders") as stream:
            assert stream.started.leader_epoch == first
        async with Member.join(client, "readers", "orders", "other") as member:
            await member.until_owner_of(("orders", 0), ("orders", 1), ("other", 0))
            assert member.epochs == {("orders", 0): first, ("orders", 1): first, ("other", 0): other}
        await client.topics.AddPartitions(topic_pb.AddPartitionsRequest(name="orders", partition_count=3))
        assert await epochs_of(client, "orders") == [first, first, other + 1]


async def test_listed_offsets_tell_how_far_the_log_is_synced(broker: BrokerProcess) -> None:
    async with Client.connect(broker.grpc) as client:
        await client.create_topic("orders")
        await client.publish("orders", [b"synced"] * 2, acks=ACKS_ALL)
        await client.publish("orders", [b"not yet"] * 3)
        found = await listed(client, "orders", at=EARLIEST)
        assert (found.offset, found.next_offset, found.synced_offset) == (0, 5, 2)


async def test_the_epoch_stays_over_a_stop_and_rises_over_a_kill(broker: BrokerProcess) -> None:
    async with Client.connect(broker.grpc) as client:
        await client.create_topic("orders", 2)
        await client.publish("orders", [b"x"] * 3)
        before = await epochs_of(client, "orders")
    await broker.restart()
    async with Client.connect(broker.grpc) as client:
        assert await epochs_of(client, "orders") == before
    await broker.restart(kill=True)
    async with Client.connect(broker.grpc) as client:
        after = await epochs_of(client, "orders")
        assert min(after) > max(before)
        # Nothing was lost, and so nobody is told that something was.
        fetched = await client.fetch("orders", 0, 0, leader_epoch=before[0])
        assert len(fetched.batches) == 1
        assert not (await client.fetch("orders", 0, 3, leader_epoch=before[0])).HasField("error")
        # Somebody who claims to have read more than there was did read it, as far as the broker can know.
        refused = refusal_of((await client.fetch("orders", 0, 4, leader_epoch=before[0])).error)
        assert (refused, refused.metadata["offset"]) == (TRUNCATED, "3")
    await broker.restart()
    async with Client.connect(broker.grpc) as client:
        assert await epochs_of(client, "orders") == after


async def test_readers_of_a_topic_that_was_created_anew_are_sent_to_its_beginning(broker: BrokerProcess) -> None:
    async with Client.connect(broker.grpc) as client:
        await client.create_topic("orders")
        await client.publish("orders", [b"old"] * 5)
        (old,) = await epochs_of(client, "orders")
        await recreate(client, "orders")
        await client.publish("orders", [b"new"] * 9)
        (new,) = await epochs_of(client, "orders")
        assert new > old

        fetched = await client.fetch("orders", 0, 5, leader_epoch=old)
        refused = refusal_of(fetched.error)
        assert refused == TRUNCATED
        expected = {"requested": "5", "requested_epoch": str(old), "offset": "0", "leader_epoch": str(new)}
        assert refused.metadata == {**expected, "earliest": "0", "latest": "9"}
        at_five = OffsetSpec(offset=5)
        refused = await consume_refused(client, "orders", start_at=at_five, leader_epoch=old)
        assert (refused, refused.metadata["offset"]) == (TRUNCATED, "0")

        # Whoever names no epoch, the present one, or a place that is no offset, is not checked.
        assert not (await client.fetch("orders", 0, 5)).HasField("error")
        assert not (await client.fetch("orders", 0, 5, leader_epoch=new)).HasField("error")
        async with ConsumeStream.open(client, "orders", start_at=at_five, leader_epoch=new) as stream:
            assert stream.started.start_offset == 5
        async with ConsumeStream.open(client, "orders", start_at=EARLIEST, leader_epoch=old) as stream:
            assert (stream.started.start_offset, stream.started.leader_epoch) == (0, new)
        # An offset that is not there is still another matter, and so is one that has expired.
        assert refusal_of((await client.fetch("orders", 0, 99, leader_epoch=new)).error) == OUT_OF_RANGE
        part = topic_pb.DeleteRecordsPartition(partition=0, before_offset=4)
        await client.topics.DeleteRecords(topic_pb.DeleteRecordsRequest(topic="orders", partitions=[part]))
        assert refusal_of((await client.fetch("orders", 0, 3, leader_epoch=new)).error) == OUT_OF_RANGE
        refused = refusal_of((await client.fetch("orders", 0, 5, leader_epoch=old)).error)
        assert (refused, refused.metadata["offset"]) == (TRUNCATED, "4")


async def test_a_reader_at_the_end_of_a_topic_created_anew_does_not_wait(
    broker: BrokerProcess,
) -> None:
    async with Client.connect(broker.grpc) as client:
        await client.create_topic("orders")
        await client.publish("orders", [b"old"] * 5)
        (old,) = await epochs_of(client, "orders")
        await recreate(client, "orders")
        await client.publish("orders", [b"new"] * 5)
        waited = await within_deadline(client.fetch("orders", 0, 5, max_wait_ms=60_000, leader_epoch=old))
        assert refusal_of(waited.error) == TRUNCATED


async def test_a_member_is_assigned_a_topic_created_anew_in_its_new_epoch(broker: BrokerProcess) -> None:
    async with Client.connect(broker.grpc) as client:
        await client.create_topic("orders")
        await client.publish("orders", [b"old"] * 5)
        place = ("orders", 0)
        async with Member.join(client, "readers", "orders") as member:
            await member.until(lambda: len(member.values("orders")) == 5)
            old = member.epochs[place]
            await member.commit(5, "orders")
            await recreate(client, "orders")
            await client.publish("orders", [b"new"] * 3)
            await member.until(lambda: len(member.values("orders")) == 8)
            assert member.values("orders")[5:] == [b"new"] * 3
            assert member.starts[place] == 0
            assert member.epochs[place] > old
