"""Taking record sets out of encoded responses without copying them.

Protobuf's own parser copies every set into its message, and whoever asks for it gets another copy. Here a set is a view
of the bytes that arrived, and only the small fields around it are parsed. What is answered is what the parser would
answer, which tests compare also for fields in any order: a response that is not laid out as brokers do it, every set
behind the other fields of its batch, is left to the parser.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeAlias, cast

from google.protobuf.message import DecodeError

from cursus_proto.internal.v1.opaque_pb2 import (
    ConsumedBatches,
    ConsumeResponse,
    FetchedPartition,
    FetchResponse,
    RecordBatch,
)
from cursus_proto.records import read_varint, unpack
from cursus_proto.v1.records_pb2 import Record

Encoded: TypeAlias = bytes | bytearray

# Where a set begins if its batch has all fields and a producer id as long as it may be, with room for fields to come.
_LONGEST_FIELDS: Final = 256


class _Kind:
    """How a field is encoded, the lowest bits of its tag."""

    VARINT = 0
    EIGHT_BYTES = 1
    SIZED = 2
    FOUR_BYTES = 5


def _tag(field: int) -> int:
    return field << 3 | _Kind.SIZED


_SET: Final = bytes((_tag(RecordBatch.RECORDS_FIELD_NUMBER),))
_FETCHED_PARTITION: Final = _tag(FetchResponse.PARTITIONS_FIELD_NUMBER)
_FETCHED_BATCH: Final = _tag(FetchedPartition.BATCHES_FIELD_NUMBER)
_CONSUMED_BATCHES: Final = _tag(ConsumeResponse.BATCHES_FIELD_NUMBER)
_CONSUMED_BATCH: Final = _tag(ConsumedBatches.BATCHES_FIELD_NUMBER)

_parse: Final = cast("Callable[[Encoded], RecordBatch]", RecordBatch.FromString)  # its stub knows bytes only


class StoredBatch:
    """A batch as the broker stores it."""

    __slots__ = ("begin", "end", "fields", "source")

    def __init__(self, fields: RecordBatch, source: Encoded, begin: int, end: int) -> None:
        self.fields = fields
        """All of it, except that a plain set need not be here too."""
        self.source = source
        """What holds the plain set, from `begin` to `end`; both are the same if it is compressed."""
        self.begin = begin
        self.end = end

    @property
    def payload_bytes(self) -> int:
        """What the batch takes of a stream's credit."""
        return self.end - self.begin + len(self.fields.compressed_records)

    @property
    def is_plain(self) -> bool:
        return self.begin < self.end or not self.fields.compressed_records

    @property
    def next_offset(self) -> int:
        return self.fields.base_offset + self.fields.record_count

    def with_plain(self, plain: bytes) -> StoredBatch:
        """The same batch, decompressed."""
        return StoredBatch(self.fields, plain, 0, len(plain))

    def plain(self) -> memoryview:
        """The plain set, not copied."""
        return memoryview(self.source)[self.begin : self.end]

    def unpack(self) -> Sequence[Record]:
        """The records of a plain batch, within the default bounds. Raises MalformedRecordSet."""
        return unpack(bytes(self.plain()))


Fetched: TypeAlias = tuple[FetchedPartition, list[StoredBatch]]
"""A partition without its batches, and those beside it."""


def stored(batches: Iterable[RecordBatch]) -> list[StoredBatch]:
    """Batches that protobuf has parsed."""
    return [_parsed(batch) for batch in batches]


def _parsed(batch: RecordBatch) -> StoredBatch:
    records = batch.records
    return StoredBatch(batch, records, 0, len(records))


