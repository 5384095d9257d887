"""Message records of the legacy wire to encoded record sets. This module and delivery.py, the way back, are the only
ones that know both byte layouts.

    legacy message record, big-endian           cursus.v1.Record, protobuf
      offset            u64                       base_offset of the batch + index
      seqNum            u64                       envelope, or 0x48 varint (sequence)
      producerId        u16 + bytes               envelope
      key               u16 + bytes               0x0A length bytes; absent if empty
      epoch             i64                       envelope, or 0x50 varint (epoch)
      payload           u32 + bytes               0x12 length bytes, also if empty: the wire knows no null
      eventType         u16 + bytes               0x2A length bytes; absent if empty
      schemaVersion     u32                       0x30 varint; absent if 0
      aggregateVersion  u64                       0x38 varint; absent if 0
      metadata          u16 + bytes               0x42 length bytes; absent if empty

A set is a sequence of `0x0A length record`. Building these bytes by hand instead of through Record objects halves the
cost of a record. A batch whose records all have the same lengths, which is what a producer of fixed-size events sends,
is copied column by column and costs a fiftieth: `_same_size` below. Both ways give the bytes protobuf itself would.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from struct import error as StructError  # noqa: N812 - a class, whatever its name
from typing import Final

import numpy as np

from cursus_proto.columns.rows import FEWEST_ROWS, Rows, counted
from cursus_proto.records import varint

# A message record with every text empty.
MIN_MESSAGE_BYTES: Final = 48

LONGEST_KEY: Final = 0xFFFF

# Sequences the broker counts by. Larger ones, which no producer reaches by counting, are kept but not judged.
MAX_SEQUENCE: Final = 2**62

_OFFSET_SEQUENCE_ID: Final = Struct(">QQH")
LENGTH: Final = Struct(">H")
EPOCH_PAYLOAD: Final = Struct(">qI")
SCHEMA_AGGREGATE_METADATA: Final = Struct(">IQH")
# eventType, schemaVersion, aggregateVersion and metadata of a message that is no event.
NO_EVENT: Final = b"\0" * 16

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


# Nearly every length is in here: looking one up costs a tenth of encoding it.
_VARINTS: Final = tuple(varint(number) for number in range(2048))


def _varint(number: int) -> bytes:
    return _VARINTS[number] if number < 2048 else varint(number)


def _same_size(body: bytes, start: int, count: int, judged: bool) -> Messages | None:
    """The messages, if all are of one producer, of the same lengths and no events; else None."""
    if count < FEWEST_ROWS:
        return None
    _, first, id_bytes = _OFFSET_SEQUENCE_ID.unpack_from(body, start)
    key_at = 20 + id_bytes
    (key_bytes,) = LENGTH.unpack_from(body, start + key_at - LENGTH.size)
    epoch, payload_bytes = EPOCH_PAYLOAD.unpack_from(body, start + key_at + key_bytes)
    payload_at = key_at + key_bytes + EPOCH_PAYLOAD.size
    size = MIN_MESSAGE_BYTES + id_bytes + key_bytes + payload_bytes
    if size * count != len(body) - start or body[-len(NO_EVENT) :] != NO_EVENT:
        return None
    # Everything but sequence, key and payload.
    rows = Rows(body, start, count, size)
    for begin, end in ((16, key_at), (key_at + key_bytes, payload_at), (payload_at + payload_bytes, size)):
        if not rows.is_constant(begin, end):
            return None
    numbers = rows.big_endian(8).astype(np.uint64).ravel()
    last = int(numbers[-1])
    producer_id = body[start + 18 : start + 18 + id_bytes]
    in_envelope = judged and bool(producer_id) and first > 0 and last <= MAX_SEQUENCE
    one_by_one = last == first + count - 1 < 2**63 and bool((numbers == counted(first, count)).all())
    if not one_by_one and (in_envelope or numbers.any()):
        return None  # Numbered otherwise: rare enough to be left to the general way.
    own_epoch = epoch if not producer_id else 0
    number_bytes, tail = 0, b""
    if not in_envelope and last:
        number_bytes = len(varint(last))
        if not first or len(varint(first)) != number_bytes:
            return None  # Some numbers take a byte more than others, which happens once in thousands of batches.
        tail = _SEQUENCE + bytes(number_bytes) + (_EPOCH + varint(own_epoch) if own_epoch else b"")
    elif own_epoch:
        return None
    key = _KEY + varint(key_bytes) if key_bytes else b""
    value = _VALUE + varint(payload_bytes)
    record_bytes = len(key) + key_bytes + len(value) + payload_bytes + len(tail)
    head = _SET_RECORD + varint(record_bytes) + key
    row = b"".join((head, bytes(key_bytes), value, bytes(payload_bytes), tail))
    written = bytearray(row) * count
    value_at = len(row) - len(tail) - payload_bytes
    to = Rows(written, 0, count, len(row))
    rows.copy(key_bytes, key_at, to, len(head))
    rows.copy(payload_bytes, payload_at, to, value_at)
    to.write_varints(numbers, number_bytes, value_at + payload_bytes + len(_SEQUENCE))
    run = Run(producer_id, epoch if producer_id else 0, first if in_envelope else None, (), count, bytes(written))
    return Messages((run,), first, last, epoch, producer_id)


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
        (size,) = LENGTH.unpack_from(body, position)
        position += 2
        core = _KEY + _varint(size) + body[position : position + size] if size else b""
        position += size
        epoch, size = EPOCH_PAYLOAD.unpack_from(body, position)
        position += 12
        core += _VALUE + _varint(size) + body[position : position + size]
        position += size
        if body[position : position + 16] == NO_EVENT:
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
    (size,) = LENGTH.unpack_from(body, position)
    position += 2
    parts: list[bytes] = []
    if size:
        parts += (_EVENT_TYPE, varint(size), body[position : position + size])
        position += size
    schema, aggregate, size = SCHEMA_AGGREGATE_METADATA.unpack_from(body, position)
    position += 14
    if schema:
        parts += (_SCHEMA_VERSION, varint(schema))
    if aggregate:
        parts += (_AGGREGATE_VERSION, varint(aggregate))
    if size:
        parts += (_METADATA, varint(size), body[position : position + size])
        position += size
    return b"".join(parts), position
