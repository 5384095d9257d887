"""The newest entries of every partition, in memory, and the wake-ups of those who wait for more.

Live readers are served from here; one that falls behind reads the log and comes back by itself. The cache never holds
anybody up: it forgets its oldest entries when a partition has more than its share of records, or all partitions
together more than the budget of bytes.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence

from cursus_broker.errors import CursusError
from cursus_broker.log.api import MANY_RECORDS, Entry, EntryHeader, Offset

# Forgotten entries are cut off the lists only once there are this many: keeps forgetting cheap on average.
_COMPACT_AFTER = 256

# Stands in the lists for an entry that was forgotten but not yet cut off, so that its bytes can go at once.
_FORGOTTEN = Entry(EntryHeader(Offset(0), 0, 0, 0, 0, 0, 0, b"", 0, 0), b"")


class TailBudget:
    """The bytes all tails of the broker share. Whoever exceeds it makes the oldest entry of all go."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._used_bytes = 0
        self._held = 0
        # In the order of appends over all partitions, so the head is the oldest entry still cached. Tails forget by
        # themselves too and leave their marks behind; these go at the head, or all at once when they are the most.
        self._order: deque[tuple[Tail, int]] = deque()

    @property
    def used_bytes(self) -> int:
        return self._used_bytes

    def charge(self, tail: Tail, serial: int, size: int) -> None:
        self._order.append((tail, serial))
        self._used_bytes += size
        self._held += 1
        while self._used_bytes > self._limit_bytes and self._order:
            oldest, oldest_serial = self._order.popleft()
            oldest.forget_through(oldest_serial)
        if len(self._order) > 2 * self._held + _COMPACT_AFTER:
            self._order = deque(mark for mark in self._order if mark[1] >= mark[0].first_serial)

    def release(self, size: int) -> None:
        self._used_bytes -= size
        self._held -= 1


class Bell:
    """Wakes whoever waits for something to change. It may ring for nothing; those who wake look for themselves."""

    __slots__ = ("_waiters", "rung")

    def __init__(self) -> None:
        self.rung = 0
        self._waiters: set[asyncio.Future[None]] = set()

    def ring(self) -> None:
        self.rung += 1
        if self._waiters:
            waiters, self._waiters = self._waiters, set()
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    def enter(self, waiter: asyncio.Future[None]) -> None:
        self._waiters.add(waiter)

    def leave(self, waiter: asyncio.Future[None]) -> None:
        self._waiters.discard(waiter)


class Tail:
    """The newest entries of one partition."""

    def __init__(self, budget: TailBudget, limit_records: int, next_offset: Offset) -> None:
        self._budget = budget
        self._limit_records = limit_records
        self._entries: list[Entry] = []
        self._bases: list[int] = []
        self._head = 0
        self._records = 0
        self._next_offset = next_offset
        self._closed_by: CursusError | None = None
        self.first_serial = 0
        self.bell = Bell()
        """Rings at every append."""

    @property
    def next_offset(self) -> Offset:
        """The offset the next record gets; readers wait for this to move."""
        return self._next_offset

    def push(self, entry: Entry) -> None:
        """Keep a just appended entry and wake every waiting reader."""
        header = entry.header
        self._entries.append(entry)
        self._bases.append(header.base_offset)
        self._records += header.record_count
        self._next_offset = header.next_offset
        serial = self.first_serial + len(self._entries) - self._head - 1
        self._budget.charge(self, serial, len(entry.payload))
        while self._records > self._limit_records and self._head < len(self._entries):
            self._forget_oldest()
        self.bell.ring()

    def read(self, offset: Offset, max_bytes: int, max_records: int = MANY_RECORDS) -> Sequence[Entry] | None:
        """Entries from the one that holds `offset` on, as Log.read; None if the cache does not reach back that far."""
        if offset == self._next_offset:
            return ()
        index = bisect_right(self._bases, offset, self._head) - 1
        if index < self._head:
            return None
        end = index
        while end < len(self._entries):
            entry = self._entries[end]
            max_bytes -= len(entry.payload)
            max_records -= entry.header.record_count
            if end > index and (max_bytes < 0 or max_records < 0):
                break
            end += 1
        return self._entries[index:end]

    async def past(self, offset: Offset, deadline: float | None = None) -> bool:
        """Wait until there is a record at `offset`. False if the deadline (loop time) passes first."""
        return await past_any(((self, offset),), deadline)

    def close(self, reason: CursusError) -> None:
        """Fail every waiting reader, now and later, with `reason`."""
        self._closed_by = reason
        while self._head < len(self._entries):
            self._forget_oldest()
        self.bell.ring()

    def forget_through(self, serial: int) -> None:
        """Drop the oldest entries up to the one with this serial number."""
        while self.first_serial <= serial and self._head < len(self._entries):
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        entry = self._entries[self._head]
        self._records -= entry.header.record_count
        self._head += 1
        self.first_serial += 1
        if self._head >= _COMPACT_AFTER or self._head == len(self._entries):
            del self._entries[: self._head]
            del self._bases[: self._head]
            self._head = 0
        else:
            self._entries[self._head - 1] = _FORGOTTEN
        self._budget.release(len(entry.payload))

    def has(self, offset: Offset) -> bool:
        """Whether there is a record at `offset`. Raises the reason the tail was closed with."""
        if self._closed_by is not None:
            raise self._closed_by
        return self._next_offset > offset


async def past_any(places: Iterable[tuple[Tail, Offset]], deadline: float | None, also: Bell | None = None) -> bool:
    """Wait until one of the tails has a record at its offset, or the bell `also` rings. False if the deadline (loop
    time) passes first. One wake-up, made by the append. Raises the reason a tail was closed with.
    """
    places = tuple(places)
    bells = [tail.bell for tail, _ in places]
    rung = 0
    if also is not None:
        bells.append(also)
        rung = also.rung
    loop = asyncio.get_running_loop()
    while not any(tail.has(offset) for tail, offset in places):
        if also is not None and also.rung != rung:
            return True
        waiter: asyncio.Future[None] = loop.create_future()
        timer = None if deadline is None else loop.call_at(deadline, _expire, waiter)
        for bell in bells:
            bell.enter(waiter)
        try:
            await waiter
        except TimeoutError:
            return any(tail.has(offset) for tail, offset in places)
        finally:
            if timer is not None:
                timer.cancel()
            for bell in bells:
                bell.leave(waiter)
    return True


def _expire(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_exception(TimeoutError())
