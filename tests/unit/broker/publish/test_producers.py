"""What a partition concludes from producer ids, epochs and sequences. Behaviour over a real broker and its restarts is
in tests/integration/test_producer_retries.py, random sequences of batches in tests/property/test_producers.py.
"""

from __future__ import annotations

import pytest

from cursus_broker.errors import ProducerFenced, SequenceConflict, SequenceGap
from cursus_broker.log.api import Batch
from cursus_broker.publish import producers
from cursus_broker.publish.producers import Fresh, PartlyRepeated, ProducerLedger, Repeated, Runs
from tests.unit.broker.publish.support import Numbered, batch


class TestRuns:
    def test_touching_runs_become_one(self) -> None:
        runs = Runs()
        runs.add(1, 3)
        runs.add(5, 7)
        runs.add(3, 5)
        assert list(runs) == [(1, 7)]

    def test_a_run_swallows_all_it_covers(self) -> None:
        runs = Runs([(1, 2), (4, 5), (7, 8), (20, 21)])
        runs.add(0, 10)
        assert list(runs) == [(0, 10), (20, 21)]

    def test_beyond_the_window_the_lowest_gap_is_given_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(producers, "MAX_RUNS", 3)
        runs = Runs()
        for number in (1, 3, 5, 7):
            runs.add(number, number + 1)
        assert list(runs) == [(1, 4), (5, 6), (7, 8)]
        assert 2 in runs
        assert 4 not in runs


class TestStrict:
    def test_an_exact_repetition_is_found_with_its_place(self) -> None:
        ledger = Numbered()
        ledger.store(batch(0, b"a", count=3))
        stored = ledger.store(batch(3, b"b"))
        verdict = ledger.judge_strict(batch(3, b"b"))
        assert isinstance(verdict, Repeated)
        assert verdict.stored is not None
        assert verdict.stored.base_offset == stored.base_offset == 3

    @pytest.mark.parametrize("first", [1, 5])
    def test_an_unknown_producer_starts_at_zero(self, first: int) -> None:
        with pytest.raises(SequenceGap) as refused:
            ProducerLedger().judge_strict(batch(first, b"a"))
        assert refused.value.metadata["expected"] == "0"

    def test_a_gap_names_the_sequence_that_is_missing(self) -> None:
        ledger = Numbered()
        ledger.store(batch(0, b"a", count=3))
        with pytest.raises(SequenceGap) as refused:
            ledger.judge_strict(batch(4, b"b"))
        assert (refused.value.metadata["expected"], refused.value.metadata["got"]) == ("3", "4")

    @pytest.mark.parametrize(
        "other", [batch(0, b"b", count=3), batch(0, b"a", count=2), batch(0, b"a", count=4), batch(1, b"a", count=2)]
    )
    def test_anything_but_an_exact_repetition_of_a_used_sequence_is_a_conflict(self, other: Batch) -> None:
        ledger = Numbered()
        ledger.store(batch(0, b"a", count=3))
        with pytest.raises(SequenceConflict):
            ledger.judge_strict(other)

    def test_a_repetition_too_old_to_compare_is_refused_not_believed(self) -> None:
        ledger = Numbered()
        for sequence in range(producers.REMEMBERED_BATCHES + 1):
            ledger.store(batch(sequence, b"%d" % sequence))
        assert isinstance(ledger.judge_strict(batch(1, b"1")), Repeated)
        with pytest.raises(SequenceConflict, match="too old"):
            ledger.judge_strict(batch(0, b"0"))

    def test_a_new_epoch_starts_over_and_ends_the_old_one(self) -> None:
        ledger = Numbered()
        ledger.store(batch(0, b"a", epoch=1))
        with pytest.raises(SequenceGap):
            ledger.judge_strict(batch(1, b"b", epoch=2))
        ledger.store(batch(0, b"b", epoch=2))
        with pytest.raises(ProducerFenced) as refused:
            ledger.judge_strict(batch(1, b"c", epoch=1))
        assert refused.value.metadata["current"] == "2"
        with pytest.raises(ProducerFenced):
            ledger.judge_strict(batch(0, b"a", epoch=1))

    def test_producers_do_not_disturb_each_other(self) -> None:
        ledger = Numbered()
        ledger.store(batch(0, b"a", producer=b"p"))
        assert ledger.judge_strict(batch(0, b"a", producer=b"q")) == Fresh()


