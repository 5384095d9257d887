"""What the gateway adds to the time of one small publish."""

from __future__ import annotations

from typing import Final

from bench.compare import Round, Side, take_turns
from bench.jobs.gateway import CommandLatency
from bench.jobs.latency import Latencies
from bench.jobs.unary import CallLatency
from bench.measures.gateway_stage import stage
from bench.measures.latency import RATE, UNIT, latency_round, median_figures, percentile, worst
from bench.report import Bound, Result, ratio
from bench.setting import Setting

BAR: Final = 2.0
CONNECTIONS: Final = 16
"""Enough for a command never to wait behind the one before, as a unary call does not."""


async def measure(setting: Setting) -> Result:
    count = setting.scale.latency_count // CONNECTIONS * CONNECTIONS
    seconds = count / RATE
    medians: dict[str, list[float]] = {"unary call": [], "gateway": []}
    async with stage(setting) as on:

        async def directly(number: int) -> Round:
            async with on.admin.temporary(f"direct-{number}") as topic:
                cpu_started = on.broker.cpu_seconds()
                found = Latencies(**await on.client.run(CallLatency(on.broker.address, topic, count, RATE)))
                medians["unary call"].append(percentile(found.microseconds, 50))
                return latency_round(found, on.broker.cpu_seconds() - cpu_started, seconds)

        async def through_gateway(number: int) -> Round:
            async with on.admin.temporary(f"gateway-{number}") as topic:
                cpu_started = on.gateway.cpu_seconds() + on.broker.cpu_seconds()
                job = CommandLatency(on.gateway.address, topic, count, RATE, CONNECTIONS)
                found = Latencies(**await on.client.run(job))
                medians["gateway"].append(percentile(found.microseconds, 50))
                cpu_seconds = on.gateway.cpu_seconds() + on.broker.cpu_seconds() - cpu_started
                return latency_round(found, cpu_seconds, seconds)

        sides = [Side("unary call, p99", directly), Side("gateway, p99", through_gateway)]
        series = await take_turns("gateway-latency", sides, setting, UNIT, setting.scale.short_rounds)
    return Result(
        "gateway-latency",
        f"Gateway: time of one small publish, {RATE:,}/s",
        [
            ratio("latency of a PUBLISH", series[1], series[0], Bound.AT_MOST, BAR),
            *median_figures(medians),
            *worst(series),
        ],
        series,
        [
            "unary call: PublishService.Publish; gateway: a PUBLISH command, on one of a few connections that take"
            " turns. From sending to the answer, acks 1. A median over rounds of each round's p99.",
        ],
    )
