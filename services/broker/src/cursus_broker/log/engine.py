"""The segment engine: the logs of one broker under one root directory.

It owns what the logs share (descriptors, threads, the flusher) and the life of directories. A directory holds the
partitions of a topic; its name is the caller's and already validated.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from cursus_broker.errors import StorageFailed
from cursus_broker.log.api import Recovered
from cursus_broker.log.files import Files, RealFiles
from cursus_broker.log.log import SegmentLog
from cursus_broker.log.names import DELETED_PREFIX, ORPHANED_PREFIX
from cursus_broker.log.recovery import OpenedLog, recover
from cursus_broker.log.resources import Fault, Resources, no_fault
from cursus_broker.log.settings import LogSettings
from cursus_broker.log.sync import FLUSH_CONCURRENCY, Flusher

_SYNC_THREADS: Final = FLUSH_CONCURRENCY + 2
_FILE_THREADS: Final = 4


class SegmentEngine:
    """Opens and deletes logs. Used on one event loop; `close` closes every log that is still open."""

    def __init__(
        self,
        root: Path,
        settings: LogSettings | None = None,
        *,
        files: Files | None = None,
        executor: Executor | None = None,
        fault: Fault = no_fault,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        """`executor` runs reads, recovery and deletion; the engine makes its own if there is none. Syncs always have
        threads of their own, so that a slow disk cannot keep readers waiting for a thread. `now_ms` dates the first
        segment of a new log; everything later is dated by the caller."""
        self._now_ms = now_ms
        self._root = str(root)
        self._settings = settings or LogSettings()
        self._files = files or RealFiles()
        self._resources = Resources.of(self._files, self._settings, fault)
        self._own_executor = ThreadPoolExecutor(_FILE_THREADS, "log-files") if executor is None else None
        self._executor: Executor = executor or self._own_executor  # type: ignore[assignment]  # one of the two is set
        self._sync_executor = ThreadPoolExecutor(_SYNC_THREADS, "log-sync")
        self._loop = asyncio.get_running_loop()
        self._flusher = Flusher(self._files, self._root, self._settings.linger_ms, self._sync_executor)
        self._logs: dict[tuple[str, int], SegmentLog] = {}
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def open_descriptors(self) -> int:
        return len(self._resources.pool)

    async def open(self, directory: str, partition: int) -> tuple[SegmentLog, Recovered]:
        """Open a partition's log, making it if there is none. A log is opened once; after `close` it may be again.

        Raises PartitionDamaged, StorageFailed.
        """
        key = (directory, partition)
        previous = self._logs.get(key)
        assert previous is None or previous.is_closed, f"the log of {directory}/{partition} is open already"
        try:
            opened, recovered = await self._loop.run_in_executor(self._executor, self._recover, directory, partition)
        except OSError as error:
            raise StorageFailed(f"cannot open partition {partition} in {directory}: {error}") from error
        log = SegmentLog(self._resources, opened, self._flusher, self._executor, self._sync_executor)
        self._logs[key] = log
        return log, recovered

    async def delete(self, directory: str) -> None:
        """Remove a directory and all logs in it, closing those that are open. Once this returns the name is free, also
        after power loss. Deleting what does not exist is no error.

        Raises StorageFailed.
        """
        keys = [key for key in self._logs if key[0] == directory]
        await asyncio.gather(*(self._logs[key].abandon() for key in keys))
        for key in keys:
            del self._logs[key]
        try:
            await self._loop.run_in_executor(self._executor, self._delete, directory)
        except OSError as error:
            raise StorageFailed(f"cannot delete {directory}: {error}") from error

    async def remove_leftovers(self) -> int:
        """Finish deletions that a crash interrupted. For the start of the broker; answers how many there were."""
        return await self._loop.run_in_executor(self._executor, self._remove_leftovers)

    async def directories(self) -> set[str]:
        """The directories that hold logs, known to the caller or not."""
        return await self._loop.run_in_executor(self._executor, self._directories)

    async def set_aside(self, directory: str) -> str:
        """Move a directory that nobody knows out of the way, for people to look at. Answers where it is now.

        Raises StorageFailed.
        """
        # Cut short: the longest names would not leave room for the prefix.
        shown = directory.encode()[:200].decode(errors="ignore")
        aside = f"{ORPHANED_PREFIX}{uuid.uuid4().hex[:8]}~{shown}"
        try:
            await self._loop.run_in_executor(self._executor, self._rename, directory, aside)
        except OSError as error:
            raise StorageFailed(f"cannot set {directory} aside: {error}") from error
        return aside

    async def close(self) -> None:
        """Sync and close every log, then end the engine's threads. Idempotent. Raises what closing a log raised, after
        all are closed."""
        if self._closed:
            return
        self._closed = True
        results = await asyncio.gather(*(log.close() for log in self._logs.values()), return_exceptions=True)
        self._logs.clear()
        self._flusher.close()
        self._resources.pool.close()
        self._sync_executor.shutdown(wait=False)
        if self._own_executor is not None:
            self._own_executor.shutdown(wait=False)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    # Below, everything runs in threads.

    def _recover(self, directory: str, partition: int) -> tuple[OpenedLog, Recovered]:
        path = f"{self._root}/{directory}"
        if not self._files.exists(path):
            with suppress(FileExistsError):  # another partition of the topic is opened at the same time
                self._files.make_directory(path)
            self._files.sync_directory(self._root)
        return recover(self._resources, path, partition, self._now_ms())

    def _directories(self) -> set[str]:
        ours = (DELETED_PREFIX, ORPHANED_PREFIX)
        return {name for name in self._files.list(self._root) if not name.startswith(ours)}

    def _rename(self, directory: str, name: str) -> None:
        self._files.rename(f"{self._root}/{directory}", f"{self._root}/{name}")
        self._files.sync_directory(self._root)

    def _delete(self, directory: str) -> None:
        doomed = f"{DELETED_PREFIX}{uuid.uuid4().hex}"
        try:
            self._rename(directory, doomed)
        except FileNotFoundError:
            return
        self._resources.fault("after_delete_rename")
        self._remove_tree(f"{self._root}/{doomed}")

    def _remove_leftovers(self) -> int:
        leftovers = [name for name in self._files.list(self._root) if name.startswith(DELETED_PREFIX)]
        for name in leftovers:
            self._remove_tree(f"{self._root}/{name}")
        return len(leftovers)

    def _remove_tree(self, path: str) -> None:
        for name in self._files.list(path):
            self._files.unlink(f"{path}/{name}")
        self._files.remove_directory(path)
