"""Which rows of a chunk go to which partition, and their sets.

A row's partition is the one its column names, else its key's, else that of the chunk's turn: it depends on the row, its
place in the task and the number of partitions alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cursus_grpc import TopicPartition
from cursus_proto.columns.hashing import key_hashes
from cursus_spark import packing
from cursus_spark.arrow_arrays import Ints

PartitionCounts = Callable[[Collection[str]], Mapping[str, int]]


class RowRefused(ValueError):
    """A row that cannot be a record."""


class TargetSet(NamedTuple):
    """The rows of a chunk for one partition, packed."""

    place: TopicPartition
    payload: bytes
    rows: int


def sets(chunk: pa.Table, turn: int, topic: str | None, counts: PartitionCounts) -> Iterator[TargetSet]:
    """The sets of a chunk. `turn` decides about rows with neither partition nor key. Raises RowRefused."""
    names, codes = _topics(chunk, topic)
    numbers = counts(names)
    sizes = np.array([numbers[name] for name in names], np.int64)[codes]
    # A partition number has 31 bits.
    targets = codes << 32 | _partitions(chunk, sizes, turn)
    records = _packed(chunk)
    if (targets != targets[0]).any():
        order = np.argsort(targets, kind="stable")
        targets = targets[order]
        records = records.take(pa.array(order))
    ends, data = packing.offsets(records), records.buffers()[2]
    begins = np.flatnonzero(np.diff(targets, prepend=-1))
    for begin, end in zip(begins.tolist(), [*begins[1:].tolist(), len(targets)], strict=True):
        target = int(targets[begin])
        place = TopicPartition(names[target >> 32], target & 0xFFFFFFFF)
        payload = data.slice(int(ends[begin]), int(ends[end] - ends[begin])).to_pybytes()
        yield TargetSet(place, payload, end - begin)


def _topics(chunk: pa.Table, topic: str | None) -> tuple[list[str], Ints]:
    """The topics of a chunk, and which of them each row has."""
    if topic is not None:
        return [topic], np.zeros(chunk.num_rows, np.int64)
    column = _array(chunk, "topic")
    if column.null_count:
        raise RowRefused("a row has null as its topic, and the option `topic` is not given")
    encoded = column.dictionary_encode()
    return encoded.dictionary.to_pylist(), encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)


def _partitions(chunk: pa.Table, sizes: Ints, turn: int) -> Ints:
    partitions: Ints = turn % sizes
    if "key" in chunk.schema.names:
        keys = _array(chunk, "key").cast(pa.large_binary())
        begins = packing.offsets(keys)
        hashes = key_hashes(packing.octets(keys), begins[:-1], np.diff(begins))
        hashed = (hashes % sizes.astype(np.uint64)).astype(np.int64)
        given = keys.is_valid().to_numpy(zero_copy_only=False)
        partitions = np.where(given, hashed, partitions)
    if "partition" not in chunk.schema.names:
        return partitions
    column = _array(chunk, "partition")
    named = pc.fill_null(column, 0).to_numpy(zero_copy_only=False).astype(np.int64)
    if (named < 0).any():
        raise RowRefused(f"a row has {int(named.min())} as its partition; they are numbered from 0")
    given = column.is_valid().to_numpy(zero_copy_only=False)
    return np.where(given, named, partitions)


def _packed(rows: pa.Table) -> pa.LargeBinaryArray:
    return packing.pack(
        _array(rows, "value"),
        keys=_array(rows, "key") if "key" in rows.schema.names else None,
        timestamps_ms=_timestamps_ms(rows),
        headers=_headers(rows),
        event_types=_stated(rows, "event_type"),
        schema_versions=_schema_versions(rows),
        aggregate_versions=_numbers(rows, "aggregate_version"),
        metadata=_stated(rows, "metadata"),
    )


def _timestamps_ms(table: pa.Table) -> Ints | None:
    if "timestamp" not in table.schema.names:
        return None
    array = _array(table, "timestamp").cast(pa.timestamp("us", tz="UTC")).view(pa.int64())
    found: Ints = pc.fill_null(array, 0).to_numpy(zero_copy_only=False) // 1000
    if ((found == 0) & array.is_valid().to_numpy(zero_copy_only=False)).any():
        # A record with this time is one without a time.
        raise RowRefused("a row has 1970-01-01 00:00:00 UTC as its timestamp, which cannot be stored: make it null")
    return found


def _headers(table: pa.Table) -> pa.Array | None:
    if "headers" not in table.schema.names:
        return None
    column = _array(table, "headers")
    if column.flatten().field(0).null_count:
        raise RowRefused("a header has null as its key")
    return column


def _stated(table: pa.Table, name: str) -> pa.Array | None:
    """A column that few records have; None where no row has it."""
    column = _array(table, name) if name in table.schema.names else None
    return None if column is None or column.null_count == len(column) else column


def _numbers(table: pa.Table, name: str) -> Ints | None:
    column = _stated(table, name)
    if column is None:
        return None
    # Spark has no unsigned numbers: the largest ones are read as negative, and written as they were.
    found: Ints = pc.fill_null(column, 0).to_numpy(zero_copy_only=False)
    return found


def _schema_versions(table: pa.Table) -> Ints | None:
    found = _numbers(table, "schema_version")
    if found is not None and ((found < 0) | (found >= 2**32)).any():
        raise RowRefused(f"a row has a schema version beyond 0 to {2**32 - 1}")
    return found


def _array(table: pa.Table, name: str) -> pa.Array:
    """A column in one piece."""
    column = table.column(name)
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
