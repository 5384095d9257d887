"""Columns of rows to records, without going from row to row in Python: numpy writes what stands before each field, and
Arrow joins the pieces of each row.

The bytes are those that `cursus_proto.records.encode_record` writes, which tests compare: the same rows always become
the same records.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cursus_proto.shapes import SIZED, VARINT
from cursus_proto.v1.records_pb2 import Header, Record, RecordSet
from cursus_spark.arrow_arrays import Bools, Ints

_RECORD: Final = RecordSet.RECORDS_FIELD_NUMBER << 3 | SIZED
_KEY: Final = Record.KEY_FIELD_NUMBER << 3 | SIZED
_VALUE: Final = Record.VALUE_FIELD_NUMBER << 3 | SIZED
_TIMESTAMP_MS: Final = Record.TIMESTAMP_MS_FIELD_NUMBER << 3 | VARINT
_HEADER: Final = Record.HEADERS_FIELD_NUMBER << 3 | SIZED
_EVENT_TYPE: Final = Record.EVENT_TYPE_FIELD_NUMBER << 3 | SIZED
_SCHEMA_VERSION: Final = Record.SCHEMA_VERSION_FIELD_NUMBER << 3 | VARINT
_AGGREGATE_VERSION: Final = Record.AGGREGATE_VERSION_FIELD_NUMBER << 3 | VARINT
_METADATA: Final = Record.METADATA_FIELD_NUMBER << 3 | SIZED
_HEADER_KEY: Final = Header.KEY_FIELD_NUMBER << 3 | SIZED
_HEADER_VALUE: Final = Header.VALUE_FIELD_NUMBER << 3 | SIZED


def pack(
    values: pa.Array,
    *,
    keys: pa.Array | None = None,
    timestamps_ms: Ints | None = None,
    headers: pa.Array | None = None,
    event_types: pa.Array | None = None,
    schema_versions: Ints | None = None,
    aggregate_versions: Ints | None = None,
    metadata: pa.Array | None = None,
) -> pa.LargeBinaryArray:
    """Each row as it stands in a plain set: a set is records one after the other. Bytes may be given as text; a
    timestamp or version of 0 is none, nor is an empty event type or metadata one; headers are lists of
    `struct<key:string,value:binary>`, whose keys are not null.

    >>> from cursus_proto.records import unpack
    >>> records = pack(pa.array([b"a", None, b"ccc"], pa.binary()))
    >>> [record.value for record in unpack(b"".join(records.to_pylist()))]
    [b'a', b'', b'ccc']
    """
    pieces = _Pieces.field(_VALUE, values)
    if keys is not None and keys.null_count < len(keys):
        pieces = _Pieces.field(_KEY, keys).then(pieces)
    if timestamps_ms is not None and timestamps_ms.any():
        pieces = pieces.then(_Pieces.numbers(_TIMESTAMP_MS, timestamps_ms))
    if headers is not None and len(headers.flatten()):
        pieces = pieces.then(_packed_headers(headers))
    if event_types is not None:
        pieces = pieces.then(_Pieces.field(_EVENT_TYPE, event_types, empty_is_absent=True))
    if schema_versions is not None:
        pieces = pieces.then(_Pieces.numbers(_SCHEMA_VERSION, schema_versions))
    if aggregate_versions is not None:
        pieces = pieces.then(_Pieces.numbers(_AGGREGATE_VERSION, aggregate_versions))
    if metadata is not None:
        pieces = pieces.then(_Pieces.field(_METADATA, metadata, empty_is_absent=True))
    return pieces.within(_RECORD)


@dataclass(frozen=True, slots=True)
class _Pieces:
    """What rows are made of, in this order; and how many bytes that is for each."""

    columns: list[pa.Array]
    sizes: Ints

    @classmethod
    def field(cls, tag: int, column: pa.Array, *, empty_is_absent: bool = False) -> _Pieces:
        """A field of bytes; nothing for rows without it."""
        contents = column.cast(pa.large_binary())
        lengths = np.diff(offsets(contents))
        present: Bools | None = None
        if contents.null_count:
            present = contents.is_valid().to_numpy(zero_copy_only=False)
            lengths = np.where(present, lengths, 0)  # what a null hides is not written
        if empty_is_absent:
            present = lengths > 0
        heads, sizes = _varints(tag, lengths, present)
        return cls([heads, contents], sizes + lengths)

    @classmethod
    def numbers(cls, tag: int, numbers: Ints) -> _Pieces:
        """A field with a number; nothing where that is 0."""
        column, sizes = _varints(tag, numbers, numbers != 0)
        return cls([column], sizes)

    def then(self, more: _Pieces) -> _Pieces:
        return _Pieces([*self.columns, *more.columns], self.sizes + more.sizes)

    def within(self, tag: int) -> pa.LargeBinaryArray:
        """The pieces of each row as one field."""
        heads, _ = _varints(tag, self.sizes, None)
        return pc.binary_join_element_wise(heads, *self.columns, _NOTHING, null_handling="replace")


def _packed_headers(headers: pa.Array) -> _Pieces:
    """All headers, one after the other, are those of the first row, then those of the second …"""
    pairs = headers.flatten()
    names, contents = pairs.field(0), pairs.field(1)
    packed = _Pieces.field(_HEADER_KEY, names, empty_is_absent=True).then(_Pieces.field(_HEADER_VALUE, contents))
    each = packed.within(_HEADER)
    counts = pc.fill_null(pc.list_value_length(headers), 0).to_numpy(zero_copy_only=False)
    ends = offsets(each)[np.concatenate(([0], np.cumsum(counts)))]
    return _Pieces([_binary(ends, each.buffers()[2])], np.diff(ends))


def _varints(tag: int, numbers: Ints, present: Bools | None) -> tuple[pa.Array, Ints]:
    """The tag and the number of every row as a varint, nothing where it is not present; and how many bytes that is."""
    unsigned = numbers.view(np.uint64)
    sizes = np.full(len(numbers), 2, np.int64)
    longest = int(unsigned.max(initial=0)).bit_length()
    for bits in range(7, longest, 7):
        sizes += unsigned >= np.uint64(1 << bits)
    width = int(sizes.max(initial=2))
    table = np.empty((len(numbers), width), np.uint8)
    table[:, 0] = tag
    for place in range(width - 1):
        goes_on = (sizes > place + 2).astype(np.uint8) << 7
        table[:, place + 1] = (unsigned >> np.uint64(7 * place)).astype(np.uint8) & 0x7F | goes_on
    if present is not None:
        sizes = np.where(present, sizes, 0)
    # Of each row of the table so many bytes from the left.
    data = table if (sizes == width).all() else table[np.arange(width) < sizes[:, None]]
    ends = np.zeros(len(numbers) + 1, np.int64)
    np.cumsum(sizes, out=ends[1:])
    return _binary(ends, pa.py_buffer(data)), sizes


def _binary(ends: Ints, data: pa.Buffer) -> pa.LargeBinaryArray:
    return pa.Array.from_buffers(pa.large_binary(), len(ends) - 1, [None, pa.py_buffer(ends), data])


def offsets(column: pa.LargeBinaryArray) -> Ints:
    """Where each value begins in the column's data, and where the last one ends."""
    found: Ints = np.frombuffer(column.buffers()[1], np.int64)[column.offset : column.offset + len(column) + 1]
    return found


def octets(column: pa.LargeBinaryArray) -> npt.NDArray[np.uint8]:
    """The column's data."""
    data = column.buffers()[2]
    return np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)


# Not by pa.scalar, which imports pandas: that takes longer than anything else which Spark's planning processes load.
_NOTHING: Final = _binary(np.zeros(2, np.int64), pa.py_buffer(b""))[0]
