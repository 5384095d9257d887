"""Packing records into sets and back: what happens once in the producer and once in the consumer.

`count` is the one look a broker takes at a plain set: it proves the outer structure and costs the same whatever the
records hold.

A set is the concatenation of its records' fields, so a producer may encode records one by one as they come and join
them when the set is full. `encode_record` does that; `value_head` and `keyed_head` do it for records without anything
else, whose value then need not be copied. Building a message for every record takes four to ten times as long. Tests
compare all three with protobuf's own encoder.

A value may be null, which is not an empty one: the field is absent then, and an empty value has it with length 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate
from operator import add, itemgetter
from typing import Final, NamedTuple, cast

import google_crc32c
from google.protobuf.message import DecodeError

from cursus_proto import bounds, codecs
from cursus_proto.bounds import DEFAULT_BOUNDS, MAX_UNPACKED_BYTES, MAX_UNPACKED_RECORDS, Bounds
from cursus_proto.internal.v1 import opaque_pb2
from cursus_proto.v1 import records_pb2
from cursus_proto.v1.records_pb2 import Record


class MalformedRecordSet(ValueError):
    """The bytes are not a record set."""


class RecordSetTooLarge(MalformedRecordSet):
    """The bytes unpack to more than they may. Whether they are a record set was not found out."""

    def __init__(self, cause: bounds.TooManyRecords | codecs.UnpacksTooLarge) -> None:
        super().__init__(str(cause))
        self.limit = cause.limit


def pack(records: Iterable[Record], codec: int = records_pb2.CODEC_NONE) -> bytes:
    """The bytes of a record set, compressed with `codec`."""
    return codecs.compress(codec, records_pb2.RecordSet(records=records).SerializeToString())


def unpack(packed: bytes, codec: int = records_pb2.CODEC_NONE, within: Bounds = DEFAULT_BOUNDS) -> Sequence[Record]:
    """The records of a set. Raises MalformedRecordSet, and RecordSetTooLarge for more than `within` allows.

    >>> [record.value for record in unpack(pack([Record(value=b"a"), Record(value=b"b")]))]
    [b'a', b'b']
    """
    plain = decompress(packed, codec, within.max_bytes)
    check(plain, within.max_records)
    return parse(plain)


def check(plain: bytes, max_records: int) -> None:
    """Whether a plain set may be parsed. Raises RecordSetTooLarge if that would make more records and headers."""
    try:
        if not bounds.surely_within(plain, max_records, with_headers=True):
            bounds.walk(plain, max_records, with_headers=True)
    except bounds.TooManyRecords as error:
        raise RecordSetTooLarge(error) from error


def parse(plain: bytes) -> Sequence[Record]:
    """The records of a plain set that was checked. Raises MalformedRecordSet."""
    try:
        return records_pb2.RecordSet.FromString(plain).records
    except DecodeError as error:
        raise MalformedRecordSet(str(error)) from error


def decompress(packed: bytes, codec: int, limit: int = MAX_UNPACKED_BYTES) -> bytes:
    """The plain set. Raises MalformedRecordSet, and RecordSetTooLarge for more bytes than the limit."""
    try:
        return codecs.decompress(codec, packed, limit)
    except codecs.UnpacksTooLarge as error:
        raise RecordSetTooLarge(error) from error
    except codecs.CodecError as error:
        raise MalformedRecordSet(str(error)) from error


_LONGEST_VARINT: Final = 10

# Tags of the fields, as they stand before a length or a number.
_RECORD: Final = b"\x0a"  # RecordSet.records
_KEY: Final = b"\x0a"
_VALUE: Final = b"\x12"
_TIMESTAMP_MS: Final = b"\x18"
_HEADER: Final = b"\x22"
_EVENT_TYPE: Final = b"\x2a"
_SCHEMA_VERSION: Final = b"\x30"
_AGGREGATE_VERSION: Final = b"\x38"
_METADATA: Final = b"\x42"
_HEADER_KEY: Final = b"\x0a"
_HEADER_VALUE: Final = b"\x12"


def varint(number: int) -> bytes:
    """A number in protobuf's variable length; negative ones as 64 bits of two's complement."""
    # Lengths and sequences are mostly short, and this is called for every record that is not like its neighbours.
    if 0 <= number < 0x80:
        return bytes((number,))
    if 0 < number < 0x4000:
        return bytes((number & 0x7F | 0x80, number >> 7))
    if 0 < number < 0x20_0000:
        return bytes((number & 0x7F | 0x80, number >> 7 & 0x7F | 0x80, number >> 14))
    if number < 0:
        number += 1 << 64
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def read_varint(data: bytes | bytearray, at: int) -> tuple[int, int]:
    """A number and the position after it. Raises IndexError, DecodeError."""
    number = data[at]
    if number < 0x80:
        return number, at + 1
    # The length of a set mostly takes three bytes.
    second = data[at + 1]
    if second < 0x80:
        return number & 0x7F | second << 7, at + 2
    third = data[at + 2]
    if third < 0x80:
        return number & 0x7F | (second & 0x7F) << 7 | third << 14, at + 3
    for place in range(3, _LONGEST_VARINT):
        byte = data[at + place]
        if byte < 0x80:
            number = sum((data[at + one] & 0x7F) << 7 * one for one in range(place + 1))
            return number, at + place + 1
    raise DecodeError(f"a number of more than {_LONGEST_VARINT} bytes")


def _make_value_head(size: int) -> bytes:
    head = _VALUE + varint(size)
    return _RECORD + varint(len(head) + size) + head


# What stands before common sizes, so that most records cost look-ups instead of arithmetic. `VALUE_HEADS[size]` is
# `value_head(size)` without the call, which matters where it happens a million times a second.
CACHED_SIZES: Final = 2048
VALUE_HEADS: Final = [_make_value_head(size) for size in range(CACHED_SIZES)]
_RECORD_TAGS: Final = [_RECORD + varint(size) for size in range(CACHED_SIZES)]
_KEY_TAGS: Final = [_KEY + varint(size) for size in range(CACHED_SIZES)]
_VALUE_TAGS: Final = [_VALUE + varint(size) for size in range(CACHED_SIZES)]

# Neighbours mostly carry the same time and the same versions.
_number = lru_cache(maxsize=1024)(varint)


def value_head(size: int) -> bytes:
    """What stands in a set before the value of a record that has nothing else, by the value's size in bytes. A null
    has none: `encode_record` writes it.

    >>> value_head(3) + b"abc" == pack([Record(value=b"abc")])
    True
    """
    return VALUE_HEADS[size] if size < CACHED_SIZES else _make_value_head(size)


@lru_cache(maxsize=4096)
def keyed_head(key: bytes, value_bytes: int) -> bytes:
    """What stands in a set before the value of a record that has a key and nothing else. Remembered, because keys come
    back. Not for a null either.

    >>> keyed_head(b"k", 3) + b"abc" == pack([Record(key=b"k", value=b"abc")])
    True
    """
    head = _KEY + varint(len(key)) + key + _VALUE + varint(value_bytes)
    return _RECORD + varint(len(head) + value_bytes) + head


class Encoded(NamedTuple):
    """Records as the pieces they consist of: all first pieces, all second ones, and so on."""

    columns: tuple[list[bytes], ...]
    sizes: list[int]
    same_head: bytes | None = None
    """The first piece of all of them, if they have two and it is the same."""

    def pieces(self, start: int, stop: int) -> list[bytes]:
        """Those of the records from `start` up to `stop`, one after the other: joined they are a set."""
        if self.same_head is not None and start < stop:
            return [self.same_head, self.same_head.join(self.columns[1][start:stop])]
        width = len(self.columns)
        found = [b""] * (width * (stop - start))
        for number, column in enumerate(self.columns):
            found[number::width] = column[start:stop]
        return found

    def ends(self) -> Sequence[int]:
        """Where each record ends, in bytes from the beginning of the first."""
        if self.same_head is not None and self.sizes:
            size = self.sizes[0]
            return range(size, size * len(self.sizes) + 1, size)
        return list(accumulate(self.sizes))

    def part(self, start: int, stop: int) -> Encoded:
        """The records from `start` up to `stop`."""
        return Encoded(tuple(column[start:stop] for column in self.columns), self.sizes[start:stop], self.same_head)

    def only(self, rows: Sequence[int]) -> Encoded:
        """Some of the records, in this order."""
        if len(rows) < 2:
            return self.part(rows[0], rows[0] + 1) if rows else self.part(0, 0)
        pick = itemgetter(*rows)
        return Encoded(tuple(list(pick(column)) for column in self.columns), list(pick(self.sizes)), self.same_head)


def encode_many(values: Sequence[bytes | None], keys: Sequence[bytes | None] | None = None) -> Encoded:
    """Many records that have a value and perhaps a key and nothing else. The work for each is done by loops of the
    interpreter's own: that takes a fraction of the time of as many calls of `encode_record`.

    >>> encoded = encode_many([b"v", b"w"], [b"k", b"l"])
    >>> b"".join(encoded.pieces(0, 2)) == encode_record(b"v", key=b"k") + encode_record(b"w", key=b"l")
    True
    """
    try:
        value_sizes = list(map(len, cast("Sequence[bytes]", values)))
        key_sizes = None if keys is None else list(map(len, cast("Sequence[bytes]", keys)))
    except TypeError:  # there is a null among them
        every_key = [None] * len(values) if keys is None else keys
        whole = [encode_record(value, key=key) for value, key in zip(values, every_key, strict=True)]
        return Encoded((whole,), list(map(len, whole)))
    contents = cast("list[bytes]", values if isinstance(values, list) else list(values))
    largest = max(value_sizes, default=0)
    if keys is None or key_sizes is None:
        if largest == min(value_sizes, default=0):
            head = value_head(largest)
            return Encoded(([head] * len(contents), contents), [len(head) + largest] * len(contents), head)
        heads = list(map(VALUE_HEADS.__getitem__ if largest < CACHED_SIZES else value_head, value_sizes))
        return Encoded((heads, contents), list(map(add, map(len, heads), value_sizes)))
    names = cast("list[bytes]", keys if isinstance(keys, list) else list(keys))
    if largest == min(value_sizes, default=0) and len(different := set(names)) <= len(names) // 2:
        # Keys that come back under values of one size: what stands before the value is made once for each.
        by_key = {key: keyed_head(key, largest) for key in different}
        heads = list(map(by_key.__getitem__, names))
        return Encoded((heads, contents), list(map(largest.__add__, map(len, heads))))
    before_keys = list(map(_before_key, key_sizes, value_sizes))
    before_values = list(map(_VALUE_TAGS.__getitem__ if largest < CACHED_SIZES else _before_value, value_sizes))
    sizes = map(add, map(add, map(len, before_keys), key_sizes), map(add, map(len, before_values), value_sizes))
    return Encoded((before_keys, names, before_values, contents), list(sizes))


@lru_cache(maxsize=4096)
def _before_key(key_bytes: int, value_bytes: int) -> bytes:
    """What stands before the key of a record that has a value and nothing else, by their sizes."""
    head = _KEY + varint(key_bytes)
    return _RECORD + varint(len(head) + key_bytes + len(_before_value(value_bytes)) + value_bytes) + head


@lru_cache(maxsize=4096)
def _before_value(value_bytes: int) -> bytes:
    return _VALUE + varint(value_bytes)


def encode_record(
    value: bytes | None,
    *,
    key: bytes | None = None,
    timestamp_ms: int = 0,
    headers: Iterable[tuple[str, bytes | None]] = (),
    event_type: bytes = b"",
    schema_version: int = 0,
    aggregate_version: int = 0,
    metadata: bytes = b"",
) -> bytes:
    """One record as it stands in a set, to be joined with others. A value, or a header's, that is None is null.

    >>> encode_record(b"v", key=b"k") == pack([Record(key=b"k", value=b"v")])
    True
    """
    if value is None:
        head = value = b""
    else:
        value_bytes = len(value)
        head = _VALUE_TAGS[value_bytes] if value_bytes < CACHED_SIZES else _VALUE + varint(value_bytes)
    if key is None:
        body = head + value
    else:
        key_bytes = len(key)
        key_head = _KEY_TAGS[key_bytes] if key_bytes < CACHED_SIZES else _KEY + varint(key_bytes)
        body = b"".join((key_head, key, head, value))
    if timestamp_ms:
        body += _TIMESTAMP_MS + _number(timestamp_ms)
    for name, content in headers:
        body += _encode_header(name.encode(), content)
    if event_type:
        body += _EVENT_TYPE + varint(len(event_type)) + event_type
    if schema_version:
        body += _SCHEMA_VERSION + _number(schema_version)
    if aggregate_version:
        body += _AGGREGATE_VERSION + _number(aggregate_version)
    if metadata:
        body += _METADATA + varint(len(metadata)) + metadata
    size = len(body)
    return (_RECORD_TAGS[size] if size < CACHED_SIZES else _RECORD + varint(size)) + body


def _encode_header(name: bytes, content: bytes | None) -> bytes:
    body = b""
    if name:
        body = _HEADER_KEY + varint(len(name)) + name
    if content is not None:
        body += _HEADER_VALUE + varint(len(content)) + content
    return _HEADER + varint(len(body)) + body


def count(packed: bytes, max_records: int = MAX_UNPACKED_RECORDS) -> int:
    """The number of records in a plain set, without parsing them. Raises MalformedRecordSet, and RecordSetTooLarge for
    more than `max_records`. A set that cannot be told to hold fewer by counting bytes is walked through, which takes a
    fifth of a second for a million records: one above two bytes a record is no work for an event loop.
    """
    try:
        if not bounds.surely_within(packed, max_records, with_headers=False):
            bounds.walk(packed, max_records, with_headers=False)
        return len(opaque_pb2.RecordSet.FromString(packed).records)
    except bounds.TooManyRecords as error:
        raise RecordSetTooLarge(error) from error
    except DecodeError as error:
        raise MalformedRecordSet(f"not a record set: {error}") from error


def checksum(packed: bytes) -> int:
    """CRC32C of a packed set, as it travels in `records_crc32c`."""
    return int(google_crc32c.value(packed))
