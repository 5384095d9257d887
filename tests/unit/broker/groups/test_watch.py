from __future__ import annotations

import asyncio

from cursus_broker.groups.watch import GroupWatch, MemberSignal


async def test_news_between_two_waits_is_not_lost() -> None:
    signal = MemberSignal()
    watch = GroupWatch(signal)
    signal.raise_()
    signal.raise_()
    assert await watch.changed(None)
    assert not await watch.changed(asyncio.get_running_loop().time())


async def test_every_watch_is_woken() -> None:
    signal = MemberSignal()
    waiting = [asyncio.ensure_future(GroupWatch(signal).changed(None)) for _ in range(3)]
    await asyncio.sleep(0)
    signal.raise_()
    assert await asyncio.gather(*waiting) == [True, True, True]


async def test_a_cancelled_wait_leaves_nothing_behind() -> None:
    signal = MemberSignal()
    watch = GroupWatch(signal)
    waiting = asyncio.ensure_future(watch.changed(None))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    signal.raise_()
    assert waiting.cancelled()
    assert await watch.changed(None)
