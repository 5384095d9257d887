"""A fetch that names many partitions, all of them empty."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from bench.scale import clients
from bench.scale.curve import Curve, Round, Stage, ThanBefore, doubling
from bench.setting import topics
from cursus_transport import Channel

FETCHES: Final = 20
TOPIC_PARTITIONS: Final = 50


@asynccontextmanager
async def prepare(stage: Stage, size: int) -> AsyncIterator[Round]:
    async with stage.broker() as broker, topics(broker.address) as admin, Channel(broker.address) as channel:
        named = []
        for begin in range(0, size, TOPIC_PARTITIONS):
            named.append((f"empty-{begin}", min(TOPIC_PARTITIONS, size - begin)))
            await admin.create(*named[-1])
        fetch = clients.caller(channel, clients.FETCH)
        request = clients.fetch_request(named)

        async def one() -> float:
            before = broker.cpu_seconds()
            for _ in range(FETCHES):
                await fetch(request)
            return (broker.cpu_seconds() - before) / FETCHES * 1e6

        yield one


CURVE: Final = Curve(
    "scale-fetch",
    "Fetch of many empty partitions",
    "partitions named",
    "processor time of a fetch in µs",
    doubling(10, 1_000),
    320,
    prepare,
    [ThanBefore(1_000, 1.0)],
    ["The work is linear, since the answer names every partition; it is done in slices of some 200 partitions."],
)
