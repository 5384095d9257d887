"""Record sets as tables: records that all have one shape lie at equal distances, so that numpy looks at them column by
column. That costs a fiftieth of a record at a time.

The shape is that of the first record. Tags, lengths and headers have to be the same bytes in every row, and a number a
varint of the same length. Then every row is exactly one record of the same shape, whatever the other bytes are: the
length at its beginning says where the next row begins. What does not pass is no table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from cursus_proto.columns.found import Columns, Headers, Numbered, Spans
from cursus_proto.columns.headers import find_headers
from cursus_proto.columns.rows import FEWEST_ROWS, Numbers, Rows
from cursus_proto.cutting import StoredBatch
from cursus_proto.shapes import NUMBERS, Shape, first_record_bytes, shape_of
from cursus_proto.v1.records_pb2 import Record

_HEADERS: Final = Record.HEADERS_FIELD_NUMBER


@dataclass(frozen=True, slots=True)
class Table:
    """Records that were checked."""

    rows: Rows
    shape: Shape
    numbers: Mapping[int, Numbers]
    """By field number, those the shape has."""

    @classmethod
    def of(cls, rows: Rows) -> Table | None:
        """The records in these rows; None if they are not alike."""
        shape = shape_of(rows.data[rows.begin : rows.begin + rows.size])
        if shape is None:
            return None
        numbers: dict[int, Numbers] = {}
        begin = 0
        """Where the structure begins that was not compared yet. Headers are part of it."""
        for number, tag_at, at, size in shape.fields:
            if number in NUMBERS:
                # Its tag is compared when it is read.
                found = rows.read_varints(tag_at, size) if rows.is_constant(begin, tag_at) else None
                if found is None:
                    return None
                numbers[number] = found
            elif number == _HEADERS:
                continue
            elif not rows.is_constant(begin, at):
                return None
            begin = at + size
        return cls(rows, shape, numbers) if rows.is_constant(begin, rows.size) else None

    @classmethod
    def of_batches(cls, batches: Sequence[StoredBatch], count: int) -> Table | None:
        """The records of these batches, `count` in all; None if they are not alike."""
        rows = _rows(batches, count)
        return None if rows is None else cls.of(rows)

    @classmethod
    def of_set(cls, packed: bytes) -> Table | None:
        """The records of a plain set; None if they are not alike, or too few."""
        size = first_record_bytes(packed)
        if size is None or len(packed) % size or len(packed) // size < FEWEST_ROWS:
            return None
        return cls.of(Rows(packed, 0, len(packed) // size, size))

    def columns(self) -> Columns | None:
        """The columns of a table that was made of one set; None if its headers are for the parser."""
        rows, fields = self.rows, self.shape.fields
        starts = np.arange(rows.begin, rows.begin + rows.count * rows.size, rows.size, dtype=np.int64)
        data = bytes(rows.data)
        headers: Headers | None = None
        own = [field for field in fields if field.number == _HEADERS]
        if own:
            ends = starts + own[-1].end
            found = find_headers(data, starts + own[0].tag_at, ends)
            if found is None or (found[1] != ends).any():  # some are not laid out as usual, or not together
                return None
            headers = found[0]
        return Columns(
            data,
            rows.count,
            {
                field.number: Spans(starts + field.at, np.full(rows.count, field.size, np.int64))
                for field in fields
                if field.number not in NUMBERS and field.number != _HEADERS
            },
            {number: Numbered(numbers) for number, numbers in self.numbers.items()},
            headers,
        )


def _rows(batches: Sequence[StoredBatch], count: int) -> Rows | None:
    """The records as rows of equal length. The sets of one response lie equally far apart if they and what stands
    between them are alike, as most are; others are joined. None if they cannot be rows."""
    source, begin = batches[0].source, batches[0].begin
    blocks, block_bytes = len(batches), batches[0].end - begin
    distance = batches[1].begin - begin if blocks > 1 else 0
    at = begin
    for batch in batches:
        if batch.begin != at or batch.end != at + block_bytes or batch.source is not source:
            source = b"".join([batch.plain() for batch in batches])
            begin, blocks, block_bytes, distance = 0, 1, len(source), 0
            break
        at += distance
    total = blocks * block_bytes
    if not total or total % count or count % blocks:
        return None
    return Rows(source, begin, count, total // count, blocks, distance)
