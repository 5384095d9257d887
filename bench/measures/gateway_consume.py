"""Batch CONSUME through the gateway, against a Consume stream of the same records."""

from __future__ import annotations

from typing import Final

from bench import batches, frames
from bench.compare import Round, Side, Stopwatch, take_turns
from bench.jobs.consume import Consume
from bench.jobs.gateway import ConsumedFrames, ConsumeFrames, PublishFrames
from bench.measures.consume import consume_round
from bench.processes import broker as start_broker
from bench.processes import gateway as start_gateway
from bench.processes import worker as start_worker
from bench.report import Bound, Result, ratio
from bench.setting import Setting, topics

BAR: Final = 0.40
CONNECTIONS: Final = 4


async def measure(setting: Setting) -> Result:
    count = setting.scale.consumed_batches // CONNECTIONS * CONNECTIONS
    async with (
        start_broker(setting.scratch / "broker") as broker,
        start_gateway(setting.scratch, broker.address) as gateway,
        start_worker(setting.scratch) as client,
        topics(broker.address) as admin,
    ):
        for topic, mixed_sizes in (("same-size", False), ("mixed-sizes", True)):
            await admin.create(topic)
            await client.run(PublishFrames(gateway.address, topic, count, CONNECTIONS, mixed_sizes))

        async def directly(_: int) -> Round:
            job = Consume(broker.address, "same-size", count, set_bytes=frames.stored_set_bytes("same-size"))
            return await consume_round(client, broker, job)

        async def through_gateway(topic: str) -> Round:
            watch = Stopwatch(gateway, broker)
            job = ConsumeFrames(gateway.address, topic, count * batches.RECORDS_PER_BATCH, CONNECTIONS)
            done = ConsumedFrames(**await client.run(job))
            return watch.round(done.messages, done.seconds, done.client_cpu_seconds)

        sides = [
            Side("direct", directly),
            Side("gateway", lambda _: through_gateway("same-size")),
            Side("gateway, mixed sizes", lambda _: through_gateway("mixed-sizes")),
        ]
        direct, same_size, mixed = await take_turns("gateway-consume", sides, setting, "records/s")
    return Result(
        "gateway-consume",
        f"Gateway: batch CONSUME of the same records, {CONNECTIONS} connections",
        [
            ratio("batch CONSUME", same_size, direct, Bound.AT_LEAST, BAR),
            ratio("batch CONSUME", mixed, direct),
        ],
        [direct, same_size, mixed],
        [
            "direct: one Consume stream; gateway: each connection reads a stretch of the same partition and asks for"
            " the next messages when it has the last ones, 8192 at most, as the SDKs do. All from files in page cache.",
        ],
    )
