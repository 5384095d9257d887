"""The data source `cursus`: where Spark finds readers and writers by their options.

Spark starts a process to plan a query, another to commit a write, and everything each of them imports delays the query:
readers and writers are imported when they are asked for, and they in turn load what rows need only where rows are.
"""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from cursus_spark.read_options import ReadOptions, extra_columns
from cursus_spark.schema import check_read_schema, check_write_schema, read_schema
from cursus_spark.write_options import WriteOptions


class CursusDataSource(DataSource):
    """Topics of a Cursus broker as tables and streams. The options are in `docs/spark.md`."""

    @classmethod
    def name(cls) -> str:
        return "cursus"

    def schema(self) -> StructType:
        return read_schema(extra_columns(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        from cursus_spark.batch_reader import CursusReader

        check_read_schema(schema)
        return CursusReader(ReadOptions.parse(self.options, streaming=False), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        from cursus_spark.stream_reader import CursusStreamReader

        check_read_schema(schema)
        return CursusStreamReader(ReadOptions.parse(self.options, streaming=True), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from cursus_spark.writer import CursusWriter

        if overwrite:
            raise ValueError("a topic cannot be overwritten; write with mode `append`")
        options = WriteOptions.parse(self.options, streaming=False)
        check_write_schema(schema, options.topic)
        return CursusWriter(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        from cursus_spark.writer import CursusStreamWriter

        # `overwrite` is output mode complete: every result is appended whole, as by Spark's Kafka sink.
        options = WriteOptions.parse(self.options, streaming=True)
        check_write_schema(schema, options.topic)
        return CursusStreamWriter(options)
