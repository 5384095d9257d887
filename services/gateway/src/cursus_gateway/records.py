"""Message records of the legacy wire to encoded record sets and back: the one place that knows both byte layouts.

    legacy message record, big-endian           cursus.v1.Record, protobuf
      offset            u64                       base_offset of the batch + index
      seqNum            u64                       envelope, or 0x48 varint (sequence)
      producerId        u16 + bytes               envelope
      key               u16 + bytes               0x0A length bytes; absent if empty
      epoch             i64                       envelope, or 0x50 varint (epoch)
      payload           u32 + bytes               0x12 length bytes; absent if empty
      eventType         u16 + bytes               0x2A length bytes; absent if empty
      schemaVersion     u32                       0x30 varint; absent if 0
      aggregateVersion  u64                       0x38 varint; absent if 0
      metadata          u16 + bytes               0x42 length bytes; absent if empty

A set is a sequence of `0x0A length record`. Building these bytes by hand instead of through Record objects halves the
cost of a record. A batch whose records all have the same lengths, which is what a producer of fixed-size events sends,
is taken apart by columns in C and costs a fifth: `_same_size` below. Both ways give the bytes protobuf itself would.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from struct import Struct
from struct import error as StructError  # noqa: N812 - a class, whatever its name
from typing import Final

from cursus_proto.internal.v1.opaque_pb2 import RecordBatch
from cursus_proto.records import unpack
from cursus_proto.v1.records_pb2 import Record

# A message record with every text empty.
MIN_MESSAGE_BYTES: Final = 48

# Sequences the broker counts by. Larger ones, which no producer reaches by counting, are kept but not judged.
MAX_SEQUENCE: Final = 2**62

_OFFSET_SEQUENCE_ID: Final = Struct(">QQH")
_LENGTH: Final = Struct(">H")
_EPOCH_PAYLOAD: Final = Struct(">qI")
_SCHEMA_AGGREGATE_METADATA: Final = Struct(">IQH")
_OFFSET_SEQUENCE: Final = Struct(">QQ")
# eventType, schemaVersion, aggregateVersion and metadata of a message that is no event.
_NO_EVENT: Final = b"\0" * 16

_SET_RECORD: Final = b"\x0a"
_KEY: Final = b"\x0a"
_VALUE: Final = b"\x12"
_EVENT_TYPE: Final = b"\x2a"
_SCHEMA_VERSION: Final = b"\x30"
_AGGREGATE_VERSION: Final = b"\x38"
_METADATA: Final = b"\x42"
_SEQUENCE: Final = b"\x48"
_EPOCH: Final = b"\x50"


class MalformedMessages(ValueError):
    """The bytes are not the message records they claim to be."""


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive messages of one producer, as the broker takes them."""

    producer_id: bytes
    epoch: int
    first_sequence: int | None
    """Set if the producer is to be judged by its sequences and they follow one by one."""
    sequences: Sequence[int]
    """Set instead of `first_sequence` if they do not; the records then hold them too."""
    record_count: int
    record_set: bytes


@dataclass(frozen=True, slots=True)
class Messages:
    """The messages of one legacy batch. `first_sequence` and the last message's fields go into its acknowledgement."""

    runs: Sequence[Run]
    first_sequence: int
    last_sequence: int
    last_epoch: int
    last_producer_id: bytes


def read_messages(body: bytes, start: int, count: int, *, judged: bool) -> Messages:
    """The messages of `body` from `start` on to its very end. `judged`: the producer asked for its sequences to be
    checked, so they go into the envelope.

    Raises MalformedMessages.
    """
    if not 0 <= count * MIN_MESSAGE_BYTES <= len(body) - start:
        raise MalformedMessages(f"{count} messages do not fit into {len(body) - start} bytes")
    if count == 0:
        if start != len(body):
            raise MalformedMessages("bytes follow an empty batch")
        return Messages((), 0, 0, 0, b"")
    try:
        return _same_size(body, start, count, judged) or _any_size(body, start, count, judged)
    except StructError as error:
        raise MalformedMessages("cut short inside a message") from error


def varint(number: int) -> bytes:
    """Protobuf's variable-length integer; a negative one as its 64-bit two's complement."""
    # Lengths and sequences are mostly short, and this is called for every record that is not like its neighbours.
    if 0 <= number < 0x80:
        return bytes((number,))
    if 0 < number < 0x4000:
        return bytes((number & 0x7F | 0x80, number >> 7))
    if 0 < number < 0x20_0000:
        return bytes((number & 0x7F | 0x80, number >> 7 & 0x7F | 0x80, number >> 14))
    number &= 0xFFFF_FFFF_FFFF_FFFF
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


# Nearly every length is in here: looking one up costs a tenth of encoding it.
_VARINTS: Final = tuple(varint(number) for number in range(2048))


def _varint(number: int) -> bytes:
    return _VARINTS[number] if number < 2048 else varint(number)


@lru_cache(maxsize=4096)
def _layout(id_bytes: int, key_bytes: int, payload_bytes: int) -> Struct:
    """A message without event fields and with texts of these lengths."""
    return Struct(f">8xQH{id_bytes}sH{key_bytes}sqI{payload_bytes}s16s")


