"""Columns of any record set, from protobuf's own parser."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from cursus_proto import records as record_sets
from cursus_proto.columns.found import Columns, Headers, Mask, Numbered, Spans
from cursus_proto.shapes import FREE_BYTES, NUMBERS
from cursus_proto.v1.records_pb2 import Header, Record

_FIELDS: Final = {field.number: field for field in Record.DESCRIPTOR.fields}
_ALL_BITS: Final = 2**64 - 1


def parse(packed: bytes) -> Columns:
    """The columns of a plain set. Raises MalformedRecordSet."""
    records = record_sets.unpack(packed)
    contents = _Contents()
    spans: dict[int, Spans] = {}
    numbered: dict[int, Numbered] = {}
    for field in sorted(FREE_BYTES | NUMBERS):
        absent = _absent(records, _FIELDS[field].name, presence=_FIELDS[field].has_presence)
        if absent is not None and absent.all():
            continue
        found = [getattr(record, _FIELDS[field].name) for record in records]
        if field in NUMBERS:
            numbers = np.fromiter((number & _ALL_BITS for number in found), np.uint64, len(found))
            numbered[field] = Numbered(numbers, absent)
        else:
            spans[field] = contents.add(found, absent)
    headers: Headers | None = None
    every = [header for record in records for header in record.headers]
    if every:
        offsets = np.zeros(len(records) + 1, np.int64)
        np.cumsum([len(record.headers) for record in records], out=offsets[1:])
        names = contents.add([header.key.encode() for header in every], None)
        values = contents.add([header.value for header in every], _absent(every, "value", presence=True))
        headers = Headers(offsets, names, values)
    return Columns(b"".join(contents.parts), len(records), spans, numbered, headers)


def _absent(messages: Sequence[Record] | Sequence[Header], field: str, *, presence: bool) -> Mask | None:
    """Which of them are without the field; None if none is. Where absence cannot be told from 0 or nothing, those."""
    if presence:
        has = (message.HasField(field) for message in messages)  # type: ignore[arg-type]  # a name that has presence
    else:
        has = (bool(getattr(message, field)) for message in messages)
    absent = ~np.fromiter(has, np.bool_, len(messages))
    return absent if absent.any() else None


class _Contents:
    """Contents one behind the other, as what spans are places in."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self._end = 0

    def add(self, contents: list[bytes], absent: Mask | None) -> Spans:
        sizes = np.fromiter(map(len, contents), np.int64, len(contents))
        ends = self._end + np.cumsum(sizes)
        self.parts += contents
        self._end += int(sizes.sum())
        return Spans(ends - sizes, sizes, absent)
