"""Single messages through the gateway, one command each, against unary publishes."""

from __future__ import annotations

from typing import Final

from bench.compare import Round, Side, Stopwatch, take_turns
from bench.jobs.gateway import Commands
from bench.jobs.publish import Published
from bench.jobs.unary import Calls
from bench.measures.gateway_stage import stage
from bench.report import Bound, Result, ratio
from bench.setting import Setting

BAR: Final = 0.80
CALLERS: Final = 64


async def measure(setting: Setting) -> Result:
    count = setting.scale.single_count // CALLERS * CALLERS
    async with stage(setting) as on:

        async def directly(number: int) -> Round:
            async with on.admin.temporary(f"direct-{number}") as topic:
                watch = Stopwatch(on.broker)
                done = Published(**await on.client.run(Calls(on.broker.address, topic, count, CALLERS)))
                return watch.round(count, done.seconds, done.client_cpu_seconds)

        async def through_gateway(number: int) -> Round:
            async with on.admin.temporary(f"gateway-{number}") as topic:
                watch = on.stopwatch()
                done = Published(**await on.client.run(Commands(on.gateway.address, topic, count, CALLERS)))
                return watch.round(count, done.seconds, done.client_cpu_seconds)

        sides = [Side("unary calls", directly), Side("gateway", through_gateway)]
        direct, commands = await take_turns("gateway-singles", sides, setting, "publishes/s")
    return Result(
        "gateway-singles",
        f"Gateway: single PUBLISH commands, {CALLERS} connections",
        [ratio("single PUBLISH", commands, direct, Bound.AT_LEAST, BAR)],
        [direct, commands],
        [
            f"unary calls: {CALLERS} callers on one channel. Every caller and every connection waits for its answer"
            " before it goes on; messages of 100 B, no partition given, acks 1.",
        ],
    )
