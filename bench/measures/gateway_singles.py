"""Single messages through the gateway, one command each, against unary publishes."""

from __future__ import annotations

from typing import Final

from bench.compare import Round, Side, Stopwatch, take_turns
from bench.jobs.gateway import Commands
from bench.jobs.publish import Published
from bench.jobs.unary import Calls
from bench.processes import broker as start_broker
from bench.processes import gateway as start_gateway
from bench.processes import worker as start_worker
from bench.report import Bound, Result, ratio
from bench.setting import Setting, topics

BAR: Final = 0.80
CALLERS: Final = 64


async def measure(setting: Setting) -> Result:
    count = setting.scale.single_count // CALLERS * CALLERS
    async with (
        start_broker(setting.scratch / "broker") as broker,
        start_gateway(setting.scratch, broker.address) as gateway,
        start_worker(setting.scratch) as client,
        topics(broker.address) as admin,
    ):

        async def directly(number: int) -> Round:
            async with admin.temporary(f"direct-{number}") as topic:
                watch = Stopwatch(broker)
                done = Published(**await client.run(Calls(broker.address, topic, count, CALLERS)))
                return watch.round(count, done.seconds, done.client_cpu_seconds)

        async def through_gateway(number: int) -> Round:
            async with admin.temporary(f"gateway-{number}") as topic:
                watch = Stopwatch(gateway, broker)
                done = Published(**await client.run(Commands(gateway.address, topic, count, CALLERS)))
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
