"""What a partition remembers of its producers, so that a repeated batch is stored once.

Two rules, chosen by the request. *Strict*, for our own clients: sequences are contiguous from 0, an exact repetition
is a duplicate, everything else out of order is refused. *Windowed*, for legacy producers, which overtake themselves:
every sequence number is stored at most once, gaps are allowed and may be filled later.

The ledger is a pure value: decisions raise or return, `record` notes what was appended. It knows which producers have
changed since it was last asked, so that only those are saved. It is rebuilt when a log is opened, from what was saved
and from the headers of later batches (`restore`, then `record` for every entry that is not covered).
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from cursus_broker.errors import ProducerFenced, ProducerForgotten, SequenceConflict, SequenceGap, SequenceTooOld
from cursus_broker.log.api import Batch, EntryHeader, Offset
from cursus_broker.metadata.model import StoredProducer
from cursus_broker.publish.remembered import Released, Remembered, StoredBatch
from cursus_broker.publish.runs import Runs

# Flags of stored entries, below the log's own bit.
WINDOWED: Final = 0x0001  # The producer is judged by the windowed rule.
EXPLICIT_SEQUENCES: Final = 0x0002  # Sequences stand in the records; with WINDOWED only.
BY_CONTENT: Final = 0x0004  # One anonymous record whose content was remembered; `publish/recall.py` reads it back.

# Producers a partition remembers; the one idle for longest is forgotten beyond it.
MAX_PRODUCERS: Final = 10_000

# Released producers a partition keeps out; the one released first is forgotten beyond it. One takes some 300 bytes.
MAX_RELEASED: Final = 20_000


class Cause(StrEnum):
    """Why a producer was forgotten."""

    IDLE = "idle"
    CROWDED_OUT = "crowded_out"
    RELEASED = "released"


@dataclass(frozen=True, slots=True)
class Fresh:
    """Nothing of the batch was stored before: append it."""


@dataclass(frozen=True, slots=True)
class Repeated:
    """All of the batch was stored before. `stored` is None where its place is not remembered (windowed only)."""

    stored: StoredBatch | None


@dataclass(frozen=True, slots=True)
class PartlyRepeated:
    """Some records were stored before: append only those at these indexes."""

    fresh_indexes: Sequence[int]


Verdict = Fresh | Repeated | PartlyRepeated

_FRESH = Fresh()
_NONE_SEEN: Final = Runs()


def show_producer(producer_id: bytes) -> str:
    """A producer id as people may read it in errors and logs."""
    return producer_id[:64].decode("utf-8", "backslashreplace")


class ProducerLedger:
    """The producers of one partition."""

    def __init__(self) -> None:
        # Ordered by last use, so that the head is the one to forget.
        self._producers: OrderedDict[bytes, Remembered] = OrderedDict()
        # In the order of their releases.
        self._released: OrderedDict[bytes, Released] = OrderedDict()
        self._changed: set[bytes] = set()
        self.unsaved_removals = 0
        """Producers forgotten since the changes were last taken."""
        self.forgotten: Counter[Cause] = Counter()
        """Since the log was opened, for metrics."""
        self.is_whole = True
        """Whether every producer that ever stored a batch in this log is known: nobody was forgotten."""

    def __len__(self) -> int:
        return len(self._producers)

    def get(self, producer_id: bytes) -> Remembered | None:
        return self._producers.get(producer_id)

    def get_released(self, producer_id: bytes) -> Released | None:
        return self._released.get(producer_id)

    def noted_upto(self, producer_id: bytes) -> Offset:
        """Behind the last batch of a producer that was noted. What lies before it need not be noted again."""
        one = self._producers.get(producer_id) or self._released.get(producer_id)
        return Offset(0) if one is None else one.next_offset

    # Judging

    def judge_strict(self, batch: Batch) -> Fresh | Repeated:
        """Whether a strictly numbered batch is new or a repetition.

        The caller still compares the bytes of a repetition. Raises ProducerFenced, ProducerForgotten, SequenceGap,
        SequenceConflict, SequenceTooOld.
        """
        producer = self._producers.get(batch.producer_id)
        first = batch.first_sequence
        if producer is None:
            if first != 0:
                raise ProducerForgotten(show_producer(batch.producer_id), first, never_known=self.is_whole)
            self._keep_out_released(batch)
            return _FRESH
        if batch.producer_epoch > producer.epoch:
            if first != 0:
                raise SequenceGap(show_producer(batch.producer_id), 0, first)
            return _FRESH
        if batch.producer_epoch < producer.epoch:
            raise ProducerFenced(show_producer(batch.producer_id), batch.producer_epoch, producer.epoch)
        if first >= producer.next_sequence:
            if producer.incomplete:
                raise ProducerForgotten(show_producer(batch.producer_id), first, never_known=False)
            if first > producer.next_sequence:
                raise SequenceGap(show_producer(batch.producer_id), producer.next_sequence, first)
            return _FRESH
        return Repeated(_find_repeated(producer, batch))

    def judge_windowed(self, batch: Batch, sequences: Sequence[int]) -> Verdict:
        """Which records of a windowed batch are new. `sequences` holds one number a record, or none if they run on
        from the batch's first sequence. Number 0 means "not numbered" to legacy producers and is always new.

        Raises ProducerFenced.
        """
        producer = self._producers.get(batch.producer_id)
        if producer is None:
            self._keep_out_released(batch)
            return _without_inner_repetitions(sequences)
        first = sequences[0] if sequences else batch.first_sequence
        if not sequences:
            if first == 1 and batch.producer_epoch > producer.epoch:
                return _FRESH
            end = first + batch.record_count
            if not producer.seen.overlaps(max(first, 1), end):
                _refuse_old_epoch(producer, batch)
                return _FRESH
            if first > 0 and producer.seen.covers(first, end):
                return Repeated(producer.find(first, batch.record_count))
            sequences = range(first, end)
        begins_session = _begins_session(producer, batch.producer_epoch, sequences)
        seen = producer.seen
        fresh: list[int] = []
        met: set[int] = set()
        for index, sequence in enumerate(sequences):
            if begins_session and sequence == 1:
                seen = _NONE_SEEN
            if sequence == 0 or (sequence not in seen and sequence not in met):
                fresh.append(index)
                met.add(sequence)
        if not fresh:
            return Repeated(producer.find(first, batch.record_count))
        _refuse_old_epoch(producer, batch)
        return _FRESH if len(fresh) == len(sequences) else PartlyRepeated(fresh)

    def _keep_out_released(self, batch: Batch) -> None:
        """Whoever still sends in the epoch in which a producer was released would store again what it has stored."""
        released = self._released.get(batch.producer_id)
        if released is not None and batch.producer_epoch <= released.epoch:
            raise ProducerFenced(show_producer(batch.producer_id), batch.producer_epoch, released.epoch + 1)

    # Noting

    def record(self, header: EntryHeader, *, windowed: bool, sequences: Sequence[int] = ()) -> None:
        """Note a batch that was appended. `sequences` as for `judge_windowed`."""
        producer_id = header.producer_id
        producer = self._producers.get(producer_id)
        if producer is None:
            producer = self._producers[producer_id] = Remembered(header.producer_epoch)
            self._released.pop(producer_id, None)
            if len(self._producers) > MAX_PRODUCERS:
                self._forget(next(iter(self._producers)), Cause.CROWDED_OUT)
        else:
            self._producers.move_to_end(producer_id)
        producer.note(header, windowed=windowed, sequences=sequences)
        self._changed.add(producer_id)

    def forget_idle(self, before_ms: int, most: int) -> int:
        """Forget at most so many producers whose last batch is older. Answers how many."""
        forgotten = 0
        while self._producers and forgotten < most:
            producer_id, producer = next(iter(self._producers.items()))
            if producer.last_ms >= before_ms:
                break
            self._forget(producer_id, Cause.IDLE)
            forgotten += 1
        while self._released and forgotten < most:
            producer_id, released = next(iter(self._released.items()))
            if released.last_ms >= before_ms:
                break
            self._let_in(producer_id)
            forgotten += 1
        return forgotten

    def release(self, producer_id: bytes, epoch: int) -> bool:
        """Forget what a producer that is done has stored, and keep it out, unless it has moved on to a higher epoch.
        Answers whether it was known."""
        producer = self._producers.get(producer_id)
        if producer is None or producer.epoch > epoch:
            return False
        self._forget(producer_id, Cause.RELEASED)
        self._released[producer_id] = Released(epoch, producer.next_offset, producer.last_ms)
        if len(self._released) > MAX_RELEASED:
            self._let_in(next(iter(self._released)))
        return True

    def _let_in(self, producer_id: bytes) -> None:
        del self._released[producer_id]
        self._changed.add(producer_id)
        self.unsaved_removals += 1

    def _forget(self, producer_id: bytes, cause: Cause) -> None:
        del self._producers[producer_id]
        self._changed.add(producer_id)
        self.unsaved_removals += 1
        self.forgotten[cause] += 1
        self.is_whole = False

    # Saving

    @property
    def has_changes(self) -> bool:
        return bool(self._changed)

    def take_changes(self) -> set[bytes]:
        """The producers that have changed, or were forgotten, since the last time. `put_back` if they are not saved."""
        changed, self._changed = self._changed, set()
        self.unsaved_removals = 0
        return changed

    def put_back(self, changed: Iterable[bytes]) -> None:
        self._changed.update(changed)

    def restore(self, row: StoredProducer) -> None:
        """Know a producer as it was saved. To be called in the order of their last batches."""
        if row.released:
            self._released[row.id] = Released.restored(row)
        else:
            self._producers[row.id] = Remembered.restored(row)


def _find_repeated(producer: Remembered, batch: Batch) -> StoredBatch:
    name, first, count = show_producer(batch.producer_id), batch.first_sequence, batch.record_count
    stored = producer.find(first, count)
    if stored is None:
        # Batches do not overlap: one that reaches into the remembered range without being there was never stored.
        if first + count <= producer.oldest_sequence:
            raise SequenceTooOld(name, first, producer.next_sequence, producer.oldest_sequence)
        raise SequenceConflict(name, first, f"{count} records do not match a stored batch's range")
    if stored.payload_crc != batch.payload_crc or stored.payload_bytes != len(batch.payload):
        raise SequenceConflict(name, first, "the bytes differ from the stored batch")
    return stored


def _refuse_old_epoch(producer: Remembered, batch: Batch) -> None:
    if batch.producer_epoch < producer.epoch:
        raise ProducerFenced(show_producer(batch.producer_id), batch.producer_epoch, producer.epoch)


def _begins_session(producer: Remembered, epoch: int, sequences: Iterable[int]) -> bool:
    """Whether number 1 in a higher epoch starts the producer's numbers anew. Repetitions before it do not matter, but
    a new number before it has carried the session over into the epoch. `record` sees the same, because only the new
    records are stored: the first of them is then number 1.
    """
    if epoch <= producer.epoch:
        return False
    first_new = next((number for number in sequences if number <= 1 or number not in producer.seen), None)
    return first_new == 1


def _without_inner_repetitions(sequences: Sequence[int]) -> Verdict:
    """The verdict on a session's first batch, which can only repeat itself."""
    if len(set(sequences)) == len(sequences):
        return _FRESH
    fresh: dict[int, int] = {}
    for index, sequence in enumerate(sequences):
        fresh.setdefault(sequence if sequence else -1 - index, index)
    return PartlyRepeated(sorted(fresh.values()))
