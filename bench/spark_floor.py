"""The least that a Python data source and sink of Spark can do: a source that hands out Arrow batches made beforehand,
a stream of rows that are there when they are due, and a writer that drops what it is handed. What they reach is what
the API leaves to any source and sink in Python."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from bench.clients import stamped
from bench.jobs.spark import FLOOR_SOURCE
from bench.schedule import SECOND_NS, Tick
from bench.spark_rows import POOL, Kind, batch


class Floor(DataSource):
    """Options: `kind` of rows, `rows` in all, shared by `partitions`; of a stream, `rate` a second. The schema of
    a table has to be given."""

    @classmethod
    def name(cls) -> str:
        return FLOOR_SOURCE

    def schema(self) -> str:
        return "value binary"

    def reader(self, schema: StructType) -> DataSourceReader:
        options = self.options
        return _Reader(Kind(options["kind"]), tuple(schema.names), int(options["rows"]), int(options["partitions"]))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return _StreamReader(int(self.options["rate"]))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return _Writer()


@dataclass(frozen=True)
class _Share(InputPartition):
    batches: int


class _Reader(DataSourceReader):
    def __init__(self, kind: Kind, columns: tuple[str, ...], rows: int, partitions: int) -> None:
        self._kind = kind
        self._columns = columns
        self._batches, rest = divmod(rows, POOL * partitions)
        assert rest == 0, "partitions have whole pools"
        self._partitions = partitions

    def partitions(self) -> list[InputPartition]:
        return [_Share(self._batches)] * self._partitions

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Share)
        ready = batch(self._kind, self._columns)
        for _ in range(partition.batches):
            yield ready


@dataclass(frozen=True)
class _Due(InputPartition):
    """Rows by their number: they are due at a fixed rate since the clock began."""

    first: int
    end: int


class _StreamReader(DataSourceStreamReader):
    def __init__(self, rate: int) -> None:
        self._period_ns = SECOND_NS // rate

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's names
        return {"row": self._due_now()}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        return {"row": self._due_now()}

    def _due_now(self) -> int:
        return time.perf_counter_ns() // self._period_ns

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [_Due(start["row"], end["row"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Due)
        values = [stamped(Tick(row, row * self._period_ns)) for row in range(partition.first, partition.end)]
        yield pa.record_batch({"value": pa.array(values, pa.binary())})


class _Writer(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()
