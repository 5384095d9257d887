"""Where what peers send is read to before anybody knows whose it is."""

from __future__ import annotations

import threading
from typing import Final

_READ_BYTES: Final = 64 * 1024


class Buffers(threading.local):
    """Those of one thread.

    An event loop reads into the buffer and hands it over in one step, and what is of use in it is copied in that step:
    so all connections of a loop share one, and nothing refers to it in between. Messages never do: each has memory of
    its own.
    """

    def __init__(self) -> None:
        self.read = memoryview(bytearray(_READ_BYTES))


buffers: Final = Buffers()
