"""Damage that is met in a log that is served, and what an operator sees of it: log, metrics, doctor.

It was once invisible: readers got DATA_LOSS, and nobody else heard of it.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

from cursus_broker.log.entry import CONTROL_BYTES
from cursus_proto.v1 import topic_service_pb2 as topic_pb
from cursus_proto.v1.publish_service_pb2 import ACKS_ALL
from tests.harness.clients import Client
from tests.harness.http import get, samples
from tests.harness.processes import BrokerProcess
from tests.harness.refusals import refusal, refusal_of
from tests.harness.waiting import eventually

VALUES = [b"%d" % number for number in range(40)]
DAMAGED = 'cursus_damaged_partitions{topic="orders"}'
SCRUB_OFF = ("--log-scrub-bytes-per-s", "0", "--consume-tail-records", "0")


async def fill(client: Client) -> None:
    """One partition of several sealed segments."""
    await client.create_topic("orders", 1, topic_pb.TopicConfig(segment_bytes=1_024, content_deduplication=False))
    for value in VALUES:
        await client.publish("orders", [value], acks=ACKS_ALL)


def flip(data_dir: Path, segment: int = 1) -> None:
    path = data_dir / "logs" / "orders" / f"partition_0_segment_{segment}.log"
    content = bytearray(path.read_bytes())
    content[200] ^= 0xFF
    path.write_bytes(content)


async def metrics(broker: BrokerProcess) -> dict[str, float]:
    return samples((await get(broker.metrics, "/metrics"))[1])


async def describe(client: Client) -> topic_pb.PartitionDescription:
    return (await client.topics.DescribeTopic(topic_pb.DescribeTopicRequest(name="orders"))).partitions[0]


async def doctor(broker: BrokerProcess) -> dict[str, tuple[str, str]]:
    """Checks with state and detail, as the command tells them."""
    command = [sys.executable, "-m", "cursus_grpc.cli", "doctor", "-o", "json", "--broker", broker.grpc]
    command += ["--health", f"http://{broker.health}/health"]
    ran = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=120, check=False)
    return {one["check"]: (one["state"], one["detail"]) for one in json.loads(ran.stdout)}


async def read_to_the_end(client: Client) -> topic_pb.PartitionDescription:
    """Whatever can be read, then the state the broker tells."""
    offset = 0
    while (fetched := await client.fetch("orders", 0, offset)).batches:
        offset = fetched.batches[-1].base_offset + fetched.batches[-1].record_count
    assert refusal_of(fetched.error).reason == "DATA_LOSS"
    return await describe(client)


async def test_damage_that_a_reader_meets_is_seen_by_the_operator(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with BrokerProcess.start(data, *SCRUB_OFF) as broker, Client.connect(broker.grpc) as client:
        await fill(client)
        flip(data)
        assert DAMAGED not in await metrics(broker)
        described = await read_to_the_end(client)
        assert described.damage.startswith("orders/partition_0_segment_1.log is damaged at byte ")
        assert described.next_offset == len(VALUES), "the rest is served"
        found = await metrics(broker)
        assert found[DAMAGED] == 1
        assert found['cursus_damage_found_total{finder="reader"}'] == 1
        assert found['cursus_errors_total{reason="DATA_LOSS"}'] >= 1
        assert broker.log.count("partition.damaged") == 1
        state, detail = (await doctor(broker))["partitions"]
        assert state == "failed"
        assert "orders[0]: orders/partition_0_segment_1.log is damaged" in detail
        # Met again, it is told again to the reader and not to the log.
        await read_to_the_end(client)
        assert broker.log.count("partition.damaged") == 1
        assert (await metrics(broker))['cursus_damage_found_total{finder="reader"}'] == 1


async def test_no_refusal_tells_a_client_where_the_broker_keeps_its_data(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with BrokerProcess.start(data, *SCRUB_OFF) as broker:
        async with Client.connect(broker.grpc) as client:
            await fill(client)
            flip(data)
            texts = [(await read_to_the_end(client)).damage]
            texts += [str((await client.fetch("orders", 0, offset)).error) for offset in range(len(VALUES))]
        await broker.terminate()
        (data / "logs" / "orders" / "partition_0_segment_2.log").unlink()
        await broker.launch()
        async with Client.connect(broker.grpc) as client:
            texts += [(await describe(client)).damage, str((await client.fetch("orders", 0, 0)).error)]
            texts.append(str(await refusal(client.publish("orders", [b"x"], 0))))
    assert "is damaged at byte" in texts[-1]
    assert not [text for text in texts if str(tmp_path) in text or "/data/" in text]


async def test_the_scrubber_finds_damage_before_a_reader_does_and_sees_that_it_was_mended(tmp_path: Path) -> None:
    data = tmp_path / "data"
    fast = ("--log-scrub-bytes-per-s", "100MiB", "--log-scrub-interval-ms", "100")
    async with BrokerProcess.start(data, *fast) as broker, Client.connect(broker.grpc) as client:
        await fill(client)
        segment = data / "logs" / "orders" / "partition_0_segment_1.log"
        sound = segment.read_bytes()
        flip(data)

        async def is_seen() -> bool:
            return (await metrics(broker)).get(DAMAGED) == 1

        seen: bool = await eventually(is_seen)
        assert seen
        assert (await describe(client)).damage
        found = await metrics(broker)
        assert found['cursus_damage_found_total{finder="scrub"}'] == 1
        assert found["cursus_scrub_verified_bytes_total"] > 0
        assert 0 <= found["cursus_scrub_round_progress"] <= 1
        still = await refusal(client.topics.ReopenPartition(topic_pb.ReopenPartitionRequest(topic="orders")))
        assert still.reason == "DATA_LOSS"
        segment.write_bytes(sound)
        answer = await client.topics.ReopenPartition(topic_pb.ReopenPartitionRequest(topic="orders"))
        assert answer.reopened or not (await describe(client)).damage  # the scrubber may have come first
        assert await client.read_values("orders") == VALUES
        assert DAMAGED not in await metrics(broker)


async def test_a_cut_is_counted_in_records_and_the_doctor_tells_of_it(tmp_path: Path) -> None:
    data = tmp_path / "data"
    never_synced = ("--log-linger-ms", "3600000", "--log-flush-records", "1000000000")
    async with BrokerProcess.start(data, *never_synced) as broker:
        async with Client.connect(broker.grpc) as client:
            await client.create_topic("orders", 1, topic_pb.TopicConfig(content_deduplication=False))
            for _ in range(10):
                await client.publish("orders", [b"x"] * 680)
        await broker.kill()
        tear(data)
        await broker.launch()
        found = await metrics(broker)
        assert found['cursus_recovery_cuts_total{topic="orders"}'] == 1
        assert found['cursus_recovery_cut_records_total{topic="orders"}'] == 6_800
        assert "cut_records=6800" in broker.log
        state, detail = (await doctor(broker))["recovery"]
        assert state == "warning"
        assert "6,800 records" in detail
        async with Client.connect(broker.grpc) as client:
            assert (await describe(client)).recovery_cut.record_count == 6_800


def tear(data_dir: Path) -> None:
    """Damage the first entry of a log."""
    (path,) = data_dir.glob("**/orders/partition_0_segment_0.log")
    content = bytearray(path.read_bytes())
    content[CONTROL_BYTES + 150] ^= 0xFF
    path.write_bytes(content)
