"""What a partition knows of its producers against models that are too simple to be wrong: a set of numbers for the
windowed rule, a list of batches for the strict one. Every step may be followed by a restart, also one that finds what
was saved long ago, or half of a save.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import cast
from unittest import mock
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cursus_broker.consume.tail import Tail
from cursus_broker.errors import (
    Conflict,
    ProducerFenced,
    ProducerForgotten,
    SequenceConflict,
    SequenceGap,
    SequenceTooOld,
    StorageFailed,
)
from cursus_broker.log.api import Batch, EntryHeader, Log, Offset
from cursus_broker.metadata.model import LedgerChange, LedgerReach, StoredLedger, StoredProducer, TopicPartition
from cursus_broker.metadata.store import MetadataStore
from cursus_broker.publish.producers import Fresh, PartlyRepeated, ProducerLedger, Repeated
from cursus_broker.publish.remembered import Remembered
from cursus_broker.publish.replay import rebuild_ledger
from cursus_broker.publish.runs import Runs
from cursus_broker.topics import ledgers
from cursus_broker.topics.partition import Partition
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


class KeptLog:
    """A log that is a list of headers, of which the first may be removed. Every batch is synced."""

    def __init__(self) -> None:
        self.kept: list[EntryHeader] = []
        self.earliest_offset = Offset(0)
        self.next_offset = Offset(0)
        self.appended_bytes = 0

    def append(self, batch: Batch) -> EntryHeader:
        header = header_of(batch, self.next_offset)
        self.kept.append(header)
        self.next_offset = header.next_offset
        return header

    def trim(self, headers: int) -> None:
        del self.kept[:headers]
        self.earliest_offset = self.kept[0].base_offset if self.kept else self.next_offset

    async def headers(self, offset: Offset) -> AsyncIterator[EntryHeader]:
        for header in self.kept:
            if header.next_offset > offset:
                yield header

    def sync_soon(self, _: Offset) -> None:
        return None


class KeptLedger:
    """A store of one ledger, which fails when it has taken so many changes."""

    def __init__(self) -> None:
        self.rows: dict[bytes, StoredProducer] = {}
        self.reach: LedgerReach | None = None
        self.fails_after = NEVER

    async def put_ledger(self, _place: TopicPartition, _topic_id: UUID, change: LedgerChange) -> None:
        if not self.fails_after:
            raise StorageFailed("the disk is full")
        self.fails_after -= 1
        self.reach = change.reach
        self.rows.update((row.id, row) for row in change.producers)
        for producer_id in change.forgotten:
            self.rows.pop(producer_id, None)

    def load(self) -> StoredLedger | None:
        rows = sorted(self.rows.values(), key=lambda row: row.next_offset)
        return None if self.reach is None else StoredLedger(self.reach, rows)


NEVER = 1_000_000


@dataclass(slots=True)
class StrictModel:
    """One producer as its contract describes it."""

    epoch: int = -1
    stored: list[tuple[int, int, bytes, int]] = field(default_factory=list)
    """First sequence, record count, payload and base offset of every batch of the epoch."""
    compared_from: int = 0
    """Batches that end before are not remembered one by one."""
    is_whole: bool = True
    """The checksum is known."""

    @property
    def next_sequence(self) -> int:
        return self.stored[-1][0] + self.stored[-1][1] if self.stored else 0

    @property
    def checksum(self) -> int:
        """Of one long string, not batch by batch."""
        return checksum(
            b"".join(struct.pack(">qII", first, n, checksum(bytes_)) for first, n, bytes_, _ in self.stored)
        )

    def expect(self, batch: Batch) -> str | int:
        """`fresh`, the offset of the batch that is repeated, or the name of the refusal."""
        first, end = batch.first_sequence, batch.first_sequence + batch.record_count
        if batch.producer_epoch > self.epoch:
            return "fresh" if first == 0 else "forgotten" if self.epoch < 0 else "gap"
        if batch.producer_epoch < self.epoch:
            return "fenced"
        if first >= self.next_sequence:
            return "fresh" if first == self.next_sequence else "gap"
        if end <= self.compared_from:
            return "too old"
        for begin, count, payload, offset in self.stored:
            if (begin, count, payload) == (first, batch.record_count, batch.payload):
                return offset
        return "conflict"


REFUSALS = {
    ProducerForgotten: "forgotten",
    SequenceGap: "gap",
    SequenceConflict: "conflict",
    SequenceTooOld: "too old",
    ProducerFenced: "fenced",
}


class StrictLedger(RuleBasedStateMachine):
    """Batches in any order, right and wrong ones, with releases, removals of the oldest, saves that fail half way, and
    restarts. No producer sends more in an epoch than the ledger remembers.
    """

    def __init__(self) -> None:
        super().__init__()
        # One producer a write, so that a save of several takes several.
        self.patched = mock.patch.object(ledgers, "_PRODUCERS_A_WRITE", 1)
        self.patched.start()
        self.loop = asyncio.new_event_loop()
        self.log = KeptLog()
        self.store = KeptLedger()
        self.saver = ledgers.Ledgers(cast("MetadataStore", self.store))
        self.models: dict[int, StrictModel] = {}
        self.gone: dict[int, StrictModel] = {}
        """Those that were released, as they were."""
        self.kept_out: dict[int, int] = {}
        """Up to which epoch nobody may send in the name of one that was released."""
        self.open(ProducerLedger(), Offset(0))

    def teardown(self) -> None:
        self.loop.close()
        self.patched.stop()

    def open(self, ledger: ProducerLedger, upto: Offset) -> None:
        self.partition = Partition("t", 0, cast("Log", self.log), cast("Tail", None), ledger, upto)

    @property
    def ledger(self) -> ProducerLedger:
        return self.partition.producers

    def judge(self, batch: Batch) -> str | int:
        try:
            verdict = self.ledger.judge_strict(batch)
        except Conflict as error:
            return REFUSALS[type(error)]
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

    @rule(producer=PRODUCERS, epoch=EPOCHS)
    def a_release(self, producer: int, epoch: int) -> None:
        model = self.models.get(producer)
        expected = model is not None and model.epoch <= epoch
        assert self.ledger.release(b"producer-%d" % producer, epoch) == expected
        if expected:
            self.gone[producer] = self.models.pop(producer)
            self.kept_out[producer] = epoch

    @rule(fails_after=st.sampled_from((NEVER, NEVER, 0, 1, 2)))
    def save(self, fails_after: int) -> None:
        self.store.fails_after = fails_after
        self.loop.run_until_complete(self.saver.save([(UUID(int=1), self.partition)]))
        saved = self.partition.ledger_upto == self.log.next_offset and not self.ledger.has_changes
        assert saved or fails_after != NEVER

    @rule(headers=st.integers(1, 8), saved_first=st.booleans())
    def removal_of_the_oldest(self, headers: int, saved_first: bool) -> None:
        """As a broker does it, or one that could not save and was killed then."""
        if saved_first:
            self.save(NEVER)
        self.log.trim(headers)

    @rule()
    def restart(self) -> None:
        stored = self.store.load()
        assert stored is None or stored.reach.described_offset <= self.log.next_offset
        ledger = self.loop.run_until_complete(rebuild_ledger(cast("Log", self.log), stored))
        assert not ledger.forgotten
        self.open(ledger, Offset(0 if stored is None else stored.reach.upto_offset))
        counted_upto = 0 if stored is None else stored.reach.upto_offset
        all_counted = counted_upto >= self.log.earliest_offset
        for producer, model in {**self.gone, **self.models}.items():
            is_released = producer not in self.models
            known = ledger.get(b"producer-%d" % producer)
            if known is None:
                assert is_released or not all_counted
                self.gone[producer] = model
                self.models.pop(producer, None)
                kept_out = ledger.get_released(b"producer-%d" % producer)
                if kept_out is None:
                    assert not all_counted, "one that was released is known, or kept out"
                    self.kept_out.pop(producer, None)
                else:
                    assert all_counted is False or kept_out.epoch == self.kept_out[producer]
                    self.kept_out[producer] = kept_out.epoch
                continue
            self.gone.pop(producer, None)
            self.kept_out.pop(producer, None)
            if known.incomplete:
                assert not all_counted
                self.begin_anew(producer, known)
                continue
            # What is known is true, though perhaps not all that was known.
            self.models[producer] = model
            assert (known.epoch, known.next_sequence) == (model.epoch, model.next_sequence)
            assert known.checksum is not None or is_released or not all_counted or not model.is_whole
            model.is_whole = model.is_whole and known.checksum is not None
            model.compared_from = known.oldest_sequence

    def begin_anew(self, producer: int, known: Remembered) -> None:
        """Nobody can tell what an incomplete producer stored last, so it does not go on, but in a higher epoch."""
        next_one = batch_of(producer, known.epoch, known.next_sequence, 1)
        assert self.judge(next_one) == "forgotten"
        self.models[producer] = StrictModel(known.epoch, stored=[(0, known.next_sequence, b"", -1)])
        self.send(producer, batch_of(producer, known.epoch + 1, 0, 1, b"a"))

    def send(self, producer: int, batch: Batch) -> None:
        model = self.models.get(producer, StrictModel())
        expected = model.expect(batch)
        if expected == "fresh" and batch.producer_epoch <= self.kept_out.get(producer, -1):
            expected = "fenced"
        assert self.judge(batch) == expected
        if expected != "fresh":
            return
        header = self.log.append(batch)
        self.ledger.record(header, windowed=False)
        if batch.producer_epoch > model.epoch:
            model = StrictModel(batch.producer_epoch)
        model.stored.append((batch.first_sequence, batch.record_count, batch.payload, header.base_offset))
        self.models[producer] = model
        self.gone.pop(producer, None)
        self.kept_out.pop(producer, None)

    @invariant()
    def knows_its_producers(self) -> None:
        assert len(self.ledger) == len(self.models)
        for producer, model in self.models.items():
            known = self.ledger.get(b"producer-%d" % producer)
            assert known is not None
            assert (known.epoch, known.next_sequence) == (model.epoch, model.next_sequence)
            assert known.checksum == (model.checksum if model.is_whole else None)


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
        rows = self.rows()
        self.ledger = ProducerLedger()
        for row in rows:
            self.ledger.restore(row)
        assert self.rows() == rows

    def rows(self) -> list[StoredProducer]:
        known = [(b"producer-%d" % producer, self.ledger.get(b"producer-%d" % producer)) for producer in self.models]
        return [producer.stored(producer_id) for producer_id, producer in known if producer is not None]

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
    def has_no_checksum_of_windowed_sequences(self) -> None:
        assert all(row.checksum is None for row in self.rows())


TestStrictLedger = StrictLedger.TestCase
TestWindowedLedger = WindowedLedger.TestCase
