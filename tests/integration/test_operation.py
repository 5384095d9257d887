"""Running a broker: configuration, readiness, metrics, TLS, the data directory's lock, ports, shutting down."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2

from cursus_proto.v1 import cluster_service_pb2 as cluster_pb
from cursus_proto.v1 import group_service_pb2 as group_pb
from cursus_proto.v1 import topic_service_pb2 as topic_pb
from cursus_proto.v1.publish_service_pb2 import ACKS_ALL
from cursus_proto.v1.records_pb2 import FlowGrant
from tests.harness.certificates import Authority
from tests.harness.clients import Client, publish_request, reason
from tests.harness.http import get, samples
from tests.harness.processes import BrokerProcess
from tests.harness.streams import ConsumeStream, Member, within_deadline
from tests.harness.waiting import eventually

NO_DEDUP = topic_pb.TopicConfig(content_deduplication=False)


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[BrokerProcess]:
    async with BrokerProcess.start(tmp_path / "data") as process:
        yield process


# Configuration


def run_broker(*args: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """A broker that is expected to end by itself."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("CURSUS_")}
    return subprocess.run(
        [sys.executable, "-m", "cursus_broker", *args],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**inherited, **(env or {})},
    )


def test_print_config_shows_values_and_where_they_come_from(tmp_path: Path) -> None:
    config = tmp_path / "broker.yaml"
    config.write_text("log:\n  linger_ms: 7\ntopics:\n  default_partitions: 9\n")
    shown = run_broker(
        *("--print-config", "--config", str(config), "--data-dir", str(tmp_path / "never-made")),
        env={"CURSUS_TOPICS_DEFAULT_PARTITIONS": "3"},
    )
    assert shown.returncode == 0, shown.stderr
    lines = [line.strip() for line in shown.stdout.splitlines()]
    assert f"data_dir: {tmp_path / 'never-made'}  # flag --data-dir" in lines
    assert "grpc_port: 50051  # default" in lines
    assert any(line.startswith("linger_ms: 7ms  #") and "broker.yaml" in line for line in lines)
    # The environment wins over the file.
    assert "default_partitions: 3  # environment CURSUS_TOPICS_DEFAULT_PARTITIONS" in lines
    assert not (tmp_path / "never-made").exists()


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (("--no-such-flag",), "no-such-flag"),
        (("--grpc-port", "70000"), "65535"),
        (("--log-segment-bytes", "many"), "many"),
        (("--profile", "turbo"), "turbo"),
        (("--tls-cert", "only-this.pem"), "tls.key"),
    ],
)
def test_a_setting_that_makes_no_sense_is_a_usage_error(args: tuple[str, ...], complaint: str) -> None:
    refused = run_broker(*args)
    assert refused.returncode == 2
    assert complaint in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.parametrize("profile", ["throughput", "latency", "memory"])
async def test_a_broker_runs_with_each_profile(tmp_path: Path, profile: str) -> None:
    transport = ("--grpc-keepalive-ms", "5000", "--grpc-keepalive-timeout-ms", "2000")
    limits = ("--publish-max-batch-bytes", "2MiB", "--grpc-max-streams-per-connection", "50")
    process = BrokerProcess.start(tmp_path / "data", "--profile", profile, *transport, *limits)
    async with process as broker, Client.connect(broker.grpc) as client:
        info = await client.cluster.GetBrokerInfo(cluster_pb.GetBrokerInfoRequest())
        assert info.max_batch_bytes == 2 * 1024 * 1024
        await client.create_topic("orders", 1, NO_DEDUP)
        await client.publish("orders", [bytes(1024 * 1024)], acks=ACKS_ALL)
        assert len(await client.read_values("orders")) == 1


# Health


