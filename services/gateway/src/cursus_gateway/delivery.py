"""Stored record sets to message records of the legacy wire; records.py has both layouts and the way there.

A batch whose records have keys and payloads of one length each is taken apart by columns, as on the way in; all others
through protobuf's own parser, which is as fast as walking their bytes in Python and knows every field.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from struct import Struct
from typing import Final

from cursus_gateway.records import (
    EPOCH_PAYLOAD,
    LENGTH,
    MIN_MESSAGE_BYTES,
    NO_EVENT,
    SCHEMA_AGGREGATE_METADATA,
    sequence_tails,
)
from cursus_proto.internal.v1.opaque_pb2 import RecordBatch
from cursus_proto.records import unpack
from cursus_proto.v1.records_pb2 import Record

_OFFSET_SEQUENCE: Final = Struct(">QQ")


@dataclass(slots=True)
class Written:
    """Legacy message records under construction."""

    parts: list[bytes]
    count: int = 0
    size: int = 0
    first_sequence: int = 0
    last_sequence: int = 0
    next_offset: int = 0


def write_messages(batches: Sequence[RecordBatch], from_offset: int, *, max_count: int, max_bytes: int) -> Written:
    """The records of stored batches from `from_offset` on as legacy message records, at most `max_count` of them and
    `max_bytes` in all; the first one is written whatever its size. `next_offset` is where to read on.

    Texts longer than their 16-bit length are cut: only gRPC producers can make them.
    Raises MalformedRecordSet if a set cannot be unpacked.
    """
    written = Written([], next_offset=from_offset)
    for batch in batches:
        if batch.base_offset + batch.record_count <= from_offset:
            continue
        if not _write_same_size(written, batch, from_offset, max_count, max_bytes) and not _write_any_size(
            written, batch, from_offset, max_count, max_bytes
        ):
            break
    return written


def _write_same_size(written: Written, batch: RecordBatch, from_offset: int, max_count: int, max_bytes: int) -> bool:
    """Writes the whole batch if its records are keys and payloads of one size, numbered one by one; else nothing."""
    packed, count = batch.records, batch.record_count
    if not packed or batch.base_offset < from_offset or len(packed) % count or written.count + count > max_count:
        return False
    shape = _shape(packed, len(packed) // count)
    if shape is None:
        return False
    _, key_bytes, _, payload_bytes, tail_bytes = shape
    size = count * (MIN_MESSAGE_BYTES + len(batch.producer_id) + key_bytes + payload_bytes)
    if written.size + size > max_bytes:
        return False
    rows = _split(*shape).iter_unpack(packed)
    keys: Sequence[bytes] = ()
    middles: Sequence[bytes] = ()
    if key_bytes:
        heads, keys, middles, payloads, tails = zip(*rows, strict=True)
    else:
        heads, payloads, tails = zip(*rows, strict=True)
    if heads.count(heads[0]) != count or (middles and middles.count(middles[0]) != count):
        return False
    if tail_bytes:
        first = _read_sequence(tails[0])
        if first is None or list(tails) != sequence_tails(first, count, 0):
            return False
    else:
        first = batch.first_sequence
    base = batch.base_offset
    before_key = LENGTH.pack(len(batch.producer_id)) + batch.producer_id + LENGTH.pack(key_bytes)
    before_payload = EPOCH_PAYLOAD.pack(batch.producer_epoch, payload_bytes)
    numbers = range(first, first + count) if first >= 0 else [0] * count
    pack = _OFFSET_SEQUENCE.pack
    parts = [b""] * (4 * count)
    parts[0::4] = [pack(offset, number) for offset, number in zip(range(base, base + count), numbers, strict=True)]
    if key_bytes:
        parts[1::4] = [before_key + key + before_payload for key in keys]
    else:
        parts[1::4] = [before_key + before_payload] * count
    parts[2::4] = payloads
    parts[3::4] = [NO_EVENT] * count
    _note(written, numbers[0], numbers[-1], count, size, base + count)
    written.parts += parts
    return True


def _shape(packed: bytes, stride: int) -> tuple[int, int, int, int, int] | None:
    """Lengths of the first record's parts: what precedes its key, the key, what precedes its payload, the payload, and
    the rest. None if the record is not `stride` bytes long or does not begin with an optional key and a payload.
    """
    if packed[0] != 0x0A:
        return None
    record_bytes, position = _read_varint(packed, 1)
    if position + record_bytes != stride:
        return None
    key_bytes = 0
    key_at = position
    if position < stride and packed[position] == 0x0A:
        key_bytes, key_at = _read_varint(packed, position + 1)
        position = key_at + key_bytes
        if not key_bytes:
            return None  # An empty key is a key; it is written without one, but rare enough to be left aside.
    if position + 2 > stride or packed[position] != 0x12:
        return None
    payload_bytes, payload_at = _read_varint(packed, position + 1)
    tail_bytes = stride - payload_at - payload_bytes
    if not payload_bytes or tail_bytes < 0 or key_bytes > 0xFFFF:
        return None
    return key_at, key_bytes, payload_at - key_at - key_bytes, payload_bytes, tail_bytes


@lru_cache(maxsize=4096)
def _split(head_bytes: int, key_bytes: int, middle_bytes: int, payload_bytes: int, tail_bytes: int) -> Struct:
    if not key_bytes:
        return Struct(f"{head_bytes + middle_bytes}s{payload_bytes}s{tail_bytes}s")
    return Struct(f"{head_bytes}s{key_bytes}s{middle_bytes}s{payload_bytes}s{tail_bytes}s")


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    """A number of at most 5 bytes and the position after it; (0, position) beyond the end or for a longer one."""
    number = 0
    for shift in range(0, 35, 7):
        if position >= len(data):
            break
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, position
    return 0, position


def _read_sequence(tail: bytes) -> int | None:
    """The sequence, if the tail is one and nothing else."""
    if tail[0] != 0x48 or len(tail) > 11 or tail[-1] >= 0x80 or any(byte < 0x80 for byte in tail[1:-1]):
        return None
    return sum((byte & 0x7F) << (7 * index) for index, byte in enumerate(tail[1:]))


def _write_any_size(written: Written, batch: RecordBatch, from_offset: int, max_count: int, max_bytes: int) -> bool:
    """Writes records as far as the limits go. False if they ended it."""
    records = unpack(batch.records or batch.compressed_records, batch.codec)
    producer = LENGTH.pack(len(batch.producer_id)) + batch.producer_id
    epoch_default, first_sequence = batch.producer_epoch, batch.first_sequence
    fixed_bytes = MIN_MESSAGE_BYTES - len(NO_EVENT) + len(batch.producer_id)
    pack, pack_length, pack_payload = _OFFSET_SEQUENCE.pack, LENGTH.pack, EPOCH_PAYLOAD.pack
    parts, count, total = written.parts, written.count, written.size
    number = written.last_sequence
    base_offset = batch.base_offset
    skipped = max(0, from_offset - base_offset)
    index, whole = skipped, True
    for index, record in enumerate(records[skipped:] if skipped else records, skipped):
        key, value = record.key, record.value
        event = NO_EVENT
        if record.event_type or record.metadata or record.schema_version or record.aggregate_version:
            event = _write_event(record)
        if len(key) > 0xFFFF:
            key = key[:0xFFFF]
        size = fixed_bytes + len(key) + len(value) + len(event)
        if count >= max_count or (count and total + size > max_bytes):
            whole = False
            break
        number, epoch = record.sequence, record.epoch
        if not number and first_sequence >= 0 and not record.HasField("sequence"):
            number = first_sequence + index
        if not epoch and epoch_default and not record.HasField("epoch"):
            epoch = epoch_default
        head = pack(base_offset + index, number) + producer + pack_length(len(key)) + key
        parts += (head, pack_payload(epoch, len(value)), value, event)
        if not count:
            written.first_sequence = number
        count += 1
        total += size
    written.last_sequence = number
    written.next_offset = base_offset + index + (1 if whole else 0)
    written.count, written.size = count, total
    return whole


def _write_event(record: Record) -> bytes:
    event_type, metadata = record.event_type[:0xFFFF], record.metadata[:0xFFFF]
    schema_version, aggregate_version = record.schema_version, record.aggregate_version
    if not (event_type or metadata or schema_version or aggregate_version):
        return NO_EVENT
    numbers = SCHEMA_AGGREGATE_METADATA.pack(schema_version, aggregate_version, len(metadata))
    return b"".join((LENGTH.pack(len(event_type)), event_type, numbers, metadata))


def _note(written: Written, first: int, last: int, count: int, size: int, next_offset: int) -> None:
    if not written.count:
        written.first_sequence = first
    written.last_sequence = last
    written.count += count
    written.size += size
    written.next_offset = next_offset


def read_payloads(batches: Sequence[RecordBatch], from_offset: int, max_count: int) -> tuple[list[bytes], int]:
    """Only the payloads, for clients that know no more, and the offset after the last one.

    Raises MalformedRecordSet.
    """
    payloads: list[bytes] = []
    next_offset = from_offset
    for batch in batches:
        skip = max(0, from_offset - batch.base_offset)
        records = unpack(batch.records or batch.compressed_records, batch.codec)
        wanted = records[skip : skip + max_count - len(payloads)]
        if wanted:
            payloads += [record.value for record in wanted]
            next_offset = batch.base_offset + skip + len(wanted)
    return payloads, next_offset
