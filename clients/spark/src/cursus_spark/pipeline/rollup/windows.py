"""Records to results: what a record belongs to, what is measured of it, and the windows of event time.

Records that cannot be taken into account are left out and counted, under the name OBSERVED in the query's progress.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn

SCHEMA: Final = "key binary, value binary, timestamp timestamp"
"""What is read of every record."""

OBSERVED: Final = "rollup"

_PATH: Final = re.compile(r"\$(?:\.[A-Za-z_]\w*|\[\d+\]|\['[^'\\]+'\])+")


class FieldRefused(ValueError):
    """A field that is neither the key nor a path into JSON."""


@dataclass(frozen=True, slots=True)
class JsonField:
    """A field of the value, which is JSON."""

    path: str

    @classmethod
    def parse(cls, text: str) -> JsonField:
        """Raises FieldRefused.

        >>> JsonField.parse("json:$.order.amount")
        JsonField(path='$.order.amount')
        """
        prefix, _, path = text.partition(":")
        if prefix != "json" or not _PATH.fullmatch(path):
            raise FieldRefused(
                f"{text!r} is not a field of JSON values, such as json:$.amount or json:$.lines[0].price"
            )
        return cls(path)


@dataclass(frozen=True, slots=True)
class Rollup:
    """What is computed. `by` is None for the record's key; without a `measure` records are counted only."""

    window_ms: int
    slide_ms: int
    watermark_ms: int
    by: JsonField | None
    measure: JsonField | None
    percentiles: Sequence[int]

    @property
    def needs_json(self) -> bool:
        return self.by is not None or self.measure is not None


def results(records: DataFrame, rollup: Rollup) -> DataFrame:
    """A row for every group and window: `by`, `window_start`, `window_end`, `count` and, with a measure, `measured`,
    `sum`, `min`, `max` and `p50` … of those records that have it."""
    fields = _fields(records, rollup)
    unparsed = fn.col("unparsed")
    ungrouped = ~unparsed & fn.col("ungrouped")
    counted = fields.observe(
        OBSERVED,
        fn.count(fn.lit(1)).alias("records"),
        fn.count_if(unparsed).alias("unparsed"),
        fn.count_if(ungrouped).alias("ungrouped"),
        fn.count_if(~unparsed & ~ungrouped & fn.col("unmeasured")).alias("unmeasured"),
    )
    taken = counted.where(~unparsed & ~ungrouped).withWatermark("timestamp", _span(rollup.watermark_ms))
    window = fn.window("timestamp", _span(rollup.window_ms), _span(rollup.slide_ms))
    grouped = taken.groupBy(window, "by").agg(*_aggregates(rollup))
    return grouped.select(
        "by",
        fn.col("window.start").alias("window_start"),
        fn.col("window.end").alias("window_end"),
        *(name for name in grouped.columns if name not in ("window", "by")),
    )


def _fields(records: DataFrame, rollup: Rollup) -> DataFrame:
    text = fn.col("value").cast("string")
    # Null for what is not JSON, and for no value at all.
    parsed = fn.when(fn.is_valid_utf8(text), fn.try_parse_json(text)) if rollup.needs_json else fn.lit(None)
    rows = records.select("key", "timestamp", parsed.alias("json"))
    by = _key_text() if rollup.by is None else _json(rollup.by, "string")
    measure = fn.lit(None).cast("double") if rollup.measure is None else _json(rollup.measure, "double")
    return rows.select(
        "timestamp",
        by.alias("by"),
        measure.alias("measure"),
        (fn.col("json").isNull() if rollup.needs_json else fn.lit(False)).alias("unparsed"),
        (by.isNull() if rollup.by is not None else fn.lit(False)).alias("ungrouped"),
        (measure.isNull() if rollup.measure is not None else fn.lit(False)).alias("unmeasured"),
    )


def _json(field: JsonField, kind: str) -> Column:
    return fn.try_variant_get(fn.col("json"), field.path, kind)


def _key_text() -> Column:
    """Keys that are not text are told in base64."""
    text = fn.col("key").cast("string")
    return fn.when(fn.is_valid_utf8(text), text).otherwise(
        fn.when(fn.col("key").isNotNull(), fn.concat(fn.lit("base64:"), fn.base64("key")))
    )


def _aggregates(rollup: Rollup) -> list[Column]:
    found = [fn.count(fn.lit(1)).alias("count")]
    if rollup.measure is not None:
        measure = fn.col("measure")
        found += [
            fn.count(measure).alias("measured"),
            fn.sum(measure).alias("sum"),
            fn.min(measure).alias("min"),
            fn.max(measure).alias("max"),
            *(fn.percentile_approx(measure, one / 100).alias(f"p{one}") for one in rollup.percentiles),
        ]
    return found


def _span(milliseconds: int) -> str:
    return f"{milliseconds} milliseconds"
