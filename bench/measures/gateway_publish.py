"""Batches of the TCP protocol through the gateway, against the same records published directly."""

from __future__ import annotations

from typing import Final

from bench import batches
from bench.compare import Round, Side, take_turns
from bench.jobs.gateway import PublishFrames
from bench.jobs.publish import Publish, Published
from bench.measures.gateway_stage import stage
from bench.measures.publish import publish_round
from bench.report import Bound, Result, ratio
from bench.setting import Setting

BAR: Final = 0.40
CONNECTIONS: Final = 4


async def measure(setting: Setting) -> Result:
    count = setting.scale.batches
    async with stage(setting) as on:

        async def directly(number: int) -> Round:
            async with on.admin.temporary(f"direct-{number}") as topic:
                return await publish_round(on.client, on.broker, Publish(on.broker.address, topic, count))

        async def through_gateway(number: int, *, mixed_sizes: bool) -> Round:
            async with on.admin.temporary(f"gateway-{number}-{mixed_sizes}") as topic:
                watch = on.stopwatch()
                job = PublishFrames(on.gateway.address, topic, count, CONNECTIONS, mixed_sizes)
                done = Published(**await on.client.run(job))
                return watch.round(count * batches.RECORDS_PER_BATCH, done.seconds, done.client_cpu_seconds)

        sides = [
            Side("direct", directly),
            Side("gateway", lambda number: through_gateway(number, mixed_sizes=False)),
            Side("gateway, mixed sizes", lambda number: through_gateway(number, mixed_sizes=True)),
        ]
        direct, same_size, mixed = await take_turns("gateway-publish", sides, setting, "records/s")
    return Result(
        "gateway-publish",
        f"Gateway: 0xBA7C batches of 500 × 100 B, {CONNECTIONS} connections, acks 1",
        [
            ratio("0xBA7C publish", same_size, direct, Bound.AT_LEAST, BAR),
            ratio("0xBA7C publish", mixed, direct),
        ],
        [direct, same_size, mixed],
        [
            "direct: one PublishStream; gateway: the same number of records to the same broker, its server cores are"
            " those of gateway and broker together. Frames are encoded beforehand.",
            "mixed sizes: payloads of 50 to 150 B, which the gateway cannot take apart by columns.",
        ],
    )
