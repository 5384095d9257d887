"""What a measure is given: where it may write, how much it is to do, and the topics it works on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc

from bench.ballast import Ballast
from bench.trees import Tree
from cursus_proto.v1 import records_pb2, topic_service_pb2, topic_service_pb2_grpc

GB: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Scale:
    """How much to do. A round of the full scale takes two seconds or more, also for the floor."""

    rounds: int
    batches: int
    """Published in a round."""
    consumed_batches: int
    stored_bytes: int
    stalled_bytes: int
    short_rounds: int
    """Of latencies, and of ratios near their bar: many short ones, since a machine that stands still for some
    milliseconds now and then spoils every long one, and one whose speed changes from minute to minute the median of a
    few."""
    latency_count: int
    """Requests in a round of them."""
    single_count: int
    """Single publishes in a round."""
    sent_records: int
    """Sent or read by our own client in a round."""
    peer_records: int
    """The same by the client of a peer that is expected to take about as long for them."""
    spark_rows: int
    """Read or written by Spark in a round; a multiple of 400,000."""
    spark_rounds: int
    """Of a stream's latency."""
    spark_count: int
    """Records in a round of it."""
    ballast_bytes: int
    top_up_bytes: int
    """Ballast loaded before each round: more than the round before can have freed."""


FULL: Final = Scale(
    rounds=5,
    batches=16_000,
    consumed_batches=30_000,
    stored_bytes=10 * GB,
    stalled_bytes=5 * GB,
    short_rounds=15,
    latency_count=2_000,
    single_count=32_000,
    sent_records=2_000_000,
    peer_records=200_000,
    spark_rows=2_000_000,
    spark_rounds=4,
    spark_count=6_000,
    ballast_bytes=64 * GB,
    top_up_bytes=GB,
)
QUICK: Final = Scale(
    rounds=3,
    batches=2_000,
    consumed_batches=4_000,
    stored_bytes=GB // 2,
    stalled_bytes=GB // 2,
    short_rounds=3,
    latency_count=2_000,
    single_count=6_400,
    sent_records=400_000,
    peer_records=40_000,
    spark_rows=400_000,
    spark_rounds=1,
    spark_count=2_000,
    ballast_bytes=2 * GB,
    top_up_bytes=GB // 4,
)


@dataclass(frozen=True, slots=True)
class Setting:
    scratch: Path
    """An empty directory of this measure alone, removed after it."""
    scale: Scale
    ballast: Ballast
    against: Tree | None = None
    """The older sources that curves are measured with, too."""

    @property
    def quick(self) -> bool:
        return self.scale is QUICK


class Topics:
    """Creates and deletes topics between rounds, so that a round starts on an empty log and leaves nothing behind."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = topic_service_pb2_grpc.TopicServiceStub(channel)

    async def create(self, name: str, partitions: int = 1) -> None:
        await self._stub.CreateTopic(topic_service_pb2.CreateTopicRequest(name=name, partition_count=partitions))

    async def delete(self, name: str) -> None:
        await self._stub.DeleteTopic(topic_service_pb2.DeleteTopicRequest(name=name))

    async def stored(self, name: str) -> int:
        """Records of a topic from which nothing was removed."""
        listed = await self._stub.ListOffsets(
            topic_service_pb2.ListOffsetsRequest(
                topic=name, at=records_pb2.OffsetSpec(edge=records_pb2.OFFSET_EDGE_LATEST)
            )
        )
        return sum(one.offset for one in listed.offsets)

    @asynccontextmanager
    async def temporary(self, name: str, partitions: int = 1) -> AsyncIterator[str]:
        await self.create(name, partitions)
        try:
            yield name
        finally:
            await self.delete(name)


@asynccontextmanager
async def topics(address: str) -> AsyncIterator[Topics]:
    async with grpc.aio.insecure_channel(address) as channel:
        yield Topics(channel)
