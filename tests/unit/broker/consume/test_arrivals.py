"""Which partitions have something new: each once, the longest waiting first, and none is lost."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from cursus_broker.consume.arrivals import Arrivals
from cursus_broker.consume.tail import Tail, TailBudget
from cursus_broker.errors import TopicNotFound
from cursus_broker.log.api import Entry, EntryHeader, Offset


def make_tail() -> Tail:
    return Tail(TailBudget(1_000_000), 1_000_000, Offset(0))


def append(tail: Tail) -> None:
    tail.push(Entry(EntryHeader(tail.next_offset, 1, 0, 1, 0, 1, 0, b"", 0, -1), b"x"))


async def test_a_wake_up_names_the_partition_that_changed_and_no_other_is_looked_at() -> None:
    tails = [make_tail() for _ in range(3_000)]
    arrivals: Arrivals[int] = Arrivals()
    for number, tail in enumerate(tails):
        arrivals.watch(number, tail)
    waiting = asyncio.create_task(arrivals.next())
    await asyncio.sleep(0)
    append(tails[1_234])
    assert await waiting == 1_234
    assert arrivals.take() is None
    assert arrivals.taken == 1


async def test_a_busy_partition_does_not_come_before_others_that_have_waited() -> None:
    busy, quiet = make_tail(), make_tail()
    arrivals: Arrivals[str] = Arrivals()
    arrivals.watch("busy", busy)
    arrivals.watch("quiet", quiet)
    append(busy)
    append(busy)
    assert arrivals.take() == "busy"
    append(quiet)
    append(busy)
    arrivals.note("busy")
    assert [arrivals.take(), arrivals.take(), arrivals.take()] == ["quiet", "busy", None]


async def test_closing_a_tail_is_news_too() -> None:
    tail = make_tail()
    arrivals: Arrivals[str] = Arrivals()
    arrivals.watch("orders", tail)
    tail.close(TopicNotFound("orders"))
    assert arrivals.take() == "orders"


async def test_what_was_forgotten_does_not_come_even_if_it_is_watched_again() -> None:
    tail = make_tail()
    arrivals: Arrivals[str] = Arrivals()
    arrivals.watch("orders", tail)
    append(tail)
    arrivals.forget("orders")
    arrivals.watch("orders", make_tail())
    assert arrivals.take() is None
    assert not len(tail.bell)


async def test_a_deadline_ends_the_wait_and_a_closed_list_leaves_nothing_at_its_tails() -> None:
    tail = make_tail()
    arrivals: Arrivals[str] = Arrivals()
    arrivals.watch("orders", tail)
    assert not await arrivals.wait(asyncio.get_running_loop().time())
    arrivals.close()
    arrivals.watch("orders", tail)
    assert not len(tail.bell)


@given(st.lists(st.one_of(st.integers(0, 4), st.none()), max_size=60))
def test_every_append_is_followed_by_a_turn_of_its_partition(steps: list[int | None]) -> None:
    """None takes, a number appends."""
    tails = [make_tail() for _ in range(5)]
    arrivals: Arrivals[int] = Arrivals()
    for number, tail in enumerate(tails):
        arrivals.watch(number, tail)
    seen = [Offset(0)] * 5
    for step in [*steps, *[None] * 5]:
        if step is None:
            taken = arrivals.take()
            if taken is not None:
                assert seen[taken] < tails[taken].next_offset
                seen[taken] = tails[taken].next_offset
        else:
            append(tails[step])
    assert seen == [tail.next_offset for tail in tails]
