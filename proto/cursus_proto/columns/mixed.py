"""Record sets whose records differ in size, or in what they have.

Where the fields of a record begin depends on the lengths before them, so they are not at equal distances as in a table.
But protobuf cuts a set into its records, and from then on the same step can be taken in all records at once: writers
put the fields in the order of their numbers, so each step is one field, in those records that have it. What is left to
the parser: fields in another order, more than once, or unknown; numbers that are too long; names of headers that are
not ASCII.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from google.protobuf.message import DecodeError

from cursus_proto.columns.found import Columns, Headers, Numbered, Places, Spans
from cursus_proto.columns.headers import find_headers
from cursus_proto.columns.walking import Octets, at, numbers_at, octets_of, spans_at
from cursus_proto.internal.v1.opaque_pb2 import RecordSet
from cursus_proto.shapes import FREE_BYTES, NUMBERS, SIZED, VARINT
from cursus_proto.v1.records_pb2 import Record

# All fields of a record and their tags, in the order in which they are written.
_TAGS: Final = tuple(
    (field, field << 3 | (VARINT if field in NUMBERS else SIZED))
    for field in sorted((*FREE_BYTES, *NUMBERS, Record.HEADERS_FIELD_NUMBER))
)
# From these sizes on the length before a record takes a byte more.
_LONGER_FROM: Final = (1 << 7, 1 << 14, 1 << 21, 1 << 28)
# Says that nothing more is there: no field has this tag.
_NOTHING: Final = 0


def find_mixed(packed: bytes) -> Columns | None:
    """The columns of a plain set; None if it has to be parsed."""
    try:
        bodies = RecordSet.FromString(packed).records
    except DecodeError:
        return None
    if not bodies:
        return None
    sizes = np.fromiter(map(len, bodies), np.int64, len(bodies))
    whole = sizes + 2
    for longer in _LONGER_FROM:
        if int(sizes.max()) < longer:
            break
        whole += sizes >= longer
    ends = np.cumsum(whole)
    # Tags and lengths take no less than this. So if all of it is the whole set, nothing else is in it, and every record
    # is where it should be.
    if int(ends[-1]) != len(packed):
        return None
    return _Walk(packed, octets_of(packed), ends - sizes, ends).columns()


class _Walk:
    """How far each record was read."""

    def __init__(self, packed: bytes, octets: Octets, places: Places, ends: Places) -> None:
        self._packed = packed
        self._octets = octets
        self._ends = ends
        self._go_to(places)

    def _go_to(self, places: Places) -> None:
        self._places = places
        # The tag at which each record is.
        self._tags = np.where(places < self._ends, at(self._octets, places), np.uint8(_NOTHING))

    def columns(self) -> Columns | None:
        spans: dict[int, Spans] = {}
        numbered: dict[int, Numbered] = {}
        headers: Headers | None = None
        for field, tag in _TAGS:
            having = self._tags == tag
            if not having.any():
                continue
            if field in NUMBERS:
                number = numbers_at(self._octets, self._places, self._ends, having)
                if number is None:
                    return None
                numbered[field], after = number
            elif field == Record.HEADERS_FIELD_NUMBER:
                found = find_headers(self._packed, self._places, self._ends)
                if found is None:
                    return None
                headers, after = found
            else:
                span = spans_at(self._octets, self._places, self._ends, having)
                if span is None:
                    return None
                spans[field], after = span, span.ends
            self._go_to(after)
            if not self._tags.any():
                break
        if (self._places != self._ends).any():
            return None
        return Columns(self._packed, len(self._ends), spans, numbered, headers)
