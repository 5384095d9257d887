"""What a partition knows of its producers against models that are too simple to be wrong: a set of numbers for the
windowed rule, a list of batches for the strict one. Every step may be followed by a restart.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cursus_broker.errors import ProducerFenced, SequenceConflict, SequenceGap
from cursus_broker.log.api import Batch, EntryHeader, Offset
from cursus_broker.publish.producers import Fresh, PartlyRepeated, ProducerLedger, Repeated, Runs
from cursus_proto.records import checksum

RANGES = st.tuples(st.integers(0, 60), st.integers(1, 12)).map(lambda pair: (pair[0], pair[0] + pair[1]))


@given(added=st.lists(RANGES, max_size=25), asked=RANGES)
def test_runs_hold_what_a_set_would_hold(added: list[tuple[int, int]], asked: tuple[int, int]) -> None:
    runs, model = Runs(), set[int]()
    for start, end in added:
        runs.add(start, end)
        model.update(range(start, end))
    assert [number for start, end in runs for number in range(start, end)] == sorted(model)
    edges = [edge for run in runs for edge in run]
    assert edges == sorted(set(edges)), "disjoint, and none touches the next"
    assert all((number in runs) == (number in model) for number in range(80))
    wanted = set(range(*asked))
    assert runs.covers(*asked) == (wanted <= model)
    assert runs.overlaps(*asked) == bool(wanted & model)
    assert list(Runs(runs)) == list(runs)


def header_of(batch: Batch, base_offset: int) -> EntryHeader:
    return EntryHeader(
        Offset(base_offset),
        batch.record_count,
        base_offset,
        len(batch.payload),
        batch.payload_crc,
        batch.codec,
        batch.flags,
        batch.producer_id,
        batch.producer_epoch,
        batch.first_sequence,
    )


def batch_of(producer: int, epoch: int, first: int, count: int, payload: bytes = b"") -> Batch:
    return Batch(
        payload,
        count,
        checksum(payload),
        producer_id=b"producer-%d" % producer,
        producer_epoch=epoch,
        first_sequence=first,
    )


PRODUCERS = st.integers(0, 2)
EPOCHS = st.integers(0, 3)


@dataclass(slots=True)
class StrictModel:
    """One producer as its contract describes it."""

    epoch: int = -1
    stored: list[tuple[int, int, bytes, int]] = field(default_factory=list)
    """First sequence, record count, payload and base offset of every batch of the epoch."""

    @property
    def next_sequence(self) -> int:
        return self.stored[-1][0] + self.stored[-1][1] if self.stored else 0

    def expect(self, batch: Batch) -> str | int:
        """`fresh`, the offset of the batch that is repeated, or the name of the refusal."""
        if batch.producer_epoch > self.epoch:
            return "fresh" if batch.first_sequence == 0 else "gap"
        if batch.producer_epoch < self.epoch:
            return "fenced"
        if batch.first_sequence >= self.next_sequence:
            return "fresh" if batch.first_sequence == self.next_sequence else "gap"
        for first, count, payload, offset in self.stored:
            if (first, count, payload) == (batch.first_sequence, batch.record_count, batch.payload):
                return offset
        return "conflict"


class StrictLedger(RuleBasedStateMachine):
    """Batches in any order, right and wrong ones. No producer sends more in an epoch than the ledger remembers."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = ProducerLedger()
        self.models: dict[int, StrictModel] = {}
        self.next_offset = 0

    def judge(self, batch: Batch) -> str | int:
        try:
            verdict = self.ledger.judge_strict(batch)
        except SequenceGap:
            return "gap"
        except SequenceConflict:
            return "conflict"
        except ProducerFenced:
            return "fenced"
        if isinstance(verdict, Fresh):
            return "fresh"
        assert verdict.stored is not None
        return verdict.stored.base_offset

    @rule(
        producer=PRODUCERS,
        epoch=EPOCHS,
        first=st.integers(0, 12),
        count=st.integers(1, 3),
        payload=st.sampled_from((b"a", b"b", b"longer")),
    )
    def anything(self, producer: int, epoch: int, first: int, count: int, payload: bytes) -> None:
        self.send(producer, batch_of(producer, epoch, first, count, payload))

    @rule(producer=PRODUCERS, count=st.integers(1, 3), payload=st.sampled_from((b"a", b"b", b"longer")))
    def what_comes_next(self, producer: int, count: int, payload: bytes) -> None:
        model = self.models.get(producer, StrictModel(epoch=0))
        self.send(producer, batch_of(producer, model.epoch, model.next_sequence, count, payload))

    @rule(producer=PRODUCERS, pick=st.integers(0, 100))
    def a_repetition(self, producer: int, pick: int) -> None:
        model = self.models.get(producer, StrictModel())
        if model.stored:
            first, count, payload, _ = model.stored[pick % len(model.stored)]
            self.send(producer, batch_of(producer, model.epoch, first, count, payload))

    @rule()
    def restart(self) -> None:
        self.ledger = ProducerLedger.restore(self.ledger.dump())

    def send(self, producer: int, batch: Batch) -> None:
        model = self.models.get(producer, StrictModel())
        expected = model.expect(batch)
        assert self.judge(batch) == expected
        if expected != "fresh":
            return
        self.ledger.record(header_of(batch, self.next_offset), windowed=False)
        if batch.producer_epoch > model.epoch:
            model = StrictModel(batch.producer_epoch)
        model.stored.append((batch.first_sequence, batch.record_count, batch.payload, self.next_offset))
        self.models[producer] = model
        self.next_offset += batch.record_count

    @invariant()
    def knows_its_producers(self) -> None:
        assert len(self.ledger) == len(self.models)
        assert ProducerLedger.restore(self.ledger.dump()).dump() == self.ledger.dump()


