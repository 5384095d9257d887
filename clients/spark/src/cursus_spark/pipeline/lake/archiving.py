"""Archiving topics into a lake, micro-batch by micro-batch: what the driver decides. Tasks write files with
`writer.py`; this publishes them, so that they appear before Spark notes the batch as done, and never twice.
"""

from __future__ import annotations

import hashlib
import json
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from cursus_grpc import AsyncAdmin, Consumer, TopicPartition
from cursus_spark.options import Endpoint
from cursus_spark.pipeline.lake.directory import Directory
from cursus_spark.pipeline.lake.layout import INCOMPLETE, Hour, Lake, LakeConflict, LakeFile, Staged
from cursus_spark.pipeline.lake.writer import REPORT, TaskFiles
from cursus_spark.planning import CLIENT_ID, Extents, ask, find_extents
from cursus_spark.read_options import Selection

SKEW_MS: Final = 5 * 60_000
"""By how much the clocks of the broker and of this machine may differ before a closed hour gets another small file."""

_BINDING: Final = "cursus-lake.json"

_ANEW: Final = "the topic was deleted and made anew, or belongs to another broker. Archive it to another lake"


@dataclass(slots=True)
class Written:
    """What was archived."""

    records: int = 0
    files: int = 0
    size: int = 0
    known: int = 0
    """Records that the lake had already, from an attempt that was not noted as done."""
    partitions: set[TopicPartition] = field(default_factory=set)

    def add(self, other: Written) -> None:
        self.records += other.records
        self.files += other.files
        self.size += other.size
        self.known += other.known
        self.partitions |= other.partitions


