"""Writing the rows of one task into files of the lake, on an executor. They stay out of sight until the driver
publishes what the tasks report; what an attempt leaves that nobody waits for is never seen.

A file ends where its partition, its hour or the run of its offsets does, so that its name says all that is in it. Rows
that the lake holds already, from an attempt that was not noted as done, are compared and left out: what is stored
follows from the offsets alone, however rows are divided among tasks.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cursus_grpc import TopicPartition
from cursus_spark.arrow_arrays import Ints
from cursus_spark.pipeline.lake.layout import HOUR_MS, SCHEMA, Hour, Lake, LakeConflict, LakeFile, overlapping

ROWS: Final = 100_000
BYTES: Final = 32 * 1024 * 1024
"""Of a row group, about. Bounds what a task holds."""

PART: Final = ".part"
COMPRESSION: Final = "zstd"

REPORT: Final = (
    "topic string, partition int, hour bigint, first bigint, last bigint, until_ms bigint, bytes bigint, staged string"
)
"""What a task tells the driver of each run of offsets, as Spark's columns; `staged` is null where the lake had it."""

_REPORT: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("hour", pa.int64()),
        ("first", pa.int64()),
        ("last", pa.int64()),
        ("until_ms", pa.int64()),
        ("bytes", pa.int64()),
        ("staged", pa.string()),
    ]
)


class _File:
    """A file that is being written."""

    def __init__(self, lake: Lake, staging: str, file: LakeFile) -> None:
        self.file = file
        self.staged = f"{staging}/{uuid.uuid4().hex}{PART}"
        self._waiting: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0
        self.until_ms = 0
        self._open = ExitStack()
        self._stream = self._open.enter_context(lake.directory.create(self.staged))
        self._writer = pq.ParquetWriter(self._stream, SCHEMA, compression=COMPRESSION)

    def add(self, rows: pa.RecordBatch, last: int, until_ms: int) -> None:
        self.file = LakeFile(self.file.partition, self.file.first, last, self.file.hour)
        self.until_ms = until_ms
        self._waiting.append(rows)
        self._rows += rows.num_rows
        self._bytes += rows.nbytes
        if self._rows >= ROWS or self._bytes >= BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._waiting, SCHEMA), row_group_size=self._rows)
            self._waiting, self._rows, self._bytes = [], 0, 0

    def finish(self) -> int:
        """Answers its size in bytes, once it survives power loss."""
        self._flush()
        self._writer.close()
        size = int(self._stream.tell())
        self._open.close()
        return size


class TaskFiles:
    """One attempt at one task."""

    def __init__(self, lake: Lake, staging: str, next_offsets: Mapping[TopicPartition, int]) -> None:
        """`next_offsets` of the partitions that are in the lake: below them it may hold rows already."""
        self._lake = lake
        self._staging = staging
        self._next_offsets = next_offsets
        self._there: dict[Hour, dict[int, list[LakeFile]]] = {}
        self._file: _File | None = None
        self._report: list[dict[str, Any]] = []

    def write(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Takes rows in the order of their offsets and yields the report. Raises LakeConflict, OSError."""
        for batch in batches:
            for place, hour, rows in _runs(batch):
                for fresh, piece in self._known(place, hour, rows):
                    self._add(place, hour, piece, fresh=fresh)
        self._finish()
        if self._report:
            yield pa.RecordBatch.from_pylist(self._report, _REPORT)

    def _known(self, place: TopicPartition, hour: Hour, rows: pa.RecordBatch) -> Iterator[tuple[bool, pa.RecordBatch]]:
        """The rows in pieces that are new or that the lake has."""
        first = rows["offset"][0].as_py()
        end = first + rows.num_rows
        if first >= self._next_offsets.get(place, 0):
            yield True, rows
            return
        if hour not in self._there:
            self._there[hour] = self._lake.files_in(hour)
        at = first
        for file in overlapping(self._there[hour].get(place.partition, []), first, end - 1):
            if file.first > at:
                yield True, rows.slice(at - first, file.first - at)
                at = file.first
            stored = rows.slice(at - first, min(file.last + 1, end) - at)
            self._compare(place, file, stored)
            yield False, stored
            at += stored.num_rows
        if at < end:
            yield True, rows.slice(at - first)

    def _compare(self, place: TopicPartition, file: LakeFile, rows: pa.RecordBatch) -> None:
        """A topic that was deleted and made anew has the same offsets and other times."""
        directory = self._lake.directory
        with directory.file_system.open_input_file(directory.path(file.path)) as stream:
            times = pq.ParquetFile(stream).read(["append_time"])["append_time"].combine_chunks()
        begin = rows["offset"][0].as_py() - file.first
        if len(times) != len(file) or not times.slice(begin, rows.num_rows).equals(rows["append_time"]):
            raise LakeConflict(
                f"{file.path} holds other records under the offsets of partition {place.partition} of topic"
                f" {place.topic!r}: the topic was deleted and made anew, or belongs to another broker. Archive it to"
                " another lake"
            )

    def _add(self, place: TopicPartition, hour: Hour, rows: pa.RecordBatch, *, fresh: bool) -> None:
        first = rows["offset"][0].as_py()
        last = first + rows.num_rows - 1
        until_ms = rows["append_time"].cast(pa.int64())[-1].as_py() // 1_000
        if not fresh:
            self._finish()
            self._tell(LakeFile(place.partition, first, last, hour), until_ms, 0, None)
            return
        if self._file is not None:
            open_file = self._file.file
            if (open_file.hour, open_file.partition, open_file.last + 1) != (hour, place.partition, first):
                self._finish()
        if self._file is None:
            self._file = _File(self._lake, self._staging, LakeFile(place.partition, first, last, hour))
        self._file.add(rows, last, until_ms)

    def _finish(self) -> None:
        if self._file is not None:
            done, self._file = self._file, None
            self._tell(done.file, done.until_ms, done.finish(), done.staged)

    def _tell(self, file: LakeFile, until_ms: int, size: int, staged: str | None) -> None:
        self._report.append(
            {
                "topic": file.hour.topic,
                "partition": file.partition,
                "hour": file.hour.number,
                "first": file.first,
                "last": file.last,
                "until_ms": until_ms,
                "bytes": size,
                "staged": staged,
            }
        )


def _runs(batch: pa.RecordBatch) -> Iterator[tuple[TopicPartition, Hour, pa.RecordBatch]]:
    """Cut where anything changes that a file's name tells, in the columns of the lake."""
    if not batch.num_rows:
        return
    topics = batch["topic"].cast(pa.string()).dictionary_encode()
    codes: Ints = topics.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    rows = pa.RecordBatch.from_arrays(
        [batch[name].cast(kind) for name, kind in zip(SCHEMA.names, SCHEMA.types, strict=True)], schema=SCHEMA
    )
    partitions = rows["partition"].to_numpy(zero_copy_only=False)
    offsets = rows["offset"].to_numpy(zero_copy_only=False)
    hours = rows["append_time"].cast(pa.int64()).to_numpy(zero_copy_only=False) // (HOUR_MS * 1_000)
    changes = (np.diff(codes) != 0) | (np.diff(partitions) != 0) | (np.diff(hours) != 0) | (np.diff(offsets) != 1)
    begins = [0, *(np.flatnonzero(changes) + 1).tolist()]
    for begin, end in zip(begins, [*begins[1:], batch.num_rows], strict=True):
        topic = topics.dictionary[int(codes[begin])].as_py()
        place = TopicPartition(topic, int(partitions[begin]))
        yield place, Hour(topic, int(hours[begin])), rows.slice(begin, end - begin)
