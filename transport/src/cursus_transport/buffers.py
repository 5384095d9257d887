"""Buffers that are used again: for what is read from sockets, and for large messages."""

from __future__ import annotations

import sys
import threading
from typing import Final

READ_BYTES: Final = 64 * 1024

LEAST_SPARE_BYTES: Final = 64 * 1024
"""Smaller messages are cheap to make room for."""

_MOST_SPARE: Final = 8
_MOST_SPARE_BYTES: Final = 1024 * 1024
# What refers to a buffer that nobody else has: the list, the variable of the loop and the argument of the question.
_UNUSED: Final = 3


class Buffers(threading.local):
    """Those of one thread.

    A new buffer costs more than what is read into it: it is filled with zeros first, and where the allocator has given
    the memory back in between, the kernel hands it out again page by page. So the last large messages are kept, and one
    is used again as soon as nobody refers to it or to a part of it, which the interpreter counts anyway.
    """

    def __init__(self) -> None:
        self.read = memoryview(bytearray(READ_BYTES))
        """What is read from a socket is dealt with before the next one is read, so one is enough."""
        self._spare: list[bytearray] = []

    def take(self, size: int) -> bytearray:
        """Room for a message, with anything in it."""
        if not LEAST_SPARE_BYTES <= size <= _MOST_SPARE_BYTES:
            return bytearray(size)
        for spare in self._spare:
            if sys.getrefcount(spare) == _UNUSED:
                if len(spare) > size:
                    del spare[size:]
                else:
                    spare += bytes(size - len(spare))
                return spare
        made = bytearray(size)
        if len(self._spare) < _MOST_SPARE:
            self._spare.append(made)
        return made


buffers: Final = Buffers()
