"""The results of a micro-batch to Parquet and to a topic, each once.

A batch is first written down as Parquet, in a directory of its own that Spark marks when it is whole: in the lake, or
beside the checkpoint where there is none. The topic is written from there, in one task and in order. So a batch that
is repeated writes the same bytes, whatever the order in which sums were added up this time, and the sink recognises it
by its number. A batch that is whole is not written down again.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

_DONE: Final = "_SUCCESS"
_TIMES: Final = "yyyy-MM-dd'T'HH:mm:ss.SSSXXX"
_KEPT: Final = 2
"""Batches beside the checkpoint that are kept: one more than may be repeated."""


@dataclass
class Outputs:
    """What `foreachBatch` is given. `query` is set with the query's id when it has started."""

    source_options: Mapping[str, str]
    topic: str | None
    lake: str | None
    checkpoint: str
    query: Future[str] = field(default_factory=Future)
    results: int = 0
    """Windows that this run has stored."""

    def store(self, found: DataFrame, batch: int) -> None:
        spark = found.sparkSession
        if self.lake is None and batch >= _KEPT:
            _delete(spark, self._directory(batch - _KEPT))
        found = found.persist()
        try:
            # Also where the batch was stored before: what the query keeps between batches is kept by its tasks.
            count = found.count()
            if count == 0:
                return
            directory = self._directory(batch)
            if not _exists(spark, f"{directory}/{_DONE}"):
                found.coalesce(1).sortWithinPartitions("window_start", "by").write.mode("overwrite").parquet(directory)
            if self.topic is not None:
                self._publish(spark.read.schema(found.schema).parquet(directory), batch)
            self.results += count
        finally:
            found.unpersist()

    def _directory(self, batch: int) -> str:
        if self.lake is None:
            return f"{self.checkpoint}/results/batch={batch}"
        return f"{self.lake}/query={self.query.result()}/batch={batch}"

    def _publish(self, found: DataFrame, batch: int) -> None:
        names = [name for name in found.columns if name not in ("by", "window_start", "window_end")]
        options = {"timestampFormat": _TIMES, "ignoreNullFields": "false"}
        key = fn.to_json(fn.struct("by", fn.col("window_start").alias("start")), options)
        value = fn.to_json(
            fn.struct("by", fn.col("window_start").alias("start"), fn.col("window_end").alias("end"), *names), options
        )
        rows = found.coalesce(1).sortWithinPartitions("window_start", "by")
        rows = rows.select(key.alias("key"), value.alias("value"), fn.col("window_end").alias("timestamp"))
        assert self.topic is not None
        writer = rows.write.format("cursus").mode("append").options(**self.source_options).option("topic", self.topic)
        writer.option("txnAppId", f"rollup-{self.query.result()}").option("txnVersion", batch).save()


def _exists(spark: SparkSession, path: str) -> bool:
    system, place = _hadoop(spark, path)
    return bool(system.exists(place))


def _delete(spark: SparkSession, path: str) -> None:
    system, place = _hadoop(spark, path)
    system.delete(place, True)


def _hadoop(spark: SparkSession, path: str) -> tuple[Any, Any]:
    """The file system of a path, which may be on this machine or not. Spark has no Python for it."""
    context: Any = spark.sparkContext
    place = context._jvm.org.apache.hadoop.fs.Path(path)
    return place.getFileSystem(context._jsc.hadoopConfiguration()), place
