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

import numpy as np

from cursus_gateway import columns
from cursus_gateway.columns import Numbers
from cursus_gateway.records import EPOCH_PAYLOAD, LENGTH, MIN_MESSAGE_BYTES, NO_EVENT

_RECORD: Final = 0x0A
_KEY: Final = 0x0A
_VALUE: Final = 0x12
_SEQUENCE: Final = 0x48
_LITTLE_ENDIAN: Final = np.dtype("<u8")
# A tag and a sequence below 2**49, which are read as one word. No producer counts farther.
_MAX_TAIL_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class _Shape:
    """Where the parts of a row begin, and how long its variable parts are. Without a key its head reaches to the
    payload."""

    stride: int
    key_at: int
    key_bytes: int
    payload_at: int
    payload_bytes: int

    @property
    def tail_at(self) -> int:
        return self.payload_at + self.payload_bytes


@dataclass(frozen=True, slots=True)
class Table:
    """Rows that were checked."""

    rows: int
    sequences: Numbers | None
    """None if the records hold none."""
    _packed: bytes
    _shape: _Shape

    @classmethod
    def of(cls, sets: Sequence[bytes], rows: int) -> Table | None:
        """The records of these sets, `rows` in all; None if they are not alike."""
        packed = sets[0] if len(sets) == 1 else b"".join(sets)
        if not packed or len(packed) % rows:
            return None
        shape = _shape(packed, len(packed) // rows)
        if shape is None:
            return None
        if not columns.is_constant(packed, rows, shape.stride, 0, shape.key_at):
            return None
        if not columns.is_constant(packed, rows, shape.stride, shape.key_at + shape.key_bytes, shape.payload_at):
            return None
        sequences: Numbers | None = None
        if shape.tail_at < shape.stride:
            sequences = _read_sequences(packed, rows, shape)
            if sequences is None:
                return None
        return cls(rows, sequences, packed, shape)

    def message_bytes(self, producer_id: bytes) -> int:
        """The size of one message."""
        return MIN_MESSAGE_BYTES + len(producer_id) + self._shape.key_bytes + self._shape.payload_bytes

    def messages(
        self, begin: int, end: int, first_offset: int, sequences: Numbers, producer_id: bytes, epoch: int
    ) -> bytearray:
        """The legacy messages of rows `begin` to `end`; `sequences` has one number for each of them."""
        shape, count = self._shape, end - begin
        before_key = LENGTH.pack(len(producer_id)) + producer_id + LENGTH.pack(shape.key_bytes)
        before_payload = EPOCH_PAYLOAD.pack(epoch, shape.payload_bytes)
        key_at = 16 + len(before_key)
        payload_at = key_at + shape.key_bytes + len(before_payload)
        row = b"".join(
            (bytes(16), before_key, bytes(shape.key_bytes), before_payload, bytes(shape.payload_bytes), NO_EVENT)
        )
        written = bytearray(row) * count
        columns.big_endian(written, count, len(row), 0)[:] = columns.counted(first_offset, count)
        columns.big_endian(written, count, len(row), 8)[:] = sequences
        for source_at, target_at, size in (
            (shape.key_at, key_at, shape.key_bytes),
            (shape.payload_at, payload_at, shape.payload_bytes),
        ):
            source_at += begin * shape.stride
            columns.copy(count, size, self._packed, shape.stride, source_at, written, len(row), target_at)
        return written


def _read_sequences(packed: bytes, rows: int, shape: _Shape) -> Numbers | None:
    """The number in each tail, if all tails are a sequence and nothing else."""
    size = shape.stride - shape.tail_at
    if not 2 <= size <= _MAX_TAIL_BYTES <= shape.stride:
        return None
    # The last eight bytes of each row; shifted, the tail's first byte is the lowest.
    words = np.ndarray(rows, _LITTLE_ENDIAN, packed, shape.stride - 8, (shape.stride,)) >> np.uint64(64 - 8 * size)
    # All of the tag, and of the other bytes the bit that says whether the number goes on: in the last one it does not.
    looked_at = int.from_bytes(b"\xff" + b"\x80" * (size - 1), "little")
    expected = int.from_bytes(bytes((_SEQUENCE,)) + b"\x80" * (size - 2) + b"\0", "little")
    if not ((words & np.uint64(looked_at)) == np.uint64(expected)).all():
        return None
    numbers = np.zeros(rows, np.uint64)
    for place in range(size - 1):
        numbers |= (words >> np.uint64(8 + place)) & np.uint64(0x7F << (7 * place))
    return numbers


def _shape(packed: bytes, stride: int) -> _Shape | None:
    """The shape of the first record. None if it is not `stride` bytes long or does not begin with an optional key and
    a payload.
    """
    if packed[0] != _RECORD:
        return None
    record_bytes, position = _read_varint(packed, 1)
    if position + record_bytes != stride:
        return None
    key_bytes, key_at = 0, 0
    if position < stride and packed[position] == _KEY:
        key_bytes, key_at = _read_varint(packed, position + 1)
        position = key_at + key_bytes
        if not 0 < key_bytes <= 0xFFFF:
            return None  # An empty key is a key, and one too long is cut; both are left to the general way.
    if position + 2 > stride or packed[position] != _VALUE:
        return None
    payload_bytes, payload_at = _read_varint(packed, position + 1)
    if not payload_bytes or payload_at + payload_bytes > stride:
        return None
    return _Shape(stride, key_at or payload_at, key_bytes, payload_at, payload_bytes)


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    """A number of at most 5 bytes and the position after it; (0, position) beyond the end or for a longer one."""
    number = 0
    for shift in range(0, 35, 7):
        if position >= len(data):
            break
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, position
    return 0, position
