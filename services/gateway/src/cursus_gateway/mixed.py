"""Record sets whose records differ in size, read and written as legacy messages a column at a time.

Where the fields of a record begin depends on the lengths before them, so they are not at equal distances as in a table.
But protobuf cuts a set into its records, and from then on the same step can be taken in all records at once: numpy
finds where key, payload and sequence of each begin. Records with anything else are left to the general way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from cursus_gateway.columns import Numbers, Rows, counted
from cursus_gateway.records import EPOCH_PAYLOAD, LENGTH, MIN_MESSAGE_BYTES, NO_EVENT
from cursus_gateway.tables import KEY, SEQUENCE, VALUE
from cursus_proto.internal.v1.opaque_pb2 import RecordSet

Places: TypeAlias = NDArray[np.int64]

_LONGEST_KEY: Final = 0xFFFF
# A number below 2**49. No producer counts farther.
_LONGEST_SEQUENCE: Final = 7
# Looking for a length behind the last byte finds something.
_PADDING: Final = bytes(_LONGEST_SEQUENCE + 1)
_U16: Final = np.dtype(">u2")
_U32: Final = np.dtype(">u4")


@dataclass(frozen=True, slots=True)
class Mixed:
    """Records that were checked."""

    count: int
    sequences: Numbers | None
    """None if the records hold none."""
    _records: bytes
    """All of them, without what stands between them."""
    _keys: Stretches | None
    """None if no record has a key."""
    _payloads: Stretches

    @classmethod
    def of(cls, packed: bytes) -> Mixed | None:
        """The records of a plain set; None if one of them has more than key, payload and sequence."""
        try:
            bodies = RecordSet.FromString(packed).records
        except DecodeError:
            return None
        records = b"".join((*bodies, _PADDING))
        octets = np.frombuffer(records, np.uint8)
        sizes = np.fromiter(map(len, bodies), np.int64, len(bodies))
        ends = np.cumsum(sizes)
        at = ends - sizes
        keys: Stretches | None = None
        with_key = octets[at] == KEY
        if with_key.any():
            found = _sized(octets, at, ends)
            if found is None or (found.sizes[with_key] > _LONGEST_KEY).any():
                return None
            keys = Stretches(np.where(with_key, found.begins, at), np.where(with_key, found.sizes, 0))
            at = keys.ends
        payloads = _sized(octets, at, ends)
        if payloads is None or not (octets[at] == VALUE).all():
            return None
        sequences: Numbers | None = None
        if (payloads.ends < ends).any():
            sequences = _sequences(octets, payloads.ends, ends)
            if sequences is None:
                return None
        return cls(len(bodies), sequences, records, keys, payloads)

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
        columns = [payloads.of(self._records)]
        if self._keys is not None:
            keys = self._keys.part(begin, end)
            heads.column(heads.size - LENGTH.size, _U16)[:] = keys.sizes
            columns = [keys.of(self._records), _cells(middles), *columns]
        columns = [_cells(heads), *columns]
        parts: list[bytes] = [b""] * (len(columns) * count)
        for number, column in enumerate(columns):
            parts[number :: len(columns)] = column
        parts[0] = parts[0][len(NO_EVENT) :]
        parts.append(NO_EVENT)
        return b"".join(parts)


@dataclass(frozen=True, slots=True)
class Stretches:
    """Where the same field of each record is."""

    begins: Places
    sizes: Places

    @property
    def ends(self) -> Places:
        return self.begins + self.sizes

    def part(self, begin: int, end: int) -> Stretches:
        return Stretches(self.begins[begin:end], self.sizes[begin:end])

    def of(self, data: bytes) -> list[bytes]:
        return [data[begin:end] for begin, end in zip(self.begins.tolist(), self.ends.tolist(), strict=True)]


def _sized(octets: NDArray[np.uint8], at: Places, ends: Places) -> Stretches | None:
    """The contents of the fields whose tags are there, if all of them are within their records."""
    # Lengths of up to three bytes, which is more than a batch may have.
    first, second, third = (octets[at + place].astype(np.int64) for place in (1, 2, 3))
    two = first >= 0x80
    three = two & (second >= 0x80)
    sizes = first & 0x7F
    sizes += np.where(two, (second & 0x7F) << 7, 0) + np.where(three, third << 14, 0)
    found = Stretches(at + 2 + two + three, sizes)
    if (three & (third >= 0x80)).any() or (found.ends > ends).any():
        return None
    return found


def _sequences(octets: NDArray[np.uint8], at: Places, ends: Places) -> Numbers | None:
    """The number between the two places in each record, if it is a sequence and nothing else."""
    sizes = ends - at - 1
    longest = int(sizes.max())
    if int(sizes.min()) < 1 or longest > _LONGEST_SEQUENCE or not (octets[at] == SEQUENCE).all():
        return None
    numbers = np.zeros(len(at), np.uint64)
    for place in range(longest):
        byte = octets[at + (1 + place)]
        inside = place < sizes
        # It goes on in every byte but the last.
        if not ((byte >= 0x80) == (place < sizes - 1))[inside].all():
            return None
        numbers |= np.where(inside, byte & 0x7F, 0).astype(np.uint64) << np.uint64(7 * place)
    return numbers


def _repeated(row: bytes, count: int) -> Rows:
    return Rows(bytearray(row) * count, 0, count, len(row))


def _cells(rows: Rows) -> list[bytes]:
    """Each row."""
    cells: list[Any] = np.frombuffer(rows.data, np.dtype((np.void, rows.size))).tolist()
    return cells
