from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cursus_broker.log.epochs import MAX_EPOCHS, Epochs, EpochStart

# Where the log ended at each opening without a clean close.
ENDS = st.lists(st.integers(0, 40), min_size=1, max_size=30)


def begun_at(ends: list[int]) -> Epochs:
    epochs = Epochs()
    for number, end in enumerate(ends, start=1):
        epochs = epochs.begin(number, end)
    return epochs


def test_a_reader_is_told_of_a_cut_below_it_and_one_below_the_cut_is_not() -> None:
    epochs = begun_at([0, 5])
    assert epochs.current == 2
    assert epochs.truncated(25, 1) == 5
    assert epochs.truncated(5, 1) is None
    assert epochs.truncated(3, 1) is None
    # Also after the log has grown past 25 again, where it was not cut.
    assert epochs.begin(3, 60).truncated(25, 1) == 5
    assert epochs.begin(3, 60).truncated(25, 2) is None


def test_an_epoch_replaces_those_that_began_where_it_begins_or_above() -> None:
    assert begun_at([0, 5, 30, 20]).starts == (EpochStart(1, 0), EpochStart(2, 5), EpochStart(4, 20))
    assert begun_at([7, 7]).starts == (EpochStart(2, 7),)


def test_a_reader_of_the_current_epoch_or_of_none_that_is_known_here_is_not_truncated() -> None:
    assert begun_at([0, 5]).truncated(1_000, 2) is None
    assert begun_at([0, 5]).truncated(1_000, 9) is None
    assert Epochs().truncated(1_000, 0) is None
    assert Epochs().current == 0


@given(ENDS, st.integers(0, 30), st.integers(0, 50))
def test_a_reader_goes_on_from_the_lowest_end_since_its_epoch(ends: list[int], epoch: int, offset: int) -> None:
    epochs = begun_at(ends)
    lowest = min(ends[epoch:], default=offset)
    assert epochs.truncated(offset, epoch) == (lowest if lowest < offset else None)
    for one, other in zip(epochs.starts, epochs.starts[1:], strict=False):
        assert one.epoch < other.epoch
        assert one.first_offset < other.first_offset


def test_a_long_list_forgets_precision_and_hides_no_cut() -> None:
    ends = [10 * number for number in range(3 * MAX_EPOCHS)]
    epochs = begun_at(ends)
    assert len(epochs.starts) == MAX_EPOCHS
    for epoch in range(len(ends)):
        for offset in (ends[epoch], ends[epoch] + 1, ends[-1] + 1):
            lowest = min(ends[epoch:])
            if lowest < offset:
                told = epochs.truncated(offset, epoch)
                assert told is not None
                assert told <= lowest
    # The newest are as precise as ever.
    recent = len(ends) - MAX_EPOCHS + 2
    assert epochs.truncated(ends[recent], recent) is None
    assert epochs.truncated(ends[recent] + 1, recent) == ends[recent]
