"""SIGTERM under load, as Kubernetes sends it when a pod is replaced: nothing acknowledged is lost, foreign clients see
errors that a retry mends, and our own see none. The services come back where they were, as a pod behind its name does.

The waiting before the signal (preStop) is left out, which is harder: the clients are still there when it comes.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import grpc
import pytest
import yaml

from cursus_grpc import AsyncConsumer, AsyncProducer, RecordMetadata
from cursus_proto.v1 import consume_service_pb2 as consume_pb
from cursus_proto.v1 import publish_service_pb2 as publish_pb
from cursus_proto.v1.records_pb2 import OffsetSpec
from tests.harness.clients import Client, publish_request, reason, stored_records
from tests.harness.gateway import GatewayProcess, LegacyClient, envelope
from tests.harness.legacy_wire import Message, batch_body
from tests.harness.processes import BrokerProcess, free_port
from tests.harness.streams import within_deadline
from tests.harness.waiting import eventually

pytestmark = pytest.mark.slow

Request = TypeVar("Request")

_VALUES = yaml.safe_load((Path(__file__).parents[2] / "deploy/helm/cursus/values.yaml").read_text())


def grace(service: str) -> tuple[str, str]:
    """What the chart gives a service to finish: its pod's grace less the preStop and the closing."""
    return "--grace-ms", f"{_VALUES[service]['drainSeconds']}s"


RESTARTS = 2
PROGRESS = 60
"""What every client gets done between two signals."""


class Load:
    """Clients that go on until they are told to stop, and what each of them has done and seen."""

    def __init__(self, broker: str, gateway: str) -> None:
        self.broker = broker
        self.gateway = gateway
        self.stopping = False
        self.acknowledged: dict[str, list[bytes]] = {}
        self.errors: Counter[str] = Counter()
        self.places: list[RecordMetadata] = []
        self.read: list[bytes] = []

    def progress(self) -> dict[str, int]:
        return {**{name: len(values) for name, values in self.acknowledged.items()}, "consumer": len(self.read)}

    async def our_producer(self) -> None:
        """Any delivery that fails fails the test."""
        values = self.acknowledged["ours"] = []
        async with AsyncProducer(self.broker, acks="all") as producer:
            while not self.stopping:
                batch = [b"ours %d" % (len(values) + n) for n in range(20)]
                sent = [await producer.send("ours", value, key=b"one") for value in batch]
                self.places += [await one for one in sent]
                values += batch
            # Something new for a consumer that has read all before it was told to stop.
            self.places.append(await (await producer.send("ours", b"last")))
            values.append(b"last")

    async def our_consumer(self) -> None:
        """Any error fails the test; it ends when it has read all that was acknowledged."""
        async with AsyncConsumer(self.broker, group="readers", topics=["ours"]) as consumer:
            async for record in consumer:
                self.read.append(record.value or b"")
                if record.value == b"last":
                    return

    async def foreign_unary(self) -> None:
        """A grpcio client that sends what failed again; what was stored after all is known by its content."""
        values = self.acknowledged["unary"] = []
        async with Client.connect(self.broker) as client:
            more = True
            while more:
                more = not self.stopping  # so one comes after the end, for a reader that waits
                value = b"unary %d" % len(values)
                try:
                    await client.publish("unary", [value], 0, publish_pb.ACKS_ALL)
                except grpc.aio.AioRpcError as error:
                    self._saw(error)
                else:
                    values.append(value)

    async def foreign_stream(self) -> None:
        """A grpcio client on a publish stream, which it opens again when it breaks. It sends what has no answer again,
        so that may be stored twice."""
        values = self.acknowledged["stream"] = []
        while not self.stopping:
            # By an iterator: a write fails less often than by hand with a status that is grpcio's own.
            requests: asyncio.Queue[publish_pb.PublishStreamRequest] = asyncio.Queue()
            requests.put_nowait(publish_pb.PublishStreamRequest(open=publish_pb.PublishStreamOpen()))
            async with Client.connect(self.broker) as client:
                call = client.publishing.PublishStream(_queued(requests))
                try:
                    await within_deadline(call.read())
                    while not self.stopping:
                        value = b"stream %d" % len(values)
                        request = publish_request("stream", [value], 0, publish_pb.ACKS_ALL)
                        requests.put_nowait(publish_pb.PublishStreamRequest(publish=request))
                        answer = await within_deadline(call.read())
                        assert isinstance(answer, publish_pb.PublishStreamResponse), "the stream ended without a reason"
                        for outcome in answer.outcomes.outcomes:
                            if outcome.HasField("published"):
                                values.append(value)
                            else:
                                assert reason(outcome.refused) == "SHUTTING_DOWN"
                except grpc.aio.AioRpcError as error:
                    self._saw(error)
                finally:
                    call.cancel()

    async def foreign_reader(self) -> None:
        """A grpcio client that follows a log, and begins again where its stream broke."""
        values = self.acknowledged["reader"] = []
        while not self.stopping:
            start = consume_pb.ConsumeStart(topic="unary", partition=0, start_at=OffsetSpec(offset=len(values)))
            requests: asyncio.Queue[consume_pb.ConsumeRequest] = asyncio.Queue()
            requests.put_nowait(consume_pb.ConsumeRequest(start=start))
            async with Client.connect(self.broker) as client:
                call = client.consuming.Consume(_queued(requests))
                try:
                    while not self.stopping:
                        answer = await within_deadline(call.read())
                        assert isinstance(answer, consume_pb.ConsumeResponse), "the stream ended without a reason"
                        values += [one.value for batch in answer.batches.batches for one in stored_records(batch)]
                except grpc.aio.AioRpcError as error:
                    self._saw(error)
                finally:
                    call.cancel()

    async def legacy_text(self) -> None:
        """Single messages over TCP, sent again when they are refused or unanswered; known by their content then."""
        values = self.acknowledged["text"] = []
        await self._over_tcp(lambda: f"PUBLISH text text {len(values)}".encode(), values, b"text %d")

    async def legacy_batches(self) -> None:
        """Idempotent batches over TCP."""
        values = self.acknowledged["batches"] = []

        def body() -> bytes:
            message = Message(1 + len(values), b"p", epoch=1, payload=b"batch %d" % len(values))
            return batch_body([message], topic="batches", acks="-1", idempotent=True)

        await self._over_tcp(body, values, b"batch %d")

    async def _over_tcp(self, body: Callable[[], bytes], values: list[bytes], form: bytes) -> None:
        client: LegacyClient | None = None
        while not self.stopping:
            if client is None:
                try:
                    client = await LegacyClient.open(self.gateway)
                except OSError:
                    self.errors["no gateway"] += 1
                    await asyncio.sleep(0.02)  # as a client does that tries again
                    continue
            request = body()
            client.send(request if request.startswith(b"\xba\x7c") else envelope(request))
            answer = await client.receive()
            if answer is None:
                self.errors["connection closed"] += 1
                client.abort()
                client = None
            elif b"ERROR" in answer:
                assert b"ERROR: broker_unavailable" in answer, answer
                self.errors["broker_unavailable"] += 1
            else:
                values.append(form % len(values))
        if client is not None:
            client.abort()

    def _saw(self, error: grpc.aio.AioRpcError) -> None:
        # grpcio's asyncio face may say this of a write that comes after the end of its call, or before there is a
        # connection, whatever server it talks to, and then forgets the status that came over the wire.
        if error.details() == "Internal error from Core":
            self.errors["late write"] += 1
            return
        assert error.code() is grpc.StatusCode.UNAVAILABLE, f"{error.code()} {error.details()}"
        self.errors["UNAVAILABLE"] += 1


