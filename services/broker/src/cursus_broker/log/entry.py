"""One log entry: a batch as it lies on disk. The only module that knows these bytes.

    length            u32  bytes after this field
    version           u8   1
    codec             u8   how the payload is compressed; the log does not look
    flags             u16  bit 15: control entry; the others belong to the publisher
    record_count      u32  at least 1; 0 in a control entry
    base_offset       i64  record i has offset base_offset + i
    append_time       i64  milliseconds since 1970, by the broker's clock
    synced_before     i64  the log's synced offset when the entry was written: all below had reached the disk
    producer_epoch    i64
    first_sequence    i64  -1 if the producer does not number its records
    producer_id_bytes u16
    payload_crc       u32  CRC32C of the payload alone: also identifies the batch when a producer repeats it
    header_crc        u32  CRC32C of all fields above, length included, and the producer id
    producer_id       producer_id_bytes
    payload           the rest of length

All integers are big-endian. Two checksums, so that headers can be walked and trusted without reading payloads.

`synced_before` tells damage from a torn tail: an entry that lies behind a bad place and was written when the bad place
was already synced proves that the disk lost what it had promised to keep. Without that proof the bad place may be what
power loss leaves of unsynced pages, which reach the disk in any order.

A segment begins with a control entry without producer and payload. Its base offset is the segment's, its append time
the segment's creation.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

import google_crc32c

from cursus_broker.log.api import MANY_RECORDS, NO_SEQUENCE, Batch, Entry, EntryHeader, Offset

VERSION: Final = 1
CONTROL: Final = 0x8000

_FIXED: Final = struct.Struct(
    ">"
    "I"  # length
    "B"  # version
    "B"  # codec
    "H"  # flags
    "I"  # record_count
    "q"  # base_offset
    "q"  # append_time
    "q"  # synced_before
    "q"  # producer_epoch
    "q"  # first_sequence
    "H"  # producer_id_bytes
    "I"  # payload_crc
)
_CRC: Final = struct.Struct(">I")
_LENGTH: Final = struct.Struct(">I")

_CRC_AT: Final = _FIXED.size
FIXED_BYTES: Final = _FIXED.size + _CRC.size
CONTROL_BYTES: Final = FIXED_BYTES
_SYNCED_BEFORE: Final = struct.Struct(">q")
_SYNCED_BEFORE_AT: Final = 28

MAX_PRODUCER_ID_BYTES: Final = 0xFFFF
# A frame of the gateway and a gRPC message are at most 64 MiB; twice that leaves room and still bounds what a wrong
# length, on disk or in a request, can make anyone allocate.
MAX_PAYLOAD_BYTES: Final = 128 * 1024 * 1024
_MAX_LENGTH: Final = FIXED_BYTES - _LENGTH.size + MAX_PRODUCER_ID_BYTES + MAX_PAYLOAD_BYTES

Buffer = bytes | bytearray | memoryview

crc32c = google_crc32c.value
_extend_crc = google_crc32c.extend


class BadEntry(Exception):
    """The bytes at `position` of the buffer are not an entry. Whoever knows the file turns this into an answer."""

    def __init__(self, position: int, cause: str) -> None:
        super().__init__(f"{cause} at {position}")
        self.position = position
        self.cause = cause


def pack_header(batch: Batch, base_offset: int, append_time_ms: int, synced_before: int) -> bytes:
    """Everything of an entry before its payload."""
    return _pack(
        len(batch.payload),
        batch.codec,
        batch.flags,
        batch.record_count,
        base_offset,
        append_time_ms,
        synced_before,
        batch.producer_epoch,
        batch.first_sequence,
        batch.producer_id,
        batch.payload_crc,
    )


def pack_control(base_offset: int, created_ms: int, synced_before: int) -> bytes:
    """The entry a segment begins with."""
    return _pack(0, 0, CONTROL, 0, base_offset, created_ms, synced_before, 0, NO_SEQUENCE, b"", 0)


def _pack(
    payload_bytes: int,
    codec: int,
    flags: int,
    record_count: int,
    base_offset: int,
    append_time_ms: int,
    synced_before: int,
    producer_epoch: int,
    first_sequence: int,
    producer_id: bytes,
    payload_crc: int,
) -> bytes:
    fixed = _FIXED.pack(
        FIXED_BYTES - _LENGTH.size + len(producer_id) + payload_bytes,
        VERSION,
        codec,
        flags,
        record_count,
        base_offset,
        append_time_ms,
        synced_before,
        producer_epoch,
        first_sequence,
        len(producer_id),
        payload_crc,
    )
    crc = crc32c(fixed)
    if producer_id:
        crc = _extend_crc(crc, producer_id)
    return fixed + _CRC.pack(crc) + producer_id


def unpack_header(buffer: Buffer, position: int, end: int) -> EntryHeader | None:
    """The header at `position`, checked against its checksum; None if `buffer[position:end]` does not hold all of it.
    The payload may lie beyond `end`. Raises BadEntry."""
    if end - position < FIXED_BYTES:
        return None
    (
        length,
        version,
        codec,
        flags,
        record_count,
        base_offset,
        append_time_ms,
        _,
        producer_epoch,
        first_sequence,
        producer_id_bytes,
        payload_crc,
    ) = _FIXED.unpack_from(buffer, position)
    payload_bytes = length - (FIXED_BYTES - 4) - producer_id_bytes
    if payload_bytes < 0 or length > _MAX_LENGTH:
        raise BadEntry(position, f"impossible length {length}")
    if version != VERSION:
        raise BadEntry(position, f"unknown version {version}")
    crc_at = position + _CRC_AT
    crc = crc32c(bytes(buffer[position:crc_at]))
    producer_id = b""
    if producer_id_bytes:
        id_at = crc_at + 4
        if end - id_at < producer_id_bytes:
            return None
        producer_id = bytes(buffer[id_at : id_at + producer_id_bytes])
        crc = _extend_crc(crc, producer_id)
    if crc != _CRC.unpack_from(buffer, crc_at)[0]:
        raise BadEntry(position, "header checksum differs")
    return EntryHeader(
        Offset(base_offset),
        record_count,
        append_time_ms,
        payload_bytes,
        payload_crc,
        codec,
        flags,
        producer_id,
        producer_epoch,
        first_sequence,
    )


def header_bytes_hint(buffer: Buffer, position: int, end: int) -> int:
    """Upper bound of the header's size at `position`, as far as the bytes at hand tell. For readers whose buffer ended
    within a header."""
    if end - position < FIXED_BYTES:
        return FIXED_BYTES
    id_bytes: int = _FIXED.unpack_from(buffer, position)[10]
    return FIXED_BYTES + id_bytes


def synced_before(buffer: Buffer, position: int) -> int:
    """The field of that name of a header that `unpack_header` has accepted."""
    value: int = _SYNCED_BEFORE.unpack_from(buffer, position + _SYNCED_BEFORE_AT)[0]
    return value


def stored_header_bytes(header: EntryHeader) -> int:
    return FIXED_BYTES + len(header.producer_id)


def stored_bytes(header: EntryHeader) -> int:
    """What the whole entry occupies on disk."""
    return FIXED_BYTES + len(header.producer_id) + header.payload_bytes


def check_data(header: EntryHeader, position: int, expected_offset: int) -> None:
    """A sound header may still be in the wrong place. Raises BadEntry unless it is a batch that continues the log at
    `expected_offset`."""
    if header.base_offset != expected_offset:
        raise BadEntry(position, f"entry of offset {header.base_offset} where {expected_offset} was expected")
    if header.flags & CONTROL or header.record_count == 0:
        raise BadEntry(position, "control entry within a segment")


def check_control(header: EntryHeader, position: int) -> None:
    if not header.flags & CONTROL or header.record_count:
        raise BadEntry(position, "segment does not begin with a control entry")


def candidates(buffer: bytes, min_offset: int) -> Iterator[tuple[int, EntryHeader]]:
    """Every position of `buffer` at which a sound header of an offset at or above `min_offset` lies, in order.

    A regular expression finds what looks like a header (possible length, version, an offset near enough), because a
    search in Python for each byte would take a minute per segment.
    """
    nearby = {((min_offset + distance) >> 32).to_bytes(4, "big") for distance in (0, 1 << 32)}
    pattern = re.compile(
        rb"(?=[\x00-\x08].{3}%c.{7}(?:%s))" % (VERSION, b"|".join(re.escape(high) for high in sorted(nearby))),
        re.DOTALL,
    )
    for match in pattern.finditer(buffer):
        try:
            header = unpack_header(buffer, match.start(), len(buffer))
        except BadEntry:
            continue
        if header is not None and header.base_offset >= min_offset:
            yield match.start(), header


class Taken(NamedTuple):
    """Entries cut out of a buffer, and where to go on."""

    entries: list[Entry]
    position: int  # behind the last entry taken or passed over; may lie beyond the buffer
    next_offset: int  # the offset the entry at `position` must have
    needed_bytes: int  # from `position` on, to take one more entry, as far as the buffer tells


def take(
    buffer: memoryview,
    start: int,
    end: int,
    expected_offset: int,
    wanted_offset: int,
    max_bytes: int,
    max_records: int = MANY_RECORDS,
) -> Taken:
    """Cut the whole entries out of `buffer[start:end]`, which continues the log at `expected_offset`.

    Entries below `wanted_offset` are passed over unread. At most `max_bytes` and `max_records` are taken, unless the
    first entry alone has more. Every entry taken has both checksums verified. Raises BadEntry if the first one
    wanted, or one before it, is bad.
    """
    entries: list[Entry] = []
    taken_bytes = taken_records = 0
    position = start
    while True:
        try:
            header = unpack_header(buffer, position, end)
            if header is None:
                return Taken(entries, position, expected_offset, header_bytes_hint(buffer, position, end))
            check_data(header, position, expected_offset)
            head_bytes = FIXED_BYTES + len(header.producer_id)
            size = head_bytes + header.payload_bytes
            if header.next_offset > wanted_offset:
                taken_bytes += size
                taken_records += header.record_count
                if position + size > end or (entries and (taken_bytes > max_bytes or taken_records > max_records)):
                    return Taken(entries, position, expected_offset, size)
                payload = bytes(buffer[position + head_bytes : position + size])
                if crc32c(payload) != header.payload_crc:
                    raise BadEntry(position, "payload checksum differs")
                entries.append(Entry(header, payload))
            elif position + size > end:
                # Passed over, and its end is not here: the caller reads on from there.
                return Taken(entries, position + size, header.next_offset, FIXED_BYTES)
        except BadEntry:
            if not entries:
                raise
            # What lies before a bad place can be read. Whoever reads on from here meets it first, and is told.
            return Taken(entries, position, expected_offset, FIXED_BYTES)
        expected_offset = header.next_offset
        position += size