def _same_size(body: bytes, start: int, count: int, judged: bool) -> Messages | None:
    """The messages, if all are of one producer, of the same lengths and no events; else None."""
    _, _, id_bytes = _OFFSET_SEQUENCE_ID.unpack_from(body, start)
    (key_bytes,) = _LENGTH.unpack_from(body, start + 18 + id_bytes)
    _, payload_bytes = _EPOCH_PAYLOAD.unpack_from(body, start + 20 + id_bytes + key_bytes)
    size = MIN_MESSAGE_BYTES + id_bytes + key_bytes + payload_bytes
    if size * count != len(body) - start or not payload_bytes or id_bytes + key_bytes + payload_bytes > 1 << 20:
        return None
    layout = _layout(id_bytes, key_bytes, payload_bytes)
    rows = layout.iter_unpack(memoryview(body)[start:])
    columns = tuple(zip(*rows, strict=True))
    numbers, id_sizes, ids, key_sizes, keys, epochs, payload_sizes, payloads, events = columns
    producer_id, epoch = ids[0], epochs[0]
    alike = (
        id_sizes.count(id_bytes) == count
        and key_sizes.count(key_bytes) == count
        and payload_sizes.count(payload_bytes) == count
        and events.count(_NO_EVENT) == count
        and ids.count(producer_id) == count
        and epochs.count(epoch) == count
    )
    if not alike:
        return None
    first, last = numbers[0], numbers[-1]
    in_envelope = judged and bool(producer_id) and first > 0 and last <= MAX_SEQUENCE
    if numbers != tuple(range(first, first + count)) and (in_envelope or numbers.count(0) != count):
        return None  # Numbered otherwise than one by one: rare enough to be left to the general way.
    tails = _tails(first, count, epoch if not producer_id else 0) if not in_envelope and numbers.count(0) == 0 else None
    if tails is None and (first == 0 < last or (epoch and not producer_id)):
        return None
    core = (_KEY + varint(key_bytes) if key_bytes else b"", _VALUE + varint(payload_bytes))
    core_bytes = len(core[0]) + key_bytes + len(core[1]) + payload_bytes
    if tails is not None and len(tails[0]) != len(tails[-1]):
        by_size = {size: _SET_RECORD + varint(core_bytes + size) + core[0] for size in {len(tail) for tail in tails}}
        heads: Sequence[bytes] = [by_size[len(tail)] for tail in tails]
    else:
        heads = [_SET_RECORD + varint(core_bytes + (len(tails[0]) if tails else 0)) + core[0]] * count
    if key_bytes:
        heads = [head + key + core[1] for head, key in zip(heads, keys, strict=True)]
    else:
        heads = [head + core[1] for head in heads] if heads[0] is not heads[-1] else [heads[0] + core[1]] * count
    width = 3 if tails else 2
    parts: list[bytes] = [b""] * (width * count)
    parts[0::width] = heads
    parts[1::width] = payloads
    if tails:
        parts[2::width] = tails
    run = Run(producer_id, epoch if producer_id else 0, first if in_envelope else None, (), count, b"".join(parts))
    return Messages((run,), first, last, epoch, producer_id)


def _tails(first: int, count: int, epoch: int) -> list[bytes]:
    """The encoded sequence, and epoch if it is not 0, of `count` records numbered from `first`."""
    end = _EPOCH + varint(epoch) if epoch else b""
    tails: list[bytes] = []
    number, stop = first, first + count
    if number < 0x80:
        tails += [_SEQUENCE + bytes((low,)) + end for low in range(number, min(stop, 0x80))]
        number = 0x80
    while number < stop:
        # All numbers of a block of 128 share everything but their lowest byte.
        block_end = min((number | 0x7F) + 1, stop)
        high = varint(number >> 7) + end
        tails += [_SEQUENCE_LOW[low] + high for low in range(number & 0x7F, (block_end - 1 & 0x7F) + 1)]
        number = block_end
    return tails


_SEQUENCE_LOW: Final = tuple(bytes((0x48, low | 0x80)) for low in range(0x80))


class _Collector:
    """Gathers consecutive messages of one producer until it is known how they are numbered."""

    __slots__ = ("cores", "epochs", "numbers", "producer_id")

    def __init__(self, producer_id: bytes) -> None:
        self.producer_id = producer_id
        self.numbers: list[int] = []
        self.epochs: list[int] = []
        self.cores: list[bytes] = []

    def run(self, judged: bool) -> Run:
        numbers, count = self.numbers, len(self.numbers)
        epoch = max(self.epochs) if self.producer_id else 0
        judged = judged and bool(self.producer_id) and any(numbers) and max(numbers) <= MAX_SEQUENCE
        follow = judged and numbers[0] > 0 and numbers == list(range(numbers[0], numbers[0] + count))
        parts: list[bytes] = []
        for number, own_epoch, core in zip(numbers, self.epochs, self.cores, strict=True):
            if (follow or not (number or judged)) and own_epoch == epoch:
                parts += (_SET_RECORD, _varint(len(core)), core)
                continue
            tail = b"" if follow or not (number or judged) else _SEQUENCE + varint(number)
            if own_epoch != epoch:
                tail += _EPOCH + varint(own_epoch)
            parts += (_SET_RECORD, _varint(len(core) + len(tail)), core, tail)
        return Run(
            self.producer_id,
            epoch,
            numbers[0] if follow else None,
            numbers if judged and not follow else (),
            count,
            b"".join(parts),
        )


