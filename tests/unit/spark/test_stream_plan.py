"""What a micro-batch reads, and what a stream says when data is gone from under it."""

from __future__ import annotations

import pytest

from cursus_grpc import TopicPartition
from cursus_spark.offsets import OffsetRange, Position, StreamOffset
from cursus_spark.planning import Extent
from cursus_spark.stream_plan import Patience, advance, changed_epochs, ranges, stand, waiting

A, B = TopicPartition("a", 0), TopicPartition("a", 1)


def at(offset: int, epoch: int = 1) -> Position:
    return Position(offset, epoch)


def test_a_batch_goes_on_where_the_last_one_ended() -> None:
    started = StreamOffset("s", {A: at(5), B: at(7)})
    extents = {A: Extent(0, 10, 1), B: Extent(0, 7, 1)}
    standing = stand(started, extents, {})
    assert (standing.losses, waiting(standing, extents)) == ((), 5)
    end = advance(started, standing, extents, None)
    assert ranges(started, end, None) == [OffsetRange("a", 0, 5, 10, 1)]


def test_without_anything_new_the_offset_is_the_very_same() -> None:
    started = StreamOffset("s", {A: at(5)}, {A: at(3)})
    extents = {A: Extent(0, 5, 1)}
    assert advance(started, stand(started, extents, {}), extents, None) is started


def test_a_new_partition_is_read_from_its_first_record() -> None:
    started = StreamOffset("s", {A: at(5)})
    extents = {A: Extent(0, 5, 1), B: Extent(0, 3, 2)}
    end = advance(started, stand(started, extents, {}), extents, None)
    assert ranges(started, end, None) == [OffsetRange("a", 1, 0, 3, 2)]


def test_expired_records_are_a_loss_and_the_batch_begins_behind_them() -> None:
    started = StreamOffset("s", {A: at(5)})
    extents = {A: Extent(20, 30, 1)}
    standing = stand(started, extents, {})
    assert "5 to 19 expired unread" in standing.losses[0]
    end = advance(started, standing, extents, None)
    assert ranges(started, StreamOffset.from_json(end.to_json()), None) == [OffsetRange("a", 0, 20, 30, 1)]


def test_a_log_that_was_cut_is_read_again_from_there_even_if_it_has_grown_past_the_position() -> None:
    started = StreamOffset("s", {A: at(25)})
    extents = {A: Extent(0, 30, 2)}
    assert changed_epochs(started, extents) == {A: at(25)}
    standing = stand(started, extents, {A: 5})
    assert "cut at offset 5" in standing.losses[0]
    end = advance(started, standing, extents, None)
    assert ranges(started, end, None) == [OffsetRange("a", 0, 5, 30, 2)]


def test_a_partition_that_is_gone_is_a_loss_and_forgotten() -> None:
    started = StreamOffset("s", {A: at(5), B: at(1)})
    extents = {A: Extent(0, 6, 1)}
    standing = stand(started, extents, {})
    assert standing.losses == ("partition 1 of topic 'a' is gone",)
    assert B not in advance(started, standing, extents, None).positions


def test_a_limit_is_shared_by_what_waits() -> None:
    started = StreamOffset("s", {A: at(0), B: at(0)})
    extents = {A: Extent(0, 90, 1), B: Extent(0, 10, 1)}
    end = advance(started, stand(started, extents, {}), extents, 10)
    assert {place: position.offset for place, position in end.positions.items()} == {A: 9, B: 1}


def test_what_was_read_before_it_was_synced_is_not_read_again() -> None:
    started = StreamOffset("s", {A: at(9)})
    extents = {A: Extent(0, 7, 1)}
    assert advance(started, stand(started, extents, {}), extents, None) is started


@pytest.mark.parametrize("booted_ms", [0, 5_000])
def test_a_batch_waits_for_enough_records_but_not_for_ever(booted_ms: int) -> None:
    """Times count from when the machine was booted, which may be just now."""
    patience = Patience(min_records=10, max_delay_ms=1_000)
    assert not patience.wait(3, now_ms=booted_ms)  # the first batch comes at once, as in Kafka's source
    assert patience.wait(3, now_ms=booted_ms + 999)
    assert not patience.wait(3, now_ms=booted_ms + 1_000)
    assert not patience.wait(10, now_ms=booted_ms + 1_001)
