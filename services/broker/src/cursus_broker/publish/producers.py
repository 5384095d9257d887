"""What a partition remembers of its producers, so that a repeated batch is stored once.

Two rules, chosen by the request. *Strict*, for our own clients: sequences are contiguous from 0, an exact repetition
is a duplicate, everything else out of order is refused. *Windowed*, for legacy producers, which overtake themselves:
every sequence number is stored at most once, gaps are allowed and may be filled later.

The ledger is a pure value: decisions raise or return, `record` notes what was appended. It is rebuilt from batch
headers when a log is opened (`restore`, then `record` for every later entry).
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from cursus_broker.errors import ProducerFenced, SequenceConflict, SequenceGap
from cursus_broker.log.api import Batch, EntryHeader, Offset

# Flags of stored entries, below the log's own bit.
WINDOWED: Final = 0x0001  # The producer is judged by the windowed rule.
EXPLICIT_SEQUENCES: Final = 0x0002  # Sequences stand in the records; with WINDOWED only.

# A retry may be this many batches old and still be answered with its first offset. Clients keep fewer in flight.
REMEMBERED_BATCHES: Final = 64

# Runs of sequences a windowed producer may have seen apart from each other. Beyond it the lowest gap is given up.
MAX_RUNS: Final = 1_000

# Producers a partition remembers; the one idle for longest is forgotten beyond it.
MAX_PRODUCERS: Final = 10_000


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


class Runs:
    """A set of sequence numbers as sorted, disjoint, half-open runs."""

    __slots__ = ("_ends", "_starts")

    def __init__(self, runs: Iterable[tuple[int, int]] = ()) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        for start, end in runs:
            self._starts.append(start)
            self._ends.append(end)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._starts, self._ends, strict=True)

    def __contains__(self, number: int) -> bool:
        index = bisect_right(self._starts, number) - 1
        return index >= 0 and number < self._ends[index]

    def overlaps(self, start: int, end: int) -> bool:
        """Whether any number of [start, end) is in the set."""
        index = bisect_right(self._starts, start) - 1
        if index >= 0 and start < self._ends[index]:
            return True
        return index + 1 < len(self._starts) and self._starts[index + 1] < end

    def covers(self, start: int, end: int) -> bool:
        """Whether all numbers of [start, end) are in the set."""
        index = bisect_right(self._starts, start) - 1
        return index >= 0 and end <= self._ends[index]

    def add(self, start: int, end: int) -> None:
        """Add [start, end)."""
        first = bisect_right(self._starts, start) - 1
        if first < 0 or self._ends[first] < start:
            first += 1
        last = bisect_right(self._starts, end)
        if first < last:
            start = min(start, self._starts[first])
            end = max(end, self._ends[last - 1])
        self._starts[first:last] = [start]
        self._ends[first:last] = [end]
        if len(self._starts) > MAX_RUNS:
            self._starts[0:2] = [self._starts[0]]
            self._ends[0:2] = [self._ends[1]]

    def clear(self) -> None:
        self._starts.clear()
        self._ends.clear()


@dataclass(slots=True)
class _Producer:
    epoch: int
    next_sequence: int = 0
    seen: Runs = field(default_factory=Runs)
    recent: deque[StoredBatch] = field(default_factory=lambda: deque(maxlen=REMEMBERED_BATCHES))
    last_ms: int = 0


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
        self._producers: OrderedDict[bytes, _Producer] = OrderedDict()

    def __len__(self) -> int:
        return len(self._producers)

    def judge_strict(self, batch: Batch) -> Fresh | Repeated:
        """Whether a strictly numbered batch is new or a repetition.

        The caller still compares the bytes of a repetition. Raises ProducerFenced, SequenceGap, SequenceConflict.
        """
        producer = self._producers.get(batch.producer_id)
        first = batch.first_sequence
        if producer is None or batch.producer_epoch > producer.epoch:
            if first != 0:
                raise SequenceGap(show_producer(batch.producer_id), 0, first)
            return _FRESH
        if batch.producer_epoch < producer.epoch:
            raise ProducerFenced(show_producer(batch.producer_id), batch.producer_epoch, producer.epoch)
        if first == producer.next_sequence:
            return _FRESH
        if first > producer.next_sequence:
            raise SequenceGap(show_producer(batch.producer_id), producer.next_sequence, first)
        return Repeated(self._find_repeated(producer, batch))

    def judge_windowed(self, batch: Batch, sequences: Sequence[int]) -> Verdict:
        """Which records of a windowed batch are new. `sequences` holds one number a record, or none if they run on
        from the batch's first sequence. Number 0 means "not numbered" to legacy producers and is always new.

        Raises ProducerFenced.
        """
        producer = self._producers.get(batch.producer_id)
        if producer is None:
            return _without_inner_repetitions(sequences)
        first = sequences[0] if sequences else batch.first_sequence
        if not sequences:
            if first == 1 and batch.producer_epoch > producer.epoch:
                return _FRESH
            end = first + batch.record_count
            if not producer.seen.overlaps(max(first, 1), end):
                self._refuse_old_epoch(producer, batch)
                return _FRESH
            if first > 0 and producer.seen.covers(first, end):
                return Repeated(_exact(producer, first, batch.record_count))
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
            return Repeated(_exact(producer, first, batch.record_count))
        self._refuse_old_epoch(producer, batch)
        return _FRESH if len(fresh) == len(sequences) else PartlyRepeated(fresh)

    def record(self, header: EntryHeader, *, windowed: bool, sequences: Sequence[int] = ()) -> None:
        """Note a batch that was appended. `sequences` as for `judge_windowed`."""
        producer = self._producers.get(header.producer_id)
        first = sequences[0] if sequences else header.first_sequence
        if producer is None:
            producer = self._producers[header.producer_id] = _Producer(header.producer_epoch)
            if len(self._producers) > MAX_PRODUCERS:
                self._producers.popitem(last=False)
        else:
            self._producers.move_to_end(header.producer_id)
        if header.producer_epoch > producer.epoch:
            producer.epoch = header.producer_epoch
            if not windowed or first == 1:
                producer.seen.clear()
                producer.recent.clear()
        producer.last_ms = header.append_time_ms
        producer.recent.append(
            StoredBatch(
                first,
                header.record_count,
                header.base_offset,
                header.payload_crc,
                header.payload_bytes,
                header.append_time_ms,
            )
        )
        if not windowed:
            producer.next_sequence = first + header.record_count
        elif sequences:
            for sequence in sequences:
                producer.seen.add(sequence, sequence + 1)
        else:
            producer.seen.add(first, first + header.record_count)

    def forget_idle(self, before_ms: int) -> int:
        """Forget producers whose last batch is older. Answers how many."""
        forgotten = 0
        while self._producers:
            producer_id, producer = next(iter(self._producers.items()))
            if producer.last_ms >= before_ms:
                break
            del self._producers[producer_id]
            forgotten += 1
        return forgotten

    def dump(self) -> bytes:
        """The whole ledger for `restore`, as JSON."""
        return json.dumps(
            [
                {
                    "id": b64encode(producer_id).decode(),
                    "epoch": producer.epoch,
                    "next": producer.next_sequence,
                    "last_ms": producer.last_ms,
                    "seen": list(producer.seen),
                    "recent": [
                        (
                            b.first_sequence,
                            b.record_count,
                            b.base_offset,
                            b.payload_crc,
                            b.payload_bytes,
                            b.append_time_ms,
                        )
                        for b in producer.recent
                    ],
                }
                for producer_id, producer in self._producers.items()
            ]
        ).encode()

    @classmethod
    def restore(cls, dumped: bytes) -> ProducerLedger:
        """The ledger that `dump` wrote."""
        ledger = cls()
        for item in json.loads(dumped):
            ledger._producers[b64decode(item["id"])] = _Producer(
                epoch=item["epoch"],
                next_sequence=item["next"],
                seen=Runs((start, end) for start, end in item["seen"]),
                recent=deque(
                    (StoredBatch(f, n, Offset(o), crc, size, ms) for f, n, o, crc, size, ms in item["recent"]),
                    maxlen=REMEMBERED_BATCHES,
                ),
                last_ms=item["last_ms"],
            )
        return ledger

    @staticmethod
    def _find_repeated(producer: _Producer, batch: Batch) -> StoredBatch:
        name, first = show_producer(batch.producer_id), batch.first_sequence
        stored = _exact(producer, first, batch.record_count)
        if stored is None:
            oldest = producer.recent[0].first_sequence if producer.recent else producer.next_sequence
            if first < oldest:
                raise SequenceConflict(name, first, f"too old to be compared; the oldest remembered is {oldest}")
            raise SequenceConflict(name, first, f"{batch.record_count} records do not match a stored batch's range")
        if stored.payload_crc != batch.payload_crc or stored.payload_bytes != len(batch.payload):
            raise SequenceConflict(name, first, "the bytes differ from the stored batch")
        return stored

    @staticmethod
    def _refuse_old_epoch(producer: _Producer, batch: Batch) -> None:
        if batch.producer_epoch < producer.epoch:
            raise ProducerFenced(show_producer(batch.producer_id), batch.producer_epoch, producer.epoch)


def _exact(producer: _Producer, first_sequence: int, record_count: int) -> StoredBatch | None:
    for stored in reversed(producer.recent):
        if stored.first_sequence == first_sequence and stored.record_count == record_count:
            return stored
    return None


def _begins_session(producer: _Producer, epoch: int, sequences: Iterable[int]) -> bool:
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
