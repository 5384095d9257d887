"""Reading a topic as a stream of micro-batches: what Spark asks of a source, in its words. What a micro-batch reads is
decided in `stream_plan.py`, and read by `fetching.py` on the executors.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from cursus_grpc import AsyncAdmin, TopicPartition
from cursus_spark import data_loss, stream_plan
from cursus_spark.group_progress import GroupProgress
from cursus_spark.offsets import OffsetRange, StreamOffset
from cursus_spark.planning import Extent, ask, find_cuts, find_extents, resolve
from cursus_spark.read_options import ReadOptions

if TYPE_CHECKING:
    import pyarrow as pa

_NO_LIMIT: Final = 2**62
"""Stands for no limit where `minOffsetsPerTrigger` is set: with ReadAllAvailable, which a trigger that wants everything
passes too, the two could not be told apart."""


class CursusStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One per query, in a process of the driver; and one per task, which only reads."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._progress = GroupProgress(options.group_id, options.group_id_prefix)
        self._patience = (
            None
            if options.min_offsets_per_trigger is None
            else stream_plan.Patience(options.min_offsets_per_trigger, options.max_trigger_delay_ms)
        )
        self._initial: StreamOffset | None = None
        self._target: dict[TopicPartition, int] | None = None
        self._latest: dict[str, Any] | None = None

    # On the driver.

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's names
        async def begin(admin: AsyncAdmin) -> StreamOffset:
            extents = await self._extents(admin)
            options = self._options
            positions = await resolve(
                admin,
                options.starting,
                extents,
                "startingOffsets",
                late_is_end=options.late_start_is_latest,
            )
            return StreamOffset.beginning(positions)

        self._initial = ask(self._options.endpoint, begin)
        return self._initial.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        most = self._options.max_offsets_per_trigger
        if most is not None:
            return ReadMaxRows(most)
        return ReadAllAvailable() if self._patience is None else ReadMaxRows(_NO_LIMIT)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        started = StreamOffset.from_json(start)

        async def plan(admin: AsyncAdmin) -> StreamOffset:
            await self._tell_group(admin, started)
            extents = self._up_to_target(await self._extents(admin))
            changed = stream_plan.changed_epochs(started, extents)
            cut_at = await find_cuts(admin, changed)
            standing = stream_plan.stand(started, extents, cut_at)
            data_loss.report(standing.losses, fail=self._options.fail_on_data_loss)
            if self._must_wait(stream_plan.waiting(standing, extents), limit):
                return started
            most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
            return stream_plan.advance(started, standing, extents, most)

        return ask(self._options.endpoint, plan).to_json()

    async def _tell_group(self, admin: AsyncAdmin, started: StreamOffset) -> None:
        # Spark asks for an initial offset also where it then goes on from a checkpoint: only a stream that starts from
        # it is new.
        if self._initial is not None and started.stream == self._initial.stream:
            self._initial = None
            await self._progress.begin(admin, started)
        else:
            await self._progress.processed(admin, started)

    def _must_wait(self, records: int, limit: ReadLimit) -> bool:
        if self._patience is None or self._target is not None or isinstance(limit, ReadAllAvailable):
            return False
        return self._patience.wait(records, time.monotonic_ns() // 1_000_000)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        extents = ask(self._options.endpoint, self._extents)
        self._target = {place: extent.end for place, extent in extents.items()}

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return self._latest

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[OffsetRange]:
        return stream_plan.ranges(
            StreamOffset.from_json(start), StreamOffset.from_json(end), self._options.min_partitions
        )

    def commit(self, end: dict[str, Any]) -> None:
        done = StreamOffset.from_json(end)
        ask(self._options.endpoint, lambda admin: self._progress.processed(admin, done))

    async def _extents(self, admin: AsyncAdmin) -> dict[TopicPartition, Extent]:
        options = self._options
        extents = await find_extents(admin, options.selection, read_unsynced=options.read_unsynced)
        latest: dict[str, Any] = {}
        for place, extent in sorted(extents.items()):
            latest.setdefault(place.topic, {})[str(place.partition)] = extent.end
        self._latest = latest
        return extents

    def _up_to_target(self, extents: dict[TopicPartition, Extent]) -> dict[TopicPartition, Extent]:
        """A query that reads what is there when it starts ignores what comes later."""
        if self._target is None:
            return extents
        return {
            place: Extent(extent.earliest, min(extent.end, self._target[place]), extent.epoch)
            for place, extent in extents.items()
            if place in self._target
        }

    # On an executor.

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from cursus_spark import fetching  # only tasks need what it imports

        assert isinstance(partition, OffsetRange)
        return fetching.read(partition, self._options, self._schema)
