"""Waking whoever waits for news of a member: its partitions, its generation, its standing."""

from __future__ import annotations

import asyncio


class MemberSignal:
    """Counts the news of one member. The coordinator raises it, any number of watches wait on it."""

    def __init__(self) -> None:
        self.count = 0
        self._waiting: set[asyncio.Future[None]] = set()

    def raise_(self) -> None:
        self.count += 1
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)

    async def past(self, count: int) -> None:
        """Return once there is news after number `count`."""
        while self.count <= count:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.add(waiter)
            try:
                await waiter
            finally:
                self._waiting.discard(waiter)


class GroupWatch:
    """One observer of one member. News between two waits is not lost: the second returns at once.

    Nothing has to be closed. After the member left, expired or was fenced there is one last piece of news; asking the
    coordinator for the assignment then says which.
    """

    def __init__(self, signal: MemberSignal) -> None:
        self._signal = signal
        self._seen = signal.count

    async def changed(self, deadline: float | None) -> bool:
        """Wait for news since the last call (or since the watch was made). False if `deadline`, in the event loop's
        time, passed first; None waits without end. Several pieces of news may count as one.
        """
        try:
            async with asyncio.timeout_at(deadline):
                await self._signal.past(self._seen)
        except TimeoutError:
            return False
        self._seen = self._signal.count
        return True
