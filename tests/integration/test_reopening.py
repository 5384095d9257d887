"""A partition whose disk refused a sync is opened anew while the broker runs, and its clients come back to it.

It once took no more until the broker was restarted.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cursus_broker.app import serve
from cursus_broker.log.settings import LogSettings
from cursus_broker.settings import BrokerSettings
from cursus_grpc import AsyncAdmin, AsyncConsumer, AsyncProducer
from cursus_proto.v1 import consume_service_pb2 as consume_pb
from cursus_proto.v1 import topic_service_pb2 as topic_pb
from cursus_proto.v1.publish_service_pb2 import ACKS_ALL
from cursus_proto.v1.records_pb2 import FlowGrant, OffsetSpec
from tests.harness.clients import Client
from tests.harness.disks import HeldFiles
from tests.harness.refusals import refusal
from tests.harness.streams import within_deadline
from tests.harness.waiting import eventually

TOPIC = "orders"


@pytest.fixture
def files() -> HeldFiles:
    return HeldFiles()


@pytest.fixture
async def address(tmp_path: Path, files: HeldFiles) -> AsyncIterator[str]:
    log = LogSettings(linger_ms=3_600_000, flush_records=1_000_000)
    settings = BrokerSettings(data_dir=tmp_path / "data", grpc_port=0, health_port=0, metrics_port=0, log=log)
    stop = asyncio.Event()
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def announce(*, grpc: tuple[str, int], **_: tuple[str, int]) -> None:
        ready.set_result(f"{grpc[0]}:{grpc[1]}")

    serving = asyncio.create_task(serve(settings, stop, files, announce=announce))
    try:
        yield await within_deadline(ready)
    finally:
        files.fails = False
        stop.set()
        await within_deadline(serving)


async def describe(client: Client, partition: int = 0) -> topic_pb.PartitionDescription:
    answer = await client.topics.DescribeTopic(topic_pb.DescribeTopicRequest(name=TOPIC))
    return answer.partitions[partition]


async def reopen(client: Client, partition: int = 0) -> topic_pb.ReopenPartitionResponse:
    return await client.topics.ReopenPartition(topic_pb.ReopenPartitionRequest(topic=TOPIC, partition=partition))


async def command(address: str, *arguments: str) -> str:
    """What the command line tells, wherever it does."""
    line = [sys.executable, "-m", "cursus_grpc.cli", *arguments, "--broker", address]
    ran = await asyncio.to_thread(subprocess.run, line, capture_output=True, text=True, timeout=300, check=False)
    return ran.stdout + ran.stderr


async def refuse_a_sync(client: Client, files: HeldFiles) -> None:
    files.fails = True
    assert (await refusal(client.publish(TOPIC, [b"doubtful"], acks=ACKS_ALL))).reason == "STORAGE_FAILED"
    files.fails = False
    assert (await refusal(client.publish(TOPIC, [b"refused"]))).reason == "STORAGE_FAILED"
    assert "sync failed" in (await describe(client)).refusal


async def test_a_partition_that_refused_a_sync_is_served_again_in_a_new_epoch(address: str, files: HeldFiles) -> None:
    async with Client.connect(address) as client:
        await client.create_topic(TOPIC, 2)
        await client.publish(TOPIC, [b"synced"], acks=ACKS_ALL)
        epoch = (await client.fetch(TOPIC, 0, 0)).leader_epoch
        await refuse_a_sync(client, files)
        assert await client.read_values(TOPIC) == [b"synced", b"doubtful"], "reading goes on"
        await client.publish(TOPIC, [b"others are not concerned"], 1, ACKS_ALL)
        told = await command(address, "doctor")
        assert "orders[0]: sync failed: the disk is gone" in told
        assert "do: see to the disk, then `cursus partition reopen TOPIC PARTITION`" in told
        answer = await reopen(client)
        assert answer.reopened
        assert not answer.partition.refusal
        assert answer.partition.synced_offset == answer.partition.next_offset == 2
        assert await client.read_values(TOPIC) == [b"synced", b"doubtful"]
        assert (await client.publish(TOPIC, [b"after"], acks=ACKS_ALL)).base_offset == 2
        assert (await client.fetch(TOPIC, 0, 0)).leader_epoch > epoch
        assert not (await reopen(client)).reopened, "nothing is wrong any more"


async def test_a_disk_that_refuses_still_leaves_the_partition_as_it_was(address: str, files: HeldFiles) -> None:
    async with Client.connect(address) as client:
        await client.create_topic(TOPIC)
        await client.publish(TOPIC, [b"synced"], acks=ACKS_ALL)
        await refuse_a_sync(client, files)
        files.fails = True
        assert (await refusal(reopen(client))).reason == "STORAGE_FAILED"
        assert (await describe(client)).refusal
        files.fails = False
        told = await command(address, "partition", "reopen", TOPIC, "0")
        assert told.strip() == "partition 0 of orders is served again, complete up to offset 2"
        assert await client.read_values(TOPIC) == [b"synced", b"doubtful"]


async def test_a_stream_that_follows_the_partition_is_ended_and_may_come_back(address: str, files: HeldFiles) -> None:
    async with Client.connect(address) as client:
        await client.create_topic(TOPIC)
        await client.publish(TOPIC, [b"synced"], acks=ACKS_ALL)
        call = client.consuming.Consume()
        start = consume_pb.ConsumeStart(
            topic=TOPIC, start_at=OffsetSpec(offset=0), grant=FlowGrant(records=100, bytes=1_000_000)
        )
        await call.write(consume_pb.ConsumeRequest(start=start))
        for _ in range(2):
            await within_deadline(call.read())
        await refuse_a_sync(client, files)
        await within_deadline(call.read())
        await reopen(client)
        ended = await refusal(call.read())
        assert (ended.code, ended.reason) == ("UNAVAILABLE", "PARTITION_REOPENED")


async def test_clients_go_on_by_themselves_and_nothing_is_lost_or_doubled(address: str, files: HeldFiles) -> None:
    async with Client.connect(address) as client, AsyncAdmin(address) as admin:
        await client.create_topic(TOPIC)
        async with (
            AsyncConsumer(address, group="readers", topics=[TOPIC]) as consumer,
            AsyncProducer(address, acks="all") as producer,
        ):
            await (await producer.send(TOPIC, b"first", partition=0))
            records = aiter(consumer)
            read = [(await within_deadline(anext(records))).value]
            files.fails = True
            delivery = await producer.send(TOPIC, b"second", partition=0)

            async def is_refused() -> bool:
                return bool((await describe(client)).refusal)

            refused: bool = await eventually(is_refused)
            assert refused
            files.fails = False
            reopened, state = await admin.reopen_partition(TOPIC, 0)
            assert reopened
            assert not state.refusal
            await within_deadline(delivery)
            await (await producer.send(TOPIC, b"third", partition=0))
            while len(read) < 3:
                read.append((await within_deadline(anext(records))).value)
            assert set(read) == {b"first", b"second", b"third"}
        assert await client.read_values(TOPIC) == [b"first", b"second", b"third"]


async def test_reopening_what_is_not_there_is_refused(address: str) -> None:
    async with Client.connect(address) as client:
        assert (await refusal(reopen(client))).reason == "TOPIC_NOT_FOUND"
        await client.create_topic(TOPIC)
        assert (await refusal(reopen(client, 5))).reason == "PARTITION_NOT_FOUND"
        assert not (await reopen(client)).reopened
