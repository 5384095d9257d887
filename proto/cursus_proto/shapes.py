"""The shape of a record: which fields it has, where each begins and how long it is.

In most sets all records have one shape, so that a field is at the same place in all of them. Who relies on that takes
the shape of the first record and compares every byte of structure in all others. `uniform.py` does so with slices of
bytes, for clients; `columns/table.py` with numpy.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

from google.protobuf.message import DecodeError

from cursus_proto.v1.records_pb2 import Record, RecordSet

Encoded: TypeAlias = bytes | bytearray

# A record with more than this is for the parser: it is mostly headers.
_MAX_FIELDS: Final = 24

RECORD_TAG: Final = RecordSet.RECORDS_FIELD_NUMBER << 3 | 2
VARINT: Final = 0
SIZED: Final = 2
FREE_BYTES: Final = frozenset(
    {Record.KEY_FIELD_NUMBER, Record.VALUE_FIELD_NUMBER, Record.EVENT_TYPE_FIELD_NUMBER, Record.METADATA_FIELD_NUMBER}
)
"""Fields that may hold any bytes, so that only their tags and lengths are structure."""
NUMBERS: Final = frozenset(
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


class Field(NamedTuple):
    """A field of a record. Places are counted from the record's first byte in the set."""

    number: int
    tag_at: int
    at: int
    """Where its content begins."""
    size: int

    @property
    def end(self) -> int:
        return self.at + self.size


class Shape(NamedTuple):
    """A record of `record_bytes` bytes, tag and length included. Only headers come more than once."""

    record_bytes: int
    fields: tuple[Field, ...]

    def field(self, number: int) -> Field | None:
        """The field with this number, which is not that of headers."""
        return next((field for field in self.fields if field.number == number), None)


class _ForTheParser(Exception):
    """The record is not of a kind known here."""


def shape_of(record: Encoded) -> Shape | None:
    """The shape of a set's first record, which has to be all of `record`. None if it is for the parser."""
    try:
        return _walk(record)
    except (IndexError, _ForTheParser):  # it ends in the middle of something, or is strange
        return None


def first_record_bytes(packed: Encoded) -> int | None:
    """How long a set's first record is, tag and length included. None if it is for the parser."""
    try:
        if packed[0] != RECORD_TAG:
            return None
        length, at = _read_length(packed, 1)
    except (IndexError, _ForTheParser):
        return None
    return at + length


def _walk(record: Encoded) -> Shape:
    size = len(record)
    if record[0] != RECORD_TAG:
        raise _ForTheParser
    length, at = _read_length(record, 1)
    if at + length != size:
        raise _ForTheParser
    fields: list[Field] = []
    seen = 0
    while at < size:
        # A tag of more than a byte belongs to no field of a record.
        tag = record[at]
        number, kind, content_at = tag >> 3, tag & 7, at + 1
        if kind == SIZED and (number in FREE_BYTES or number == Record.HEADERS_FIELD_NUMBER):
            length, content_at = _read_length(record, content_at)
        elif kind == VARINT and number in NUMBERS:
            length = _end_of_number(record, content_at) - content_at
        else:
            raise _ForTheParser
        # Of several values the last one counts.
        if (seen >> number & 1 and number != Record.HEADERS_FIELD_NUMBER) or len(fields) == _MAX_FIELDS:
            raise _ForTheParser
        seen |= 1 << number
        fields.append(Field(number, at, content_at, length))
        at = content_at + length
    # Of headers it is not known here whether they are sound.
    if at != size or (seen >> Record.HEADERS_FIELD_NUMBER & 1 and not _parses(record)):
        raise _ForTheParser
    return Shape(size, tuple(fields))


def _end_of_number(record: Encoded, at: int) -> int:
    end = at
    while record[end] > 0x7F:
        end += 1
    end += 1
    if end - at > _MAX_NUMBER_BYTES:
        raise _ForTheParser
    return end


def _read_length(record: Encoded, at: int) -> tuple[int, int]:
    """The length that stands there, and where it ends."""
    length = record[at]
    if length < 0x80:
        return length, at + 1
    end = _end_of_number(record, at)
    length = 0
    for byte in reversed(record[at:end]):
        length = length << 7 | byte & 0x7F
    if record[end - 1] == 0:
        raise _ForTheParser  # longer than it need be, which parsers take only up to a point
    return length, end


def _parses(record: Encoded) -> bool:
    """Headers are the same in every record, so they are sound in all if they are in one."""
    try:
        RecordSet.FromString(bytes(record))
    except DecodeError:
        return False
    return True
