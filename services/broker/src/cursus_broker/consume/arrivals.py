"""Which of many partitions have something new, for one who reads them all: a wake-up names what changed, so that it
costs the same however many are quiet."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

from cursus_broker.consume.tail import Tail

Key = TypeVar("Key", bound=Hashable)


class _Watch(Generic[Key]):
    """One partition that is watched. Listens to its tail."""

    __slots__ = ("_arrivals", "key", "queued", "tail")

    def __init__(self, arrivals: Arrivals[Key], key: Key, tail: Tail) -> None:
        self._arrivals = arrivals
        self.key = key
        self.tail = tail
        self.queued = False

    def rung(self) -> None:
        if not self.queued:
            self._arrivals.queue(self)


class Arrivals(Generic[Key]):
    """The watched partitions that were appended to, or closed, since they were last taken: each once, those that have
    waited longest first. So a busy one comes again only after all others that have something. One reader at a time.
    """

    def __init__(self) -> None:
        self._watches: dict[Key, _Watch[Key]] = {}
        # Those that nobody watches any more stay in it until their turn comes.
        self._queue: deque[_Watch[Key]] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._closed = False
        self.taken = 0
        """How often a partition was handed out to be looked at."""

    def __len__(self) -> int:
        return len(self._watches)

    def watch(self, key: Key, tail: Tail) -> None:
        """From now on. What is there already is for the caller to `note`."""
        if self._closed:
            return
        self.forget(key)
        watch = self._watches[key] = _Watch(self, key, tail)
        tail.bell.enter(watch)

    def forget(self, key: Key) -> None:
        """Not any more. Fine for one that is not watched."""
        watch = self._watches.pop(key, None)
        if watch is not None:
            watch.tail.bell.leave(watch)

    def note(self, key: Key) -> None:
        """There may be something at this partition, if it is watched: let it have its turn."""
        watch = self._watches.get(key)
        if watch is not None:
            watch.rung()

    def queue(self, watch: _Watch[Key]) -> None:
        watch.queued = True
        self._queue.append(watch)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def take(self) -> Key | None:
        """The next partition, if there is one now. It comes again when its tail rings."""
        while self._queue:
            watch = self._queue.popleft()
            watch.queued = False
            if self._watches.get(watch.key) is watch:
                self.taken += 1
                return watch.key
        return None

    async def next(self) -> Key:
        """The next partition, waited for."""
        while (key := self.take()) is None:
            await self._rung(None)
        return key

    async def wait(self, deadline: float) -> bool:
        """Wait until there may be something to take. False if the deadline (loop time) passes first."""
        try:
            while not self._queue:
                await self._rung(deadline)
        except TimeoutError:
            return False
        return True

    async def _rung(self, deadline: float | None) -> None:
        loop = asyncio.get_running_loop()
        self._waiter = waiter = loop.create_future()
        timer = None if deadline is None else loop.call_at(deadline, _expire, waiter)
        try:
            await waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()

    def close(self) -> None:
        """Watch nothing any more, now and later: a tail must not know a reader that is gone."""
        self._closed = True
        for watch in self._watches.values():
            watch.tail.bell.leave(watch)
        self._watches.clear()
        self._queue.clear()


def _expire(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_exception(TimeoutError())
