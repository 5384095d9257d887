"""A client that has only reflection: every rpc of the broker, with typed records, and with grpcurl itself."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import grpc
import pytest

from tests.harness.processes import BrokerProcess
from tests.harness.reflection import GrpcurlClient, Json, JsonClient, JsonStream, ReflectedClient, find_grpcurl

PACKAGE = "cursus.v1"


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[BrokerProcess]:
    async with BrokerProcess.start(tmp_path / "data") as process:
        yield process


@asynccontextmanager
async def connected(kind: str, address: str) -> AsyncIterator[JsonClient]:
    if kind == "reflection":
        async with grpc.aio.insecure_channel(address) as channel:
            yield ReflectedClient(channel)
    else:
        program = find_grpcurl()
        if program is None:
            pytest.skip("grpcurl is neither in tools/bin, where .ci/run installs it with go, nor on PATH")
        yield GrpcurlClient(program, address)


def text(value: str) -> str:
    """Bytes as JSON has them."""
    return base64.b64encode(value.encode()).decode()


def plain(value: str) -> str:
    return base64.b64decode(value).decode()


class Story:
    """Calls methods and remembers which."""

    def __init__(self, client: JsonClient) -> None:
        self._client = client
        self.called: set[str] = set()

    async def call(self, method: str, request: Json | None = None, package: str = PACKAGE) -> Json:
        self.called.add(f"{package}.{method}")
        return await self._client.unary(f"{package}.{method}", request or {})

    def stream(self, method: str) -> AbstractAsyncContextManager[JsonStream]:
        self.called.add(f"{PACKAGE}.{method}")
        return self._client.stream(f"{PACKAGE}.{method}")


@pytest.mark.parametrize("kind", ["reflection", "grpcurl"])
async def test_every_rpc_can_be_called_with_nothing_but_reflection(broker: BrokerProcess, kind: str) -> None:
    async with connected(kind, broker.grpc) as client:
        story = Story(client)
        await topics(story)
        await publishing(story)
        await consuming(story)
        await groups(story)
        await numbering(story)
        await cleaning_up(story)
        health = await story.call("Health/Check", package="grpc.health.v1")
        assert health == {"status": "SERVING"}
        offered = {method for method in await client.methods() if method.startswith(f"{PACKAGE}.")}
        assert offered == {method for method in story.called if method.startswith(f"{PACKAGE}.")}
        assert len(offered) == 28


async def topics(story: Story) -> None:
    request: Json = {
        "name": "orders",
        "partition_count": 2,
        "config": {"retention_ms": "-1", "labels": {"team": "blue"}},
    }
    created = (await story.call("TopicService/CreateTopic", request))["topic"]
    assert (created["partition_count"], created["config"]["labels"]) == (2, {"team": "blue"})
    listed = await story.call("TopicService/ListTopics")
    assert [topic["name"] for topic in listed["topics"]] == ["orders"]
    update: Json = {"name": "orders", "config": {"content_deduplication": False}}
    updated = await story.call("TopicService/UpdateTopic", update)
    assert updated["topic"]["config"]["content_deduplication"] is False
    grown = await story.call("TopicService/AddPartitions", {"name": "orders", "partition_count": 3})
    assert grown["topic"]["partition_count"] == 3
    described = await story.call("TopicService/DescribeTopic", {"name": "orders"})
    assert len(described["partitions"]) == 3
    metadata = await story.call("ClusterService/GetMetadata")
    assert len(metadata["topics"][0]["partitions"]) == 3
    assert metadata["brokers"][0]["port"] > 0
    assert (await story.call("ClusterService/GetBrokerInfo"))["topic_count"] == 1


async def publishing(story: Story) -> None:
    record: Json = {
        "key": text("user-123"),
        "value": text("first"),
        "timestamp_ms": "1700000000000",
        "headers": [{"key": "trace", "value": text("abc")}],
        "schema_version": 3,
    }
    published: Json = {"topic": "orders", "partition": 0, "acks": "ACKS_ALL", "records": {"records": [record]}}
    answer = await story.call("PublishService/Publish", published)
    assert int(answer["appended"][0]["record_count"]) == 1
    async with story.stream("PublishService/PublishStream") as stream:
        await stream.send({"open": {"client_id": "reflection"}})
        assert int((await stream.receive())["opened"]["max_batch_bytes"]) > 0
        for number in range(3):
            records = {"records": [{"value": text(f"streamed {number}")}]}
            await stream.send({"publish": {"topic": "orders", "partition": 0, "records": records}})
        await stream.send({"publish": {"topic": "no-such-topic", "records": {"records": [{"value": text("x")}]}}})
        outcomes = [one for message in await stream.finish() for one in message["outcomes"]["outcomes"]]
    assert [next(iter(one)) for one in outcomes] == ["published"] * 3 + ["refused"]
    assert outcomes[3]["refused"]["details"][0]["reason"] == "TOPIC_NOT_FOUND"
    assert [one["published"]["appended"][0].get("base_offset", "0") for one in outcomes[:3]] == ["1", "2", "3"]


async def numbering(story: Story) -> None:
    """A producer that numbers its batches is known, until it is released."""
    record: Json = {"value": text("numbered")}
    where: Json = {"topic": "orders", "partition": 1}
    producer: Json = {"id": text("producer"), "epoch": "4"}
    numbered: Json = {**where, "producer": {**producer, "first_sequence": "0"}, "records": {"records": [record]}}
    await story.call("PublishService/Publish", numbered)
    asked: Json = {**where, "producer_ids": [text("producer"), text("stranger")]}
    known, unknown = (await story.call("PublishService/DescribeProducers", asked))["producers"]
    assert (known["known"], known["epoch"], known["next_sequence"]) == (True, "4", "1")
    assert not unknown.get("known", False)
    released = await story.call("PublishService/ReleaseProducers", {**where, "producers": [producer]})
    assert released["released_count"] == 1


async def consuming(story: Story) -> None:
    part: Json = {"topic": "orders", "partition": 0, "offset": "0"}
    fetched = await story.call("ConsumeService/Fetch", {"partitions": [part], "max_wait_ms": 1_000})
    batches = fetched["partitions"][0]["batches"]
    first = batches[0]["records"]["records"][0]
    assert (plain(first["key"]), plain(first["value"]), first["schema_version"]) == ("user-123", "first", 3)
    assert plain(first["headers"][0]["value"]) == "abc"
    expected = ["first", "streamed 0", "streamed 1", "streamed 2"]
    assert values(batches) == expected

    async with story.stream("ConsumeService/Consume") as stream:
        start: Json = {"topic": "orders", "partition": 0, "start_at": {"edge": "OFFSET_EDGE_EARLIEST"}}
        await stream.send({"start": {**start, "stop_at_end": True}})
        messages = await stream.finish()
    assert messages[0]["started"]["end_offset"] == "4"
    assert values([batch for message in messages[1:] for batch in message["batches"]["batches"]]) == expected

    async with story.stream("ConsumeService/Subscribe") as stream:
        await stream.send({"start": {"group": "readers", "topics": ["orders"]}})
        assert (await stream.receive())["started"]["member_id"]
        received: list[str] = []
        while len(received) < 4:
            message = await stream.receive()
            if "assignment" in message:
                await stream.send({"assignment_ack": {"generation": message["assignment"]["generation"]}})
            elif "batches" in message:
                received += values(message["batches"]["batches"])
        assert received == expected
        offset: Json = {"topic": "orders", "partition": 0, "next_offset": "4", "metadata": "done"}
        await stream.send({"commit": {"commit_id": "7", "offsets": [offset]}})
        while "committed" not in (message := await stream.receive()):
            pass
        assert message["committed"]["commit_id"] == "7"
        assert "error" not in message["committed"]["results"][0]
        await stream.finish()


def values(batches: list[Json]) -> list[str]:
    return [plain(record["value"]) for batch in batches for record in batch["records"]["records"]]


async def groups(story: Story) -> None:
    joined = await story.call("GroupService/JoinGroup", {"group": "workers", "topics": ["orders"]})
    member: Json = {"group": "workers", "member_id": joined["member_id"], "generation": joined["generation"]}
    synced = await story.call("GroupService/SyncGroup", member)
    assert len(synced["partitions"]) == 3
    assert synced["complete"] is True
    beat = await story.call("GroupService/Heartbeat", member)
    assert not beat.get("must_sync", False)
    offsets = [{"topic": "orders", "partition": 0, "next_offset": "2"}]
    committed = await story.call("GroupService/CommitOffsets", {**member, "offsets": offsets})
    assert "error" not in committed["results"][0]
    found = await story.call("GroupService/FetchOffsets", {"group": "workers"})
    assert [one["next_offset"] for one in found["offsets"]] == ["2"]
    described = await story.call("GroupService/DescribeGroup", {"group": "workers"})
    assert [int(one.get("lag_records", "0")) for one in described["partitions"]] == [2, 0, 0]
    assert described["partitions"][0]["lag_seconds"] > 0
    await story.call("GroupService/LeaveGroup", {"group": "workers", "member_id": joined["member_id"]})
    reset: Json = {"topic": "orders", "partition": 0, "to": {"offset": "1"}}
    changed = await story.call("GroupService/ResetOffsets", {"group": "workers", "resets": [reset]})
    assert (changed["changes"][0]["before"], changed["changes"][0]["after"]) == ("2", "1")
    listed = await story.call("GroupService/ListGroups")
    assert [one["group"] for one in listed["groups"]] == ["readers", "workers"]
    await story.call("GroupService/DeleteGroup", {"group": "workers"})


async def cleaning_up(story: Story) -> None:
    deleted = await story.call(
        "TopicService/DeleteRecords", {"topic": "orders", "partitions": [{"partition": 0, "before_offset": "3"}]}
    )
    assert deleted["partitions"][0]["earliest_offset"] == "3"
    listed = await story.call(
        "TopicService/ListOffsets", {"topic": "orders", "partitions": [0], "at": {"edge": "OFFSET_EDGE_EARLIEST"}}
    )
    assert listed["offsets"][0]["offset"] == "3"
    reopened = await story.call("TopicService/ReopenPartition", {"topic": "orders", "partition": 0})
    assert not reopened.get("reopened", False), "nothing is wrong with it"
    assert reopened["partition"]["earliest_offset"] == "3"
    await story.call("TopicService/DeleteTopic", {"name": "orders"})
    assert await story.call("TopicService/ListTopics") == {}
