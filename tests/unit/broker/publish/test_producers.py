"""What a partition concludes from producer ids, epochs and sequences. Behaviour over a real broker and its restarts is
in tests/integration/test_producer_retries.py, random sequences of batches in tests/property/test_producers.py.
"""

from __future__ import annotations

import pytest

from cursus_broker.errors import ProducerFenced, ProducerForgotten, SequenceConflict, SequenceGap, SequenceTooOld
from cursus_broker.log.api import Batch
from cursus_broker.publish import producers
from cursus_broker.publish.producers import Cause, Fresh, PartlyRepeated, ProducerLedger, Repeated
from cursus_broker.publish.remembered import REMEMBERED_BATCHES
from tests.unit.broker.publish.support import Numbered, batch


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
        with pytest.raises(ProducerForgotten) as refused:
            ProducerLedger().judge_strict(batch(first, b"a"))
        assert refused.value.metadata == {"producer": "p", "sequence": str(first), "never_known": "true"}

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
        for sequence in range(REMEMBERED_BATCHES + 1):
            ledger.store(batch(sequence, b"%d" % sequence))
        assert isinstance(ledger.judge_strict(batch(1, b"1")), Repeated)
        with pytest.raises(SequenceTooOld) as refused:
            ledger.judge_strict(batch(0, b"0"))
        assert refused.value.metadata == {
            "producer": "p",
            "sequence": "0",
            "next_sequence": str(REMEMBERED_BATCHES + 1),
            "oldest": "1",
        }

    def test_a_batch_that_reaches_into_what_is_remembered_is_a_conflict_however_early_it_begins(self) -> None:
        ledger = Numbered()
        for sequence in range(REMEMBERED_BATCHES + 1):
            ledger.store(batch(sequence, b"%d" % sequence))
        with pytest.raises(SequenceConflict):
            ledger.judge_strict(batch(0, b"0", count=2))

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
    assert ledger.ledger.forgotten == {Cause.CROWDED_OUT: 1}
    with pytest.raises(ProducerForgotten) as refused:
        ledger.judge_strict(batch(1, b"b", producer=b"q"))
    assert refused.value.metadata["never_known"] == "false"


def test_idle_producers_are_forgotten_by_the_time_of_their_last_batch() -> None:
    ledger = Numbered()
    ledger.store(batch(0, b"a", producer=b"p"), now_ms=10)
    ledger.store(batch(0, b"a", producer=b"q"), now_ms=20)
    ledger.store(batch(1, b"b", producer=b"p"), now_ms=30)
    assert ledger.ledger.forget_idle(before_ms=20, most=10) == 0
    assert ledger.ledger.forget_idle(before_ms=25, most=10) == 1
    assert ledger.ledger.forgotten == {Cause.IDLE: 1}
    assert ledger.judge_strict(batch(2, b"c", producer=b"p")) == Fresh()


class TestReleases:
    def test_a_released_producer_makes_room_and_is_counted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(producers, "MAX_PRODUCERS", 2)
        ledger = Numbered()
        for name in (b"p", b"q"):
            ledger.store(batch(0, b"a", producer=name))
        assert ledger.ledger.release(b"q", 1)
        ledger.store(batch(0, b"a", producer=b"r"))
        assert ledger.judge_strict(batch(1, b"b", producer=b"p")) == Fresh()
        assert ledger.ledger.forgotten == {Cause.RELEASED: 1}
        assert not ledger.ledger.release(b"q", 1), "not known any more"

    def test_a_producer_that_has_moved_on_is_not_released(self) -> None:
        ledger = Numbered()
        ledger.store(batch(0, b"a", epoch=3))
        assert not ledger.ledger.release(b"p", 2)
        assert ledger.judge_strict(batch(1, b"b", epoch=3)) == Fresh()
        assert ledger.ledger.release(b"p", 4), "an older epoch is done with too"

    def test_a_copy_of_a_released_producer_is_kept_out(self) -> None:
        ledger = Numbered()
        ledger.store(batch(0, b"a", epoch=3))
        ledger.ledger.release(b"p", 4)
        for epoch in (3, 4):
            with pytest.raises(ProducerFenced):
                ledger.judge_strict(batch(0, b"a", epoch=epoch))
            with pytest.raises(ProducerForgotten):
                ledger.judge_strict(batch(1, b"b", epoch=epoch))
        with pytest.raises(ProducerFenced):
            ledger.ledger.judge_windowed(batch(1, b"a", epoch=3), ())
        ledger.store(batch(0, b"a", epoch=5))
        assert ledger.ledger.get_released(b"p") is None
        assert ledger.judge_strict(batch(1, b"b", epoch=5)) == Fresh()

    def test_those_released_first_are_forgotten_beyond_the_limit(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(producers, "MAX_RELEASED", 2)
        ledger = Numbered()
        for name in (b"p", b"q", b"r"):
            ledger.store(batch(0, b"a", producer=name))
            ledger.ledger.take_changes()
            ledger.ledger.release(name, 1)
        assert ledger.ledger.take_changes() == {b"p", b"r"}
        assert ledger.judge_strict(batch(0, b"a", producer=b"p")) == Fresh()
        with pytest.raises(ProducerFenced):
            ledger.judge_strict(batch(0, b"a", producer=b"q"))

    def test_they_are_forgotten_like_those_who_are_idle(self) -> None:
        ledger = Numbered()
        for now_ms, name in ((10, b"p"), (20, b"q"), (30, b"r")):
            ledger.store(batch(0, b"a", producer=name), now_ms=now_ms)
        ledger.ledger.release(b"p", 1)
        ledger.ledger.release(b"q", 1)
        assert ledger.ledger.forget_idle(20, 10) == 1
        assert ledger.ledger.get_released(b"p") is None
        assert ledger.ledger.get_released(b"q") is not None
        assert ledger.ledger.forget_idle(31, 1) == 1, "at most so many at once"
        assert ledger.ledger.forget_idle(31, 10) == 1

    def test_only_a_producer_in_a_known_epoch_may_be_forgotten(self) -> None:
        """One that raises its epoch and does not begin at 0 is known, and told what is missing."""
        ledger = Numbered()
        ledger.store(batch(0, b"a", epoch=1))
        with pytest.raises(SequenceGap):
            ledger.judge_strict(batch(1, b"b", epoch=2))


class TestChanges:
    def test_only_what_has_changed_since_is_taken(self) -> None:
        ledger = Numbered()
        ledger.store(batch(0, b"a", producer=b"p"))
        ledger.store(batch(0, b"a", producer=b"q"))
        assert ledger.ledger.take_changes() == {b"p", b"q"}
        assert not ledger.ledger.has_changes
        ledger.store(batch(1, b"b", producer=b"p"))
        assert ledger.ledger.take_changes() == {b"p"}

    def test_what_was_forgotten_has_changed(self) -> None:
        ledger = Numbered()
        ledger.store(batch(0, b"a"))
        ledger.ledger.take_changes()
        ledger.ledger.release(b"p", 1)
        assert ledger.ledger.unsaved_removals == 1
        assert ledger.ledger.take_changes() == {b"p"}
        assert ledger.ledger.unsaved_removals == 0

    def test_what_could_not_be_saved_is_taken_again(self) -> None:
        ledger = Numbered()
        ledger.store(batch(0, b"a", producer=b"p"))
        taken = ledger.ledger.take_changes()
        ledger.store(batch(0, b"a", producer=b"q"))
        ledger.ledger.put_back(taken)
        assert ledger.ledger.take_changes() == {b"p", b"q"}
