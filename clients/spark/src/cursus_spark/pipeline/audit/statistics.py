"""How much there is in every partition: when it came, how large it is, how late it was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from cursus_spark.offsets import OffsetRange
from cursus_spark.pipeline.audit.batches import DELAYS_MS, SIZES, delay_column, size_column

_BUCKETS: Final = 120
"""Of a timeline: as many as can be told apart on a page."""


@dataclass(frozen=True, slots=True)
class PartitionStatistics:
    """What a partition holds within the range of the audit. Times are append times, in milliseconds since 1970."""

    partition: int
    start: int
    end: int
    records: int = 0
    batches: int = 0
    bytes: int = 0
    first_ms: int | None = None
    last_ms: int | None = None
    producers: int = 0
    sizes: tuple[int, ...] = ()
    delays: tuple[int, ...] = ()

    @property
    def rate(self) -> float | None:
        """Records a second between the first and the last; None where there is no time between."""
        if self.first_ms is None or self.last_ms is None or self.last_ms <= self.first_ms:
            return None
        return self.records * 1_000 / (self.last_ms - self.first_ms)

    def document(self) -> dict[str, object]:
        return {
            "partition": self.partition,
            "start_offset": self.start,
            "next_offset": self.end,
            "records": self.records,
            "batches": self.batches,
            "bytes": self.bytes,
            "first_append_ms": self.first_ms,
            "last_append_ms": self.last_ms,
            "records_per_second": self.rate,
            "producers": self.producers,
        }


@dataclass(frozen=True, slots=True)
class Timeline:
    """Records stored in each of a row of equal times, by partition."""

    start_ms: int
    step_ms: int
    counts: dict[int, list[int]] = field(default_factory=dict)


def of_partitions(batches: DataFrame, ranges: Sequence[OffsetRange]) -> list[PartitionStatistics]:
    """Of every partition, also those without a record."""
    sizes = [size_column(number) for number in range(len(SIZES) + 1)]
    delays = [delay_column(number) for number in range(len(DELAYS_MS) + 1)]
    found = batches.groupBy("partition").agg(
        fn.sum("records").alias("records"),
        fn.count(fn.lit(1)).alias("batches"),
        fn.sum("bytes").alias("bytes"),
        fn.min("append_ms").alias("first_ms"),
        fn.max("append_ms").alias("last_ms"),
        fn.count_distinct("producer_id").alias("producers"),
        *(fn.sum(name).alias(name) for name in (*sizes, *delays)),
    )
    rows = {row["partition"]: row for row in found.collect()}
    return [
        PartitionStatistics(
            one.partition,
            one.start,
            one.end,
            records=row["records"],
            batches=row["batches"],
            bytes=row["bytes"],
            first_ms=row["first_ms"],
            last_ms=row["last_ms"],
            producers=row["producers"],
            sizes=tuple(row[name] for name in sizes),
            delays=tuple(row[name] for name in delays),
        )
        if (row := rows.get(one.partition)) is not None
        else PartitionStatistics(one.partition, one.start, one.end)
        for one in ranges
    ]


def timeline(batches: DataFrame, partitions: Sequence[PartitionStatistics]) -> Timeline:
    """When the records of every partition were stored."""
    firsts = [one.first_ms for one in partitions if one.first_ms is not None]
    lasts = [one.last_ms for one in partitions if one.last_ms is not None]
    if not firsts:
        return Timeline(0, 1)
    start_ms, last_ms = min(firsts), max(lasts)
    step_ms = max(1, -(-(last_ms - start_ms + 1) // _BUCKETS))
    buckets = (last_ms - start_ms) // step_ms + 1
    counts = {one.partition: [0] * buckets for one in partitions if one.records}
    found = batches.groupBy(
        "partition", fn.floor((fn.col("append_ms") - start_ms) / step_ms).cast("int").alias("bucket")
    ).agg(fn.sum("records").alias("records"))
    for row in found.collect():
        counts[row["partition"]][row["bucket"]] = row["records"]
    return Timeline(start_ms, step_ms, counts)
