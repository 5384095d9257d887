"""Offsets in a checkpoint, and how ranges are divided and admitted."""

from __future__ import annotations

import json
import pickle

from hypothesis import given
from hypothesis import strategies as st

from cursus_grpc import TopicPartition
from cursus_spark.offsets import OffsetRange, Position, StreamOffset, admit, split

A, B = TopicPartition("a", 0), TopicPartition("a", 10)


def test_an_offset_survives_the_checkpoint() -> None:
    offset = StreamOffset("f00", {A: Position(5, 3), B: Position(7, None)}, {A: Position(2, 4)})
    stored = json.loads(json.dumps(offset.to_json()))
    assert StreamOffset.from_json(stored) == offset


def test_a_checkpoint_reads_like_that_of_kafkas_source() -> None:
    stored = StreamOffset("f00", {A: Position(5, 3), B: Position(7, 3)}).to_json()
    assert stored["a"] == {"0": 5, "10": 7}


def test_equal_offsets_are_equal_text_whatever_order_they_were_found_in() -> None:
    one = StreamOffset("f00", {A: Position(5, 3), B: Position(7, 3)}).to_json()
    two = StreamOffset("f00", {B: Position(7, 3), A: Position(5, 3)}).to_json()
    assert json.dumps(one) == json.dumps(two)


def test_a_range_reaches_the_executor_as_it_was() -> None:
    one = OffsetRange("a", 1, 5, 9, 2)
    assert pickle.loads(pickle.dumps(one)) == one


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 5000)), max_size=8), st.integers(1, 64))
def test_splitting_covers_every_offset_once_in_enough_pieces(sizes: list[tuple[int, int]], least: int) -> None:
    ranges = [OffsetRange("t", number, start, start + size, 1) for number, (start, size) in enumerate(sizes)]
    pieces = split(ranges, least)
    covered = {number: list[tuple[int, int]]() for number in range(len(ranges))}
    for piece in pieces:
        covered[piece.partition].append((piece.start, piece.end))
    for one in ranges:
        at = one.start
        for start, end in covered[one.partition]:
            assert (start, end > start) == (at, True)
            at = end
        assert at == one.end
    assert len(pieces) >= min(least, sum(map(len, ranges)))


def test_nothing_is_split_where_there_are_enough_ranges() -> None:
    ranges = [OffsetRange("t", number, 0, 1000 * number) for number in range(4)]
    assert split(ranges, 3) == split(ranges, None) == ranges[1:]


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 3000)), min_size=1, max_size=8), st.integers(1, 5000))
def test_a_limit_is_used_up_and_not_exceeded(sizes: list[tuple[int, int]], most: int) -> None:
    start = {TopicPartition("t", number): at for number, (at, _) in enumerate(sizes)}
    end = {TopicPartition("t", number): at + size for number, (at, size) in enumerate(sizes)}
    upto = admit(start, end, most)
    assert all(start[place] <= upto[place] <= end[place] for place in end)
    taken = sum(upto[place] - start[place] for place in end)
    assert taken == min(most, sum(size for _, size in sizes))