def read_fetched(encoded: Encoded) -> list[Fetched]:
    """The partitions of a FetchResponse. Raises DecodeError."""
    rest, partitions = _embedded(encoded, 0, len(encoded), _FETCHED_PARTITION)
    if rest:
        FetchResponse.FromString(rest)  # nothing of ours, but it has to make sense
    found = []
    for begin, end in partitions:
        rest, batches = _embedded(encoded, begin, end, _FETCHED_BATCH)
        found.append((FetchedPartition.FromString(rest), _split_all(encoded, batches)))
    return found


def read_consumed(encoded: Encoded) -> tuple[ConsumeResponse, list[StoredBatch]]:
    """A ConsumeResponse without its batches and those beside it. Raises DecodeError."""
    rest, places = _embedded(encoded, 0, len(encoded), _CONSUMED_BATCHES)
    if rest or len(places) != 1:
        response = ConsumeResponse.FromString(bytes(encoded))
        return response, stored(response.batches.batches)
    rest, places = _embedded(encoded, *places[0], _CONSUMED_BATCH)
    return ConsumeResponse(batches=ConsumedBatches.FromString(rest)), _split_all(encoded, places)


def _embedded(data: Encoded, at: int, end: int, wanted: int) -> tuple[bytes, list[tuple[int, int]]]:
    """The message between two positions without the fields with that tag, and where their contents begin and end."""
    rest: list[Encoded] = []
    found: list[tuple[int, int]] = []
    rest_from = at
    try:
        while at < end:
            start = at
            tag, at = read_varint(data, at)
            match tag & 7:
                case _Kind.SIZED:
                    size, at = read_varint(data, at)
                    begin, at = at, at + size
                    if tag == wanted:
                        if rest_from < start:
                            rest.append(data[rest_from:start])
                        found.append((begin, at))
                        head, head_bytes = data[start:begin], begin - start
                        while at < end and data[at : at + head_bytes] == head:
                            begin = at + head_bytes
                            at = begin + size
                            found.append((begin, at))
                        rest_from = at
                case _Kind.VARINT:
                    _, at = read_varint(data, at)
                case _Kind.FOUR_BYTES:
                    at += 4
                case _Kind.EIGHT_BYTES:
                    at += 8
                case kind:
                    raise DecodeError(f"a field of kind {kind}")
    except IndexError as error:
        raise DecodeError("cut short") from error
    if at > end:
        raise DecodeError("a field goes beyond the end of its message")
    if rest_from < end:
        rest.append(data[rest_from:end])
    return b"".join(rest), found


def _split_all(data: Encoded, places: Iterable[tuple[int, int]]) -> list[StoredBatch]:
    """The batches at these places. Where the set of one begins, that of the next is looked for first."""
    found: list[StoredBatch] = []
    head = data[:0]
    fields_bytes, set_bytes = 0, -1
    for begin, end in places:
        at = begin + fields_bytes
        set_at = at + len(head)
        if end - set_at == set_bytes and data[at:set_at] == head:
            try:
                found.append(StoredBatch(_parse(data[begin:at]), data, set_at, end))
                continue
            except DecodeError:
                pass
        batch, fields_bytes = _split(data, begin, end)
        found.append(batch)
        head = data[begin + fields_bytes : batch.begin]
        set_bytes = batch.end - batch.begin if fields_bytes else -1
    return found


def _split(data: Encoded, begin: int, end: int) -> tuple[StoredBatch, int]:
    """The batch between two positions, and how long its other fields are that stand before the set; 0 if it has to be
    parsed as a whole."""
    limit = min(end, begin + _LONGEST_FIELDS)
    at = data.find(_SET, begin, limit)
    while at >= 0:
        # This is the set if it reaches to the end and what stands before it is a whole message. Where it is a byte
        # within a field, a part of a message stands before it.
        try:
            size, set_at = read_varint(data, at + 1)
            if set_at + size == end:
                return StoredBatch(_parse(data[begin:at]), data, set_at, end), at - begin
        except (IndexError, DecodeError):
            pass
        at = data.find(_SET, at + 1, limit)
    return _parsed(_parse(data[begin:end])), 0