async def test_health_is_told_over_http_and_grpc(broker: BrokerProcess) -> None:
    assert await get(broker.health, "/health") == (200, "OK")
    assert await get(broker.health, "/") == (200, "OK")
    assert (await get(broker.health, "/live"))[0] == 200
    assert (await get(broker.health, "/ready"))[0] == 200
    async with grpc.aio.insecure_channel(broker.grpc) as channel:
        check: grpc.aio.UnaryUnaryMultiCallable[Any, Any] = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        for service in ("", "cursus.v1.PublishService", "cursus.v1.GroupService"):
            answer = await check(health_pb2.HealthCheckRequest(service=service))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING


# Metrics


async def test_metrics_move_with_what_happens(broker: BrokerProcess) -> None:
    async with Client.connect(broker.grpc) as client:
        await client.create_topic("orders")
        await client.publish("orders", [b"same"])
        await client.publish("orders", [b"same"])
        await client.publish("orders", [b"a", b"b"], acks=ACKS_ALL)
        offset = group_pb.CommitOffset(topic="orders", partition=0, next_offset=1)
        await client.groups.CommitOffsets(group_pb.CommitOffsetsRequest(group="g", offsets=[offset]))
        part = topic_pb.DeleteRecordsPartition(partition=0, before_offset=1)
        await client.topics.DeleteRecords(topic_pb.DeleteRecordsRequest(topic="orders", partitions=[part]))
        async with ConsumeStream.open(client, "orders") as stream:
            await stream.take(2)
            status, exposition = await get(broker.metrics, "/metrics")
    assert status == 200
    found = samples(exposition)
    place = '{partition="0",topic="orders"}'
    group_place = '{group="g",partition="0",topic="orders"}'
    normalized = {re.sub(r"\{.*}", lambda match: _sorted_labels(match[0]), name): one for name, one in found.items()}
    exact = {
        "messages_processed_total": 3,
        "message_latency_seconds_count": 3,
        f"cursus_partition_log_start_offset{place}": 1,
        f"cursus_partition_log_end_offset{place}": 3,
        f"cursus_partition_records_total{place}": 3,
        f"cursus_consumer_group_lag{group_place}": 2,
        f"cursus_consumer_group_committed_offset{group_place}": 1,
        'cursus_dedup_hits_total{kind="content",topic="orders"}': 1,
        'cursus_dedup_entries{topic="orders"}': 1,
        "cursus_dedup_cleanup_total": 0,
        "cursus_broker_topics": 1,
        "cursus_broker_partitions": 1,
        'cursus_open_streams{method="ConsumeService/Consume"}': 1,
        "cursus_delivery_latency_seconds_count": 0,  # it read what was there before it came
        'cursus_topic_read_records_total{topic="orders"}': 2,
    }
    assert {name: normalized.get(name) for name in exact} == exact
    for name in (
        f"cursus_partition_size_bytes{place}",
        f"cursus_partition_written_bytes_total{place}",
        "cursus_syncs_total",
        "cursus_sync_seconds_total",
        "cursus_storage_segments",
        "cursus_storage_open_files",
        "cursus_tail_bytes",
        "cursus_sync_duration_seconds_count",
        "cursus_broker_connections",
        "cursus_broker_start_seconds",
        'cursus_disk_size_bytes{directory="data"}',
        'cursus_disk_free_bytes{directory="data"}',
        "process_start_time_seconds",
        "process_open_fds",
    ):
        assert normalized[name] > 0, name


def _sorted_labels(labels: str) -> str:
    return "{" + ",".join(sorted(labels[1:-1].split(","))) + "}"


async def test_deduplication_is_cleaned_up_and_counted(tmp_path: Path) -> None:
    args = ("--publish-dedup-window-ms", "1", "--publish-cleanup-interval-ms", "10")
    process = BrokerProcess.start(tmp_path / "data", *args)
    async with process as broker, Client.connect(broker.grpc) as client:
        await client.create_topic("orders")
        await client.publish("orders", [b"same"])

        async def cleaned() -> bool:
            return samples((await get(broker.metrics, "/metrics"))[1])["cursus_dedup_cleanup_total"] == 1

        forgotten: bool = await eventually(cleaned)
        assert forgotten
        assert not (await client.publish("orders", [b"same"])).duplicate


