"""What groups have committed, after power loss and after a log has lost its end: no record that acks all acknowledged
is skipped by a group that commits what it has read.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cursus_grpc import Admin, Consumer, Producer
from cursus_grpc.testing import Broker
from cursus_grpc.types import Acks
from cursus_proto.v1 import group_service_pb2 as pb
from cursus_proto.v1.publish_service_pb2 import ACKS_ALL
from cursus_proto.v1.records_pb2 import OffsetSpec
from tests.harness.clients import Client
from tests.harness.http import get, samples
from tests.harness.processes import BrokerProcess
from tests.harness.refusals import refusal_of
from tests.harness.streams import Member
from tests.harness.waiting import DEADLINE_S

TOPIC, GROUP = "orders", "readers"
RARELY = ("--log-linger-ms", "60s", "--log-flush-records", "1000000")


def send(broker: Broker, acks: Acks, values: list[bytes]) -> None:
    with Producer(broker.address, acks=acks) as producer:
        for delivery in [producer.send(TOPIC, value) for value in values]:
            delivery.result()


def read(broker: Broker, count: int) -> list[bytes]:
    """The next records for the group, committed."""
    values: list[bytes] = []
    with Consumer(broker.address, group=GROUP, topics=[TOPIC], auto_commit=False) as consumer:
        while len(values) < count:
            records = consumer.poll_batch(timeout_s=DEADLINE_S)
            assert records, f"nothing came after {values}"
            values += [record.value or b"" for record in records]
        consumer.commit()
    return values


@pytest.mark.parametrize("seed", range(4))
def test_a_group_that_committed_what_it_read_skips_nothing_after_power_loss(seed: int) -> None:
    """The group had read and committed what only acks 1 had stored. Power loss took it from the log but not from the
    metadata, and the group waited for offsets that others got."""
    with Broker(*RARELY, in_process=True, can_lose_power=True) as broker:
        with Admin(broker.address) as admin:
            admin.create_topic(TOPIC, 1)
        before = [b"before %d" % number for number in range(25)]
        send(broker, "all", before[:5])
        send(broker, 1, before[5:])
        assert read(broker, 25) == before
        broker.power_loss(seed)
        after = [b"after %d" % number for number in range(3)]
        send(broker, "all", after)
        assert read(broker, 3) == after


class Cut:
    """A broker of whose log the last 20 of 25 committed records are gone."""

    def __init__(self, data_dir: Path, epoch: int) -> None:
        self.data_dir = data_dir
        self.epoch = epoch
        """The one in which the group read and committed."""


@pytest.fixture
async def cut(tmp_path: Path) -> Cut:
    data_dir = tmp_path / "data"
    async with BrokerProcess.start(data_dir, *RARELY) as broker, Client.connect(broker.grpc) as client:
        await client.create_topic(TOPIC)
        await client.publish(TOPIC, [b"%d" % number for number in range(5)], acks=ACKS_ALL)
        segment = data_dir / "logs" / TOPIC / "partition_0_segment_0.log"
        kept = segment.read_bytes()
        await client.publish(TOPIC, [b"%d" % number for number in range(5, 25)])
        assert await commit(client, 25) is None
        (offset,) = (await fetch(client)).offsets
        await broker.kill()
    segment.write_bytes(kept)
    return Cut(data_dir, offset.leader_epoch)


async def fetch(client: Client) -> pb.FetchOffsetsResponse:
    return await client.groups.FetchOffsets(pb.FetchOffsetsRequest(group=GROUP))


async def commit(client: Client, next_offset: int, **fields: int) -> str | None:
    """Commit as somebody outside the group; the reason if it is refused."""
    offset = pb.CommitOffset(topic=TOPIC, next_offset=next_offset, **fields)  # type: ignore[arg-type]  # leader_epoch
    response = await client.groups.CommitOffsets(pb.CommitOffsetsRequest(group=GROUP, offsets=[offset]))
    (result,) = response.results
    return refusal_of(result.error).reason if result.HasField("error") else None


async def reset(client: Client, next_offset: int) -> None:
    change = pb.OffsetReset(topic=TOPIC, to=OffsetSpec(offset=next_offset))
    await client.groups.ResetOffsets(pb.ResetOffsetsRequest(group=GROUP, resets=[change]))


async def moved_offsets(broker: BrokerProcess) -> float:
    _, exposition = await get(broker.metrics, "/metrics")
    return samples(exposition)["cursus_consumer_group_offsets_truncated_total"]


async def test_a_new_consumer_begins_at_the_end_of_a_log_that_was_cut(cut: Cut) -> None:
    async with BrokerProcess.start(cut.data_dir) as broker, Client.connect(broker.grpc) as client:
        await client.publish(TOPIC, [b"new 5", b"new 6", b"new 7"], acks=ACKS_ALL)
        async with Member.join(client, GROUP, TOPIC) as reader:
            assigned = await reader.read()
            assert assigned is not None
            (partition,) = assigned.assignment.partitions
            assert (partition.start_offset, partition.truncated_from) == (5, 25)
            assert partition.leader_epoch > cut.epoch
            await reader.until(lambda: len(reader.values(TOPIC)) == 3)
            assert reader.values(TOPIC) == [b"new 5", b"new 6", b"new 7"]
            assert not (await reader.commit(8, TOPIC)).HasField("error")
        (offset,) = (await fetch(client)).offsets
        assert (offset.next_offset, offset.HasField("truncated_from")) == (8, False)


async def test_an_offset_that_was_moved_back_is_shown_counted_and_logged_and_can_be_restored(cut: Cut) -> None:
    async with BrokerProcess.start(cut.data_dir) as broker, Client.connect(broker.grpc) as client:
        (offset,) = (await fetch(client)).offsets
        assert (offset.next_offset, offset.truncated_from) == (5, 25)
        assert offset.leader_epoch > cut.epoch
        described = await client.groups.DescribeGroup(pb.DescribeGroupRequest(group=GROUP))
        (partition,) = described.partitions
        assert (partition.committed_offset, partition.truncated_from, partition.lag_records) == (5, 25, 0)
        assert await moved_offsets(broker) == 1
        assert "groups.offsets.truncated" in broker.log

        await client.publish(TOPIC, [b"new %d" % number for number in range(30)])
        await reset(client, 25)
        (offset,) = (await fetch(client)).offsets
        assert (offset.next_offset, offset.HasField("truncated_from")) == (25, False)


async def test_what_was_moved_back_stays_so_over_further_restarts(cut: Cut) -> None:
    for _ in range(2):
        async with BrokerProcess.start(cut.data_dir) as broker, Client.connect(broker.grpc) as client:
            (offset,) = (await fetch(client)).offsets
            assert (offset.next_offset, offset.truncated_from) == (5, 25)


async def test_a_commit_from_before_the_cut_is_refused_also_when_the_log_has_grown_past_it(cut: Cut) -> None:
    async with BrokerProcess.start(cut.data_dir) as broker, Client.connect(broker.grpc) as client:
        assert await commit(client, 25, leader_epoch=cut.epoch) == "LOG_TRUNCATED"
        await client.publish(TOPIC, [b"new %d" % number for number in range(30)])
        assert await commit(client, 25, leader_epoch=cut.epoch) == "LOG_TRUNCATED"
        assert await commit(client, 5, leader_epoch=cut.epoch) is None
        (offset,) = (await fetch(client)).offsets
        assert await commit(client, 25, leader_epoch=offset.leader_epoch) is None


async def test_the_offset_of_a_partition_that_cannot_be_opened_is_left_alone(cut: Cut, tmp_path: Path) -> None:
    shutil.move(cut.data_dir / "logs" / TOPIC, tmp_path / "away")
    async with BrokerProcess.start(cut.data_dir) as broker, Client.connect(broker.grpc) as client:
        (offset,) = (await fetch(client)).offsets
        assert (offset.next_offset, offset.HasField("truncated_from")) == (25, False)
        assert await commit(client, 25) == "DATA_LOSS"
        assert await moved_offsets(broker) == 0
    shutil.move(tmp_path / "away", cut.data_dir / "logs" / TOPIC)
    async with BrokerProcess.start(cut.data_dir) as broker, Client.connect(broker.grpc) as client:
        (offset,) = (await fetch(client)).offsets
        assert (offset.next_offset, offset.truncated_from) == (5, 25)
