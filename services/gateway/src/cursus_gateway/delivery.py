"""Stored record sets to message records of the legacy wire; records.py has both layouts and the way there.

Batches whose records are alike go through tables.py, as many of them at once as follow each other; those that differ in
size only through mixed.py; all others through protobuf's own parser, which is as fast as walking their bytes in Python
and knows every field.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final

import numpy as np

from cursus_gateway.mixed import MixedMessages
from cursus_gateway.records import (
    EPOCH_PAYLOAD,
    LENGTH,
    LONGEST_KEY,
    MIN_MESSAGE_BYTES,
    NO_EVENT,
    SCHEMA_AGGREGATE_METADATA,
)
from cursus_gateway.tables import MessageTable
from cursus_proto.columns.rows import FEWEST_ROWS, counted
from cursus_proto.cutting import StoredBatch
from cursus_proto.v1.records_pb2 import Record

_OFFSET_SEQUENCE: Final = Struct(">QQ")
# Columns are of whole batches: for fewer records than one in so many, going from record to record costs less.
_SMALLEST_SHARE: Final = 4


@dataclass(slots=True)
class Written:
    """Legacy message records under construction."""

    parts: list[bytes | bytearray | memoryview]
    count: int = 0
    size: int = 0
    first_sequence: int = 0
    last_sequence: int = 0
    next_offset: int = 0
    full: bool = False
    """A record was left out because of a limit."""


def write_messages(
    batches: Sequence[StoredBatch], from_offset: int, *, max_count: int, max_bytes: int, after: Written | None = None
) -> Written:
    """The records of plain batches from `from_offset` on as legacy message records, at most `max_count` of them and
    `max_bytes` in all; the first one is written whatever its size. `next_offset` is where to read on. `after`: those
    that are written already are written on, within the same limits.

    Texts longer than their 16-bit length are cut: only gRPC producers can make them.
    Raises MalformedRecordSet if a set cannot be parsed.
    """
    writer = _Writer(from_offset, max_count, max_bytes, after)
    for run in _runs(batches, from_offset, max_count):
        writer.write(run)
        if writer.full:
            writer.written.full = True
            break
    return writer.written


class _Run:
    """Consecutive batches that may be alike: of one producer and epoch, with records as long on average, each numbered
    on from the one before."""

    __slots__ = ("batches", "epoch", "first_offset", "first_sequence", "producer_id", "rows", "size")

    def __init__(self, batch: StoredBatch) -> None:
        fields = batch.fields
        self.producer_id = fields.producer_id
        self.epoch = fields.producer_epoch
        self.first_offset = fields.base_offset
        self.first_sequence = fields.first_sequence
        """Negative if the envelopes number nothing."""
        self.batches = [batch]
        self.rows = fields.record_count
        self.size = batch.end - batch.begin

    def add(self, batch: StoredBatch) -> bool:
        """Takes the batch if it goes with the others."""
        fields, size = batch.fields, batch.end - batch.begin
        count, rows = fields.record_count, self.rows
        first_sequence = self.first_sequence + rows if self.first_sequence >= 0 else self.first_sequence
        if (
            size * rows != self.size * count
            or fields.base_offset != self.first_offset + rows
            or fields.first_sequence != first_sequence
            or fields.producer_id != self.producer_id
            or fields.producer_epoch != self.epoch
        ):
            return False
        self.batches.append(batch)
        self.rows += count
        self.size += size
        return True

    def alone(self) -> Iterator[_Run]:
        """Each batch as a run of its own."""
        return map(_Run, self.batches)


def _runs(batches: Sequence[StoredBatch], from_offset: int, max_count: int) -> Iterator[_Run]:
    """The batches in runs, in order, from the one on that holds `from_offset` to the one with which `max_count` is
    reached."""
    run: _Run | None = None
    found = 0
    for batch in batches:
        base_offset, count = batch.fields.base_offset, batch.fields.record_count
        if base_offset + count <= from_offset:
            continue
        if run is None or not run.add(batch):
            if run is not None:
                yield run
            run = _Run(batch)
        found += count - max(0, from_offset - base_offset)
        if found >= max_count:
            break  # A run is looked at as a whole, so it is not to hold more than is wanted.
    if run is not None:
        yield run


class _Writer:
    """Fills `written` up to its limits. `full` as soon as one of them has left a record out."""

    def __init__(self, from_offset: int, max_count: int, max_bytes: int, after: Written | None) -> None:
        self.written = after or Written([], next_offset=from_offset)
        self.full = False
        self._from_offset = from_offset
        self._max_count = max_count
        self._max_bytes = max_bytes

    def write(self, run: _Run) -> None:
        if self._write_alike(run):
            return
        for alone in run.alone():
            if (len(run.batches) == 1 or not self._write_alike(alone)) and not self._write_mixed(alone):
                self._write_any(alone.batches[0])
            if self.full:
                return

    def _write_alike(self, run: _Run) -> bool:
        """Writes the run if its records make a table; else nothing."""
        if run.rows < FEWEST_ROWS:
            return False
        table = MessageTable.of(run.batches, run.rows)
        if table is None:
            return False
        begin = max(0, self._from_offset - run.first_offset)
        size = table.message_bytes(run.producer_id)
        room = min(self._max_count - self.written.count, (self._max_bytes - self.written.size) // size)
        if not self.written.count and self._max_count > 0:
            room = max(room, 1)
        end = min(run.rows, begin + max(room, 0))
        self.full = end < run.rows
        if begin < end:
            self._write_columns(table, run, begin, end, (end - begin) * size)
        return True

    def _write_mixed(self, run: _Run) -> bool:
        """Writes the run, which is one batch, if its records have nothing but key, payload and sequence; else
        nothing."""
        begin = max(0, self._from_offset - run.first_offset)
        wanted = min(self._max_count - self.written.count, run.rows - begin)
        if wanted < FEWEST_ROWS or wanted < run.rows // _SMALLEST_SHARE:
            return False
        mixed = MixedMessages.of(bytes(run.batches[0].plain()))
        if mixed is None or begin >= mixed.count:
            return False
        totals = np.cumsum(mixed.message_bytes(run.producer_id)[begin:])
        fitting = int(np.searchsorted(totals, self._max_bytes - self.written.size, "right"))
        if not self.written.count:
            fitting = max(fitting, 1)
        count = min(len(totals), fitting, self._max_count - self.written.count)
        self.full = count < len(totals)
        if count > 0:
            self._write_columns(mixed, run, begin, begin + count, int(totals[count - 1]))
        return True

    def _write_columns(self, records: MessageTable | MixedMessages, run: _Run, begin: int, end: int, size: int) -> None:
        """Writes the records from `begin` to `end`, which are not none and take so many bytes."""
        written = self.written
        if records.sequences is not None:
            sequences = records.sequences[begin:end]
        elif run.first_sequence >= 0:
            sequences = counted(run.first_sequence + begin, end - begin)
        else:
            sequences = np.zeros(end - begin, np.uint64)
        first_offset = run.first_offset + begin
        written.parts.append(records.messages(begin, end, first_offset, sequences, run.producer_id, run.epoch))
        if not written.count:
            written.first_sequence = int(sequences[0])
        written.last_sequence = int(sequences[-1])
        written.count += end - begin
        written.size += size
        written.next_offset = run.first_offset + end

    def _write_any(self, stored: StoredBatch) -> None:
        """Writes the batch, record by record."""
        written = self.written
        batch = stored.fields
        records = stored.unpack()
        producer = LENGTH.pack(len(batch.producer_id)) + batch.producer_id
        epoch_default, first_sequence = batch.producer_epoch, batch.first_sequence
        fixed_bytes = MIN_MESSAGE_BYTES - len(NO_EVENT) + len(batch.producer_id)
        pack, pack_length, pack_payload = _OFFSET_SEQUENCE.pack, LENGTH.pack, EPOCH_PAYLOAD.pack
        parts, count, total = written.parts, written.count, written.size
        number = written.last_sequence
        base_offset = batch.base_offset
        skipped = max(0, self._from_offset - base_offset)
        index = skipped
        for index, record in enumerate(records[skipped:] if skipped else records, skipped):
            key, value = record.key, record.value
            event = NO_EVENT
            if record.event_type or record.metadata or record.schema_version or record.aggregate_version:
                event = _write_event(record)
            if len(key) > LONGEST_KEY:
                key = key[:LONGEST_KEY]
            size = fixed_bytes + len(key) + len(value) + len(event)
            if count >= self._max_count or (count and total + size > self._max_bytes):
                self.full = True
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
        written.next_offset = base_offset + index + (0 if self.full else 1)
        written.count, written.size = count, total


def _write_event(record: Record) -> bytes:
    event_type, metadata = record.event_type[:0xFFFF], record.metadata[:0xFFFF]
    schema_version, aggregate_version = record.schema_version, record.aggregate_version
    if not (event_type or metadata or schema_version or aggregate_version):
        return NO_EVENT
    numbers = SCHEMA_AGGREGATE_METADATA.pack(schema_version, aggregate_version, len(metadata))
    return b"".join((LENGTH.pack(len(event_type)), event_type, numbers, metadata))


def read_payloads(batches: Sequence[StoredBatch], from_offset: int, max_count: int) -> tuple[list[bytes], int]:
    """Only the payloads of plain batches, for clients that know no more, and the offset after the last one.

    Raises MalformedRecordSet.
    """
    payloads: list[bytes] = []
    next_offset = from_offset
    for stored in batches:
        batch = stored.fields
        skip = max(0, from_offset - batch.base_offset)
        records = stored.unpack()
        wanted = records[skip : skip + max_count - len(payloads)]
        if wanted:
            payloads += [record.value for record in wanted]
            next_offset = batch.base_offset + skip + len(wanted)
    return payloads, next_offset
