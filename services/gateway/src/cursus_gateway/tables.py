"""Record sets as tables: records that differ in nothing but key, payload and sequence lie at equal distances, so that
numpy copies them into legacy messages column by column. That costs a fiftieth of a record at a time.

    a row of the set                          a row of messages
      head      0x0A length [0x0A length]       offset, seqNum     counted, or from the tail
      key       absent if there is none         producerId, length of the key
      middle    0x12 length                     key
      payload                                   epoch, length of the payload
      tail      0x48 varint, or absent          payload
                                                event fields       16 zeros

Head and middle have to be the same bytes in every row, and a tail one varint from its tag to the row's end. Then every
row is exactly one record of the same shape, whatever the other bytes are: the head's length says where the next row
begins. What does not pass is no table and left to protobuf.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from google.protobuf.message import DecodeError

from cursus_gateway.columns import Numbers, Rows, counted
from cursus_gateway.records import EPOCH_PAYLOAD, LENGTH, MIN_MESSAGE_BYTES, NO_EVENT
from cursus_proto.cutting import StoredBatch
from cursus_proto.records import read_varint

_RECORD: Final = 0x0A
KEY: Final = 0x0A
VALUE: Final = 0x12
SEQUENCE: Final = 0x48
"""The tags of a record's fields that messages have a place for."""


@dataclass(frozen=True, slots=True)
class _Shape:
    """Where the parts of a row begin, and how long its variable parts are. Without a key its head reaches to the
    payload."""

    key_at: int
    key_bytes: int
    payload_at: int
    payload_bytes: int

    @property
    def tail_at(self) -> int:
        return self.payload_at + self.payload_bytes


@dataclass(frozen=True, slots=True)
class Table:
    """Records that were checked."""

    sequences: Numbers | None
    """None if the records hold none."""
    _rows: Rows
    _shape: _Shape

    @classmethod
    def of(cls, batches: Sequence[StoredBatch], count: int) -> Table | None:
        """The records of these batches, `count` in all; None if they are not alike."""
        rows = _rows(batches, count)
        if rows is None:
            return None
        shape = _shape(rows.data, rows.begin, rows.size)
        if shape is None or not (
            rows.is_constant(0, shape.key_at) and rows.is_constant(shape.key_at + shape.key_bytes, shape.payload_at)
        ):
            return None
        sequences: Numbers | None = None
        if shape.tail_at < rows.size:
            sequences = rows.read_varints(rows.size - shape.tail_at - 1, SEQUENCE)
            if sequences is None:
                return None
        return cls(sequences, rows, shape)

    def message_bytes(self, producer_id: bytes) -> int:
        """The size of one message."""
        return MIN_MESSAGE_BYTES + len(producer_id) + self._shape.key_bytes + self._shape.payload_bytes

    def messages(
        self, begin: int, end: int, first_offset: int, sequences: Numbers, producer_id: bytes, epoch: int
    ) -> bytearray | memoryview:
        """The legacy messages of rows `begin` to `end`; `sequences` has one number for each of them."""
        shape, count = self._shape, end - begin
        before_key = LENGTH.pack(len(producer_id)) + producer_id + LENGTH.pack(shape.key_bytes)
        before_payload = EPOCH_PAYLOAD.pack(epoch, shape.payload_bytes)
        key_at = 16 + len(before_key)
        payload_at = key_at + shape.key_bytes + len(before_payload)
        row = b"".join(
            (bytes(16), before_key, bytes(shape.key_bytes), before_payload, bytes(shape.payload_bytes), NO_EVENT)
        )
        rows, ahead = self._rows.part(begin, end)
        written = bytearray(row) * rows.count
        wanted = Rows(written, ahead * len(row), count, len(row))
        wanted.big_endian(0)[:] = counted(first_offset, count)
        wanted.big_endian(8)[:] = sequences
        to = Rows(written, 0, rows.count, len(row), rows.blocks, rows.count // rows.blocks * len(row))
        rows.copy(shape.key_bytes, shape.key_at, to, key_at)
        rows.copy(shape.payload_bytes, shape.payload_at, to, payload_at)
        if count == rows.count:
            return written
        return memoryview(written)[wanted.begin : wanted.begin + count * len(row)]


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


def _shape(data: bytes | bytearray, begin: int, size: int) -> _Shape | None:
    """The shape of the record that begins there. None if it is not `size` bytes long or does not begin with an optional
    key and a payload.
    """
    try:
        return _shape_of(data[begin : begin + size])
    except (IndexError, DecodeError):
        return None


def _shape_of(record: bytes | bytearray) -> _Shape | None:
    """Raises IndexError, DecodeError if it ends within a number."""
    size = len(record)
    if record[0] != _RECORD:
        return None
    record_bytes, position = read_varint(record, 1)
    if position + record_bytes != size:
        return None
    key_bytes, key_at = 0, 0
    if position < size and record[position] == KEY:
        key_bytes, key_at = read_varint(record, position + 1)
        position = key_at + key_bytes
        if not 0 < key_bytes <= 0xFFFF:
            return None  # An empty key is a key, and one too long is cut; both are left to the general way.
    if position + 2 > size or record[position] != VALUE:
        return None
    payload_bytes, payload_at = read_varint(record, position + 1)
    if not payload_bytes or payload_at + payload_bytes > size:
        return None
    return _Shape(key_at or payload_at, key_bytes, payload_at, payload_bytes)
