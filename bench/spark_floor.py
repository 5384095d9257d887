"""The least that a Python data source and sink of Spark can do: a source that hands out Arrow batches made beforehand,
and a writer that drops what it is handed. What they reach is what the API leaves to any source and sink in Python."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from bench.jobs.spark import FLOOR_SOURCE
from bench.spark_rows import POOL, Kind, batch


class Floor(DataSource):
    """Options: `kind` of rows, `rows` in all, shared by `partitions`. Its schema has to be given."""

    @classmethod
    def name(cls) -> str:
        return FLOOR_SOURCE

    def reader(self, schema: StructType) -> DataSourceReader:
        options = self.options
        return _Reader(Kind(options["kind"]), tuple(schema.names), int(options["rows"]), int(options["partitions"]))

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


class _Writer(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()
