"""One batch to many readers that follow the same topic."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from bench.scale import clients
from bench.scale.curve import Curve, Round, Stage, ThanBefore, doubling
from bench.setting import topics
from cursus_transport import Channel

DELIVERIES: Final = 4_000
"""In a round, whatever the number of followers."""


@asynccontextmanager
async def prepare(stage: Stage, size: int) -> AsyncIterator[Round]:
    async with stage.broker() as broker, topics(broker.address) as admin, AsyncExitStack() as channels:
        await admin.create("followed")
        publish = clients.caller(await channels.enter_async_context(Channel(broker.address)), clients.PUBLISH)
        followers = [
            # A connection each, as programs have.
            await clients.follower(await channels.enter_async_context(Channel(broker.address)), "followed")
            for _ in range(size)
        ]
        request = clients.publish_request("followed")

        async def one() -> float:
            count = max(20, DELIVERIES // size)
            before = broker.cpu_seconds()
            for _ in range(count):
                await publish(request)
                for follower in followers:
                    await follower.read()
            return (broker.cpu_seconds() - before) / count / size * 1e6

        yield one


CURVE: Final = Curve(
    "scale-followers",
    "Many followers of one topic",
    "followers",
    "processor time of a batch, published and delivered, for each follower in µs",
    (*doubling(1, 64), 100, 200),
    64,
    prepare,
    [ThanBefore(100, 0.4)],
    [
        f"Batches of {clients.RECORDS} records, 100 bytes each; the next is published when all followers have the last."
        " The first followers share the price of publishing among few.",
    ],
)
