"""The newest entries of every partition, in memory, and the wake-ups of those who wait for more.

Live readers are served from here; one that falls behind reads the log and comes back by itself. The cache never holds
anybody up: it forgets its oldest entries when a partition has more than its share of records, or all partitions
together more than the budget of bytes.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from cursus_broker.consume.audience import Audience
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


class Listener(Protocol):
    """Who is told at once, within the step that changes something: to be quick, and to do the work later."""

    def rung(self) -> None: ...


class Bell:
    """Tells whoever listens that something changed. It may ring for nothing; those who are told look for themselves."""

    __slots__ = ("_listeners",)

    def __init__(self) -> None:
        self._listeners: set[Listener] = set()

    def __len__(self) -> int:
        return len(self._listeners)

    def ring(self) -> None:
        if self._listeners:
            for listener in tuple(self._listeners):
                listener.rung()

    def enter(self, listener: Listener) -> None:
        self._listeners.add(listener)

    def leave(self, listener: Listener) -> None:
        self._listeners.discard(listener)


class _Waiter:
    """Waits for one ring."""

    __slots__ = ("future",)

    def __init__(self, future: asyncio.Future[None]) -> None:
        self.future = future

    def rung(self) -> None:
        if not self.future.done():
            self.future.set_result(None)


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
        """Rings at every append, and when the tail is closed."""
        self._audience: Audience | None = None

    @property
    def audience(self) -> Audience:
        """Those who are at the end. Made for the first of them: most partitions never have one."""
        if self._audience is None:
            self._audience = Audience(self)
        return self._audience

    @property
    def next_offset(self) -> Offset:
        """The offset the next record gets; readers wait for this to move."""
        return self._next_offset

    def push(self, entry: Entry) -> None:
        """Keep a just appended entry and tell every waiting reader."""
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

    def reaches(self, offset: Offset) -> bool:
        """Whether what follows `offset` is here, so that whoever reads it need not go to the log."""
        return offset >= (self._bases[self._head] if self._head < len(self._bases) else self._next_offset)

    async def past(self, offset: Offset) -> None:
        """Wait until there is a record at `offset`: one wake-up, made by the append. Raises the reason the tail was
        closed with."""
        while not self.has(offset):
            waiter = _Waiter(asyncio.get_running_loop().create_future())
            self.bell.enter(waiter)
            try:
                await waiter.future
            finally:
                self.bell.leave(waiter)

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
