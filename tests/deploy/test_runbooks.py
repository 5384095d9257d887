"""What docs/operations.md tells an operator to do, done on a running system."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from google.rpc.error_details_pb2 import RetryInfo
from grpc_status import rpc_status

from cursus_proto.v1 import cluster_service_pb2 as cluster_pb
from cursus_proto.v1 import group_service_pb2 as group_pb
from cursus_proto.v1 import topic_service_pb2 as topic_pb
from cursus_proto.v1.publish_service_pb2 import ACKS_ALL
from tests.harness.clients import Client, reason
from tests.harness.http import get, samples
from tests.harness.processes import BrokerProcess
from tests.harness.waiting import eventually

VALUES = [b"%d" % number for number in range(50)]


async def fill(address: str) -> None:
    """Values in two topics, in several segments each, and a group that has read some."""
    async with Client.connect(address) as client:
        for topic in ("orders", "refunds"):
            await client.create_topic(topic, 1, topic_pb.TopicConfig(segment_bytes=1_024, content_deduplication=False))
            for value in VALUES:
                await client.publish(topic, [value], acks=ACKS_ALL)
        offset = group_pb.CommitOffset(topic="orders", partition=0, next_offset=len(VALUES))
        await client.groups.CommitOffsets(group_pb.CommitOffsetsRequest(group="readers", offsets=[offset]))


async def committed(client: Client) -> int:
    answer = await client.groups.FetchOffsets(group_pb.FetchOffsetsRequest(group="readers"))
    (one,) = answer.offsets
    return one.next_offset


async def inspect(data_dir: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cursus_grpc.cli", "segments", "inspect", str(data_dir)]
    return await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=120, check=False)


async def test_a_copy_of_a_stopped_data_directory_is_a_backup(tmp_path: Path) -> None:
    async with BrokerProcess.start(tmp_path / "data") as broker:
        await fill(broker.grpc)
    await asyncio.to_thread(shutil.copytree, tmp_path / "data", tmp_path / "backup")
    checked = await inspect(tmp_path / "backup")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    async with BrokerProcess.start(tmp_path / "backup") as broker, Client.connect(broker.grpc) as client:
        assert await client.read_values("orders") == VALUES
        assert await committed(client) == len(VALUES)
        assert (await client.publish("orders", [b"more"])).base_offset == len(VALUES)


async def test_a_damaged_topic_is_restored_from_a_backup_while_the_others_keep_what_is_newer(tmp_path: Path) -> None:
    data, backup = tmp_path / "data", tmp_path / "backup"
    broker = BrokerProcess.start(data)
    async with broker:
        await fill(broker.grpc)
        await broker.terminate()
        await asyncio.to_thread(shutil.copytree, data, backup)
        await broker.launch()
        async with Client.connect(broker.grpc) as client:
            for topic in ("orders", "refunds"):
                await client.publish(topic, [b"newer"], acks=ACKS_ALL)
            offset = group_pb.CommitOffset(topic="orders", partition=0, next_offset=len(VALUES) + 1)
            await client.groups.CommitOffsets(group_pb.CommitOffsetsRequest(group="readers", offsets=[offset]))
        await broker.terminate()
        damaged = data / "logs" / "orders" / "partition_0_segment_0.log"
        content = bytearray(damaged.read_bytes())
        content[200] ^= 0xFF
        damaged.write_bytes(content)
        checked = await inspect(data)
        assert checked.returncode == 1
        assert "DAMAGE" in checked.stdout + checked.stderr
        # Only a reader of the damaged place meets it: sealed segments are not read through at every start.
        await broker.launch()
        async with Client.connect(broker.grpc) as client:
            assert await refuses_data(client)
            assert len(await client.read_values("refunds")) == len(VALUES) + 1
        await broker.terminate()
        await asyncio.to_thread(shutil.rmtree, data / "logs" / "orders")
        await asyncio.to_thread(shutil.copytree, backup / "logs" / "orders", data / "logs" / "orders")
        assert (await inspect(data)).returncode == 0
        await broker.launch()
        async with Client.connect(broker.grpc) as client:
            assert await client.read_values("orders") == VALUES
            assert await client.read_values("refunds") == [*VALUES, b"newer"]
            # The group had read what the backup does not have: it goes on where the log ends, and skips nothing.
            assert await committed(client) == len(VALUES)


async def refuses_data(client: Client) -> bool:
    """Whether a reader from the start comes to the damaged place, and no further."""
    offset = 0
    while (fetched := await client.fetch("orders", 0, offset)).batches:
        offset = fetched.batches[-1].base_offset + fetched.batches[-1].record_count
    return fetched.HasField("error") and reason(fetched.error) == "DATA_LOSS" and offset < len(VALUES)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB, where the machine lets a test mount one."""
    directory = tmp_path / "disk"
    directory.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(directory)], capture_output=True, text=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.strip()}")
    yield directory
    subprocess.run(["umount", str(directory)], check=True)


