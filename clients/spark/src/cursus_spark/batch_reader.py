"""Reading topics as a table: everything between two bounds, once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from cursus_grpc import AsyncAdmin
from cursus_spark import data_loss
from cursus_spark.filters import Narrowing, narrowing
from cursus_spark.offsets import OffsetRange, split
from cursus_spark.planning import Extents, ask, find_extents, narrow_by_time, resolve
from cursus_spark.read_options import ReadOptions

if TYPE_CHECKING:
    import pyarrow as pa


class CursusReader(DataSourceReader):
    """Plans on the driver, reads on the executors."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._narrowing = Narrowing()
        self.pushFilters: Any = _Pushdown(self)

    def partitions(self) -> list[InputPartition]:
        options = self._options

        async def plan(admin: AsyncAdmin) -> list[OffsetRange]:
            extents = await find_extents(admin, options.selection, read_unsynced=options.read_unsynced)
            begin = await resolve(
                admin, options.starting, extents, "startingOffsets", late_is_end=options.late_start_is_latest
            )
            end = await resolve(admin, options.ending, extents, "endingOffsets", late_is_end=True)
            ranges = [
                OffsetRange(*place, begin[place].offset, end[place].offset, begin[place].epoch)
                for place in sorted(extents)
                if self._narrowing.admits(place)
            ]
            data_loss.report(_losses(ranges, extents), fail=options.fail_on_data_loss)
            ranges = [_within(one, extents, self._narrowing) for one in ranges]
            if not self._narrowing.append_ms.is_whole:
                ranges = await narrow_by_time(admin, ranges, self._narrowing.append_ms)
            return split(ranges, options.min_partitions)

        planned = ask(options.endpoint, plan)
        # Spark makes one partition of none, and asks for it to be read.
        return [*planned] if planned else [OffsetRange("", 0, 0, 0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from cursus_spark import fetching  # only tasks need what it imports

        assert isinstance(partition, OffsetRange)
        return fetching.read(partition, self._options, self._schema)

    def narrow(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take note of what the query filters by. Spark filters again: what is fetched is only an upper bound."""
        self._narrowing = narrowing(filters)
        return filters


class _Pushdown:
    """`pushFilters` of a reader. Spark refuses a reader that has one while `spark.sql.python.filterPushdown.enabled` is
    off, which is its default, and there would be no reading without setting it. It recognises one by the function
    behind the method; this one shows the function of Spark's own base class, so that filters are pushed where the
    setting is on, and the source can be read where it is off.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, reader: CursusReader) -> None:
        self._reader = reader

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        return self._reader.narrow(filters)


def _losses(ranges: list[OffsetRange], extents: Extents) -> list[str]:
    losses = []
    for one in ranges:
        extent = extents[one.place]
        name = f"partition {one.partition} of topic {one.topic!r}"
        if one.start < extent.earliest and len(one) > 0:
            losses.append(f"{name} begins at offset {extent.earliest}, not at {one.start}")
        if one.end > extent.end:
            losses.append(f"{name} ends at offset {extent.end}, before {one.end}")
    return losses


def _within(one: OffsetRange, extents: Extents, narrowing: Narrowing) -> OffsetRange:
    """The part of a range that is there and that the query can be interested in."""
    extent = extents[one.place]
    start = max(one.start, extent.earliest, narrowing.offsets.least)
    end = min(one.end, extent.end, narrowing.offsets.end)
    return OffsetRange(one.topic, one.partition, start, max(start, end), one.epoch)
