"""Rows written by Spark to a topic, beside Spark's own Kafka sink and what the API leaves to any writer in Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from bench.clients import check
from bench.compare import Round, Series, Side, take_turns
from bench.jobs.spark import FLOOR_SOURCE, Cache, SparkWrite
from bench.measures.spark_stage import FLOOR, KAFKA, OURS, PARTITIONS, ROWS_S, Costs, Stage, stage
from bench.report import Bound, Figure, Result, ratio
from bench.setting import Setting
from bench.spark_rows import Kind

FLOOR_BAR: Final = 0.6
KAFKA_BAR: Final = 1.5
_MIXED: Final = ", mixed"
_WRITTEN: Final = ", acks 1"


async def measure(setting: Setting) -> Result:
    rows = setting.scale.spark_rows // 2
    costs = Costs(rows)
    async with stage(setting) as on:
        for kind in Kind:
            await on.spark.run(Cache(kind, rows, PARTITIONS))

        def to_ours(name: str, kind: Kind, acks: str) -> Side:
            async def run(number: int) -> Round:
                async with on.admin.temporary(f"{kind}-{acks}-{number + 1}", PARTITIONS) as topic:
                    options = {"bootstrap.servers": on.broker.address, "topic": topic, "acks": acks}
                    one = await costs.round(number, name, on.spark, SparkWrite(OURS, options, kind), on.broker)
                    check(await on.admin.stored(topic), rows)
                    return one

            return Side(name, run)

        sides = [
            _to_floor(FLOOR, on, costs, Kind.UNIFORM),
            to_ours(OURS, Kind.UNIFORM, "all"),
            to_ours(OURS + _WRITTEN, Kind.UNIFORM, "1"),
            _to_floor(FLOOR + _MIXED, on, costs, Kind.MIXED),
            to_ours(OURS + _MIXED, Kind.MIXED, "all"),
            *_to_kafka(on, costs),
        ]
        series = await take_turns("spark-write", sides, setting, ROWS_S)
    return Result(
        "spark-write",
        "Spark: batch write, 100 B",
        [
            *_figures(series),
            *costs.ratios("write, records of one size", OURS, FLOOR, KAFKA),
            *costs.ratios("write, mixed sizes and keys", OURS + _MIXED, FLOOR + _MIXED, KAFKA + _MIXED),
            *costs.figures(),
        ],
        series,
        [
            f"A round is {rows:,} rows that lie in Spark's memory, in {PARTITIONS} tasks, to {PARTITIONS} partitions.",
            f"{OURS}: with acks all, its default, which answers when records are synced; {_WRITTEN.strip(', ')}: when"
            " they are written, which is what Kafka does with its defaults, here on one node.",
            f"{FLOOR}: an Arrow writer that drops its rows.",
            *on.notes,
        ],
    )


def _to_floor(name: str, on: Stage, costs: Costs, kind: Kind) -> Side:
    return Side(name, lambda number: costs.round(number, name, on.spark, SparkWrite(FLOOR_SOURCE, {}, kind), None))


def _to_kafka(on: Stage, costs: Costs) -> list[Side]:
    if on.kafka is None:
        return []
    kafka = on.kafka

    def side(name: str, kind: Kind) -> Side:
        # Made by the warm-up. Making one takes Kafka longer than it should be charged for.
        job = SparkWrite("kafka", {"kafka.bootstrap.servers": kafka.address, "topic": f"write-{kind}"}, kind)
        return Side(name, lambda number: costs.round(number, name, on.spark, job, kafka))

    return [side(KAFKA, Kind.UNIFORM), side(KAFKA + _MIXED, Kind.MIXED)]


def _figures(series: Sequence[Series]) -> list[Figure]:
    by_side = {one.side: one for one in series}
    found = []
    for name, kind in (("write, records of one size", ""), ("write, mixed sizes and keys", _MIXED)):
        ours = by_side[OURS + kind]
        found.append(ratio(name, ours, by_side[FLOOR + kind], Bound.AT_LEAST, FLOOR_BAR))
        if kafka := by_side.get(KAFKA + kind):
            found.append(ratio(name, ours, kafka, Bound.AT_LEAST, KAFKA_BAR))
    written = by_side[OURS + _WRITTEN]
    found.append(ratio("write, records of one size", written, by_side[FLOOR]))
    if kafka := by_side.get(KAFKA):
        found.append(ratio("write, records of one size", written, kafka))
    return found