def _any_size(body: bytes, start: int, count: int, judged: bool) -> Messages:
    runs: list[Run] = []
    collector: _Collector | None = None
    first_sequence: int | None = None
    number = epoch = 0
    position, end = start, len(body)
    for _ in range(count):
        _, number, size = _OFFSET_SEQUENCE_ID.unpack_from(body, position)
        position += 18
        producer_id = body[position : position + size]
        position += size
        (size,) = _LENGTH.unpack_from(body, position)
        position += 2
        core = _KEY + _varint(size) + body[position : position + size] if size else b""
        position += size
        epoch, size = _EPOCH_PAYLOAD.unpack_from(body, position)
        position += 12
        if size:
            core += _VALUE + _varint(size) + body[position : position + size]
            position += size
        if body[position : position + 16] == _NO_EVENT:
            position += 16
        else:
            event, position = _read_event(body, position)
            core += event
        if position > end:
            raise MalformedMessages("cut short inside a message")
        if collector is None or collector.producer_id != producer_id:
            if collector is not None:
                runs.append(collector.run(judged))
            collector = _Collector(producer_id)
        if first_sequence is None:
            first_sequence = number
        collector.numbers.append(number)
        collector.epochs.append(epoch)
        collector.cores.append(core)
    if position != end:
        raise MalformedMessages(f"{end - position} bytes follow the last message")
    assert collector is not None, "there is at least one message"
    assert first_sequence is not None, "there is at least one message"
    runs.append(collector.run(judged))
    return Messages(runs, first_sequence, number, epoch, collector.producer_id)


def _read_event(body: bytes, position: int) -> tuple[bytes, int]:
    """The encoded event fields, and where they end in `body`, which may be beyond its end."""
    (size,) = _LENGTH.unpack_from(body, position)
    position += 2
    parts: list[bytes] = []
    if size:
        parts += (_EVENT_TYPE, varint(size), body[position : position + size])
        position += size
    schema, aggregate, size = _SCHEMA_AGGREGATE_METADATA.unpack_from(body, position)
    position += 14
    if schema:
        parts += (_SCHEMA_VERSION, varint(schema))
    if aggregate:
        parts += (_AGGREGATE_VERSION, varint(aggregate))
    if size:
        parts += (_METADATA, varint(size), body[position : position + size])
        position += size
    return b"".join(parts), position


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
    columns = tuple(zip(*_split(*shape).iter_unpack(packed), strict=True))
    heads, keys, middles, payloads, tails = columns
    if heads.count(heads[0]) != count or middles.count(middles[0]) != count:
        return False
    if tail_bytes:
        first = _read_sequence(tails[0])
        if first is None or list(tails) != _tails(first, count, 0):
            return False
    else:
        first = batch.first_sequence
    base = batch.base_offset
    before_key = _LENGTH.pack(len(batch.producer_id)) + batch.producer_id + _LENGTH.pack(key_bytes)
    before_payload = _EPOCH_PAYLOAD.pack(batch.producer_epoch, payload_bytes)
    numbers = range(first, first + count) if first >= 0 else [0] * count
    pack = _OFFSET_SEQUENCE.pack
    parts = [b""] * (4 * count)
    parts[0::4] = [pack(offset, number) for offset, number in zip(range(base, base + count), numbers, strict=True)]
    if key_bytes:
        parts[1::4] = [before_key + key + before_payload for key in keys]
    else:
        parts[1::4] = [before_key + before_payload] * count
    parts[2::4] = payloads
    parts[3::4] = [_NO_EVENT] * count
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
    producer = _LENGTH.pack(len(batch.producer_id)) + batch.producer_id
    epoch_default, first_sequence = batch.producer_epoch, batch.first_sequence
    fixed_bytes = MIN_MESSAGE_BYTES - len(_NO_EVENT) + len(batch.producer_id)
    pack, pack_length, pack_payload = _OFFSET_SEQUENCE.pack, _LENGTH.pack, _EPOCH_PAYLOAD.pack
    parts, count, total = written.parts, written.count, written.size
    number = written.last_sequence
    base_offset = batch.base_offset
    skipped = max(0, from_offset - base_offset)
    index, whole = skipped, True
    for index, record in enumerate(records[skipped:] if skipped else records, skipped):
        key, value = record.key, record.value
        event = _NO_EVENT
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
        return _NO_EVENT
    numbers = _SCHEMA_AGGREGATE_METADATA.pack(schema_version, aggregate_version, len(metadata))
    return b"".join((_LENGTH.pack(len(event_type)), event_type, numbers, metadata))


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
