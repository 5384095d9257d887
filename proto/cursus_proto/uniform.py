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
from typing import Final

from cursus_proto.shapes import NUMBERS, Shape, shape_of
from cursus_proto.v1.records_pb2 import Record

# Below this a set is parsed faster than its shape is compared.
_MIN_RECORDS: Final = 64

# Above this the structure of a record is not worth a column for each of its bytes.
_MAX_STRUCTURE_BYTES: Final = 64

# How many values are cut with one call.
_CUT_TOGETHER: Final = 64


def cut_values(packed: bytes, count: int) -> list[bytes | None] | None:
    """The values of a plain set of `count` records, if they have one shape; None if the set has to be parsed. A set of
    nulls gives a None for each.

    >>> from cursus_proto.records import pack
    >>> cut_values(pack(Record(key=b"k%d" % (n % 10), value=b"%04d" % n) for n in range(1000)), 1000)[998:]
    [b'0998', b'0999']
    """
    if count < _MIN_RECORDS or len(packed) % count:
        return None
    size = len(packed) // count
    shape = shape_of(packed[:size])
    if shape is None or not _fits(shape, packed, count):
        return None
    value = shape.field(Record.VALUE_FIELD_NUMBER)
    if value is None:
        return [None] * count
    one, many = _knives(value.at, value.size, size - value.end)
    together = len(packed) - len(packed) % many.size
    values: list[bytes | None] = list(chain.from_iterable(many.iter_unpack(memoryview(packed)[:together])))
    values += chain.from_iterable(one.iter_unpack(memoryview(packed)[together:]))
    return values


@lru_cache(maxsize=64)
def _knives(before: int, value_bytes: int, after: int) -> tuple[Struct, Struct]:
    record = f"{before}x{value_bytes}s{after}x"
    return Struct(record), Struct(record * _CUT_TOGETHER)


def _fits(shape: Shape, packed: bytes, count: int) -> bool:
    """Whether all records have the shape of the first."""
    size, fields = shape
    # Bytes that must be the same in every record: tags, lengths, and what only the parser understands.
    same = list(range(fields[0].tag_at if fields else size))
    # Of numbers all but the last byte have the high bit set.
    goes_on: list[int] = []
    ends: list[int] = []
    for field in fields:
        if field.number in NUMBERS:
            same.append(field.tag_at)
            goes_on += range(field.at, field.end - 1)
            ends.append(field.end - 1)
        else:
            same += range(field.tag_at, field.end if field.number == Record.HEADERS_FIELD_NUMBER else field.at)
        if len(same) + len(goes_on) + len(ends) > _MAX_STRUCTURE_BYTES:
            return False
    for place in same:
        if packed[place::size] != packed[place : place + 1] * count:
            return False
    # A column has the high bit set nowhere if it is ASCII, and everywhere if nothing is left without the others.
    return all(packed[place::size].isascii() for place in ends) and not any(
        packed[place::size].translate(None, _HIGH) for place in goes_on
    )


_HIGH: Final = bytes(range(0x80, 0x100))
