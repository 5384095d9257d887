"""The measurement of ADR 0003: how long the event loop stands still for a read of cold and of cached bytes.

    .venv/bin/python docs/adr/0003-pread-instead-of-mmap.py [directory]

Reads entries of 54 KB at random and in order from a file of 256 MiB, first dropped from the page cache, then in it.
For each way of reading: the time the loop itself was held up by one read, and the reads per second of one reader.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Protocol

MIB: Final = 1024 * 1024
FILE_BYTES: Final = 256 * MIB
ENTRY_BYTES: Final = 54_000
READS: Final = 1500


class Reader(Protocol):
    async def read(self, position: int) -> float:
        """Read an entry; answers for how long the loop was held up."""

    def close(self) -> None: ...


class MmapOnLoop:
    def __init__(self, descriptor: int, _threads: ThreadPoolExecutor) -> None:
        self._map = mmap.mmap(descriptor, 0, prot=mmap.PROT_READ)

    async def read(self, position: int) -> float:
        started = time.perf_counter()
        self._map[position : position + ENTRY_BYTES]
        return time.perf_counter() - started

    def close(self) -> None:
        self._map.close()


class MmapInThread(MmapOnLoop):
    """A page fault does not release the interpreter lock: the loop waits although the read is in a thread."""

    def __init__(self, descriptor: int, threads: ThreadPoolExecutor) -> None:
        super().__init__(descriptor, threads)
        self._threads = threads

    async def read(self, position: int) -> float:
        def timed() -> float:
            started = time.perf_counter()
            self._map[position : position + ENTRY_BYTES]
            return time.perf_counter() - started

        return await asyncio.get_running_loop().run_in_executor(self._threads, timed)


class PreadCached:
    """`preadv` with RWF_NOWAIT on the loop, a thread when the bytes are not in memory."""

    def __init__(self, descriptor: int, threads: ThreadPoolExecutor) -> None:
        self._descriptor = descriptor
        self._threads = threads
        self._buffer = memoryview(mmap.mmap(-1, MIB))[:ENTRY_BYTES]

    async def read(self, position: int) -> float:
        started = time.perf_counter()
        try:
            whole = os.preadv(self._descriptor, [self._buffer], position, os.RWF_NOWAIT) == ENTRY_BYTES
        except BlockingIOError:
            whole = False
        if whole:
            bytes(self._buffer)
        held = time.perf_counter() - started
        if not whole:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._threads, os.pread, self._descriptor, ENTRY_BYTES, position)
        return held

    def close(self) -> None:
        self._buffer.release()


async def measure(name: str, reader: Reader, positions: Sequence[int], output: Callable[[str], object]) -> None:
    started = time.perf_counter()
    held = [await reader.read(position) for position in positions]
    rate = len(positions) / (time.perf_counter() - started)
    held.sort()
    median, p99 = held[len(held) // 2], held[len(held) * 99 // 100]
    output(f"{name:40} median {median * 1e6:7.0f} µs   p99 {p99 * 1e6:7.0f} µs   {rate:7.0f} reads/s\n")


async def main(directory: str) -> None:
    kinds: list[Callable[[int, ThreadPoolExecutor], Reader]] = [MmapOnLoop, MmapInThread, PreadCached]
    rng = random.Random(1)
    orders: dict[str, list[int]] = {
        "random": [rng.randrange(FILE_BYTES - ENTRY_BYTES) for _ in range(READS)],
        "sequential": [number * ENTRY_BYTES for number in range(READS)],
    }
    with tempfile.TemporaryFile(dir=directory) as file, ThreadPoolExecutor(2) as threads:
        descriptor = file.fileno()
        for _ in range(FILE_BYTES // MIB):
            os.write(descriptor, os.urandom(MIB))
        os.fsync(descriptor)
        for order, positions in orders.items():
            for kind in kinds:
                for state in ("cold", "cached"):
                    if state == "cold":  # pages that a map holds are not dropped, so no map may be open here
                        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                    reader = kind(descriptor, threads)
                    await measure(f"{order}, {state}, {kind.__name__}", reader, positions, sys.stdout.write)
                    reader.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "."))
