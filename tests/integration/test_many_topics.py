"""Five hundred topics of four partitions: made, filled and found again after a stop and after a kill.

Start-up time and memory are printed for people; only memory and descriptors are bounds, and generous ones.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import psutil
import pytest

from cursus_proto.v1 import consume_service_pb2 as consume_pb
from cursus_proto.v1.topic_service_pb2 import ListTopicsRequest
from tests.harness.clients import Client, publish_request, stored_records
from tests.harness.processes import BrokerProcess
from tests.harness.waiting import eventually

TOPICS: Final = 500
PARTITIONS: Final = 4
MIB: Final = 1024 * 1024
MAX_RESIDENT_BYTES: Final = 200 * MIB
OPEN_FILES: Final = 128
# Sockets, the lock, SQLite and the libraries beside the segment files.
MAX_DESCRIPTORS: Final = OPEN_FILES + 100
CREATES_AT_ONCE: Final = 32
FETCHED_AT_ONCE: Final = 1_000  # the contract's bound

Place = tuple[str, int]
PLACES: Final[list[Place]] = [
    (f"topic-{number:03}", partition) for number in range(TOPICS) for partition in range(PARTITIONS)
]


def values_of(place: Place, generation: int) -> list[bytes]:
    return [f"{place[0]} {place[1]} {generation} {record}".encode() for record in range(5)]


async def create_all(client: Client) -> None:
    gate = asyncio.Semaphore(CREATES_AT_ONCE)

    async def create(name: str) -> None:
        async with gate:
            await client.create_topic(name, PARTITIONS)

    await asyncio.gather(*(create(name) for name in dict.fromkeys(topic for topic, _ in PLACES)))


async def publish_to_all(client: Client, generation: int) -> None:
    async with client.publish_stream() as stream:
        sent = [
            await stream.send(publish_request(place[0], values_of(place, generation), place[1])) for place in PLACES
        ]
        for answer in sent:
            outcome = await answer
            assert outcome is not None
            assert outcome.HasField("published"), outcome.refused


async def check_all(client: Client, generations: Iterable[int]) -> None:
    """Everything is there, in every partition and in order."""
    expected = {place: [value for one in generations for value in values_of(place, one)] for place in PLACES}
    for at in range(0, len(PLACES), FETCHED_AT_ONCE):
        wanted = [
            consume_pb.FetchPartition(topic=topic, partition=partition)
            for topic, partition in PLACES[at : at + FETCHED_AT_ONCE]
        ]
        for fetched in (await client.consuming.Fetch(consume_pb.FetchRequest(partitions=wanted))).partitions:
            values = [one.value for batch in fetched.batches for one in stored_records(batch)]
            assert values == expected[fetched.topic, fetched.partition]


def start_seconds(broker: BrokerProcess) -> list[float]:
    """How long each start took, by the broker's own account."""
    events = [json.loads(line) for line in broker.log.splitlines() if "broker.listening" in line]
    return [event["start_seconds"] for event in events]


async def report(what: str, starts: int, broker: BrokerProcess, capsys: pytest.CaptureFixture[str]) -> None:
    """Print the latest start-up time and memory, and hold the bounds."""
    process = psutil.Process(broker.pid)
    resident, descriptors = process.memory_info().rss, process.num_fds()
    # The broker says it is ready before it logs how long that took.
    await eventually(lambda: len(start_seconds(broker)) == starts)
    with capsys.disabled():
        sys.stdout.write(
            f"\n{TOPICS} topics x {PARTITIONS} partitions, {what}: started in {start_seconds(broker)[-1]} s,"
            f" {resident / MIB:.0f} MiB resident, {descriptors} descriptors"
        )
    assert resident < MAX_RESIDENT_BYTES
    assert descriptors < MAX_DESCRIPTORS


@pytest.mark.slow
async def test_five_hundred_topics_are_found_again_after_a_stop_and_a_kill(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with BrokerProcess.start(
        tmp_path / "data", "--log-open-files", str(OPEN_FILES), "--logging-format", "JSON"
    ) as broker:
        await report("empty", 1, broker, capsys)
        async with Client.connect(broker.grpc) as client:
            await create_all(client)
            await publish_to_all(client, 0)
            await check_all(client, [0])
        await report("filled", 1, broker, capsys)

        await broker.restart()
        await report("after a clean stop", 2, broker, capsys)
        async with Client.connect(broker.grpc) as client:
            assert len((await client.topics.ListTopics(ListTopicsRequest())).topics) == TOPICS
            await check_all(client, [0])
            await publish_to_all(client, 1)

            await broker.kill()
        await broker.launch()
        await report("after a kill", 3, broker, capsys)
        async with Client.connect(broker.grpc) as client:
            await check_all(client, [0, 1])
            await publish_to_all(client, 2)
            await check_all(client, [0, 1, 2])
        await report("in use", 3, broker, capsys)
