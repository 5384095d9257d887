"""Records to batches: the one step of an audit that sees every record.

A batch is in one place of a log, so Spark puts most of it together where it was read: what is shuffled is about a row
a batch, not a record. Everything that is asked of single records is counted here, in the same pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn

from cursus_spark.pipeline.audit.scope import PIECE
from cursus_spark.schema import ALL_COLUMNS, CREATE_TIME

_CONTENT: Final = ("key", "value", "headers", "event_type", "schema_version", "aggregate_version", "metadata")
"""What makes records equal, with the time their producer stated: all that it sent."""

_READ: Final = (
    *("partition", "offset", "batch_offset", "append_time", "timestamp", "timestampType"),
    *("producer_id", "producer_epoch", "sequence"),
    *_CONTENT,
)

SCHEMA: Final = ", ".join(f"`{name}` {ALL_COLUMNS[name].simpleString()}" for name in _READ)
"""What is read of every record."""

SIZES: Final = (64, 256, 1_024, 4_096, 16_384, 65_536, 262_144, 1_048_576)
"""Upper bounds of the classes of sizes, in bytes; one more class has all that is larger."""

DELAYS_MS: Final = (0, 10, 100, 1_000, 10_000, 60_000, 600_000, 3_600_000, 86_400_000)
"""Upper bounds of the classes of delays between a producer's time and the broker's; one more class has what is later.
The first has what was stored before its time."""


def size_column(number: int) -> str:
    return f"size_{number}"


def delay_column(number: int) -> str:
    return f"delay_{number}"


def batches(records: DataFrame) -> DataFrame:
    """A row for every batch of `records`, which have the columns of SCHEMA and the number of their piece.

    `first_offset` and `last_offset` are of its records that are there, `append_ms` its time; `first_sequence` and
    `last_sequence` null if nobody numbered it. Two batches of equal records have an equal `digest` and `digest_2`.
    """
    index = fn.col("offset") - fn.col("batch_offset")
    stated = fn.when(fn.col("timestampType") == CREATE_TIME, fn.unix_millis("timestamp"))
    # Hash functions pass over nulls: which ones are null has to be hashed too.
    nulls = [fn.isnull(name).cast("int") for name in _CONTENT]
    content: list[Column] = [*nulls, fn.coalesce(stated, fn.lit(0)), *(fn.col(name) for name in _CONTENT)]
    size = fn.coalesce(fn.octet_length("key"), fn.lit(0)) + fn.coalesce(fn.octet_length("value"), fn.lit(0))
    delay = fn.unix_millis("append_time") - stated
    return records.groupBy(PIECE, "partition", "batch_offset").agg(
        fn.min("offset").alias("first_offset"),
        fn.max("offset").alias("last_offset"),
        fn.count(fn.lit(1)).alias("records"),
        fn.sum(size.cast("long")).alias("bytes"),
        fn.max(fn.unix_millis("append_time")).alias("append_ms"),
        fn.min("producer_id").alias("producer_id"),
        fn.min("producer_epoch").alias("producer_epoch"),
        fn.min("sequence").alias("first_sequence"),
        fn.max("sequence").alias("last_sequence"),
        fn.bit_xor(fn.xxhash64(index, *content)).alias("digest"),
        fn.bit_xor(fn.hash(index, *content).cast("long")).alias("digest_2"),
        *(_counted(size, SIZES, size_column)),
        *(_counted(delay, DELAYS_MS, delay_column)),
    )


def _counted(value: Column, bounds: tuple[int, ...], name: Callable[[int], str]) -> list[Column]:
    classes = []
    for number in range(len(bounds) + 1):
        least = value > bounds[number - 1] if number else fn.lit(True)
        most = value <= bounds[number] if number < len(bounds) else fn.lit(True)
        classes.append(fn.count_if(least & most & value.isNotNull()).alias(name(number)))
    return classes
