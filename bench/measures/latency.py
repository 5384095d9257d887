"""From publishing a single record to its delivery, against a bare round trip at the same rate."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Final

from bench.compare import Round, Series, Side, take_turns
from bench.jobs.latency import Echo, Follow, Latencies
from bench.processes import Service, Worker
from bench.processes import broker as start_broker
from bench.processes import floor as start_floor
from bench.processes import worker as start_worker
from bench.report import Bound, Figure, Result, ratio
from bench.setting import Setting, topics

BAR: Final = 3.0
RATE: Final = 1_000
UNIT: Final = "µs"


async def measure(setting: Setting) -> Result:
    count = setting.scale.latency_count
    seconds = count / RATE
    medians: dict[str, list[float]] = {"round trip": [], "delivery": []}
    async with (
        start_floor(setting.scratch) as bare,
        start_broker(setting.scratch / "broker") as broker,
        start_worker(setting.scratch) as client,
        topics(broker.address) as admin,
    ):

        async def delivery(number: int) -> Round:
            async with admin.temporary(f"latency-{number}") as topic:
                cpu_started = broker.cpu_seconds()
                found = Latencies(**await client.run(Follow(broker.address, topic, count, RATE)))
                medians["delivery"].append(percentile(found.microseconds, 50))
                return latency_round(found, broker.cpu_seconds() - cpu_started, seconds)

        sides = [
            Side("round trip, p99", lambda _: round_trips(bare, client, count, medians["round trip"])),
            Side("delivery, p99", delivery),
        ]
        series = await take_turns("latency", sides, setting, UNIT, setting.scale.short_rounds)
    return Result(
        "latency",
        f"Single-record publish-to-delivery latency to a live consumer, {RATE:,}/s, no linger",
        [ratio("latency", series[1], series[0], Bound.AT_MOST, BAR), *median_figures(medians), *worst(series)],
        series,
        [
            "round trip: bare unary calls at the same rate with a request of the same size; delivery: PublishStream"
            " with acks 1 and a producer's sequence, to a Consume stream of the same process that follows.",
            "Requests leave on schedule, whatever became of earlier ones. A median over rounds of each round's p99.",
        ],
    )


async def round_trips(bare: Service, client: Worker, count: int, medians: list[float]) -> Round:
    """Bare unary calls at the rate of all latency measures. The round's median goes into `medians`."""
    cpu_started = bare.cpu_seconds()
    found = Latencies(**await client.run(Echo(bare.address, count, RATE)))
    medians.append(percentile(found.microseconds, 50))
    return latency_round(found, bare.cpu_seconds() - cpu_started, count / RATE)


def latency_round(found: Latencies, server_cpu_seconds: float, seconds: float) -> Round:
    """The round whose value is the 99th percentile."""
    p99 = percentile(found.microseconds, 99)
    return Round(p99, server_cpu_seconds / seconds, found.client_cpu_seconds / seconds)


def percentile(values: Sequence[float], percent: int) -> float:
    return statistics.quantiles(values, n=100)[percent - 1]


def median_figures(medians: dict[str, list[float]], name: str = "p50") -> list[Figure]:
    """Of a value of each side's rounds, by default their medians, to be told beside its 99th percentile."""
    # The first value of each side is the warm-up's.
    return [Figure(f"{side}, {name}", statistics.median(values[1:]), UNIT) for side, values in medians.items()]


def worst(series: Sequence[Series]) -> list[Figure]:
    return [Figure(f"{one.side}, worst round", max(each.value for each in one.rounds), UNIT) for one in series]
