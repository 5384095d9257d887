"""Batch CONSUME through the gateway, against a Consume stream of the same records."""

from __future__ import annotations

from typing import Final

from bench import batches, frames
from bench.compare import Round, Side, take_turns
from bench.jobs.consume import Consume
from bench.jobs.gateway import ConsumedFrames, ConsumeFrames, PublishFrames
from bench.measures.consume import consume_round
from bench.measures.gateway_stage import stage
from bench.report import Bound, Result, ratio
from bench.setting import Setting

BAR: Final = 0.40
CONNECTIONS: Final = 4
MIXED_SHARE: Final = 4
"""Records of mixed sizes are read so much slower that a quarter of them takes as long."""


async def measure(setting: Setting) -> Result:
    count = setting.scale.consumed_batches // CONNECTIONS * CONNECTIONS
    mixed_count = count // MIXED_SHARE // CONNECTIONS * CONNECTIONS
    async with stage(setting) as on:
        for topic, stored, mixed_sizes in (("same-size", count, False), ("mixed-sizes", mixed_count, True)):
            await on.admin.create(topic)
            await on.client.run(PublishFrames(on.gateway.address, topic, stored, CONNECTIONS, mixed_sizes))

        async def directly(_: int) -> Round:
            job = Consume(on.broker.address, "same-size", count, set_bytes=frames.stored_set_bytes("same-size"))
            return await consume_round(on.client, on.broker, job)

        async def through_gateway(topic: str, stored: int) -> Round:
            watch = on.stopwatch()
            job = ConsumeFrames(on.gateway.address, topic, stored * batches.RECORDS_PER_BATCH, CONNECTIONS)
            done = ConsumedFrames(**await on.client.run(job))
            return watch.round(done.messages, done.seconds, done.client_cpu_seconds)

        sides = [
            Side("direct", directly),
            Side("gateway", lambda _: through_gateway("same-size", count)),
            Side("gateway, mixed sizes", lambda _: through_gateway("mixed-sizes", mixed_count)),
        ]
        direct, same_size, mixed = await take_turns(
            "gateway-consume", sides, setting, "records/s", setting.scale.short_rounds
        )
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