@pytest.mark.skipif(os.name != "posix" or shutil.which("mount") is None, reason="there is no mount command")
async def test_a_full_disk_refuses_publishes_and_takes_them_again_when_there_is_room(small_disk: Path) -> None:
    async with BrokerProcess.start(small_disk / "data") as broker, Client.connect(broker.grpc) as client:
        await client.create_topic("orders", 1, topic_pb.TopicConfig(segment_bytes=1024 * 1024))
        stored: list[bytes] = []

        async def publish_for_ever() -> None:
            while True:
                value = b"%04d" % len(stored) + bytes(100_000)
                await client.publish("orders", [value])
                stored.append(value)

        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await publish_for_ever()
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert reason(refused.value) == "DISK_FULL"
        assert retry_delay_ms(refused.value) > 0
        assert str(small_disk) not in (refused.value.details() or "")
        assert (await get(broker.health, "/health")) == (200, "OK, but the disk is full")
        assert "full: publishes are refused" in (await get(broker.health, "/ready"))[1]
        info = await client.cluster.GetBrokerInfo(cluster_pb.GetBrokerInfoRequest())
        assert info.disk_full
        state, detail = await doctor_about("disk", broker)
        assert state == "failed"
        assert detail.startswith("full, publishes are refused")
        found = samples((await get(broker.metrics, "/metrics"))[1])
        free, size = (found[f'cursus_disk_{what}_bytes{{directory="data"}}'] for what in ("free", "size"))
        assert free / size < 0.1, "the alert on it would not fire"
        assert found["cursus_disk_full"] == 1
        assert found['cursus_errors_total{reason="DISK_FULL"}'] >= 1
        assert await client.read_values("orders") == stored
        part = topic_pb.DeleteRecordsPartition(partition=0, before_offset=len(stored) // 2)
        await client.topics.DeleteRecords(topic_pb.DeleteRecordsRequest(topic="orders", partitions=[part]))
        assert (await client.publish("orders", [b"again"], acks=ACKS_ALL)).base_offset == len(stored)

        async def is_well() -> bool:
            return await get(broker.health, "/health") == (200, "OK")

        well: bool = await eventually(is_well)
        assert well
        assert await client.read_values("orders") == [*stored[len(stored) // 2 :], b"again"]


def retry_delay_ms(error: grpc.aio.AioRpcError) -> int:
    """What a RetryInfo in the status asks for; 0 if there is none."""
    status = rpc_status.from_call(error)  # type: ignore[arg-type]  # it is one, as far as this is concerned
    retry = RetryInfo()
    found = [detail for detail in status.details if detail.Unpack(retry)]
    return retry.retry_delay.ToMilliseconds() if found else 0


async def doctor_about(check: str, broker: BrokerProcess) -> tuple[str, str]:
    """State and detail of one check."""
    command = [sys.executable, "-m", "cursus_grpc.cli", "doctor", "-o", "json", "--broker", broker.grpc]
    command += ["--health", f"http://{broker.health}/health"]
    ran = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=120, check=False)
    (found,) = [one for one in json.loads(ran.stdout) if one["check"] == check]
    return found["state"], found["detail"]
