"""What a partition remembers of one producer.

The newest batches are kept packed, as they are saved, in less than half the memory that objects would take. Integers
are big-endian:

    first_sequence  i64
    record_count    u32
    base_offset     i64
    payload_crc     u32
    payload_bytes   u32
    append_time     i64  milliseconds since 1970
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from cursus_broker.log.api import EntryHeader, Offset
from cursus_broker.metadata.model import StoredProducer
from cursus_broker.publish.runs import Runs
from cursus_proto import chain

# A retry may be this many batches old and still be answered with its first offset. Clients keep fewer in flight.
REMEMBERED_BATCHES: Final = 64

_BATCH: Final = struct.Struct(
    ">"
    "q"  # first_sequence
    "I"  # record_count
    "q"  # base_offset
    "I"  # payload_crc
    "I"  # payload_bytes
    "q"  # append_time
)
_RANGE: Final = struct.Struct(">qI")  # what a batch begins with


class StoredBatch(NamedTuple):
    """A batch of a producer that was stored: where, and by which bytes to know it again."""

    first_sequence: int
    record_count: int
    base_offset: Offset
    payload_crc: int
    payload_bytes: int
    append_time_ms: int

    @property
    def next_offset(self) -> Offset:
        return Offset(self.base_offset + self.record_count)


@dataclass(slots=True)
class Remembered:
    """One producer, after the last of its batches that was noted."""

    epoch: int
    next_sequence: int = 0
    """Of strict sequences, which begin at 0 in every epoch."""
    checksum: int | None = chain.EMPTY
    """Of all strict batches of the epoch, as in `cursus_proto/chain.py`; None where not all of them are known."""
    next_offset: Offset = Offset(0)  # noqa: RUF009  # a number
    """Behind the last batch. What lies before it need not be noted again."""
    last_ms: int = 0
    incomplete: bool = False
    """Later batches may have been removed from the log before they were noted: what comes next is not known."""
    recent: deque[bytes] = field(default_factory=lambda: deque(maxlen=REMEMBERED_BATCHES))
    seen: Runs = field(default_factory=Runs)
    """Of windowed sequences."""

    def note(self, header: EntryHeader, *, windowed: bool, sequences: Sequence[int]) -> None:
        """Note a batch that was appended. `sequences` holds one number a record, or none if they run on from the
        header's first sequence.

        A batch that would have been refused was stored because the producer was unknown at that time: it had been
        forgotten, and what it did before does not count. That is met when a log is read back.
        """
        first = sequences[0] if sequences else header.first_sequence
        epoch, count = header.producer_epoch, header.record_count
        if windowed:
            self._note_windowed(epoch, first, sequences or range(first, first + count))
        else:
            if epoch != self.epoch or first != self.next_sequence:
                self._begin(epoch)
                self.checksum = chain.EMPTY if first == 0 else None
            if self.checksum is not None:
                self.checksum = chain.extend(self.checksum, first, count, header.payload_crc)
            self.next_sequence = first + count
        self.incomplete = False
        self.next_offset = header.next_offset
        self.last_ms = header.append_time_ms
        self.recent.append(
            _BATCH.pack(
                first, count, header.base_offset, header.payload_crc, header.payload_bytes, header.append_time_ms
            )
        )

    def find(self, first_sequence: int, record_count: int) -> StoredBatch | None:
        """The newest batch of exactly this range, if it is remembered."""
        wanted = _RANGE.pack(first_sequence, record_count)
        for packed in reversed(self.recent):
            if packed.startswith(wanted):
                first, count, base_offset, *others = _BATCH.unpack(packed)
                return StoredBatch(first, count, Offset(base_offset), *others)
        return None

    @property
    def oldest_sequence(self) -> int:
        """Where the oldest batch begins that is remembered."""
        return _RANGE.unpack_from(self.recent[0])[0] if self.recent else self.next_sequence

    def stored(self, producer_id: bytes) -> StoredProducer:
        """For `restored`."""
        return StoredProducer(
            producer_id,
            self.epoch,
            self.next_sequence,
            self.checksum,
            self.next_offset,
            self.last_ms,
            self.incomplete,
            b"".join(self.recent),
            self.seen.pack(),
        )

    @classmethod
    def restored(cls, row: StoredProducer) -> Remembered:
        return cls(
            row.epoch,
            row.next_sequence,
            row.checksum,
            Offset(row.next_offset),
            row.last_append_ms,
            bool(row.incomplete),
            _cut(row.recent),
            Runs.unpack(row.seen),
        )

    def _note_windowed(self, epoch: int, first: int, sequences: Sequence[int]) -> None:
        if epoch < self.epoch or (epoch > self.epoch and first == 1):
            self._begin(epoch)
        elif epoch > self.epoch:
            self.epoch, self.next_sequence = epoch, 0
        self.checksum = None
        if isinstance(sequences, range):
            self.seen.add(sequences.start, sequences.stop)
        else:
            for sequence in sequences:
                self.seen.add(sequence, sequence + 1)

    def _begin(self, epoch: int) -> None:
        self.epoch, self.next_sequence = epoch, 0
        self.recent.clear()
        self.seen.clear()


@dataclass(frozen=True, slots=True)
class Released:
    """What is left of a producer that is done: that nobody may send as if it were not."""

    epoch: int
    """The last one in which nobody may send any more."""
    next_offset: Offset
    """Behind its last batch."""
    last_ms: int

    def stored(self, producer_id: bytes) -> StoredProducer:
        """For `restored`."""
        return StoredProducer(
            producer_id, self.epoch, 0, None, self.next_offset, self.last_ms, False, b"", b"", released=True
        )

    @classmethod
    def restored(cls, row: StoredProducer) -> Released:
        return cls(row.epoch, Offset(row.next_offset), row.last_append_ms)


def _cut(packed: bytes) -> deque[bytes]:
    size = _BATCH.size
    return deque((packed[at : at + size] for at in range(0, len(packed), size)), REMEMBERED_BATCHES)
