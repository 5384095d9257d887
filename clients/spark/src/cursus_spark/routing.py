"""Which rows of a chunk go to which partition, and their sets.

A row's partition is the one its column names, else its key's, else that of the chunk's turn: it depends on the row, its
place in the task and the number of partitions alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cursus_grpc import TopicPartition
from cursus_proto.columns.hashing import key_hashes
from cursus_proto.columns.packing import NO_DETAILS, Binary, Details, Header, pack
from cursus_spark.arrow_arrays import Ints
from cursus_spark.schema import DETAILS

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
    keys = binary(chunk, "key")
    numbers = counts(names)
    sizes = np.array([numbers[name] for name in names], np.int64)[codes]
    partitions = _partitions(chunk, keys, sizes, turn)
    # A partition number has 31 bits.
    targets = codes << 32 | partitions
    first = int(targets[0])
    if (targets == first).all():
        yield _packed(chunk, TopicPartition(names[first >> 32], first & 0xFFFFFFFF))
        return
    order = np.argsort(targets, kind="stable")
    grouped = targets[order]
    begins = np.flatnonzero(np.diff(grouped, prepend=-1))
    sorted_rows = chunk.take(pa.array(order)).combine_chunks()
    for begin, end in zip(begins.tolist(), [*begins[1:].tolist(), len(order)], strict=True):
        target = int(grouped[begin])
        place = TopicPartition(names[target >> 32], target & 0xFFFFFFFF)
        yield _packed(sorted_rows.slice(begin, end - begin), place)


def _topics(chunk: pa.Table, topic: str | None) -> tuple[list[str], Ints]:
    """The topics of a chunk, and which of them each row has."""
    if topic is not None:
        return [topic], np.zeros(chunk.num_rows, np.int64)
    column = _array(chunk, "topic")
    if column.null_count:
        raise RowRefused("a row has null as its topic, and the option `topic` is not given")
    encoded = column.dictionary_encode()
    return encoded.dictionary.to_pylist(), encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)


def _partitions(chunk: pa.Table, keys: Binary | None, sizes: Ints, turn: int) -> Ints:
    partitions: Ints = turn % sizes
    if keys is not None:
        hashed = (key_hashes(keys.data, keys.starts, keys.lengths) % sizes.astype(np.uint64)).astype(np.int64)
        partitions = hashed if keys.present is None else np.where(keys.present, hashed, partitions)
    if "partition" not in chunk.schema.names:
        return partitions
    column = _array(chunk, "partition")
    named = pc.fill_null(column, 0).to_numpy(zero_copy_only=False).astype(np.int64)
    if (named < 0).any():
        raise RowRefused(f"a row has {int(named.min())} as its partition; they are numbered from 0")
    given = column.is_valid().to_numpy(zero_copy_only=False)
    return np.where(given, named, partitions)


def _packed(rows: pa.Table, place: TopicPartition) -> TargetSet:
    values = binary(rows, "value")
    assert values is not None
    payload = pack(
        values,
        keys=binary(rows, "key"),
        timestamps_ms=_timestamps_ms(rows),
        headers=_headers(rows),
        details=_details(rows),
    )
    return TargetSet(place, payload, rows.num_rows)


def binary(table: pa.Table, name: str) -> Binary | None:
    """A column of bytes or text; None if there is none."""
    if name not in table.schema.names:
        return None
    array = _array(table, name).cast(pa.large_binary())
    _, ends, data = array.buffers()
    offsets = np.frombuffer(ends, np.int64)[array.offset : array.offset + len(array) + 1]
    octets = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    lengths = np.diff(offsets)
    present = None
    if array.null_count:
        present = array.is_valid().to_numpy(zero_copy_only=False)
        if lengths[~present].any():  # what a null hides is not written
            return Binary.of(array.to_pylist())
    return Binary(octets[int(offsets[0]) : int(offsets[-1])], lengths, present)


def _timestamps_ms(table: pa.Table) -> Ints | None:
    if "timestamp" not in table.schema.names:
        return None
    array = _array(table, "timestamp").cast(pa.timestamp("us", tz="UTC")).view(pa.int64())
    found: Ints = pc.fill_null(array, 0).to_numpy(zero_copy_only=False) // 1000
    if ((found == 0) & array.is_valid().to_numpy(zero_copy_only=False)).any():
        # A record with this time is one without a time.
        raise RowRefused("a row has 1970-01-01 00:00:00 UTC as its timestamp, which cannot be stored: make it null")
    return found


def _headers(table: pa.Table) -> list[list[Header]] | None:
    if "headers" not in table.schema.names:
        return None
    column = _array(table, "headers")
    if not len(column.flatten()):
        return None
    if column.flatten().field(0).null_count:
        raise RowRefused("a header has null as its key")
    return [[(one["key"], one["value"]) for one in row or ()] for row in column.to_pylist()]


def _details(table: pa.Table) -> list[Details] | None:
    """None where no row has any."""
    columns: list[list[Any]] = []
    stated = False
    for name, absent in zip(DETAILS, NO_DETAILS, strict=True):
        column = _array(table, name) if name in table.schema.names else None
        if column is None or column.null_count == len(column):
            columns.append([absent] * table.num_rows)
            continue
        stated = True
        if isinstance(absent, bytes):
            columns.append([value or b"" for value in column.cast(pa.binary()).to_pylist()])
            continue
        # Spark has no unsigned numbers: the largest ones are read as negative, and written as they were.
        columns.append([(value or 0) % 2**64 for value in column.to_pylist()])
    if not stated:
        return None
    if max(columns[1]) >= 2**32:
        raise RowRefused(f"a row has {max(columns[1])} as its schema version; it has 32 bits, without a sign")
    return list(zip(*columns, strict=True))


def _array(table: pa.Table, name: str) -> pa.Array:
    """A column in one piece."""
    column = table.column(name)
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