# TLS


async def test_tls_protects_the_port_and_mutual_tls_asks_for_a_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    server = authority.server()
    root = authority.certificate.read_bytes()
    flags = ("--tls-cert", str(server.certificate), "--tls-key", str(server.key))
    async with BrokerProcess.start(tmp_path / "tls", *flags) as broker:
        assert await greets(broker.grpc, grpc.ssl_channel_credentials(root))
        assert not await greets(broker.grpc, None)
        stranger = Authority(tmp_path / "other-ca").certificate.read_bytes()
        assert not await greets(broker.grpc, grpc.ssl_channel_credentials(stranger))
    client_ca = ("--tls-client-ca", str(authority.certificate))
    async with BrokerProcess.start(tmp_path / "mutual", *flags, *client_ca) as broker:
        assert not await greets(broker.grpc, grpc.ssl_channel_credentials(root))
        key, certificate = authority.client().read()
        assert await greets(broker.grpc, grpc.ssl_channel_credentials(root, key, certificate))
        key, certificate = Authority(tmp_path / "forged").client().read()
        assert not await greets(broker.grpc, grpc.ssl_channel_credentials(root, key, certificate))


async def greets(address: str, credentials: grpc.ChannelCredentials | None) -> bool:
    """Whether a channel with these credentials (None: plain text) gets an answer."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    channel = (
        grpc.aio.secure_channel(address, credentials, options=options)
        if credentials
        else grpc.aio.insecure_channel(address, options=options)
    )
    async with channel:
        try:
            info = await Client(channel).cluster.GetBrokerInfo(cluster_pb.GetBrokerInfoRequest(), timeout=30)
        except grpc.aio.AioRpcError as error:
            return error.code() is not grpc.StatusCode.UNAVAILABLE
        return bool(info.version)


async def test_an_unreadable_certificate_is_refused_clearly(tmp_path: Path) -> None:
    flags = ("--tls-cert", str(tmp_path / "missing.pem"), "--tls-key", str(tmp_path / "missing.key"))
    process = BrokerProcess.start(tmp_path / "data", *flags)
    assert await process.expect_refusal() == 1
    assert "missing" in process.log
    assert "Traceback" not in process.log


# What it must not share


async def test_a_second_broker_on_the_same_directory_refuses_and_the_first_goes_on(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    second = BrokerProcess.start(tmp_path / "data")
    assert await second.expect_refusal() == 1
    assert f"in use by another broker, process {broker.pid}" in second.log
    assert "Traceback" not in second.log
    async with Client.connect(broker.grpc) as client:
        await client.create_topic("orders")
        assert (await client.publish("orders", [b"x"])).base_offset == 0


@pytest.mark.parametrize("port", ["grpc", "health", "metrics"])
async def test_a_port_in_use_is_refused_clearly(broker: BrokerProcess, tmp_path: Path, port: str) -> None:
    taken = broker.address(port).rsplit(":", 1)[1]
    second = BrokerProcess.start(tmp_path / "other", f"--{port}-port", taken)
    assert await second.expect_refusal() == 1
    assert "cannot listen" in second.log
    assert taken in second.log
    assert "Traceback" not in second.log


async def test_the_lock_of_a_killed_broker_blocks_nobody(broker: BrokerProcess) -> None:
    await broker.restart(kill=True)
    assert (await get(broker.health, "/health"))[0] == 200


async def test_a_directory_that_cannot_be_used_is_refused_clearly(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file")
    process = BrokerProcess.start(tmp_path / "data")
    assert await process.expect_refusal() == 1
    assert "cannot use data directory" in process.log
    assert "Traceback" not in process.log


# Shutting down


async def test_sigterm_lets_accepted_publishes_be_answered(broker: BrokerProcess) -> None:
    """Everything that was sent before the signal reached a socket, so it is answered, and there after the restart."""
    async with Client.connect(broker.grpc) as client:
        await client.create_topic("orders", 1, NO_DEDUP)
        async with client.publish_stream() as stream:
            futures = [
                await stream.send(publish_request("orders", [b"%d-%d" % (n, i) for i in range(50)], acks=ACKS_ALL))
                for n in range(100)
            ]
            await within_deadline(futures[0])
            broker.send_signal(signal.SIGTERM)
            outcomes = [await within_deadline(future) for future in futures]
        assert await broker.wait() == 0
    answered = [one for one in outcomes if one is not None]
    assert answered
    assert all(one.HasField("published") for one in answered)
    await broker.launch()
    async with Client.connect(broker.grpc) as client:
        values = await client.read_values("orders")
    assert len(values) >= 50 * len(answered)
    assert values == [b"%d-%d" % (n, i) for n in range(100) for i in range(50)][: len(values)]


async def test_sigterm_ends_idle_streams_at_once_and_says_why(tmp_path: Path) -> None:
    """The grace is longer than the test waits: nothing idle may make use of it."""
    process = BrokerProcess.start(tmp_path / "data", "--grace-ms", "600000")
    async with process as broker, Client.connect(broker.grpc) as client:
        await client.create_topic("orders", 1)
        async with (
            client.publish_stream() as publishing,
            ConsumeStream.open(client, "orders") as consuming,
            ConsumeStream.open(client, "orders", grant=FlowGrant(records=1)) as starving,
            Member.join(client, "billing", "orders") as member,
        ):
            assert await within_deadline(await publishing.send(publish_request("orders", [b"tea"], 0))) is not None
            await consuming.next()
            await starving.next()
            await member.until(lambda: member.values("orders") == [b"tea"])
            idle = [asyncio.ensure_future(call) for call in (consuming.next(), starving.next(), member.read())]
            waiting = asyncio.ensure_future(client.fetch("orders", 0, 1, max_wait_ms=60_000))
            assert await broker.terminate() == 0
            for call in idle:
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await within_deadline(call)
                assert reason(refused.value) == "SHUTTING_DOWN"
            # Answered if the broker had taken it before the signal, cancelled if not; in no case left waiting.
            with suppress(grpc.aio.AioRpcError):
                await within_deadline(waiting)
    assert "Traceback" not in broker.log


def open_segments(pid: int) -> int:
    """Descriptors of segment files that the process has open."""
    count = 0
    for link in Path(f"/proc/{pid}/fd").iterdir():
        # Descriptors of connections come and go while we look.
        with suppress(FileNotFoundError):
            count += "_segment_" in os.readlink(link)
    return count


async def test_open_files_stay_bounded_with_many_segments(tmp_path: Path) -> None:
    process = BrokerProcess.start(tmp_path / "data", "--log-open-files", "32")
    config = topic_pb.TopicConfig(content_deduplication=False, segment_bytes=1_024)
    async with process as broker, Client.connect(broker.grpc) as client:
        await client.create_topic("orders", 2, config)
        async with client.publish_stream() as stream:
            futures = [await stream.send(publish_request("orders", [bytes(900)], n % 2)) for n in range(600)]
            for future in futures:
                assert await within_deadline(future) is not None

        async def check() -> None:
            described = await client.topics.DescribeTopic(topic_pb.DescribeTopicRequest(name="orders"))
            assert [one.segment_count for one in described.partitions] == [300, 300]
            for partition in (0, 1):
                assert len(await client.read_values("orders", partition)) == 300
            assert samples((await get(broker.metrics, "/metrics"))[1])["cursus_storage_open_files"] <= 32
            # Threads that seal and sync may each hold one more for a moment.
            assert await asyncio.to_thread(open_segments, broker.pid) <= 64
            settled: bool = await eventually(lambda: open_segments(broker.pid) <= 32)
            assert settled

        await check()
    async with process as broker, Client.connect(broker.grpc) as client:
        await check()
