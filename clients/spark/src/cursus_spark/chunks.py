"""The rows of a task, cut into chunks. Where a chunk ends depends on the rows alone, never on how they arrive: a task
that is repeated cuts them the same way."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cursus_spark.arrow_arrays import Ints

ROWS: Final = 5_000
BYTES: Final = 1024 * 1024
"""Of keys, values and headers, unless a single row has more. With the rows it bounds what a task holds."""


def cut(batches: Iterable[pa.RecordBatch], rows: int = ROWS, size: int = BYTES) -> Iterator[pa.Table]:
    """Tables of at most so many rows and bytes, each in one piece."""
    waiting: list[pa.RecordBatch] = []
    sizes: list[Ints] = []
    waiting_rows = waiting_bytes = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        waiting.append(batch)
        sizes.append(row_bytes(batch))
        waiting_rows += batch.num_rows
        waiting_bytes += int(sizes[-1].sum())
        if waiting_rows < rows and waiting_bytes <= size:
            continue
        table = pa.Table.from_batches(waiting)
        done = yield from _full(table, np.concatenate(sizes), rows, size)
        rest = table.slice(done)
        waiting = [one for one in rest.to_batches() if one.num_rows]
        sizes = [row_bytes(one) for one in waiting]
        waiting_rows, waiting_bytes = rest.num_rows, sum(int(one.sum()) for one in sizes)
    if waiting:
        table = pa.Table.from_batches(waiting)
        done = yield from _full(table, np.concatenate(sizes), rows, size)
        if done < table.num_rows:
            yield table.slice(done).combine_chunks()


def _full(table: pa.Table, sizes: Ints, rows: int, size: int) -> Generator[pa.Table, None, int]:
    """The chunks of the table that no later row can join; returns where they end."""
    ends = np.cumsum(sizes)
    begin = 0
    while True:
        before = int(ends[begin - 1]) if begin else 0
        fits = int(np.searchsorted(ends, before + size, side="right"))
        end = min(begin + rows, max(fits, begin + 1))
        if end > len(sizes) or (end == len(sizes) and end - begin < rows):
            return begin
        yield table.slice(begin, end - begin).combine_chunks()
        begin = end
        if begin == len(sizes):
            return begin


def row_bytes(batch: pa.RecordBatch) -> Ints:
    """The bytes of each row that its record will hold, without what holds them together."""
    total: Ints = np.zeros(batch.num_rows, np.int64)
    for name in ("key", "value", "event_type", "metadata"):
        if name in batch.schema.names:
            total += _lengths(batch.column(name))
    if "headers" in batch.schema.names:
        total += _header_bytes(batch.column("headers"))
    return total


def _lengths(array: pa.Array) -> Ints:
    found: Ints = pc.fill_null(pc.binary_length(array), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    return found


def _header_bytes(headers: pa.Array) -> Ints:
    counts = pc.fill_null(pc.list_value_length(headers), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    flat = headers.flatten()
    names, contents = flat.field(0), flat.field(1)
    ends = np.concatenate(([0], np.cumsum(_lengths(names) + _lengths(contents))))
    until = np.cumsum(counts)
    found: Ints = ends[until] - ends[until - counts]
    return found
