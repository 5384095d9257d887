"""Messages known by their content, on a real broker: over restarts, at the bounds, beside a deleted topic."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from cursus_proto import records as record_sets
from cursus_proto.v1 import publish_service_pb2 as pb
from cursus_proto.v1 import records_pb2
from cursus_proto.v1 import topic_service_pb2 as topic_pb
from cursus_proto.v1.records_pb2 import Record
from tests.harness.clients import Client, publish_request
from tests.harness.http import get, samples
from tests.harness.processes import BrokerProcess


def single(topic: str, record: Record, partition: int | None) -> pb.PublishRequest:
    return publish_request(topic, [record], partition)


def packed(request: pb.PublishRequest) -> pb.PublishRequest:
    """The request with its records compressed."""
    compressed = record_sets.pack(request.records.records, records_pb2.CODEC_GZIP)
    request.ClearField("records")
    request.MergeFrom(pb.PublishRequest(codec=records_pb2.CODEC_GZIP, record_count=1, compressed_records=compressed))
    return request


async def publish(client: Client, requests: Sequence[pb.PublishRequest]) -> list[pb.AppendedBatch]:
    return [(await client.publishing.Publish(request)).appended[0] for request in requests]


@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
async def test_a_repetition_after_a_restart_is_a_duplicate_at_the_first_offset(tmp_path: Path, kill: bool) -> None:
    remembered = [
        *(single("orders", Record(value=b"in turn %d" % number), None) for number in range(6)),
        *(single("orders", Record(key=b"k%d" % number, value=b"keyed"), None) for number in range(6)),
        *(single("orders", Record(value=b"named %d" % number), 1) for number in range(6)),
        packed(single("orders", Record(value=b"packed" * 100), 2)),
    ]
    stored_always = single("orders", Record(value=b"always"), 0)
    stored_always.deduplication = pb.DEDUPLICATION_NONE
    process = BrokerProcess.start(tmp_path / "data")
    async with process as broker:
        async with Client.connect(broker.grpc) as client:
            await client.create_topic("orders", 3)
            first = await publish(client, remembered)
            await publish(client, [stored_always])
        assert not any(one.duplicate for one in first)
        await broker.restart(kill=kill)
        async with Client.connect(broker.grpc) as client:
            assert not (await client.publish("orders", [b"always"])).duplicate
            again = await publish(client, remembered)
        assert all(one.duplicate for one in again)
        assert [(one.partition, one.base_offset) for one in again] == [
            (one.partition, one.base_offset) for one in first
        ]
        await broker.restart(kill=kill)
        async with Client.connect(broker.grpc) as client:
            assert (await client.publish("orders", [b"always"])).duplicate
            values = [value for number in range(3) for value in await client.read_values("orders", number)]
            assert len(values) == len(remembered) + 2


async def test_what_is_forgotten_early_is_counted_and_a_deleted_topic_makes_room(tmp_path: Path) -> None:
    bounds = ("--publish-dedup-max-entries", "80", "--publish-dedup-total-entries", "100")
    process = BrokerProcess.start(tmp_path / "data", *bounds)
    async with process as broker, Client.connect(broker.grpc) as client:
        for topic in ("one", "two", "three"):
            await client.create_topic(topic)

        async def fill(topic: str, count: int, first: int = 0) -> None:
            await asyncio.gather(*(client.publish(topic, [b"%d" % (first + number)]) for number in range(count)))

        async def counted() -> tuple[dict[str, float], dict[str, float]]:
            found = samples((await get(broker.metrics, "/metrics"))[1])

            def by_topic(name: str) -> dict[str, float]:
                head = f'{name}{{topic="'
                return {key.removeprefix(head)[:-2]: value for key, value in found.items() if key.startswith(head)}

            return by_topic("cursus_dedup_entries"), by_topic("cursus_dedup_forgotten_early_total")

        await fill("one", 85)
        assert await counted() == ({"one": 80}, {"one": 5})
        await fill("two", 30)
        assert await counted() == ({"one": 70, "two": 30}, {"one": 15})
        await client.topics.DeleteTopic(topic_pb.DeleteTopicRequest(name="one"))
        await fill("three", 70)
        assert await counted() == ({"two": 30, "three": 70}, {})
