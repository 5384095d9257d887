"""Reading a partition's records out of the lake, on an executor: in the order of their offsets, no faster than asked.

What is read depends on the records alone, not on how files hold them: a lake that was compacted reads the same.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cursus_spark.pipeline.lake.layout import Lake, LakeFile

ROWS: Final = 5_000
"""Rows of a piece, at most."""

ENDLESS_MS: Final = 2**62


@dataclass(frozen=True, slots=True)
class Times:
    """From the first to before the second, by append time, in milliseconds since 1970."""

    begin_ms: int = 0
    end_ms: int = ENDLESS_MS

    def admits(self, file: LakeFile) -> bool:
        """Whether a file may hold any such record, by its hour."""
        return file.hour.end_ms > self.begin_ms and file.hour.begin_ms < self.end_ms

    def of(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        if (self.begin_ms, self.end_ms) == (0, ENDLESS_MS):
            return rows
        # Scalars of this type cannot be beyond what 64 bits of microseconds hold.
        times = rows["append_time"].cast(pa.int64())
        late = pc.greater_equal(times, self.begin_ms * 1_000)
        return rows.filter(pc.and_(late, pc.less(times, min(self.end_ms, 2**62 // 1_000) * 1_000)))


def read(lake: Lake, files: Iterable[LakeFile], times: Times) -> Iterator[pa.RecordBatch]:
    """The records of these files, which follow one another."""
    directory = lake.directory
    for file in files:
        with (
            directory.file_system.open_input_file(directory.path(file.path)) as stream,
            pq.ParquetFile(stream) as parquet,
        ):
            for batch in parquet.iter_batches(ROWS):
                if (rows := times.of(batch)).num_rows:
                    yield rows


def paced(batches: Iterable[pa.RecordBatch], rows_per_s: float | None) -> Iterator[pa.RecordBatch]:
    """The same rows, at most so many a second: smaller pieces, each when it is due."""
    if rows_per_s is None:
        yield from batches
        return
    piece = max(1, min(ROWS, int(rows_per_s / 5)))
    began, done = time.monotonic(), 0
    for batch in batches:
        for begin in range(0, batch.num_rows, piece):
            rows = batch.slice(begin, piece)
            time.sleep(max(0.0, began + done / rows_per_s - time.monotonic()))
            yield rows
            done += rows.num_rows
