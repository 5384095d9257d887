"""Disks whose syncs a test decides on."""

from __future__ import annotations

import asyncio
import errno
import threading

from cursus_broker.log.files import RealFiles


class HeldFiles(RealFiles):
    """Syncs that wait for the test's permission, are counted, and fail if they are told to."""

    def __init__(self) -> None:
        self.may_sync = threading.Event()
        self.may_sync.set()
        self._started = threading.Semaphore(0)
        self.at_once = self.most_at_once = self.syncs = self.file_system_syncs = 0
        self.fails = self.file_system_fails = False
        self._lock = threading.Lock()

    def fdatasync(self, descriptor: int) -> None:
        with self._lock:
            self.syncs += 1
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        self._started.release()
        assert self.may_sync.wait(60)
        with self._lock:
            self.at_once -= 1
        if self.fails:
            raise OSError(errno.EIO, "the disk is gone")
        super().fdatasync(descriptor)

    def sync_file_system(self, path: str) -> None:
        self.file_system_syncs += 1
        if self.file_system_fails:
            raise OSError(errno.EIO, "somebody's write failed")

    def hold(self) -> None:
        """Let no sync of a file end from now on. Those that began before do not count as started."""
        self.may_sync.clear()
        while self._started.acquire(blocking=False):
            pass

    async def sync_started(self) -> None:
        """Return once another sync of a file has begun."""
        assert await asyncio.to_thread(self._started.acquire, timeout=60)