class TestWindowed:
    def test_a_gap_is_allowed_and_may_be_filled(self) -> None:
        ledger = Numbered(windowed=True)
        ledger.store(batch(5, b"a", count=2))
        assert ledger.judge_windowed(batch(1, b"b", count=4), ()) == Fresh()
        ledger.store(batch(1, b"b", count=4))
        assert isinstance(ledger.judge_windowed(batch(2, b"?", count=5), ()), Repeated)

    def test_of_an_overlapping_batch_the_new_records_are_named(self) -> None:
        ledger = Numbered(windowed=True)
        ledger.store(batch(2, b"a", count=2))
        assert ledger.judge_windowed(batch(1, b"b", count=5), ()) == PartlyRepeated([0, 3, 4])

    def test_a_number_twice_in_one_batch_counts_once(self) -> None:
        ledger = Numbered(windowed=True)
        assert ledger.judge_windowed(batch(4, b"a", count=3), (4, 5, 4)) == PartlyRepeated([0, 1])
        ledger.store(batch(9, b"a"))
        assert ledger.judge_windowed(batch(4, b"a", count=3), (4, 5, 4)) == PartlyRepeated([0, 1])

    def test_number_zero_means_not_numbered_and_is_always_new(self) -> None:
        ledger = Numbered(windowed=True)
        ledger.store(batch(0, b"a", count=2), (0, 0))
        assert ledger.judge_windowed(batch(0, b"a", count=2), (0, 0)) == Fresh()
        assert ledger.judge_windowed(batch(0, b"a"), ()) == Fresh()

    def test_the_epoch_may_rise_within_a_sequence(self) -> None:
        ledger = Numbered(windowed=True)
        ledger.store(batch(1, b"a", epoch=7))
        assert ledger.judge_windowed(batch(2, b"b", epoch=8), ()) == Fresh()
        ledger.store(batch(2, b"b", epoch=8))
        assert isinstance(ledger.judge_windowed(batch(1, b"a", epoch=7), ()), Repeated)
        with pytest.raises(ProducerFenced):
            ledger.judge_windowed(batch(3, b"c", epoch=7), ())

    def test_number_one_in_a_higher_epoch_begins_a_new_session(self) -> None:
        ledger = Numbered(windowed=True)
        ledger.store(batch(1, b"a", epoch=7, count=9))
        assert ledger.judge_windowed(batch(1, b"b", epoch=8), ()) == Fresh()
        ledger.store(batch(1, b"b", epoch=8))
        assert ledger.judge_windowed(batch(2, b"c", epoch=8), ()) == Fresh()

    def test_a_new_session_begins_at_number_one_wherever_it_stands(self) -> None:
        """A batch was judged by its first number alone, but its new records were noted by theirs: a session began
        that the verdict knew nothing of, and later repetitions were stored twice."""
        ledger = Numbered(windowed=True)
        ledger.store(batch(1, b"a", epoch=7, count=3))
        assert ledger.judge_windowed(batch(3, b"b", epoch=8, count=3), (3, 1, 2)) == PartlyRepeated([1, 2])
        assert ledger.judge_windowed(batch(9, b"b", epoch=8, count=2), (9, 1)) == PartlyRepeated([0])


def test_the_producer_idle_for_longest_is_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producers, "MAX_PRODUCERS", 2)
    ledger = Numbered()
    ledger.store(batch(0, b"a", producer=b"p"))
    ledger.store(batch(0, b"a", producer=b"q"))
    ledger.store(batch(1, b"b", producer=b"p"))
    ledger.store(batch(0, b"a", producer=b"r"))
    assert len(ledger.ledger) == 2
    assert isinstance(ledger.judge_strict(batch(1, b"b", producer=b"p")), Repeated)
    with pytest.raises(SequenceGap):
        ledger.judge_strict(batch(1, b"b", producer=b"q"))


def test_idle_producers_are_forgotten_by_the_time_of_their_last_batch() -> None:
    ledger = Numbered()
    ledger.store(batch(0, b"a", producer=b"p"), now_ms=10)
    ledger.store(batch(0, b"a", producer=b"q"), now_ms=20)
    ledger.store(batch(1, b"b", producer=b"p"), now_ms=30)
    assert ledger.ledger.forget_idle(before_ms=20) == 0
    assert ledger.ledger.forget_idle(before_ms=25) == 1
    assert ledger.judge_strict(batch(2, b"c", producer=b"p")) == Fresh()
