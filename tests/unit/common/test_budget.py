"""A shared budget: first come, first served, and nothing is lost when somebody stops waiting."""

from __future__ import annotations

import asyncio

from cursus_service.budget import Budget, Share
from tests.harness.waiting import eventually


async def waits_for(budget: Budget, size: int) -> asyncio.Task[Share]:
    task = asyncio.create_task(budget.take(size))
    before = budget.waiting
    await eventually(lambda: budget.waiting > before)
    return task


async def test_shares_are_granted_in_the_order_of_asking_even_if_a_later_one_would_fit() -> None:
    budget = Budget(10)
    first = await budget.take(8)
    large, small = await waits_for(budget, 5), await waits_for(budget, 1)
    assert budget.take_now(1) is None
    assert (budget.used, budget.waiting) == (8, 2)
    first.give_back()
    assert (await large).size == 5
    assert (await small).size == 1
    assert (budget.used, budget.waiting) == (6, 0)


async def test_a_share_may_shrink_and_be_given_back_twice() -> None:
    budget = Budget(10)
    share = await budget.take(10)
    waiting = await waits_for(budget, 4)
    share.shrink(7)
    assert not waiting.done()
    share.shrink(6)
    await waiting
    assert budget.used == 10
    share.shrink(9)
    share.give_back()
    share.give_back()
    assert budget.used == 4


async def test_whoever_wants_more_than_there_is_gets_all_of_it_alone() -> None:
    budget = Budget(10)
    small = await budget.take(1)
    huge = await waits_for(budget, 1_000)
    assert not huge.done()
    small.give_back()
    assert (await huge).size == budget.used == 10


async def test_whoever_stops_waiting_makes_way_for_those_behind() -> None:
    budget = Budget(10)
    await budget.take(6)
    large, small = await waits_for(budget, 8), await waits_for(budget, 4)
    large.cancel()
    await asyncio.wait((large,))
    assert (await small).size == 4
    assert (budget.used, budget.waiting) == (10, 0)


async def test_a_share_granted_to_somebody_who_is_cancelled_at_that_moment_is_given_back() -> None:
    budget = Budget(10)
    first = await budget.take(10)
    waiting = await waits_for(budget, 10)
    first.give_back()
    waiting.cancel()
    await asyncio.wait((waiting,))
    assert waiting.cancelled()
    assert budget.used == 0
