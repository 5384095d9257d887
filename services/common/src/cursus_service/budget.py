"""Memory that everybody in a process shares: whoever needs some waits until there is room, in the order of asking.

Nobody is refused because others are busy. Whoever wants more than there is at all gets all of it, alone.
"""

from __future__ import annotations

import asyncio
from collections import deque


class Budget:
    """So many bytes. Lives on one event loop."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._free = size
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def used(self) -> int:
        return self.size - self._free

    @property
    def waiting(self) -> int:
        """How many wait for room."""
        return len(self._waiting)

    def take_now(self, wanted: int) -> Share | None:
        """A share, if there is room and nobody waits for it."""
        wanted = min(wanted, self.size)
        if self._waiting or wanted > self._free:
            return None
        self._free -= wanted
        return Share(self, wanted)

    async def take(self, wanted: int) -> Share:
        """A share as soon as there is room. Whoever stops waiting loses their place and nothing else."""
        share = self.take_now(wanted)
        if share is not None:
            return share
        wanted = min(wanted, self.size)
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((wanted, granted))
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self._give_back(wanted)
            else:
                self._waiting.remove((wanted, granted))
                self._give_back(0)  # those behind may fit where this one did not
            raise
        return Share(self, wanted)

    def _give_back(self, size: int) -> None:
        self._free += size
        while self._waiting and self._waiting[0][0] <= self._free:
            wanted, granted = self._waiting.popleft()
            self._free -= wanted
            granted.set_result(None)


class Share:
    """A part of a budget, until it is given back. Twice does no harm."""

    __slots__ = ("_budget", "size")

    def __init__(self, budget: Budget, size: int) -> None:
        self._budget = budget
        self.size = size

    def shrink(self, size: int) -> None:
        """Keep only so much. More than there is of it is not had this way."""
        if size < self.size:
            spare, self.size = self.size - size, size
            self._budget._give_back(spare)

    def give_back(self) -> None:
        self.shrink(0)
