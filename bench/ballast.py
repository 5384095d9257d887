"""Page cache that is known to the machine: what makes writes cost the same in every round.

A virtual machine gets memory from its hypervisor when a page is first touched, and a kernel with free page reporting
gives pages back soon after they are freed, as they are when a file is deleted. A write into page cache then costs
several times what it costs on pages that were in use all the time, and which of the two a round meets is chance.

The ballast is a sparse file that is read and never written: its pages are clean zeros in the page cache, the first to
go when something else needs memory. While it fills the cache, writes get recycled pages.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_CHUNK_BYTES: Final = 16 * 1024 * 1024


class Ballast:
    """Reads round and round in its file. What was read longest ago is evicted first, and read next."""

    def __init__(self, descriptor: int, size: int) -> None:
        self._descriptor = descriptor
        self._chunks = size // _CHUNK_BYTES
        self._next = 0
        self._buffer = bytearray(_CHUNK_BYTES)

    def load(self, amount: int) -> None:
        """Touch `amount` bytes of page cache. Blocks for a second or so per gigabyte where pages are new."""
        for _ in range(amount // _CHUNK_BYTES if self._chunks else 0):
            os.preadv(self._descriptor, [self._buffer], self._next * _CHUNK_BYTES)
            self._next = (self._next + 1) % self._chunks


@contextmanager
def ballast(directory: Path, amount: int) -> Iterator[Ballast]:
    """A file of this size, read once; if it is as large as memory, the cache is full after that."""
    path = directory / "ballast"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    try:
        os.ftruncate(descriptor, amount)
        loaded = Ballast(descriptor, amount)
        loaded.load(amount)
        yield loaded
    finally:
        os.close(descriptor)
        path.unlink()
