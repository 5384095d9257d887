"""Asking for the metadata of one topic among many."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from bench.scale import clients
from bench.scale.curve import Curve, Ratio, Round, Stage, doubling
from bench.setting import topics
from cursus_proto.v1 import cluster_service_pb2 as pb
from cursus_transport import Channel

GET_METADATA: Final = "/cursus.v1.ClusterService/GetMetadata"
CALLS: Final = 200


@asynccontextmanager
async def prepare(stage: Stage, size: int) -> AsyncIterator[Round]:
    async with stage.broker() as broker, topics(broker.address) as admin, Channel(broker.address) as channel:
        for number in range(size):
            await admin.create(f"topic-{number}")
        ask = clients.caller(channel, GET_METADATA)
        request = pb.GetMetadataRequest(topics=["topic-0"]).SerializeToString()

        async def one() -> float:
            before = broker.cpu_seconds()
            for _ in range(CALLS):
                await ask(request)
            return (broker.cpu_seconds() - before) / CALLS * 1e6

        yield one


CURVE: Final = Curve(
    "scale-metadata",
    "Metadata of one topic among many",
    "topics",
    "processor time of a call in µs",
    doubling(10, 1_280),
    160,
    prepare,
    [Ratio(1_280, 10, 1.2)],
)
