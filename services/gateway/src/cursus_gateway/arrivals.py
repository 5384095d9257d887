"""What has arrived of large frames, over all connections: those that go on arriving wait when it is too much.

A frame that is only announced costs nothing: what counts is what is here. So nobody knows how much will come, and all
may be stuck in the middle with no room left. Then the frame that began first goes on alone, beyond the bound by no more
than its own size; complete frames make room by themselves, since they are served.
"""

from __future__ import annotations

from typing import Final, Protocol

LARGE_FRAME_BYTES: Final = 256 * 1024
"""Frames above this are counted."""


class Arriving(Protocol):
    """A connection in the middle of a large frame."""

    def go_on(self) -> None:
        """Be read again."""


class Arrivals:
    """So many bytes. Lives on one event loop."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._arrived: dict[Arriving, int] = {}
        """Of incomplete frames, in the order in which they began."""
        self._incomplete = 0
        self._complete = 0
        self._paused: dict[Arriving, None] = {}

    @property
    def used(self) -> int:
        return self._incomplete + self._complete

    def arrived(self, who: Arriving, size: int) -> bool:
        """So much of a large frame is here by now. False if its connection is not to be read until it is told to."""
        self._incomplete += size - self._arrived.get(who, 0)
        self._arrived[who] = size
        if not self._may_go_on(who):
            self._paused[who] = None
        self._wake()
        return who not in self._paused

    def forget(self, who: Arriving) -> None:
        """The frame is complete, or will never be."""
        self._incomplete -= self._arrived.pop(who, 0)
        self._paused.pop(who, None)
        self._wake()

    def keep(self, size: int) -> None:
        """A complete frame of this size is here."""
        self._complete += size

    def let_go(self, size: int) -> None:
        """It was handed on."""
        self._complete -= size
        self._wake()

    def _may_go_on(self, who: Arriving) -> bool:
        if self.used < self._size:
            return True
        return not self._complete and next(iter(self._arrived)) is who

    def _wake(self) -> None:
        """Let the first of those that wait go on, if it may. It lets the next one go on when it finds room left."""
        who = next(iter(self._paused), None)
        if who is None:
            return
        if self.used >= self._size:
            if self._complete:
                return
            who = next(iter(self._arrived))
            if who not in self._paused:
                return
        del self._paused[who]
        who.go_on()