async def _queued(requests: asyncio.Queue[Request]) -> AsyncIterator[Request]:
    while True:
        yield await requests.get()


@dataclass(frozen=True)
class Services:
    broker: BrokerProcess
    gateway: GatewayProcess


@pytest.fixture
async def services(tmp_path: Path) -> AsyncIterator[Services]:
    """On ports they keep over restarts."""
    grpc_port, tcp_port = await free_port(), await free_port()
    broker = BrokerProcess.start(tmp_path / "data", "--grpc-port", str(grpc_port), *grace("broker"))
    gateway = GatewayProcess.start(f"127.0.0.1:{grpc_port}", tmp_path, "--port", str(tcp_port), *grace("gateway"))
    async with broker, gateway:
        async with Client.connect(broker.grpc) as client:
            for topic in ("ours", "unary", "stream", "text", "batches"):
                await client.create_topic(topic, 1)
        yield Services(broker, gateway)


@pytest.mark.parametrize("victim", ["broker", "gateway"])
async def test_sigterm_under_load_loses_nothing_and_shows_only_what_a_retry_mends(
    services: Services, victim: str
) -> None:
    process = services.broker if victim == "broker" else services.gateway
    load = Load(services.broker.grpc, services.gateway.tcp)

    async def disturb() -> None:
        for _ in range(RESTARTS):
            await more_progress(load)
            assert await process.terminate() == 0
            await process.launch()
        await more_progress(load)
        load.stopping = True

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(load.our_consumer())
        tasks.create_task(load.foreign_unary())
        tasks.create_task(load.foreign_stream())
        tasks.create_task(load.foreign_reader())
        tasks.create_task(load.legacy_text())
        tasks.create_task(load.legacy_batches())
        tasks.create_task(load.our_producer())
        tasks.create_task(disturb())
    noticed = "UNAVAILABLE" if victim == "broker" else "connection closed"
    assert load.errors[noticed], f"nobody noticed, so nothing was tried: {load.errors}"
    async with Client.connect(services.broker.grpc) as client:
        found = {name: await client.read_values(name) for name in ("ours", "unary", "stream", "text", "batches")}
    for name in ("ours", "unary", "text", "batches"):
        # In order and once each; behind them there may be one whose answer was not waited for.
        assert found[name][: len(load.acknowledged[name])] == load.acknowledged[name], name
        assert len(set(found[name])) == len(found[name]), f"{name} has something twice"
    assert set(load.acknowledged["stream"]) <= set(found["stream"])
    assert load.acknowledged["reader"] == found["unary"][: len(load.acknowledged["reader"])]
    assert [found["ours"][place.offset] for place in load.places] == load.acknowledged["ours"]
    # At least once, and nothing left out.
    assert set(load.read) >= set(load.acknowledged["ours"])
    assert "Traceback" not in services.broker.log + services.gateway.log


async def more_progress(load: Load) -> None:
    """Wait until every client has done some more."""
    eventually_all = {name: done + PROGRESS for name, done in load.progress().items()}

    def all_got_on() -> bool:
        now = load.progress()
        return len(now) == 7 and all(now[name] >= eventually_all.get(name, PROGRESS) for name in now)

    got_on: bool = await eventually(all_got_on, deadline_s=200.0)
    assert got_on, load.progress()
