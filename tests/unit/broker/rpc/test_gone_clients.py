"""What a broker keeps of clients that have left without a word: nothing, and not only once the collector comes by."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from google.protobuf.message import Message

from cursus_broker import app
from cursus_broker.settings import BrokerSettings, GrpcSettings
from cursus_proto.v1 import consume_service_pb2 as consume_pb
from cursus_proto.v1 import publish_service_pb2 as publish_pb
from cursus_proto.v1.records_pb2 import FlowGrant
from cursus_transport import Call
from tests.harness.clients import Client, publish_request
from tests.harness.http2 import Peer, call, data, message
from tests.harness.streams import EARLIEST
from tests.harness.waiting import eventually

CALLS = 10

PUBLISH_STREAM = "/cursus.v1.PublishService/PublishStream"
CONSUME = "/cursus.v1.ConsumeService/Consume"
SUBSCRIBE = "/cursus.v1.ConsumeService/Subscribe"
FETCH = "/cursus.v1.ConsumeService/Fetch"

OPEN = publish_pb.PublishStreamRequest(open=publish_pb.PublishStreamOpen(client_id="leaves"))
BATCH = publish_pb.PublishStreamRequest(publish=publish_request("orders", [b"x" * 1000]))
START = consume_pb.ConsumeRequest(start=consume_pb.ConsumeStart(topic="orders", partition=0, start_at=EARLIEST))
GRANT = consume_pb.ConsumeRequest(grant=FlowGrant(records=10**6, bytes=2**30))
JOIN = consume_pb.SubscribeRequest(
    start=consume_pb.SubscribeStart(group="readers", topics=["orders"], client_id="leaves")
)
WAIT = consume_pb.FetchRequest(
    partitions=[consume_pb.FetchPartition(topic="orders", partition=0, offset=1)], max_wait_ms=3_600_000, min_bytes=1
)

LEFT: dict[str, tuple[str, tuple[Message, ...], bytes]] = {
    "a publish stream": (PUBLISH_STREAM, (OPEN, BATCH), b""),
    "a publish stream within a batch": (PUBLISH_STREAM, (OPEN,), message(bytes(100_000))[:5000]),
    "a publish stream that is refused": (PUBLISH_STREAM, (BATCH,), b""),
    "a consume stream at the end": (CONSUME, (START, GRANT), b""),
    "a consume stream without credit": (CONSUME, (START,), b""),
    "a member of a group": (SUBSCRIBE, (JOIN,), b""),
    "a fetch that waits": (FETCH, (WAIT,), b""),
    "a fetch that is none": (FETCH, (), message(b"\xff\xff")),
}


@pytest.fixture(autouse=True)
def _without_collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(app, "settle_memory", lambda: None)  # it is for a process, which this one is not
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@asynccontextmanager
async def broker(data_dir: Path) -> AsyncIterator[int]:
    """A broker in this process; its port."""
    stop, port = asyncio.Event(), asyncio.get_running_loop().create_future()
    pings = GrpcSettings(client_ping_interval_ms=0)
    settings = BrokerSettings(data_dir=data_dir, grpc_port=0, health_port=0, metrics_port=0, grpc=pings)

    def announce(**addresses: tuple[str, int]) -> None:
        port.set_result(addresses["grpc"][1])

    serving = asyncio.create_task(app.serve(settings, stop, announce=announce))
    try:
        yield await port
    finally:
        stop.set()
        await serving


@pytest.mark.parametrize(("path", "requests", "more"), LEFT.values(), ids=LEFT.keys())
async def test_no_call_outlives_its_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, requests: tuple[Message, ...], more: bytes
) -> None:
    calls: list[weakref.ref[Call]] = []
    start = Call.start

    def noted(call: Call, timeout_s: float | None) -> asyncio.Task[None]:
        calls.append(weakref.ref(call))
        return start(call, timeout_s)

    monkeypatch.setattr(Call, "start", noted)
    async with broker(tmp_path) as port:
        async with Client.connect(f"127.0.0.1:{port}") as client:
            await client.create_topic("orders")
            await client.publish("orders", [b"first"])
        calls.clear()
        async with Peer.connect(port) as peer:
            await peer.greet()
            sent = b"".join(message(request.SerializeToString()) for request in requests) + more
            for stream in range(1, 2 * CALLS, 2):
                await peer.send(call(stream, path), data(stream, sent))
            await eventually(lambda: len(calls) == CALLS)
            await peer.settled()
        await eventually(lambda: not any(one() for one in calls))
