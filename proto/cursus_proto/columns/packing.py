"""Packing columns into a record set, without going from row to row in Python.

Records of one shape are a table of bytes, filled a column at a time. Of others the pieces are joined: what stands
before a key or value is looked up by its length. The bytes are those that `records.encode_record` writes, which tests
compare: the same rows always become the same set.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from struct import Struct
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cursus_proto.records import encode_record, varint

Octets = NDArray[np.uint8]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

Header = tuple[str, bytes | None]

Details = tuple[bytes, int, int, bytes]
"""What few records have: event type, schema version, aggregate version, metadata; empty or 0 where not stated."""
NO_DETAILS: Final[Details] = (b"", 0, 0, b"")

# Tags of the fields, as in records.py.
_RECORD: Final = b"\x0a"
_KEY: Final = b"\x0a"
_VALUE: Final = b"\x12"
_TIMESTAMP_MS: Final = b"\x18"

_LONGEST_VARINT: Final = 10


@dataclass(frozen=True, slots=True)
class Binary:
    """A column of bytes: one value behind the other in `data`."""

    data: Octets
    lengths: Ints
    """0 where not present."""
    present: Bools | None = None
    """None: everywhere."""

    @classmethod
    def of(cls, values: Sequence[bytes | None]) -> Binary:
        """For tests and small sets."""
        present = np.array([value is not None for value in values], np.bool_)
        lengths = np.array([len(value or b"") for value in values], np.int64)
        return cls(np.frombuffer(b"".join(value or b"" for value in values), np.uint8), lengths, present)

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def starts(self) -> Ints:
        starts: Ints = np.cumsum(self.lengths) - self.lengths
        return starts

    def size(self) -> int | None:
        """The size of every value, if they have one and none is absent."""
        if self.present is not None and not self.present.all():
            return None
        first = int(self.lengths[0])
        return first if (self.lengths == first).all() else None

    def pieces(self) -> list[bytes]:
        """The values, absent ones as empty."""
        data = self.data.tobytes()
        ends = np.cumsum(self.lengths)
        return [data[begin:end] for begin, end in zip((ends - self.lengths).tolist(), ends.tolist(), strict=True)]


def pack(
    values: Binary,
    *,
    keys: Binary | None = None,
    timestamps_ms: Ints | None = None,
    headers: Sequence[Iterable[Header]] | None = None,
    details: Sequence[Details] | None = None,
) -> bytes:
    """The bytes of a plain set of at least one record. A timestamp of 0 is none.

    >>> from cursus_proto.records import unpack
    >>> [record.value for record in unpack(pack(Binary.of([b"a", b"", b"ccc"])))]
    [b'a', b'', b'ccc']
    """
    if keys is not None and keys.present is not None and not keys.present.any():
        keys = None
    if timestamps_ms is not None and not timestamps_ms.any():
        timestamps_ms = None
    if headers is not None and not any(headers):
        headers = None
    if headers is not None or details is not None:
        return _one_by_one(values, keys, timestamps_ms, headers, details)
    packed = _table(values, keys, timestamps_ms)
    return _joined(values, keys, timestamps_ms) if packed is None else packed


def _one_by_one(
    values: Binary,
    keys: Binary | None,
    timestamps_ms: Ints | None,
    headers: Sequence[Iterable[Header]] | None,
    details: Sequence[Details] | None,
) -> bytes:
    count = len(values)
    return b"".join(
        encode_record(
            value,
            key=key,
            timestamp_ms=time,
            headers=attached,
            event_type=event_type,
            schema_version=schema_version,
            aggregate_version=aggregate_version,
            metadata=metadata,
        )
        for value, key, time, attached, (event_type, schema_version, aggregate_version, metadata) in zip(
            _nullable(values),
            [None] * count if keys is None else _nullable(keys),
            [0] * count if timestamps_ms is None else timestamps_ms.tolist(),
            [()] * count if headers is None else headers,
            [NO_DETAILS] * count if details is None else details,
            strict=True,
        )
    )


def _nullable(column: Binary) -> list[bytes | None]:
    present = [True] * len(column) if column.present is None else column.present.tolist()
    return [piece if there else None for piece, there in zip(column.pieces(), present, strict=True)]


def _table(values: Binary, keys: Binary | None, timestamps_ms: Ints | None) -> bytes | None:
    """The set, if its records have one shape."""
    value_bytes = values.size()
    key_bytes = 0 if keys is None else keys.size()
    if value_bytes is None or key_bytes is None:
        return None
    count = len(values)
    time_bytes = 0
    if timestamps_ms is not None:
        sizes = _varint_sizes(timestamps_ms)
        time_bytes = int(sizes[0])
        if not timestamps_ms.all() or (sizes != time_bytes).any():
            return None
    key_head = b"" if keys is None else _head(_KEY, key_bytes)
    value_head = _head(_VALUE, value_bytes)
    time_head = _TIMESTAMP_MS if time_bytes else b""
    body = len(key_head) + key_bytes + len(value_head) + value_bytes + len(time_head) + time_bytes
    parts: list[bytes | Octets] = [_head(_RECORD, body) + key_head]
    if keys is not None:
        parts.append(keys.data.reshape(count, key_bytes))
    parts += [value_head, values.data.reshape(count, value_bytes)]
    if timestamps_ms is not None:
        parts += [time_head, _varints(timestamps_ms, time_bytes)]
    table = np.empty((count, len(_head(_RECORD, body)) + body), np.uint8)
    at = 0
    for part in parts:
        if isinstance(part, bytes):
            width = len(part)
            table[:, at : at + width] = np.frombuffer(part, np.uint8)
        else:
            width = part.shape[1]
            table[:, at : at + width] = part
        at += width
    return table.tobytes()


def _joined(values: Binary, keys: Binary | None, timestamps_ms: Ints | None) -> bytes:
    """The set from its pieces. What a record lacks is an empty piece."""
    heads, bodies = _heads(_VALUE, values)
    columns: list[Iterable[bytes]] = [heads, values.pieces()]
    if keys is not None:
        key_heads, key_bodies = _heads(_KEY, keys)
        bodies += key_bodies
        columns = [key_heads, keys.pieces(), *columns]
    if timestamps_ms is not None:
        times, sizes = _times(timestamps_ms)
        bodies += sizes
        columns.append(times)
    columns.insert(0, _looked_up(_RECORD, bodies))
    return b"".join(chain.from_iterable(zip(*columns, strict=True)))


def _heads(tag: bytes, column: Binary) -> tuple[list[bytes], Ints]:
    """What stands before each value, and the size of both together: nothing and 0 for an absent one."""
    heads = _looked_up(tag, column.lengths)
    sizes = column.lengths + 1 + _varint_sizes(column.lengths)
    if column.present is not None and not column.present.all():
        sizes = np.where(column.present, sizes, 0)
        for row in np.flatnonzero(~column.present).tolist():
            heads[row] = b""
    return heads, sizes


def _looked_up(tag: bytes, lengths: Ints) -> list[bytes]:
    table = {length: _head(tag, length) for length in np.unique(lengths).tolist()}
    return list(map(table.__getitem__, lengths.tolist()))


def _times(timestamps_ms: Ints) -> tuple[list[bytes], Ints]:
    sizes = _varint_sizes(timestamps_ms)
    pieces = [b""] * len(timestamps_ms)
    present = timestamps_ms != 0
    for size in np.unique(sizes[present]).tolist():
        rows = np.flatnonzero(present & (sizes == size))
        encoded = np.empty((len(rows), size + 1), np.uint8)
        encoded[:, 0] = _TIMESTAMP_MS[0]
        encoded[:, 1:] = _varints(timestamps_ms[rows], size)
        cut = chain.from_iterable(Struct(f"{size + 1}s").iter_unpack(encoded.tobytes()))
        for row, piece in zip(rows.tolist(), cut, strict=True):
            pieces[row] = piece
    return pieces, np.where(present, sizes + 1, 0)


@lru_cache(maxsize=4096)
def _head(tag: bytes, length: int) -> bytes:
    return tag + varint(length)


def _varint_sizes(numbers: Ints) -> Ints:
    sizes = np.ones(len(numbers), np.int64)
    for place in range(1, _LONGEST_VARINT - 1):
        sizes += numbers >= 1 << 7 * place
    sizes[numbers < 0] = _LONGEST_VARINT
    return sizes


def _varints(numbers: Ints, size: int) -> Octets:
    """Numbers whose varints have `size` bytes, a row each."""
    shifts = np.arange(size, dtype=np.uint64) * np.uint64(7)
    table = (numbers.astype(np.uint64)[:, None] >> shifts) & np.uint64(0x7F)
    table[:, :-1] |= np.uint64(0x80)
    return table.astype(np.uint8)
