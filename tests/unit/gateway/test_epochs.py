"""What a connection remembers of the epochs it read in."""

from __future__ import annotations

from cursus_gateway.epochs import ReadEpochs, ReadUpTo


def test_only_a_request_that_goes_on_where_the_client_is_names_the_epoch() -> None:
    epochs = ReadEpochs()
    assert epochs.reading_on("t", 0, 0) is None
    epochs.note("t", 0, 25, 7)
    assert epochs.reading_on("t", 0, 25) == 7
    assert [epochs.reading_on("t", 0, offset) for offset in (0, 24, 26)] == [None, None, None]
    assert epochs.reading_on("t", 1, 25) is None


def test_a_commit_of_anything_that_was_sent_names_the_epoch() -> None:
    epochs = ReadEpochs()
    epochs.note("t", 0, 25, 7)
    assert [epochs.processed("t", 0, offset) for offset in (0, 25, 26)] == [
        ReadUpTo(0, 7),
        ReadUpTo(25, 7),
        ReadUpTo(26, None),
    ]


def test_a_client_that_was_told_of_a_cut_is_not_told_again() -> None:
    epochs = ReadEpochs()
    epochs.note("t", 0, 25, 7)
    epochs.forget("t", 0)
    epochs.forget("t", 1)
    assert epochs.reading_on("t", 0, 25) is None
    assert epochs.processed("t", 0, 25) == ReadUpTo(25, None)


def test_a_client_of_very_many_partitions_is_remembered_for_the_last_ones() -> None:
    epochs = ReadEpochs()
    for partition in range(1_500):
        epochs.note("t", partition, 1, 7)
    known = [partition for partition in range(1_500) if epochs.reading_on("t", partition, 1)]
    assert known == list(range(500, 1_500))
