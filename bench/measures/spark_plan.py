"""How long Spark plans a read of a topic with many partitions."""

from __future__ import annotations

from typing import Final

from bench.batches import RECORDS_PER_BATCH
from bench.compare import Round, Side, Stopwatch, take_turns
from bench.jobs.spark import Fill, Ran, SparkPlan
from bench.measures.spark_stage import OURS, stage
from bench.report import Bound, Figure, Result
from bench.setting import Setting
from bench.spark_rows import Kind

BAR_S: Final = 2.0
PARTITIONS: Final = 1_000
TOPIC: Final = "many"


async def measure(setting: Setting) -> Result:
    async with stage(setting, with_kafka=False) as on:
        await on.spark.run(Fill(on.broker.address, TOPIC, Kind.UNIFORM, PARTITIONS * RECORDS_PER_BATCH, PARTITIONS))

        async def plan(_: int) -> Round:
            watch = Stopwatch(on.broker)
            ran = Ran(**await on.spark.run(SparkPlan(on.broker.address, TOPIC, PARTITIONS)))
            used = ran.driver_cpu_seconds + ran.jvm_cpu_seconds + ran.python_cpu_seconds
            costs = watch.round(1, ran.seconds, used)
            return Round(ran.seconds * 1e3, costs.server_cores, costs.client_cores)

        (series,) = await take_turns("spark-plan", [Side(OURS, plan)], setting, "ms")
    return Result(
        "spark-plan",
        f"Spark: planning a read of {PARTITIONS:,} partitions",
        [Figure(f"planning a read of {PARTITIONS:,} partitions", series.median / 1e3, "s", Bound.AT_MOST, BAR_S)],
        [series],
        ["From `spark.read` to the physical plan with all of its tasks; none of them is run."],
    )
