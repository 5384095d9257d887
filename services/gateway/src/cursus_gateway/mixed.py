"""Records that differ in size, or in what they have, as legacy messages, written a column at a time.

Records that have more than key, value and sequence are left to the general way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from cursus_gateway.records import EPOCH_PAYLOAD, LENGTH, LONGEST_KEY, MIN_MESSAGE_BYTES, NO_EVENT
from cursus_gateway.tables import KEY, SEQUENCE, WRITTEN_FIELDS
from cursus_proto.columns import Spans, find_mixed
from cursus_proto.columns.found import Places
from cursus_proto.columns.rows import Numbers, Rows, counted

_U16: Final = np.dtype(">u2")
_U32: Final = np.dtype(">u4")


@dataclass(frozen=True, slots=True)
class MixedMessages:
    """Records of several shapes that become messages."""

    count: int
    sequences: Numbers | None
    """None if the records hold none."""
    _data: bytes
    """What the spans are places in."""
    _keys: Spans | None
    """None if no record has a key."""
    _payloads: Spans
    """Empty where they are null: the wire knows none."""

    @classmethod
    def of(cls, packed: bytes) -> MixedMessages | None:
        """The records of a plain set; None if one of them has more, or a sequence while another has none."""
        columns = find_mixed(packed)
        if columns is None or not columns.fields <= WRITTEN_FIELDS:
            return None
        keys, numbered = columns.spans.get(KEY), columns.numbered.get(SEQUENCE)
        if (keys is not None and (keys.sizes > LONGEST_KEY).any()) or (
            numbered is not None and numbered.absent is not None
        ):
            return None
        sequences = None if numbered is None else numbered.numbers
        return cls(columns.count, sequences, columns.data, keys, columns.values)

    def message_bytes(self, producer_id: bytes) -> Places:
        """The size of each message."""
        sizes = self._payloads.sizes + (MIN_MESSAGE_BYTES + len(producer_id))
        return sizes if self._keys is None else sizes + self._keys.sizes

    def messages(
        self, begin: int, end: int, first_offset: int, sequences: Numbers, producer_id: bytes, epoch: int
    ) -> bytes:
        """The legacy messages of records `begin` to `end`; `sequences` has one number for each of them."""
        count = end - begin
        payloads = self._payloads.part(begin, end)
        before_key = LENGTH.pack(len(producer_id)) + producer_id + bytes(LENGTH.size)
        before_payload = EPOCH_PAYLOAD.pack(epoch, 0)
        # What ends a message and what begins the next are written as one, with what stands before the payload if no
        # key comes between.
        head = NO_EVENT + bytes(16) + before_key
        heads = _repeated(head if self._keys is not None else head + before_payload, count)
        heads.big_endian(len(NO_EVENT))[:] = counted(first_offset, count)
        heads.big_endian(len(NO_EVENT) + 8)[:] = sequences
        middles = heads if self._keys is None else _repeated(before_payload, count)
        middles.column(middles.size - 4, _U32)[:] = payloads.sizes
        columns = [payloads.of(self._data)]
        if self._keys is not None:
            keys = self._keys.part(begin, end)
            heads.column(heads.size - LENGTH.size, _U16)[:] = keys.sizes
            columns = [keys.of(self._data), _cells(middles), *columns]
        columns = [_cells(heads), *columns]
        parts: list[bytes] = [b""] * (len(columns) * count)
        for number, column in enumerate(columns):
            parts[number :: len(columns)] = column
        parts[0] = parts[0][len(NO_EVENT) :]
        parts.append(NO_EVENT)
        return b"".join(parts)


def _repeated(row: bytes, count: int) -> Rows:
    return Rows(bytearray(row) * count, 0, count, len(row))


def _cells(rows: Rows) -> list[bytes]:
    """Each row."""
    cells: list[Any] = np.frombuffer(rows.data, np.dtype((np.void, rows.size))).tolist()
    return cells
