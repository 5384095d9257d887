"""What the broker's log tells: who changed what, why a group rebalanced, whom it did not let in. And what it counts."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from cursus_grpc import AsyncAdmin, AsyncConsumer, TopicConfig, TopicPartition
from cursus_proto.v1 import consume_service_pb2 as consume_pb
from cursus_proto.v1.records_pb2 import FlowGrant, OffsetSpec
from tests.harness.certificates import Authority
from tests.harness.clients import Client
from tests.harness.http import get, samples
from tests.harness.processes import BrokerProcess
from tests.harness.refusals import refusal
from tests.harness.streams import within_deadline
from tests.harness.waiting import eventually

JSON_LOG = ("--logging-format", "json")


def events(broker: BrokerProcess, name: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in broker.log.splitlines() if line.startswith("{")]
    return [line for line in lines if line["event"] == name]


async def test_the_log_tells_who_changed_what(tmp_path: Path) -> None:
    async with BrokerProcess.start(tmp_path / "data", *JSON_LOG) as broker:
        (start,) = await eventually(lambda: events(broker, "broker.listening"))
        assert start["data_dir"] == str(tmp_path / "data")
        assert (start["tls"], start["version"] != "", start["python"] != "") == ("off", True, True)
        async with AsyncAdmin(broker.grpc, client_id="night-shift") as admin:
            await admin.create_topic("orders", 2, TopicConfig(retention_ms=5_000))
            await admin.update_topic("orders", TopicConfig(retention_ms=9_000, labels={"owner": "ann"}))
            await admin.add_partitions("orders", 3)
            await admin.delete_records("orders", {0: 0})
            await admin.reset_offsets("readers", {TopicPartition("orders", 0): 0})
            await admin.delete_group("readers")
            await admin.delete_topic("orders")
        told = {
            name: events(broker, name)[0]
            for name in (
                "topic.created",
                "topic.updated",
                "topic.partitions_added",
                "topic.records_deleted",
                "groups.offsets.reset",
                "groups.deleted",
                "topic.deleted",
            )
        }
        for line in told.values():
            assert line["client"].startswith("night-shift ")
            assert line["peer"].startswith("ipv4:127.0.0.1:")
        assert told["topic.created"]["config"] == {"retention_ms": 5_000}
        changed = told["topic.updated"]["changed"]
        assert changed == {"retention_ms": "5000 -> 9000", "labels": "default -> {'owner': 'ann'}"}
        assert (told["topic.partitions_added"]["before"], told["topic.partitions_added"]["partitions"]) == (2, 3)
        assert told["groups.offsets.reset"]["moved"] == ["orders[0]: None -> 0"]


async def test_rebalances_have_their_reason(tmp_path: Path) -> None:
    async with BrokerProcess.start(tmp_path / "data", *JSON_LOG) as broker, AsyncAdmin(broker.grpc) as admin:
        await admin.create_topic("orders", 2)
        async with AsyncConsumer(broker.grpc, group="readers", topics=["orders"]) as consumer:
            await consumer.poll(0.01)
            await eventually(lambda: len(events(broker, "groups.rebalanced")) >= 1)
            await admin.add_partitions("orders", 4)
            await eventually(lambda: len(events(broker, "groups.rebalanced")) >= 2)
        await eventually(lambda: len(events(broker, "groups.rebalanced")) >= 3)
    told = events(broker, "groups.rebalanced")
    assert [line["reason"] for line in told] == ["a member joined", "topics or partitions changed", "a member left"]
    assert [line["members"] for line in told] == [1, 1, 0]


async def test_a_refused_handshake_is_logged_with_its_peer_and_counted(tmp_path: Path) -> None:
    pair = Authority(tmp_path).server()
    flags = ("--tls-cert", str(pair.certificate), "--tls-key", str(pair.key))
    async with BrokerProcess.start(tmp_path / "data", *JSON_LOG, *flags) as broker:
        host, port = broker.grpc.rsplit(":", 1)
        reader, writer = await asyncio.open_connection(host, int(port))
        mine = writer.get_extra_info("sockname")[1]
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        await within_deadline(reader.read())
        writer.close()
        await eventually(lambda: events(broker, "tls.handshake.refused"))
        (line,) = events(broker, "tls.handshake.refused")
        assert line["peer"] == f"127.0.0.1:{mine}"
        assert line["cause"] == "http request"
        found = samples((await get(broker.metrics, "/metrics"))[1])
        assert found["cursus_tls_handshakes_refused_total"] == 1


async def test_calls_errors_and_what_is_read_are_counted(tmp_path: Path) -> None:
    async with BrokerProcess.start(tmp_path / "data") as broker, Client.connect(broker.grpc) as client:
        await client.create_topic("orders")
        await client.publish("orders", [b"abc"] * 5, 0)
        assert (await refusal(client.publish("nowhere", [b"x"], 0))).reason == "TOPIC_NOT_FOUND"
        assert len(await client.read_values("orders")) == 5
        found = samples((await get(broker.metrics, "/metrics"))[1])
        assert found['cursus_grpc_calls_total{method="TopicService/CreateTopic",status="OK"}'] == 1
        assert found['cursus_grpc_calls_total{method="PublishService/Publish",status="OK"}'] == 1
        assert found['cursus_grpc_calls_total{method="PublishService/Publish",status="NOT_FOUND"}'] == 1
        assert found['cursus_errors_total{reason="TOPIC_NOT_FOUND"}'] == 1
        assert found['cursus_topic_read_records_total{topic="orders"}'] == 5
        assert found['cursus_topic_read_bytes_total{topic="orders"}'] > 15
        assert found["cursus_broker_connections"] >= 1
        assert found['cursus_disk_used_bytes{directory="data"}'] > 0


async def test_only_readers_that_keep_up_count_for_the_latency_of_delivery(tmp_path: Path) -> None:
    """Readers of history once filled its last bucket, and hid what live readers felt."""
    async with BrokerProcess.start(tmp_path / "data") as broker, Client.connect(broker.grpc) as client:
        await client.create_topic("orders")
        for number in range(5):
            await client.publish("orders", [b"%d" % number], 0)

        async def observed() -> float:
            return samples((await get(broker.metrics, "/metrics"))[1])["cursus_delivery_latency_seconds_count"]

        call = client.consuming.Consume()
        start = consume_pb.ConsumeStart(
            topic="orders", start_at=OffsetSpec(offset=0), grant=FlowGrant(records=1_000, bytes=10_000_000)
        )
        await call.write(consume_pb.ConsumeRequest(start=start))
        read = 0
        while read < 5:
            answer = await within_deadline(call.read())
            assert isinstance(answer, consume_pb.ConsumeResponse)
            read += sum(batch.record_count for batch in answer.batches.batches)
        assert await observed() == 0, "it has read what was there before it came"
        for number in range(3):
            await client.publish("orders", [b"live %d" % number], 0)
            await within_deadline(call.read())
        assert await observed() == 3
        call.cancel()
