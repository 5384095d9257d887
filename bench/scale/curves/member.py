"""One batch to a group member that owns many partitions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from bench.scale import clients
from bench.scale.curve import Curve, Ratio, Round, Stage, doubling
from bench.setting import topics
from cursus_transport import Channel

BATCHES: Final = 200
TOPIC_PARTITIONS: Final = 50
BUSY: Final = 10
"""Partitions that are published to, in turn."""


@asynccontextmanager
async def prepare(stage: Stage, size: int) -> AsyncIterator[Round]:
    async with stage.broker() as broker, topics(broker.address) as admin, Channel(broker.address) as channel:
        names = []
        for begin in range(0, size, TOPIC_PARTITIONS):
            names.append(f"owned-{begin}")
            await admin.create(names[-1], min(TOPIC_PARTITIONS, size - begin))
        member = await clients.member(channel, "readers", names)
        publish = clients.caller(channel, clients.PUBLISH)
        requests = [clients.publish_request(names[0], partition) for partition in range(BUSY)]

        async def one() -> float:
            before = broker.cpu_seconds()
            for number in range(BATCHES):
                await publish(requests[number % BUSY])
                await member.read()
            return (broker.cpu_seconds() - before) / BATCHES * 1e6

        yield one


CURVE: Final = Curve(
    "scale-member",
    "Batch to a member that owns many partitions",
    "partitions owned",
    "processor time of a batch, published and delivered, in µs",
    doubling(10, 3_000),
    320,
    prepare,
    [Ratio(3_000, 10, 1.2)],
    [f"Batches of {clients.RECORDS} records to {BUSY} of the partitions in turn, the next when the last is delivered."],
)
