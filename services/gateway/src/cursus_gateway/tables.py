"""Tables of records as legacy messages: numpy copies them column by column, for a fiftieth of a record at a time.

    a row of messages
      offset, seqNum     counted, or from the records
      producerId, length of the key
      key
      epoch, length of the payload
      payload
      event fields       16 zeros

Records that have more than key, value and sequence are left to the general way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cursus_gateway.records import EPOCH_PAYLOAD, LENGTH, LONGEST_KEY, MIN_MESSAGE_BYTES, NO_EVENT
from cursus_proto.columns import Table
from cursus_proto.columns.rows import Numbers, Rows, counted
from cursus_proto.cutting import StoredBatch
from cursus_proto.shapes import Field
from cursus_proto.v1.records_pb2 import Record

KEY: Final = Record.KEY_FIELD_NUMBER
VALUE: Final = Record.VALUE_FIELD_NUMBER
SEQUENCE: Final = Record.SEQUENCE_FIELD_NUMBER
WRITTEN_FIELDS: Final = frozenset({KEY, VALUE, SEQUENCE})
"""The fields of a record that are written column by column."""

# A key or a value that is absent is written as an empty one: the wire knows no null.
_ABSENT: Final = Field(0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class MessageTable:
    """Records of one shape that become messages."""

    sequences: Numbers | None
    """None if the records hold none."""
    _rows: Rows
    _key: Field
    _payload: Field

    @classmethod
    def of(cls, batches: Sequence[StoredBatch], count: int) -> MessageTable | None:
        """The records of these batches, `count` in all; None if they are not alike, or have more."""
        table = Table.of_batches(batches, count)
        if table is None:
            return None
        key = payload = _ABSENT
        for field in table.shape.fields:
            if field.number == KEY:
                key = field
            elif field.number == VALUE:
                payload = field
            elif field.number != SEQUENCE:
                return None
        if key.size > LONGEST_KEY:
            return None  # It is to be cut, which the general way does.
        return cls(table.numbers.get(SEQUENCE), table.rows, key, payload)

    def message_bytes(self, producer_id: bytes) -> int:
        """The size of one message."""
        return MIN_MESSAGE_BYTES + len(producer_id) + self._key.size + self._payload.size

    def messages(
        self, begin: int, end: int, first_offset: int, sequences: Numbers, producer_id: bytes, epoch: int
    ) -> bytearray | memoryview:
        """The legacy messages of rows `begin` to `end`; `sequences` has one number for each of them."""
        key, payload, count = self._key, self._payload, end - begin
        before_key = LENGTH.pack(len(producer_id)) + producer_id + LENGTH.pack(key.size)
        before_payload = EPOCH_PAYLOAD.pack(epoch, payload.size)
        key_at = 16 + len(before_key)
        payload_at = key_at + key.size + len(before_payload)
        row = b"".join((bytes(16), before_key, bytes(key.size), before_payload, bytes(payload.size), NO_EVENT))
        rows, ahead = self._rows.part(begin, end)
        written = bytearray(row) * rows.count
        wanted = Rows(written, ahead * len(row), count, len(row))
        wanted.big_endian(0)[:] = counted(first_offset, count)
        wanted.big_endian(8)[:] = sequences
        to = Rows(written, 0, rows.count, len(row), rows.blocks, rows.count // rows.blocks * len(row))
        rows.copy(key.size, key.at, to, key_at)
        rows.copy(payload.size, payload.at, to, payload_at)
        if count == rows.count:
            return written
        return memoryview(written)[wanted.begin : wanted.begin + count * len(row)]