class Archive:
    """One run of a stream into a lake. Its batches are written by `write`, for Spark's `foreachBatch`."""

    def __init__(self, lake: Lake, checkpoint: Directory) -> None:
        self.lake = lake
        self.total = Written()
        self.batches: dict[int, Written] = {}
        """The last few, for who tells of them."""
        self._checkpoint = checkpoint
        self._staging = f"{INCOMPLETE}/{hashlib.sha256(checkpoint.location.encode()).hexdigest()[:16]}"
        self._last_files: dict[TopicPartition, LakeFile] = {}
        self._next_offsets: dict[TopicPartition, int] = {}
        self._until_ms: dict[TopicPartition, int] = {}

    def open(self) -> bool:
        """Bind the checkpoint to the lake, clean up after a run that was killed, and look at what the lake has. Answers
        whether the stream is new. Raises LakeConflict, LakeDamaged."""
        stored = self._checkpoint.read_text(_BINDING)
        started = self._checkpoint.exists("offsets")
        if stored is None and started:
            raise LakeConflict(
                f"the checkpoint {self._checkpoint.location} belongs to another query; give the archive one of its own"
            )
        if stored is None:
            self._checkpoint.write_text(_BINDING, json.dumps({"lake": self.lake.id}))
        elif json.loads(stored)["lake"] != self.lake.id:
            raise LakeConflict(
                f"the checkpoint {self._checkpoint.location} belongs to another lake than"
                f" {self.lake.directory.location}, which would miss what was archived so far; give this lake its own"
            )
        self._discard(self._staging)
        for topic in self.lake.topics():
            for partition, files in self.lake.files(topic).items():
                place = TopicPartition(topic, partition)
                self._last_files[place] = files[-1]
                self._next_offsets[place] = files[-1].last + 1
        return not started

    def starting_offsets(self, extents: Extents) -> str:
        """Where a new stream begins: behind what the lake has, for Spark's option. Raises LakeConflict."""
        if not any(place in self._next_offsets for place in extents):
            return "earliest"
        stored: dict[str, dict[str, int]] = {}
        for place in sorted(extents):
            next_offset = self._next_offsets.get(place)
            if next_offset is not None and next_offset > extents[place].end:
                raise LakeConflict(
                    f"the lake has partition {place.partition} of topic {place.topic!r} up to offset {next_offset - 1},"
                    f" and the broker up to {extents[place].end - 1}: {_ANEW}"
                )
            stored.setdefault(place.topic, {})[str(place.partition)] = -2 if next_offset is None else next_offset
        return json.dumps(stored)

    def check_same_topics(self, endpoint: Endpoint, extents: Extents) -> None:
        """Compare the last record that the lake has of each partition with the broker's, where it still has it: a topic
        that was made anew and has grown past the old one is told by its times. Raises LakeConflict, CursusError."""
        with Consumer(endpoint.bootstrap, tls=endpoint.tls, client_id=CLIENT_ID, reset="error") as consumer:
            for place, file in self._last_files.items():
                if place not in extents or not extents[place].earliest <= file.last < extents[place].end:
                    continue
                batch = next(iter(consumer.range_batches(*place, file.last, file.last + 1)))
                if batch.append_time_ms != self._append_ms(file):
                    raise LakeConflict(
                        f"{file.path} holds another record under offset {file.last} than the broker: {_ANEW}"
                    )

    def _append_ms(self, file: LakeFile) -> int:
        """Of the file's last record."""
        directory = self.lake.directory
        with directory.file_system.open_input_file(directory.path(file.path)) as stream:
            parquet = pq.ParquetFile(stream)
            times = parquet.read_row_group(parquet.num_row_groups - 1, ["append_time"])["append_time"]
        return int(times.cast(pa.int64())[-1].as_py()) // 1_000

    def write(self, rows: DataFrame, batch_id: int) -> None:
        """Store a micro-batch. Raises LakeConflict, LakeDamaged, and what Spark raises."""
        lake, next_offsets = self.lake, dict(self._next_offsets)
        staging = f"{self._staging}/{uuid.uuid4().hex}"

        def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return TaskFiles(lake, staging, next_offsets).write(batches)

        reports = [row.asDict() for row in rows.mapInArrow(write, REPORT).collect()]
        self._publish(reports, batch_id)
        self._discard(staging)

    def _discard(self, staging: str) -> None:
        """Nobody will look for it. A task that its driver left behind may still write there."""
        with suppress(OSError):
            self.lake.directory.delete(staging)

    def _publish(self, reports: Iterable[Mapping[str, Any]], batch_id: int) -> None:
        staged: list[Staged] = []
        written = Written()
        ends: dict[TopicPartition, tuple[int, int]] = {}
        for one in reports:
            place = TopicPartition(one["topic"], one["partition"])
            file = LakeFile(place.partition, one["first"], one["last"], Hour(place.topic, one["hour"]))
            written.partitions.add(place)
            ends[place] = max(ends.get(place, (0, 0)), (file.last + 1, one["until_ms"]))
            if one["staged"] is None:
                written.known += len(file)
            else:
                staged.append(Staged(file, one["staged"]))
                written.records += len(file)
                written.size += one["bytes"]
        written.files = self.lake.publish(staged)
        for place, (next_offset, until_ms) in ends.items():
            self._next_offsets[place] = max(self._next_offsets.get(place, 0), next_offset)
            self._until_ms[place] = max(self._until_ms.get(place, 0), until_ms)
        self.total.add(written)
        self.batches[batch_id] = written
        self.batches.pop(batch_id - 100, None)

    def note_progress(self, endpoint: Endpoint, selection: Selection) -> None:
        """Write down until when each partition is archived. Partitions where nothing comes count as archived until now.
        Raises CursusError."""
        asked_ms = time.time_ns() // 1_000_000

        async def extents(admin: AsyncAdmin) -> Extents:
            return await find_extents(admin, selection, read_unsynced=True)

        until_ms: dict[str, dict[int, int]] = {}
        for place, extent in ask(endpoint, extents).items():
            quiet = extent.end in (self._next_offsets.get(place, 0), extent.earliest)
            known = asked_ms - SKEW_MS if quiet else self._until_ms.get(place, 0)
            until_ms.setdefault(place.topic, {})[place.partition] = known
        for topic, partitions in until_ms.items():
            self.lake.note_archived(topic, partitions)
