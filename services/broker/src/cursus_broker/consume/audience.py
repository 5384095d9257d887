"""The readers at the end of one log: what is appended goes to all of them in one step, as the same bytes.

Each of them has a task of its own, which sleeps while its reader keeps up. Waking it for every batch would cost more
than sending the batch does. A reader that cannot take a message at once (its window is full, its credit is spent, it
wants smaller responses) leaves the audience, and its task goes on with it from there.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from cursus_broker.consume.credit import Credit
from cursus_broker.errors import CursusError
from cursus_broker.log.api import Entry, Offset

if TYPE_CHECKING:
    from cursus_broker.consume.tail import Tail

SERVED_TOGETHER: Final = 64
"""Readers that get a message in one slice of the event loop: about a millisecond."""


class Sink(Protocol):
    """Where a reader's messages go."""

    def encode(self, entries: Sequence[Entry]) -> bytes:
        """The message that holds these entries: the same for all readers of their partition."""

    def write_now(self, message: bytes) -> bool:
        """False if it would have to wait; nothing of it is then sent."""

    async def write(self, message: bytes) -> None:
        """Returns when the transport has taken it."""


class _Shared(NamedTuple):
    """What those get who are at the same offset."""

    entries: Sequence[Entry]
    records: int
    size: int
    message: bytes
    next_offset: Offset


class Seat:
    """One reader that has everything up to `offset`. It takes no more than its limits and its credit allow."""

    __slots__ = ("_credit", "_delivered", "_end", "_leaving", "_max_bytes", "offset", "sink")

    def __init__(
        self,
        offset: Offset,
        end: Offset | None,
        credit: Credit,
        max_bytes: int,
        delivered: Callable[[Sequence[Entry]], None],
        sink: Sink,
    ) -> None:
        self.offset = offset
        self.sink = sink
        self._end = end
        self._credit = credit
        self._max_bytes = max_bytes
        self._delivered = delivered
        self._leaving: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def max_bytes(self) -> int:
        return min(self._max_bytes, self._credit.bytes_left())

    def take(self, shared: _Shared) -> bool:
        """False if it cannot be sent as it is and now, or if nothing more is to be sent."""
        if self._end is not None and shared.next_offset > self._end:
            return False
        if len(shared.entries) > 1 and shared.size > self._max_bytes:
            return False
        if not self._credit.covers(shared.entries, shared.records, shared.size):
            return False
        if not self.sink.write_now(shared.message):
            return False
        self._credit.charge(shared.records, shared.size)
        self.offset = shared.next_offset
        self._delivered(shared.entries)
        return shared.next_offset != self._end

    def leave(self, error: Exception | None = None) -> None:
        if not self._leaving.done():
            if error is None:
                self._leaving.set_result(None)
            else:
                self._leaving.set_exception(error)

    async def left(self) -> None:
        await self._leaving


class Audience:
    """The seats of one tail. Listens to its bell while there are any."""

    __slots__ = ("_due", "_news", "_scheduled", "_seats", "_tail", "encodings")

    def __init__(self, tail: Tail) -> None:
        self._tail = tail
        self._seats: dict[Seat, None] = {}
        # Of the round that is going on: those whose turn is still to come.
        self._due: deque[Seat] = deque()
        self._news = False
        self._scheduled = False
        self.encodings = 0
        """How often a message was encoded."""

    def __len__(self) -> int:
        return len(self._seats)

    async def attend(self, seat: Seat) -> Offset:
        """Have what is appended sent to this reader as long as it can take it at once, and answer from where it has to
        go on by itself. Raises the reason the tail was closed with."""
        if self._tail.has(seat.offset):
            return seat.offset
        if not self._seats:
            self._tail.bell.enter(self)
        self._seats[seat] = None
        try:
            await seat.left()
        finally:
            del self._seats[seat]
            if not self._seats:
                self._tail.bell.leave(self)
        return seat.offset

    def rung(self) -> None:
        # Not at once: what else is appended in this turn of the event loop goes into the same message.
        self._news = True
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._serve)

    def _serve(self) -> None:
        """One slice of a round over all seats; further ones follow until nobody lacks anything."""
        if not self._due:
            self._news = False
            self._due.extend(self._seats)
        shared: _Shared | None = None
        at = Offset(-1)
        for _ in range(min(len(self._due), SERVED_TOGETHER)):
            seat = self._due.popleft()
            if seat not in self._seats:
                continue
            try:
                if seat.offset != at:
                    at, shared = seat.offset, self._share(seat)
                if shared is None or not seat.take(shared):
                    seat.leave()
                elif seat.offset < self._tail.next_offset:
                    self._news = True
            except CursusError:
                seat.leave()  # its task meets the reason, too
            except Exception as error:
                seat.leave(error)  # a bug, to be reported by the call it concerns, and not to be met by the others
        if self._due or (self._news and self._seats):
            asyncio.get_running_loop().call_soon(self._serve)
        else:
            self._scheduled = False

    def _share(self, seat: Seat) -> _Shared | None:
        """What there is for a reader at this offset, and all others there; None if it has to look for itself. Raises
        the reason the tail was closed with."""
        if not self._tail.has(seat.offset):
            return None
        entries = self._tail.read(seat.offset, seat.max_bytes)
        if not entries:
            return None
        self.encodings += 1
        records = sum(entry.header.record_count for entry in entries)
        size = sum(len(entry.payload) for entry in entries)
        return _Shared(entries, records, size, seat.sink.encode(entries), entries[-1].header.next_offset)