@dataclass(slots=True)
class WindowedModel:
    """One legacy producer as RULE 39 describes it: an epoch and the numbers seen in its session."""

    epoch: int
    seen: set[int] = field(default_factory=set)

    def take(self, number: int, epoch: int) -> bool:
        """Judge one record, and note it if it is new. Epochs that are over are the caller's business."""
        if number == 1 and epoch > self.epoch:
            self.seen.clear()
        if number and number in self.seen:
            return False
        self.epoch = max(self.epoch, epoch)
        self.seen.add(number)
        return True


class WindowedLedger(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.ledger = ProducerLedger()
        self.models: dict[int, WindowedModel] = {}
        self.next_offset = 0

    @rule(producer=PRODUCERS, epoch=EPOCHS, first=st.integers(0, 30), count=st.integers(1, 6))
    def contiguous(self, producer: int, epoch: int, first: int, count: int) -> None:
        self.send(producer, epoch, list(range(first, first + count)), explicit=False)

    @rule(producer=PRODUCERS, epoch=EPOCHS, numbers=st.lists(st.integers(0, 30), min_size=1, max_size=6))
    def out_of_order(self, producer: int, epoch: int, numbers: list[int]) -> None:
        self.send(producer, epoch, numbers, explicit=True)

    @rule()
    def restart(self) -> None:
        self.ledger = ProducerLedger.restore(self.ledger.dump())

    def send(self, producer: int, epoch: int, numbers: list[int], *, explicit: bool) -> None:
        model = self.models.setdefault(producer, WindowedModel(epoch))
        after = WindowedModel(model.epoch, set(model.seen))
        fresh = [index for index, number in enumerate(numbers) if after.take(number, epoch)]

        batch = batch_of(producer, epoch, numbers[0], len(numbers))
        sequences = numbers if explicit else ()
        try:
            verdict = self.ledger.judge_windowed(batch, sequences)
        except ProducerFenced:
            assert fresh
            assert epoch < model.epoch
            return
        match verdict:
            case Repeated():
                assert not fresh
                return
            case Fresh():
                assert len(fresh) == len(numbers)
                stored = batch
            case PartlyRepeated(fresh_indexes):
                assert list(fresh_indexes) == fresh
                sequences = [numbers[index] for index in fresh]
                stored = batch_of(producer, epoch, sequences[0], len(sequences))
        assert epoch >= model.epoch
        self.models[producer] = after
        self.ledger.record(header_of(stored, self.next_offset), windowed=True, sequences=sequences)
        self.next_offset += stored.record_count

    @invariant()
    def survives_a_round_trip(self) -> None:
        assert ProducerLedger.restore(self.ledger.dump()).dump() == self.ledger.dump()


TestStrictLedger = StrictLedger.TestCase
TestWindowedLedger = WindowedLedger.TestCase
