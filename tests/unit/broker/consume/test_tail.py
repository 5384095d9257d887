"""The tail in memory: what it holds, what it forgets, and whom it wakes."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cursus_broker.consume.tail import Tail, TailBudget
from cursus_broker.errors import TopicNotFound
from cursus_broker.log.api import Entry, EntryHeader, Offset


def entry(base_offset: int, record_count: int = 1, size: int = 10) -> Entry:
    header = EntryHeader(Offset(base_offset), record_count, 0, size, 0, 1, 0, b"", 0, -1)
    return Entry(header, b"x" * size)


def make_tail(*, records: int = 100, budget_bytes: int = 10_000) -> Tail:
    return Tail(TailBudget(budget_bytes), records, Offset(0))


def test_a_reader_gets_the_entry_that_holds_its_offset_and_what_follows() -> None:
    tail = make_tail()
    for base in (0, 3, 6):
        tail.push(entry(base, 3))
    assert [one.header.base_offset for one in tail.read(Offset(4), 1_000) or ()] == [3, 6]


def test_a_response_ends_before_it_exceeds_its_size_but_has_at_least_one_entry() -> None:
    tail = make_tail()
    for base in range(4):
        tail.push(entry(base, size=10))
    assert len(tail.read(Offset(0), 25) or ()) == 2
    assert len(tail.read(Offset(0), 1_000, 1) or ()) == 1
    assert len(tail.read(Offset(0), 1) or ()) == 1


def test_at_the_end_there_is_nothing_and_below_the_cache_there_is_no_answer() -> None:
    tail = make_tail(records=2)
    for base in range(5):
        tail.push(entry(base))
    assert tail.read(Offset(5), 100) == ()
    assert tail.read(Offset(2), 100) is None
    assert [one.header.base_offset for one in tail.read(Offset(3), 100) or ()] == [3, 4]


def test_the_budget_takes_the_oldest_entry_of_all_partitions_first() -> None:
    budget = TailBudget(30)
    first, second = Tail(budget, 100, Offset(0)), Tail(budget, 100, Offset(0))
    first.push(entry(0, size=10))
    second.push(entry(0, size=10))
    first.push(entry(1, size=10))
    second.push(entry(1, size=10))
    assert first.read(Offset(0), 100) is None
    assert first.read(Offset(1), 100) is not None
    assert second.read(Offset(0), 100) is not None
    assert budget.used_bytes == 30


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 5), st.integers(0, 60)), max_size=700),
    st.integers(0, 200),
    st.integers(1, 12),
)
def test_no_bound_is_ever_exceeded_and_what_is_cached_is_the_newest_run(
    pushes: list[tuple[int, int, int]], budget_bytes: int, limit_records: int
) -> None:
    budget = TailBudget(budget_bytes)
    tails = [Tail(budget, limit_records, Offset(0)) for _ in range(3)]
    pushed: list[list[Entry]] = [[], [], []]
    for which, count, size in pushes:
        one = entry(tails[which].next_offset, count, size)
        pushed[which].append(one)
        tails[which].push(one)
        assert budget.used_bytes <= budget_bytes
    held_bytes = 0
    for tail, everything in zip(tails, pushed, strict=True):
        held = [one for one in everything if tail.read(one.header.base_offset, 0)]
        assert held == everything[len(everything) - len(held) :]
        assert sum(one.header.record_count for one in held) <= limit_records
        held_bytes += sum(len(one.payload) for one in held)
    assert held_bytes == budget.used_bytes


def test_a_quiet_partition_does_not_let_the_marks_of_a_busy_one_pile_up() -> None:
    budget = TailBudget(10_000)
    quiet, busy = Tail(budget, 10, Offset(0)), Tail(budget, 10, Offset(0))
    quiet.push(entry(0))
    for base in range(20_000):
        busy.push(entry(base))
    assert len(budget._order) < 1_000
    assert quiet.read(Offset(0), 100)


async def test_an_append_wakes_a_waiting_reader() -> None:
    tail = make_tail()
    waiting = asyncio.create_task(tail.past(Offset(0)))
    await asyncio.sleep(0)
    assert not waiting.done()
    tail.push(entry(0))
    await waiting
    assert not len(tail.bell)


async def test_a_reader_that_gives_up_leaves_nothing_behind() -> None:
    tail = make_tail()
    waiting = asyncio.create_task(tail.past(Offset(0)))
    await asyncio.sleep(0)
    assert len(tail.bell)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert not len(tail.bell)


async def test_closing_fails_the_waiting_and_all_later_readers() -> None:
    tail = make_tail()
    waiting = asyncio.create_task(tail.past(Offset(0)))
    await asyncio.sleep(0)
    tail.close(TopicNotFound("orders"))
    with pytest.raises(TopicNotFound):
        await waiting
    with pytest.raises(TopicNotFound):
        await tail.past(Offset(0))
