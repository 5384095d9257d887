"""What must not be in a log, as queries over its batches.

Batches are few, so they are what is sorted: by partition and offset, by producer and sequence, by content. Only the
order of timestamps needs every record. What a query answers are hits, rows with the fields of `findings.Hit`: their
number is counted by Spark, and a few of them are looked at.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as fn

from cursus_spark.offsets import OffsetRange
from cursus_spark.pipeline.audit.findings import CHECKS, Example, Finding, Hit, Severity
from cursus_spark.pipeline.audit.scope import PIECE, Damage
from cursus_spark.schema import CREATE_TIME

_EXAMPLES: Final = 20

TIMES_SCHEMA: Final = "partition int, offset bigint, timestamp timestamp, timestampType int"
"""What `timestamp_order` reads of every record."""


def _hits(rows: DataFrame, check: str | Column, **columns: Column) -> DataFrame:
    """Rows as hits. What a check does not say is null."""

    def column(name: str, kind: str) -> Column:
        return columns.get(name, fn.lit(None)).cast(kind).alias(name)

    name = fn.lit(check) if isinstance(check, str) else check
    return rows.select(
        name.alias("check"),
        column("partition", "int") if "partition" in columns else fn.col("partition"),
        column("offset", "long"),
        column("count", "long"),
        column("producer", "binary"),
        column("epoch", "long"),
        *(column(place, "long") for place in ("first", "second", "third")),
    )


def offset_gaps(batches: DataFrame, pieces: Sequence[Sequence[OffsetRange]]) -> DataFrame:
    """Offsets that are missing before a batch, within it, or behind the last one of a piece."""
    edges = [(number, one.partition, one.start, one.end) for number, layer in enumerate(pieces) for one in layer]
    spark = batches.sparkSession
    bounds = spark.createDataFrame(edges, f"{PIECE} int, partition int, start bigint, `end` bigint")
    ends = bounds.select(PIECE, "partition", fn.col("end").alias("first_offset"), fn.col("end").alias("next_offset"))
    starts = bounds.select(
        PIECE, "partition", fn.col("start").alias("first_offset"), fn.col("start").alias("next_offset")
    )
    inside = batches.select(
        PIECE, "partition", "first_offset", (fn.col("last_offset") + 1).alias("next_offset"), "records"
    )
    # The edges of a piece are batches without records: a gap at either end is then one between neighbours.
    nothing = fn.lit(0).cast("long").alias("records")
    edged = inside.unionByName(starts.withColumn("records", nothing)).unionByName(ends.withColumn("records", nothing))
    before = Window.partitionBy(PIECE, "partition").orderBy("first_offset", "next_offset")
    walked = edged.withColumn("expected", fn.lag("next_offset").over(before))
    between = _hits(
        walked.where("first_offset > expected"),
        "offset-gaps",
        offset=fn.col("expected"),
        count=fn.col("first_offset") - fn.col("expected"),
        first=fn.col("expected"),
        second=fn.col("first_offset"),
    )
    holes = _hits(
        inside.where("next_offset - first_offset > records"),
        "offset-gaps",
        offset=fn.col("first_offset"),
        count=fn.col("next_offset") - fn.col("first_offset") - fn.col("records"),
        first=fn.col("first_offset"),
        second=fn.col("next_offset"),
    )
    return between.unionByName(holes)


def append_order(batches: DataFrame) -> DataFrame:
    """Batches that were stored before the one in front of them, by the broker's clock."""
    before = Window.partitionBy("partition").orderBy("first_offset")
    walked = batches.select("partition", "first_offset", "records", "append_ms").withColumn(
        "before_ms", fn.lag("append_ms").over(before)
    )
    return _hits(
        walked.where("append_ms < before_ms"),
        "append-order",
        offset=fn.col("first_offset"),
        count=fn.col("records"),
        first=fn.col("before_ms"),
        second=fn.col("append_ms"),
    )


def sequences(batches: DataFrame) -> DataFrame:
    """Numbers of a producer that are there twice, not at all, or in another order."""
    producer = ("partition", "producer_id", "producer_epoch")
    numbered = batches.where("producer_id IS NOT NULL AND first_sequence IS NOT NULL").select(
        *producer,
        *("first_offset", "last_offset", "records", "first_sequence", "last_sequence", "digest", "digest_2"),
    )
    by_sequence = Window.partitionBy(*producer).orderBy("first_sequence", "first_offset")
    earlier = by_sequence.rowsBetween(Window.unboundedPreceding, -1)
    identity = fn.struct("first_sequence", "last_sequence", "digest", "digest_2")
    bounds = fn.struct("first_sequence", "last_sequence")
    walked = (
        numbered.withColumn("seen", fn.max("last_sequence").over(earlier))
        .withColumn("before_offset", fn.lag("first_offset").over(by_sequence))
        .withColumn("same_bounds", fn.lag(bounds).over(by_sequence) == bounds)
        .withColumn("same", fn.lag(identity).over(by_sequence) == identity)
    )
    who = {"producer": fn.col("producer_id"), "epoch": fn.col("producer_epoch"), "offset": fn.col("first_offset")}
    repeated = fn.col("first_sequence") <= fn.col("seen")
    # Where the same numbers were cut into other batches their content is not compared.
    conflict = fn.col("same_bounds") & ~fn.col("same")
    twice = _hits(
        walked.where(repeated),
        fn.when(conflict, fn.lit("sequence-conflicts")).otherwise(fn.lit("sequence-duplicates")),
        **who,
        count=fn.least("last_sequence", "seen") - fn.col("first_sequence") + 1,
        first=fn.col("first_sequence"),
        second=fn.col("before_offset"),
    )
    missing = _hits(
        walked.where(fn.col("first_sequence") > fn.col("seen") + 1),
        "sequence-gaps",
        **who,
        count=fn.col("first_sequence") - fn.col("seen") - 1,
        first=fn.col("seen") + 1,
        second=fn.col("first_sequence"),
    )
    holes = _hits(
        numbered.where("last_sequence - first_sequence + 1 > records"),
        "sequence-gaps",
        **who,
        count=fn.col("last_sequence") - fn.col("first_sequence") + 1 - fn.col("records"),
        first=fn.col("first_sequence"),
        second=fn.col("last_sequence") + 1,
    )
    fresh = walked.where(fn.coalesce(~repeated, fn.lit(True))).withColumn(
        "in_front", fn.lag("first_offset").over(by_sequence)
    )
    swapped = _hits(
        fresh.where("first_offset < in_front"),
        "sequence-order",
        **who,
        count=fn.col("records"),
        first=fn.col("first_sequence"),
        second=fn.col("in_front"),
    )
    return reduce(DataFrame.unionByName, (twice, missing, holes, swapped))


