"""The memory of Spark's Python workers while they read and write topics of different sizes."""

from __future__ import annotations

import statistics
from collections.abc import Awaitable, Callable
from typing import Final

from bench.compare import progress
from bench.jobs.spark import Cache, Fill, Ran, SparkRead, SparkWrite
from bench.measures.spark_stage import OURS, Stage, stage
from bench.report import Bound, Figure, Result
from bench.setting import Setting
from bench.spark_rows import Kind

# Flat: a topic ten times as large may take this much of what the small one takes. Pieces of memory are given back in
# their own time.
BAR_GROWTH: Final = 1.10
TIMES: Final = 10
PARTITIONS: Final = 2
MB: Final = 1e6


async def measure(setting: Setting) -> Result:
    small = setting.scale.spark_rows // TIMES
    sizes = (small, small * TIMES)
    figures: list[Figure] = []
    async with stage(setting, with_kafka=False) as on:
        for rows in sizes:
            await on.spark.run(Fill(on.broker.address, f"rows-{rows}", Kind.MIXED, rows, PARTITIONS))
        for what, run in (("reading", _read), ("writing", _write)):
            await run(on, small)  # loads what is loaded once
            few, many = [await _median(setting, on, rows, run) for rows in sizes]
            progress(f"spark-memory: {what} {sizes[0]:,} rows {few / MB:.0f} MB, {sizes[1]:,} rows {many / MB:.0f} MB")
            figures += [
                Figure(
                    f"a Python worker {what} {sizes[1]:,} rows / {sizes[0]:,} rows",
                    many / few,
                    "×",
                    Bound.AT_MOST,
                    BAR_GROWTH,
                ),
                Figure(f"a Python worker {what} {sizes[1]:,} rows", many / MB, "MB"),
            ]
    return Result(
        "spark-memory",
        "Spark: resident memory of a Python worker",
        figures,
        [],
        [
            f"The most that the largest of them has, twenty times a second; {PARTITIONS} tasks, mixed sizes and keys,"
            " all columns; a median of several runs. Workers stay from run to run.",
        ],
    )


async def _median(setting: Setting, on: Stage, rows: int, run: Callable[[Stage, int], Awaitable[int]]) -> float:
    return statistics.median([await run(on, rows) for _ in range(min(3, setting.scale.rounds))])


async def _read(on: Stage, rows: int) -> int:
    options = {"bootstrap.servers": on.broker.address, "subscribe": f"rows-{rows}"}
    return Ran(**await on.spark.run(SparkRead(OURS, options, Kind.MIXED, rows, memory=True))).worker_bytes


async def _write(on: Stage, rows: int) -> int:
    await on.spark.run(Cache(Kind.MIXED, rows, PARTITIONS))
    async with on.admin.temporary("written", PARTITIONS) as topic:
        options = {"bootstrap.servers": on.broker.address, "topic": topic}
        return Ran(**await on.spark.run(SparkWrite(OURS, options, Kind.MIXED, memory=True))).worker_bytes
