"""`python -m bench.capacity`: what one more partition, connection or member costs a broker, and one more connection a
gateway. Memory is resident and the process's own, processor time is what keeping them idle takes, each the difference
to the same process without them, for one of them. docs/operations.md has the table this prints.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.processes import Service
from bench.processes import broker as start_broker
from bench.processes import gateway as start_gateway
from cursus_proto.v1 import cluster_service_pb2 as cluster_pb
from cursus_proto.v1 import group_service_pb2 as group_pb
from cursus_proto.v1 import publish_service_pb2 as publish_pb
from cursus_proto.v1 import topic_service_pb2 as topic_pb
from cursus_transport.channel import Channel

PARTITIONS: Final = 10_000
CONNECTIONS: Final = 500
MEMBERS: Final = 1_000
GROUP_MEMBERS: Final = 100
HEARTBEAT_S: Final = 3.0
IDLE_S: Final = 20.0


@dataclass(frozen=True, slots=True)
class Cost:
    what: str
    count: int
    bytes_each: float
    idle_share: float
    """Of one core, for all of them together."""

    def row(self) -> str:
        each = f"{self.bytes_each / 1000:.1f} kB"
        return f"| {self.what} | {self.count:,} | {each} | {self.idle_share:.1%} |"


async def main() -> None:
    costs: list[Cost] = []
    with tempfile.TemporaryDirectory() as scratch:
        for number, measure in enumerate(MEASURES):
            directory = Path(scratch) / str(number)
            directory.mkdir()
            costs.append(await measure(directory))
    print(
        "| one more | measured with | memory each | processor while idle, all of them |\n| --- | ---: | ---: | ---: |"
    )
    print("\n".join(cost.row() for cost in costs))


async def partitions(scratch: Path) -> Cost:
    async with start_broker(scratch / "broker") as broker, channel(broker.address) as calls:
        before = await idle(broker)
        await create_topic(calls, "wide", PARTITIONS)
        after = await idle(broker)
        return cost("partition, empty", PARTITIONS, before, after)


async def used_partitions(scratch: Path) -> Cost:
    """With a record of 100 bytes each: a file that is open, an index, and a place among the newest records."""
    async with start_broker(scratch / "broker") as broker, channel(broker.address) as calls:
        await create_topic(calls, "wide", PARTITIONS)
        before = await idle(broker)
        for number in range(PARTITIONS):
            await publish(calls, "wide", number)
        return cost("partition, from empty to one with a record", PARTITIONS, before, await idle(broker))


async def connections(scratch: Path) -> Cost:
    async with start_broker(scratch / "broker") as broker, AsyncExitStack() as stack:
        before = await idle(broker)
        for _ in range(CONNECTIONS):
            one = await stack.enter_async_context(channel(broker.address))
            await broker_info(one)
        return cost("gRPC connection, open and idle", CONNECTIONS, before, await idle(broker))


async def members(scratch: Path) -> Cost:
    """In groups of a hundred on a topic of a hundred partitions, beating every three seconds over one connection."""
    async with start_broker(scratch / "broker") as broker, channel(broker.address) as calls:
        await create_topic(calls, "shared", GROUP_MEMBERS)
        before = await idle(broker)
        joined = [await join(calls, f"group-{n // GROUP_MEMBERS}") for n in range(MEMBERS)]
        beating = asyncio.create_task(beat(calls, joined))
        try:
            after = await idle(broker)
        finally:
            beating.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await beating
        return cost(
            f"group member, {GROUP_MEMBERS} to a group, beating every {HEARTBEAT_S:g} s", MEMBERS, before, after
        )


async def gateway_connections(scratch: Path) -> Cost:
    async with start_broker(scratch / "broker") as broker, start_gateway(scratch, broker.address) as gateway:
        before = await idle(gateway)
        host, _, port = gateway.address.rpartition(":")
        writers: list[asyncio.StreamWriter] = []
        for _ in range(CONNECTIONS):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"\0\0\0\6\0\0LIST")
            await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
            writers.append(writer)
        found = cost("TCP connection to a gateway, open and idle", CONNECTIONS, before, await idle(gateway))
        for writer in writers:
            writer.close()
        return found


@dataclass(frozen=True, slots=True)
class Idle:
    own_bytes: int
    cpu_s: float


async def idle(service: Service) -> Idle:
    """What it uses while nothing is asked of it."""
    await asyncio.sleep(3.0)  # What was just asked for is over, and so is what it left to do.
    began = service.cpu_seconds()
    await asyncio.sleep(IDLE_S)
    return Idle(service.memory()[1], service.cpu_seconds() - began)


def cost(what: str, count: int, before: Idle, after: Idle) -> Cost:
    share = max(0.0, (after.cpu_s - before.cpu_s) / IDLE_S)
    return Cost(what, count, (after.own_bytes - before.own_bytes) / count, share)


@asynccontextmanager
async def channel(address: str) -> AsyncIterator[Channel]:
    opened = Channel(address)
    try:
        yield opened
    finally:
        await opened.close()


async def broker_info(calls: Channel) -> None:
    ask = calls.unary_unary(
        "/cursus.v1.ClusterService/GetBrokerInfo",
        cluster_pb.GetBrokerInfoRequest.SerializeToString,
        cluster_pb.GetBrokerInfoResponse.FromString,
    )
    await ask(cluster_pb.GetBrokerInfoRequest())


async def create_topic(calls: Channel, name: str, count: int) -> None:
    create = calls.unary_unary(
        "/cursus.v1.TopicService/CreateTopic",
        topic_pb.CreateTopicRequest.SerializeToString,
        topic_pb.CreateTopicResponse.FromString,
    )
    config = topic_pb.TopicConfig(content_deduplication=False)
    await create(topic_pb.CreateTopicRequest(name=name, partition_count=count, config=config), timeout=300.0)


async def publish(calls: Channel, topic: str, partition: int) -> None:
    ask = calls.unary_unary(
        "/cursus.v1.PublishService/Publish",
        publish_pb.PublishRequest.SerializeToString,
        publish_pb.PublishResponse.FromString,
    )
    request = publish_pb.PublishRequest(topic=topic, partition=partition)
    request.records.records.add(value=bytes(100))
    await ask(request)


async def join(calls: Channel, group: str) -> group_pb.HeartbeatRequest:
    """The heartbeat of a new member."""
    ask = calls.unary_unary(
        "/cursus.v1.GroupService/JoinGroup",
        group_pb.JoinGroupRequest.SerializeToString,
        group_pb.JoinGroupResponse.FromString,
    )
    joined = await ask(group_pb.JoinGroupRequest(group=group, topics=["shared"]))
    return group_pb.HeartbeatRequest(group=group, member_id=joined.member_id, generation=joined.generation)


async def beat(calls: Channel, beats: list[group_pb.HeartbeatRequest]) -> None:
    heartbeat = calls.unary_unary(
        "/cursus.v1.GroupService/Heartbeat",
        group_pb.HeartbeatRequest.SerializeToString,
        group_pb.HeartbeatResponse.FromString,
    )
    while True:
        for request in beats:
            await heartbeat(request)
            await asyncio.sleep(HEARTBEAT_S / len(beats))


MEASURES: Final = (partitions, used_partitions, connections, members, gateway_connections)

if __name__ == "__main__":
    asyncio.run(main())