def contents(batches: DataFrame, window_ms: int) -> DataFrame:
    """Single records of nobody that are equal to an earlier one of the topic, within the window and beyond it."""
    single = batches.where("records = 1 AND producer_id IS NULL").select(
        "partition", "first_offset", "append_ms", "digest", "digest_2", "bytes"
    )
    equal = Window.partitionBy("digest", "digest_2", "bytes").orderBy("append_ms", "partition", "first_offset")
    walked = (
        single.withColumn("earlier_ms", fn.lag("append_ms").over(equal))
        .withColumn("earlier_offset", fn.lag("first_offset").over(equal))
        .withColumn("earlier_partition", fn.lag("partition").over(equal))
    )
    apart = fn.col("append_ms") - fn.col("earlier_ms")
    return _hits(
        walked.where(apart.isNotNull()),
        fn.when(apart <= window_ms, fn.lit("content-duplicates")).otherwise(fn.lit("content-repeats")),
        offset=fn.col("first_offset"),
        count=fn.lit(1),
        first=fn.col("earlier_offset"),
        second=apart,
        third=fn.col("earlier_partition"),
    )


def timestamp_order(records: DataFrame) -> DataFrame:
    """Per partition, the records whose producer stated a time before that of an earlier record."""
    stated = records.where(fn.col("timestampType") == CREATE_TIME).select(
        "partition", "offset", fn.unix_millis("timestamp").alias("ms")
    )
    earlier = Window.partitionBy("partition").orderBy("offset").rowsBetween(Window.unboundedPreceding, -1)
    behind = stated.withColumn("behind_ms", fn.max("ms").over(earlier) - fn.col("ms")).where("behind_ms > 0")
    found = behind.groupBy("partition").agg(
        fn.min("offset").alias("at"), fn.count(fn.lit(1)).alias("late"), fn.max("behind_ms").alias("behind_ms")
    )
    return _hits(found, "timestamp-order", offset=fn.col("at"), count=fn.col("late"), first=fn.col("behind_ms"))


def judge(hits: Sequence[DataFrame], damage: Collection[Damage], severities: Mapping[str, Severity]) -> list[Finding]:
    """Count the hits of every check, look at a few, and say how bad they are. Worst first."""
    wanted = [name for name, severity in severities.items() if severity is not Severity.OFF]
    found = {name: list[Hit]() for name in wanted}
    totals = {name: dict[int, int]() for name in wanted}
    if hits:
        all_hits = reduce(DataFrame.unionByName, hits).where(fn.col("check").isin(wanted)).persist()
        try:
            for row in all_hits.groupBy("check", "partition").agg(fn.sum("count").alias("count")).collect():
                totals[row["check"]][row["partition"]] = row["count"]
            first = Window.partitionBy("check").orderBy("partition", "offset")
            for row in (
                all_hits.withColumn("place", fn.row_number().over(first)).where(fn.col("place") <= _EXAMPLES).collect()
            ):
                found[row["check"]].append(_hit(row))
        finally:
            all_hits.unpersist()
    findings = [
        Finding(
            CHECKS[name],
            severities[name],
            sum(totals[name].values()),
            totals[name],
            tuple(hit.example() for hit in sorted(found[name], key=lambda hit: (hit.partition, hit.offset))),
        )
        for name in wanted
        if totals[name]
    ]
    if damage and "unreadable" in wanted:
        findings.insert(0, _unreadable(damage, severities["unreadable"]))
    return sorted(findings, key=lambda one: one.severity is Severity.NOTE)


def _hit(row: Row) -> Hit:
    return Hit(
        row["check"],
        row["partition"],
        row["offset"],
        row["count"],
        None if row["producer"] is None else bytes(row["producer"]),
        row["epoch"],
        *(row[name] or 0 for name in ("first", "second", "third")),
    )


def _unreadable(damage: Collection[Damage], severity: Severity) -> Finding:
    counts: dict[int, int] = {}
    for one in damage:
        counts[one.partition] = counts.get(one.partition, 0) + (0 if one.end is None else one.end - one.start)
    examples = [Example(one.partition, one.start, one.sentence()) for one in damage]
    examples.sort(key=lambda one: (one.partition, one.offset))
    return Finding(CHECKS["unreadable"], severity, sum(counts.values()), counts, tuple(examples[:_EXAMPLES]))
