"""Buffers that are used again: for what is read from sockets, and for large messages."""

from __future__ import annotations

import sys
import threading
from typing import Final

_READ_BYTES: Final = 64 * 1024

_SMALLEST: Final = 64 * 1024
"""The room for smaller messages grows with them: they are copied in no time."""

_LARGEST: Final = 1024 * 1024
_MOST_ROOMS: Final = 8
# What refers to a room that nobody uses: the list, the variable of the loop, and the argument of the question itself.
_UNUSED: Final = 3


class Buffers(threading.local):
    """Those of one thread.

    A new buffer costs more than what is read into it: it is filled with zeros first, and where the allocator has given
    the memory back in between, the kernel hands it out again page by page. So the rooms for large messages are kept,
    and one is used again as soon as nobody refers to its message or to a part of it, which the interpreter counts
    anyway. There are a few of them and no more, whatever peers announce and then do not send.
    """

    def __init__(self) -> None:
        self.read = memoryview(bytearray(_READ_BYTES))
        """What is read from a socket is dealt with before the next one is read, so one is enough."""
        self._rooms: list[bytearray] = []

    def room(self, size: int) -> bytearray | None:
        """Room for a message, with anything in it. None if its room is to grow with what arrives."""
        if not _SMALLEST <= size <= _LARGEST:
            return None
        for room in self._rooms:
            if sys.getrefcount(room) == _UNUSED:
                if len(room) > size:
                    del room[size:]
                else:
                    room += bytes(size - len(room))
                return room
        if len(self._rooms) == _MOST_ROOMS:
            return None
        self._rooms.append(bytearray(size))
        return self._rooms[-1]


buffers: Final = Buffers()
