"""Cutting the values out of a set whose records all have one shape, without parsing it.

Most sets are like that: records of one size, with keys of one size or none. Where every tag and every length stands in
the same place in all of them, a value is a slice at a fixed distance, and a set is cut in a tenth of the time that
parsing takes. Nothing is assumed: the shape is that of the first record, and every byte of structure is compared in
all others, a column at a time. What is answered here is what protobuf's own parser would answer, which tests compare
also for damaged and contrived sets; whatever is not understood is left to the parser.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import chain
from struct import Struct
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from cursus_proto.v1.records_pb2 import Record, RecordSet

# Below this a set is parsed faster than its shape is compared.
_MIN_RECORDS: Final = 64

# Above this the structure of a record is not worth a column for each of its bytes.
_MAX_STRUCTURE_BYTES: Final = 64

# How many values are cut with one call.
_CUT_TOGETHER: Final = 64

_RECORD_TAG: Final = RecordSet.RECORDS_FIELD_NUMBER << 3 | 2
_VARINT, _SIZED = 0, 2
_FREE_BYTES: Final = frozenset(
    {Record.KEY_FIELD_NUMBER, Record.VALUE_FIELD_NUMBER, Record.EVENT_TYPE_FIELD_NUMBER, Record.METADATA_FIELD_NUMBER}
)
"""Fields that may hold any bytes, so that only their tags and lengths are structure."""
_NUMBERS: Final = frozenset(
    {
        Record.TIMESTAMP_MS_FIELD_NUMBER,
        Record.SCHEMA_VERSION_FIELD_NUMBER,
        Record.AGGREGATE_VERSION_FIELD_NUMBER,
        Record.SEQUENCE_FIELD_NUMBER,
        Record.EPOCH_FIELD_NUMBER,
    }
)
# A number of ten bytes can be too large, and of eleven is none.
_MAX_NUMBER_BYTES: Final = 9


class _Shape(NamedTuple):
    """Where things stand in a record, counted from its first byte."""

    record_bytes: int
    value_at: int
    value_bytes: int
    same: tuple[int, ...]
    """Bytes that must be the same in every record: tags, lengths, and what only the parser understands."""
    goes_on: tuple[int, ...]
    """Bytes of numbers that are not their last: the high bit is set."""
    ends: tuple[int, ...]
    """Last bytes of numbers: it is not."""


def cut_values(packed: bytes, count: int) -> list[bytes] | None:
    """The values of a plain set of `count` records, if they have one shape; None if the set has to be parsed.

    >>> from cursus_proto.records import pack
    >>> cut_values(pack(Record(key=b"k%d" % (n % 10), value=b"%04d" % n) for n in range(1000)), 1000)[998:]
    [b'0998', b'0999']
    """
    if count < _MIN_RECORDS or len(packed) % count:
        return None
    size = len(packed) // count
    shape = _shape_of(packed[:size])
    if shape is None or not _fits(shape, packed, count):
        return None
    record_bytes, value_at, value_bytes, *_ = shape
    one, many = _knives(value_at, value_bytes, record_bytes - value_at - value_bytes)
    together = len(packed) - len(packed) % many.size
    values = list(chain.from_iterable(many.iter_unpack(memoryview(packed)[:together])))
    values += chain.from_iterable(one.iter_unpack(memoryview(packed)[together:]))
    return values


@lru_cache(maxsize=64)
def _knives(before: int, value_bytes: int, after: int) -> tuple[Struct, Struct]:
    record = f"{before}x{value_bytes}s{after}x"
    return Struct(record), Struct(record * _CUT_TOGETHER)


def _fits(shape: _Shape, packed: bytes, count: int) -> bool:
    """Whether all records have the shape of the first."""
    size = shape.record_bytes
    for place in shape.same:
        if packed[place::size] != packed[place : place + 1] * count:
            return False
    # A column has the high bit set nowhere if it is ASCII, and everywhere if nothing is left without the others.
    return all(packed[place::size].isascii() for place in shape.ends) and not any(
        packed[place::size].translate(None, _HIGH) for place in shape.goes_on
    )


_HIGH: Final = bytes(range(0x80, 0x100))


class _ForTheParser(Exception):
    """The record is not of a kind known here."""


def _shape_of(record: bytes) -> _Shape | None:
    """The shape of a set's first record, which has to be all of `record`. None if it is for the parser."""
    try:
        return _walk(record)
    except (IndexError, _ForTheParser):  # it ends in the middle of something, or is strange
        return None


def _walk(record: bytes) -> _Shape:
    if record[0] != _RECORD_TAG:
        raise _ForTheParser
    length, at = _length(record, 1)
    if at + length != len(record):
        raise _ForTheParser
    same, goes_on, ends = list(range(at)), list[int](), list[int]()
    values: list[tuple[int, int]] = []
    needs_proof = False
    while at < len(record):
        # A tag of more than a byte belongs to no field of a record.
        field, kind, content_at = record[at] >> 3, record[at] & 7, at + 1
        if kind == _VARINT and field in _NUMBERS:
            same.append(at)
            at = _end_of_number(record, content_at)
            goes_on += range(content_at, at - 1)
            ends.append(at - 1)
        elif kind == _SIZED and field in _FREE_BYTES:
            length, content_at = _length(record, content_at)
            same += range(at, content_at)
            at = content_at + length
            if field == Record.VALUE_FIELD_NUMBER:
                values.append((content_at, length))
        elif kind == _SIZED and field == Record.HEADERS_FIELD_NUMBER:
            length, content_at = _length(record, content_at)
            same += range(at, content_at + length)
            at = content_at + length
            needs_proof = True
        else:
            raise _ForTheParser
        if len(same) + len(goes_on) + len(ends) > _MAX_STRUCTURE_BYTES:
            raise _ForTheParser
    # Of several values the last one counts, and of headers it is not known here whether they are sound.
    if at != len(record) or len(values) > 1 or (needs_proof and not _parses(record)):
        raise _ForTheParser
    value_at, value_bytes = values[0] if values else (len(record), 0)
    return _Shape(len(record), value_at, value_bytes, tuple(same), tuple(goes_on), tuple(ends))


def _end_of_number(record: bytes, at: int) -> int:
    end = at
    while record[end] > 0x7F:
        end += 1
    end += 1
    if end - at > _MAX_NUMBER_BYTES:
        raise _ForTheParser
    return end


def _length(record: bytes, at: int) -> tuple[int, int]:
    """The length that stands there, and where it ends."""
    end = _end_of_number(record, at)
    length = 0
    for byte in reversed(record[at:end]):
        length = length << 7 | byte & 0x7F
    if end - at > 1 and record[end - 1] == 0:
        raise _ForTheParser  # longer than it need be, which parsers take only up to a point
    return length, end


def _parses(record: bytes) -> bool:
    """Headers are the same in every record, so they are sound in all if they are in one."""
    try:
        RecordSet.FromString(record)
    except DecodeError:
        return False
    return True
