"""Brokers that go away and come back, several gateways, groups that mix clients, and leaders that move."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status

from cursus_proto.internal.v1 import opaque_pb2
from cursus_proto.v1 import (
    cluster_service_pb2,
    consume_service_pb2,
    group_service_pb2,
    group_service_pb2_grpc,
    records_pb2,
    topic_service_pb2,
)
from cursus_proto.v1 import publish_service_pb2 as pb
from tests.harness.gateway import GatewayProcess, LegacyClient, Stack, envelope, read_batch, running_stack
from tests.harness.legacy_wire import Message, batch_body
from tests.harness.processes import BrokerProcess, free_port
from tests.harness.waiting import eventually


async def health(address: str) -> tuple[int, str]:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
    writer.close()
    return int(head.split()[1]), body


async def test_without_a_broker_requests_fail_clearly_and_health_says_why(tmp_path: Path) -> None:
    port = await free_port()
    args = ("--upstream-request-timeout-ms", "300", "--upstream-health-interval-ms", "50")
    async with GatewayProcess.start(f"127.0.0.1:{port}", tmp_path, *args) as gateway:

        async def says_why() -> bool:
            status, text = await health(gateway.health)
            return status == 503 and text.startswith("Broker not ready: no broker answers: 127.0.0.1:")

        down: bool = await eventually(says_why)
        assert down
        async with LegacyClient.connect(gateway.tcp) as client:
            assert (await client.ask("LIST")).startswith("ERROR: broker_unavailable reason=")
            client.send(batch_body([Message(1, b"p", payload=b"x")]))
            refused = await client.receive()
            assert refused is not None
            assert refused.startswith(b"ERROR: broker_unavailable class=availability retryable=true reason=")
            async with BrokerProcess.start(tmp_path / "data", "--grpc-port", str(port)):

                async def is_up() -> bool:
                    return await health(gateway.health) == (200, "OK")

                up: bool = await eventually(is_up)
                assert up
                assert (await client.ask("CREATE topic=orders partitions=1")).startswith("OK ")


async def test_killed_under_load_the_broker_has_every_acknowledged_message_once(tmp_path: Path) -> None:
    """Idempotent batches through a broker that is killed and restarted twice; the producers retry what failed."""
    port = await free_port()
    broker = BrokerProcess.start(tmp_path / "data", "--grpc-port", str(port))
    producers, batches = 4, 60
    async with broker, GatewayProcess.start(f"127.0.0.1:{port}", tmp_path) as gateway:
        async with LegacyClient.connect(gateway.tcp) as client:
            await client.ask(f"CREATE topic=orders partitions={producers}")
        acknowledged = [0] * producers

        async def produce(number: int) -> None:
            client = await LegacyClient.open(gateway.tcp)
            for batch in range(batches):
                first = 1 + 10 * batch
                body = batch_body(
                    [Message(n, b"p%d" % number, epoch=1, payload=b"%d" % n) for n in range(first, first + 10)],
                    partition=number,
                    idempotent=True,
                )
                while True:
                    client.send(body)
                    answer = await client.receive()
                    if answer is not None and answer.startswith(b"{"):
                        assert json.loads(answer)["status"] == "OK"
                        break
                    assert answer is None or b"retryable=true" in answer, answer
                acknowledged[number] += 10
            client.abort()

        async def disturb() -> None:
            for mark in (100, 300):
                reached: bool = await eventually(lambda mark=mark: min(acknowledged) >= mark)  # type: ignore[misc]
                assert reached
                await broker.restart(kill=True)

        await asyncio.gather(disturb(), *(produce(number) for number in range(producers)))
        async with LegacyClient.connect(gateway.tcp) as client:
            for number in range(producers):
                expected = [b"%d" % n for n in range(1, 1 + 10 * batches)]
                assert await client.payloads("orders", number) == expected


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Stack]:
    async with running_stack(tmp_path) as stack:
        await stack.ask("CREATE topic=orders partitions=4")
        yield stack


def parse_join(answer: str) -> tuple[int, str, list[str]]:
    match = re.fullmatch(r"OK generation=(\d+) member=(\S+) assignments=\[([\d ]*)\]", answer)
    assert match is not None, answer
    return int(match[1]), match[2], match[3].split()


async def test_members_on_two_gateways_are_one_group(stack: Stack, tmp_path: Path) -> None:
    async with GatewayProcess.start(stack.broker.grpc, tmp_path, name="second") as second:
        join = "JOIN_GROUP topic=orders group=shared member={}"
        generation, one, all_of_them = parse_join(await stack.ask(join.format("one")))
        assert all_of_them == ["0", "1", "2", "3"]
        async with LegacyClient.connect(second.tcp) as client:
            _, two, _ = parse_join(await client.ask(join.format("two")))
            beat = f"HEARTBEAT topic=orders group=shared member={one} generation={generation}"
            told = await client.ask(beat)
            assert told.startswith(f"ERROR: GEN_MISMATCH current=2 requested=1 group=shared member={one}")
        _, _, first_half = parse_join(await stack.ask(join.format(one)))
        async with LegacyClient.connect(second.tcp) as client:
            _, _, second_half = parse_join(await client.ask(join.format(two)))
        assert sorted(first_half + second_half) == all_of_them
        assert first_half
        assert second_half
        # A member that asks for what another one owns now is told so; what it still owns it may read (RULE 36).
        consume = f"CONSUME topic=orders partition={{}} offset=0 group=shared generation=1 member={one}"
        refused = await stack.ask(consume.format(second_half[0]))
        assert refused == f"ERROR: GEN_MISMATCH current=2 requested=1 group=shared member={one}"
        async with stack.connect() as client:
            client.send(envelope(consume.format(first_half[0])))
            served = await client.receive()
            assert served is not None
            assert read_batch(served) == []


async def test_a_group_mixes_tcp_and_grpc_members(stack: Stack) -> None:
    async with grpc.aio.insecure_channel(stack.broker.grpc) as channel:
        groups = group_service_pb2_grpc.GroupServiceStub(channel)
        joined = await groups.JoinGroup(group_service_pb2.JoinGroupRequest(group="mixed", topics=["orders"]))
        await groups.SyncGroup(
            group_service_pb2.SyncGroupRequest(group="mixed", member_id=joined.member_id, generation=joined.generation)
        )
        legacy = asyncio.ensure_future(stack.ask("JOIN_GROUP topic=orders group=mixed member=tcp"))
        current = joined.generation

        async def has_to_sync() -> bool:
            nonlocal current
            beat = group_service_pb2.HeartbeatRequest(
                group="mixed", member_id=joined.member_id, generation=joined.generation
            )
            answer = await groups.Heartbeat(beat)
            current = answer.generation
            return bool(answer.must_sync)

        told: bool = await eventually(has_to_sync)
        assert told
        synced = await groups.SyncGroup(
            group_service_pb2.SyncGroupRequest(group="mixed", member_id=joined.member_id, generation=current)
        )
        _, member, _ = parse_join(await legacy)

        async def tcp_owns_the_rest() -> list[str]:
            answer = await stack.ask(f"SYNC_GROUP topic=orders group=mixed member={member} generation={current}")
            return re.findall(r"\d", answer.partition("[")[2])

        owned = await tcp_owns_the_rest()
        grpc_owned = [str(place.partition) for place in synced.partitions]
        assert sorted(owned + grpc_owned) == ["0", "1", "2", "3"]


async def test_a_message_reads_back_over_grpc_with_every_field_and_the_other_way_round(stack: Stack) -> None:
    message = Message(7, b"p\xff", b"key", 3, b"value", b"Created", 2, 9, b"meta")
    async with stack.connect() as client, grpc.aio.insecure_channel(stack.broker.grpc) as channel:
        await client.publish(batch_body([message]))
        fetch = channel.unary_unary(
            "/cursus.v1.ConsumeService/Fetch",
            request_serializer=consume_service_pb2.FetchRequest.SerializeToString,
            response_deserializer=consume_service_pb2.FetchResponse.FromString,
        )
        request = consume_service_pb2.FetchRequest()
        request.partitions.add(topic="orders", partition=0, offset=0)
        (batch,) = (await fetch(request)).partitions[0].batches
        (record,) = batch.records.records
        assert (batch.producer_id, batch.producer_epoch) == (b"p\xff", 3)
        assert record == records_pb2.Record(
            key=b"key",
            value=b"value",
            event_type=b"Created",
            schema_version=2,
            aggregate_version=9,
            metadata=b"meta",
            sequence=7,
        )
        publish = channel.unary_unary(
            "/cursus.v1.PublishService/Publish",
            request_serializer=pb.PublishRequest.SerializeToString,
            response_deserializer=pb.PublishResponse.FromString,
        )
        identity = pb.ProducerIdentity(id=b"grpc", epoch=5, first_sequence=0)
        records = records_pb2.RecordSet(records=[record, records_pb2.Record(value=b"second")])
        records.records[0].ClearField("sequence")
        await publish(pb.PublishRequest(topic="orders", partition=1, producer=identity, records=records))
        first, second = read_batch(await client.consume("orders", 1))
        assert first == {
            **{name: getattr(message, name) for name in message.__dataclass_fields__},
            "offset": 0,
            "sequence": 0,
            "producer_id": b"grpc",
            "epoch": 5,
        }
        assert (second["offset"], second["sequence"], second["payload"]) == (1, 1, b"second")


async def test_a_subscription_delivers_what_is_published_from_then_on_to_one_member_each(stack: Stack) -> None:
    async with stack.connect() as one, stack.connect() as two, stack.connect() as producer:
        await producer.publish(batch_body([Message(payload=b"before")]))
        for client in (one, two):
            assert await client.ask("SUBSCRIBE orders live") == "✅ Subscribed to 'orders' with group 'live'"
        expected = set()
        for partition in range(4):
            for number in range(5):
                payload = b"%d-%d" % (partition, number)
                expected.add(payload)
                await producer.publish(batch_body([Message(payload=payload)], partition=partition))
        received: list[bytes] = []

        async def collect(client: LegacyClient) -> int:
            count = 0
            while len(received) < len(expected):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.2):
                        size = int.from_bytes(await client.reader.readexactly(4), "big")
                        received.append(await client.reader.readexactly(size))
                        count += 1
            return count

        shares = await asyncio.gather(collect(one), collect(two))
        assert sorted(received) == sorted(expected)
        assert list(shares) == [10, 10]


class FakeBroker:
    """Answers like a broker of a cluster that leads nothing, or everything. The real one is alone and always leads."""

    def __init__(self) -> None:
        self.other: FakeBroker | None = None
        self.stored: list[bytes] = []
        self.port = 0
        self._server = grpc.aio.server()

    async def start(self) -> None:
        handlers = {
            "PublishStream": grpc.stream_stream_rpc_method_handler(
                self._publish_stream,
                request_deserializer=opaque_pb2.PublishStreamRequest.FromString,
                response_serializer=pb.PublishStreamResponse.SerializeToString,
            )
        }
        metadata = grpc.unary_unary_rpc_method_handler(
            self._get_metadata,
            request_deserializer=cluster_service_pb2.GetMetadataRequest.FromString,
            response_serializer=cluster_service_pb2.GetMetadataResponse.SerializeToString,
        )
        describe = grpc.unary_unary_rpc_method_handler(
            self._describe_topic,
            request_deserializer=topic_service_pb2.DescribeTopicRequest.FromString,
            response_serializer=topic_service_pb2.DescribeTopicResponse.SerializeToString,
        )
        self._server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler("cursus.v1.PublishService", handlers),
                grpc.method_handlers_generic_handler("cursus.v1.ClusterService", {"GetMetadata": metadata}),
                grpc.method_handlers_generic_handler("cursus.v1.TopicService", {"DescribeTopic": describe}),
            )
        )
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(None)

    async def _publish_stream(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        async for request in requests:
            if request.HasField("open"):
                yield pb.PublishStreamResponse(opened=pb.PublishStreamOpened(window_bytes=2**20))
                continue
            outcome = pb.PublishOutcome()
            if self.other is not None:
                info = AnyMessage()
                info.Pack(ErrorInfo(reason="NOT_LEADER", domain="cursus", metadata={"leader": "elsewhere"}))
                outcome.refused.CopyFrom(Status(code=9, message="not the leader", details=[info]))
            else:
                self.stored.append(request.publish.records)
                outcome.published.appended.add(base_offset=41, record_count=request.publish.record_count)
            yield pb.PublishStreamResponse(outcomes=pb.PublishOutcomes(outcomes=[outcome]))

    async def _describe_topic(self, request: Any, context: Any) -> Any:
        return topic_service_pb2.DescribeTopicResponse(topic=topic_service_pb2.Topic(name=request.name))

    async def _get_metadata(self, request: Any, context: Any) -> Any:
        leader = self.other or self
        answer = cluster_service_pb2.GetMetadataResponse()
        answer.brokers.add(broker_id=7, host="127.0.0.1", port=leader.port)
        topic = answer.topics.add(name=request.topics[0])
        topic.partitions.add(partition=0, leader_id=7)
        return answer


async def test_a_leader_elsewhere_is_followed_and_the_client_never_hears_of_it(tmp_path: Path) -> None:
    home, leader = FakeBroker(), FakeBroker()
    await home.start()
    await leader.start()
    home.other = leader
    try:
        async with (
            GatewayProcess.start(f"127.0.0.1:{home.port}", tmp_path) as gateway,
            LegacyClient.connect(gateway.tcp) as client,
        ):
            for _ in range(2):
                acknowledged = await client.publish(batch_body([Message(1, b"p", payload=b"x")]))
                assert acknowledged["last_offset"] == 41
        assert len(leader.stored) == 2
        assert home.stored == []
    finally:
        await home.stop()
        await leader.stop()


async def test_a_stream_goes_on_after_the_broker_was_away(tmp_path: Path) -> None:
    port = await free_port()
    broker = BrokerProcess.start(tmp_path / "data", "--grpc-port", str(port))
    name = f"t{uuid.uuid4().hex[:6]}"
    async with (
        broker,
        GatewayProcess.start(f"127.0.0.1:{port}", tmp_path) as gateway,
        LegacyClient.connect(gateway.tcp) as stream,
        LegacyClient.connect(gateway.tcp) as producer,
    ):
        await producer.ask(f"CREATE topic={name} partitions=1")
        await producer.publish(batch_body([Message(payload=b"one")], topic=name))
        stream.send(envelope(f"STREAM topic={name} partition=0 group=g offset=0"))
        first = await stream.receive()
        assert first is not None
        await broker.restart(kill=True)
        await producer.publish(batch_body([Message(payload=b"two")], topic=name))
        while not (frame := await stream.receive()):
            assert frame is not None
        assert [m["payload"] for m in read_batch(frame)] == [b"two"]
