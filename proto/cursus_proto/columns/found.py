"""What is found of the records in a set: places, numbers, and who has which.

Nothing here holds a record's bytes. A column says where they are in `Columns.data`, so that an Arrow array, or messages
of another protocol, can be made from all of them at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cursus_proto.v1.records_pb2 import Record

Places: TypeAlias = NDArray[np.int64]
Mask: TypeAlias = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Spans:
    """Where the same field of each record, or header, is. Where it is absent its size is 0.

    `begins` never goes back, so contents and what lies between them have ascending offsets, as Arrow wants them.
    Absence means something only where the contract gives a field presence; elsewhere it is the same as nothing.
    """

    begins: Places
    sizes: Places
    absent: Mask | None = None
    """None: nobody is without."""

    @property
    def ends(self) -> Places:
        return self.begins + self.sizes

    @property
    def present(self) -> Mask:
        return np.ones(len(self.begins), np.bool_) if self.absent is None else ~self.absent

    def part(self, begin: int, end: int) -> Spans:
        """The records from `begin` to `end`."""
        absent = None if self.absent is None else self.absent[begin:end]
        return Spans(self.begins[begin:end], self.sizes[begin:end], absent)

    def of(self, data: bytes) -> list[bytes]:
        """The contents themselves, empty where they are absent."""
        return [data[begin:end] for begin, end in zip(self.begins.tolist(), self.ends.tolist(), strict=True)]

    @classmethod
    def nowhere(cls, count: int) -> Spans:
        """Of a field that nobody has."""
        return cls(np.zeros(count, np.int64), np.zeros(count, np.int64), np.ones(count, np.bool_))


@dataclass(frozen=True, slots=True)
class Numbered:
    """The same number of each record as 64 bits; 0 where it is absent."""

    numbers: NDArray[np.uint64]
    absent: Mask | None = None
    """None: nobody is without."""


@dataclass(frozen=True, slots=True)
class Headers:
    """The headers of all records, one after the other: those of record `i` from `offsets[i]` to `offsets[i + 1]`."""

    offsets: Places
    names: Spans
    """UTF-8, which was checked."""
    values: Spans


@dataclass(frozen=True, slots=True)
class Columns:
    """The records of a set. A column that nobody has costs nothing until it is asked for."""

    data: bytes
    """What the spans are places in."""
    count: int
    spans: Mapping[int, Spans]
    """By field number. Fields that no record has are not in here."""
    numbered: Mapping[int, Numbered]
    headers: Headers | None
    """None: no record has any."""

    @property
    def fields(self) -> frozenset[int]:
        """The numbers of all fields that some record has."""
        headers = () if self.headers is None else (Record.HEADERS_FIELD_NUMBER,)
        return frozenset((*self.spans, *self.numbered, *headers))

    @property
    def keys(self) -> Spans:
        return self._spans(Record.KEY_FIELD_NUMBER)

    @property
    def values(self) -> Spans:
        """Absent: null."""
        return self._spans(Record.VALUE_FIELD_NUMBER)

    @property
    def event_types(self) -> Spans:
        return self._spans(Record.EVENT_TYPE_FIELD_NUMBER)

    @property
    def metadata(self) -> Spans:
        return self._spans(Record.METADATA_FIELD_NUMBER)

    @property
    def timestamps_ms(self) -> NDArray[np.int64]:
        """As the producers stated them; 0: not stated."""
        return self._numbers(Record.TIMESTAMP_MS_FIELD_NUMBER).view(np.int64)

    @property
    def schema_versions(self) -> NDArray[np.uint32]:
        return self._numbers(Record.SCHEMA_VERSION_FIELD_NUMBER).astype(np.uint32)

    @property
    def aggregate_versions(self) -> NDArray[np.uint64]:
        return self._numbers(Record.AGGREGATE_VERSION_FIELD_NUMBER)

    def _spans(self, field: int) -> Spans:
        found = self.spans.get(field)
        return Spans.nowhere(self.count) if found is None else found

    def _numbers(self, field: int) -> NDArray[Any]:
        found = self.numbered.get(field)
        return np.zeros(self.count, np.uint64) if found is None else found.numbers
