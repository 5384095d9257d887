"""Reading a range of offsets on an executor: its batches are fetched, joined to pieces of a good size, and made rows.

Stateless: every task opens a client of its own, and a range that is read again gives the same rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa
from pyspark.sql.types import StructType

from cursus_grpc import Consumer, StoredBatch
from cursus_grpc.errors import LogTruncated, OffsetOutOfRange
from cursus_grpc.types import OffsetAndMetadata
from cursus_spark import data_loss
from cursus_spark.offsets import OffsetRange
from cursus_spark.planning import CLIENT_ID
from cursus_spark.read_options import ReadOptions
from cursus_spark.rows import RowBuilder

_ROWS: Final = 10_000
"""Rows of an Arrow batch, about: fewer cost Spark more a row, more are no faster."""

_BYTES: Final = 4 * 1024 * 1024
"""Of joined sets, about. Bounds what a task holds, with what the client has fetched ahead."""


def read(wanted: OffsetRange, options: ReadOptions, schema: StructType) -> Iterator[pa.RecordBatch]:
    """The rows of a range. Raises DataLost, CursusError."""
    if len(wanted) == 0:
        return
    builder = RowBuilder(wanted.place, schema)
    for batches in _joined(_stored(wanted, options)):
        yield builder.build(batches, wanted.start, wanted.end)


def _stored(wanted: OffsetRange, options: ReadOptions) -> Iterator[StoredBatch]:
    """The batches of a range. What is not there any more is an error or, if the query was told so, skipped."""
    endpoint = options.endpoint
    start, end = wanted.start, wanted.end
    name = f"partition {wanted.partition} of topic {wanted.topic!r}"
    with Consumer(endpoint.bootstrap, tls=endpoint.tls, client_id=CLIENT_ID, reset="error") as consumer:
        while start < end:
            bookmark = OffsetAndMetadata(start, leader_epoch=wanted.epoch)
            try:
                for batch in consumer.range_batches(*wanted.place, bookmark, end, patience_s=options.retry_timeout_s):
                    yield batch
                    start = batch.next_offset
                return
            except OffsetOutOfRange as gone:
                loss = f"{name} begins at offset {gone.earliest}: {start} to {min(end, gone.earliest) - 1} expired"
                data_loss.report([loss], fail=options.fail_on_data_loss)
                start = max(start + 1, gone.earliest)
            except LogTruncated as cut:
                loss = f"{name} was cut at offset {cut.offset} by power loss or damage, below {end}"
                data_loss.report([loss], fail=options.fail_on_data_loss)
                # What has taken the offsets since belongs to the next micro-batch, which begins there.
                return


def _joined(batches: Iterable[StoredBatch]) -> Iterator[list[StoredBatch]]:
    """Batches that follow one another, together of about the wanted size."""
    group: list[StoredBatch] = []
    rows = size = 0
    for batch in batches:
        if group and (rows >= _ROWS or size >= _BYTES or group[-1].next_offset != batch.base_offset):
            yield group
            group, rows, size = [], 0, 0
        group.append(batch)
        rows += batch.record_count
        size += len(batch.packed)
    if group:
        yield group
