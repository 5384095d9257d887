"""A topic read by Spark as a table, beside Spark's own Kafka source and what the API leaves to any source in Python."""

from __future__ import annotations

from typing import Final

from bench.compare import Side, take_turns
from bench.jobs.spark import FLOOR_SOURCE, Fill, FillKafka, SparkRead
from bench.measures.spark_stage import FLOOR, KAFKA, OURS, PARTITIONS, ROWS_S, Costs, stage
from bench.processes import Service
from bench.report import Bound, Figure, Result, ratio
from bench.setting import Setting
from bench.spark_rows import Kind

TOPIC: Final = "bench"
_ALL_COLUMNS: Final = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
)
_WHOLE: Final = ", all columns"


async def measure_uniform(setting: Setting) -> Result:
    return await _measure(setting, Kind.UNIFORM, "spark-read", "records of one size", "value binary", 0.6, 1.5)


async def measure_mixed(setting: Setting) -> Result:
    schema = "key binary, value binary"
    return await _measure(setting, Kind.MIXED, "spark-read-mixed", "mixed sizes and keys", schema, 0.4, 1.0)


async def _measure(
    setting: Setting, kind: Kind, measure: str, what: str, schema: str, floor_bar: float, kafka_bar: float
) -> Result:
    rows = setting.scale.spark_rows
    costs = Costs(rows)
    async with stage(setting) as on:
        await on.spark.run(Fill(on.broker.address, TOPIC, kind, rows, PARTITIONS))
        ours = {"bootstrap.servers": on.broker.address, "subscribe": TOPIC}
        floor = {"kind": kind.value, "rows": str(rows), "partitions": str(PARTITIONS)}

        def side(name: str, source: str, options: dict[str, str], columns: str, service: Service | None) -> Side:
            job = SparkRead(source, options, kind, rows, columns)
            return Side(name, lambda number: costs.round(number, name, on.spark, job, service))

        sides = [
            side(FLOOR, FLOOR_SOURCE, floor, schema, None),
            side(OURS, OURS, ours, schema, on.broker),
            side(FLOOR + _WHOLE, FLOOR_SOURCE, floor, _ALL_COLUMNS, None),
            side(OURS + _WHOLE, OURS, ours, "", on.broker),
        ]
        if on.kafka is not None:
            await on.spark.run(FillKafka(on.kafka.address, TOPIC, kind, rows, PARTITIONS))
            kafka = {"kafka.bootstrap.servers": on.kafka.address, "subscribe": TOPIC}
            sides.append(side(KAFKA, "kafka", kafka, "", on.kafka))
        series = await take_turns(measure, sides, setting, ROWS_S)
    name = f"read, {what}"
    figures: list[Figure] = []
    floor_series, ours_series, floor_whole, ours_whole, *kafka_series = series
    figures += [
        ratio(name, ours_series, floor_series, Bound.AT_LEAST, floor_bar),
        ratio(name, ours_whole, floor_whole, Bound.AT_LEAST, floor_bar),
    ]
    for one in kafka_series:
        figures += [
            ratio(name, ours_series, one, Bound.AT_LEAST, kafka_bar),
            ratio(name, ours_whole, one, Bound.AT_LEAST, kafka_bar),
        ]
    return Result(
        measure,
        f"Spark: batch read, sum of lengths, {what}, 100 B",
        [
            *figures,
            *costs.ratios(name, OURS, FLOOR, KAFKA),
            *costs.ratios(name, OURS + _WHOLE, FLOOR + _WHOLE, KAFKA),
            *costs.figures(),
        ],
        series,
        [
            f"A round is {rows:,} rows in {PARTITIONS} partitions, in a session of 2 cores that has read them before;"
            " sets of 500 records, in Kafka batches as large. Planning counts.",
            f"{OURS} and {FLOOR}: with the schema `{schema}`, which is all that the query needs; {_WHOLE.strip(', ')}:"
            " without one. Spark's Kafka source makes all of its columns, whatever the query needs.",
            *on.notes,
        ],
    )
