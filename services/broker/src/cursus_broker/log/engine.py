"""The segment engine: the logs of one broker under one root directory.

It owns what the logs share (descriptors, threads, the flusher) and the life of directories. A directory holds the
partitions of a topic; its name is the caller's and already validated.
"""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from cursus_broker.errors import PartitionDamaged, storage_failure
from cursus_broker.log.api import Recovered
from cursus_broker.log.damage import ObserveDamage, unseen
from cursus_broker.log.epochs import Epochs
from cursus_broker.log.files import Files, RealFiles
from cursus_broker.log.log import SegmentLog
from cursus_broker.log.names import CLOSED_MARK, DELETED_PREFIX, ORPHANED_PREFIX
from cursus_broker.log.recovery import OpenedLog, recover
from cursus_broker.log.resources import Fault, ObserveSync, Resources, no_fault, unobserved
from cursus_broker.log.scrub import lower_priority
from cursus_broker.log.settings import LogSettings
from cursus_broker.log.sync import BULK_AT, FLUSH_CONCURRENCY, Flusher

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
        observe_sync: ObserveSync = unobserved,
        observe_damage: ObserveDamage = unseen,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        """`executor` runs reads, recovery and deletion; the engine makes its own if there is none. Syncs always have
        threads of their own, so that a slow disk cannot keep readers waiting for a thread. `now_ms` dates the first
        segment of a new log; everything later is dated by the caller."""
        self._now_ms = now_ms
        self._root = str(root)
        self._settings = settings or LogSettings()
        self._files = files or RealFiles()
        self._resources = Resources.of(self._files, self._settings, fault, observe_sync, observe_damage)
        self._own_executor = ThreadPoolExecutor(_FILE_THREADS, "log-files") if executor is None else None
        self._executor: Executor = executor or self._own_executor  # type: ignore[assignment]  # one of the two is set
        self._sync_executor = ThreadPoolExecutor(_SYNC_THREADS, "log-sync")
        self._scrub_executor = ThreadPoolExecutor(1, "log-scrub", initializer=lower_priority)
        self._loop = asyncio.get_running_loop()
        self._flusher = Flusher(self._files, self._root, self._settings.linger_ms, self._sync_executor, observe_sync)
        self._logs: dict[tuple[str, int], SegmentLog] = {}
        # Logs that were damaged or let go of since they were closed last: whoever opens one begins an epoch.
        self._unclean: set[tuple[str, int]] = set()
        self._mark_lock = threading.Lock()
        self._mark_taken = self._found_mark = False
        self._all_opened = False
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

    async def open(
        self, directory: str, partition: int, known: Epochs | None = None, epoch: int = 1
    ) -> tuple[SegmentLog, Recovered]:
        """Open a partition's log; if nothing is known of it, it is made unless it is there. A log is opened once; after
        `close` it may be again. Without a clean close before, `epoch` begins at the end that is found.

        Raises PartitionDamaged, StorageFailed.
        """
        key = (directory, partition)
        previous = self._logs.get(key)
        assert previous is None or previous.is_closed, f"the log of {directory}/{partition} is open already"
        try:
            opened, recovered = await self._loop.run_in_executor(
                self._executor, self._recover, directory, partition, known is not None
            )
        except PartitionDamaged:
            self._unclean.add(key)
            raise
        except OSError as error:
            raise storage_failure(f"cannot open partition {partition} of {directory}", error) from error
        # A segment whose index fits may still have grown, been read, and lost all of that: the index does not know.
        # And what was damaged was restored meanwhile, maybe from a backup.
        nothing_lost = self._found_mark if previous is None else previous.closed_cleanly
        nothing_lost = nothing_lost and key not in self._unclean
        recovered = _with_epochs(recovered, nothing_lost, known or Epochs(), epoch)
        self._unclean.discard(key)
        log = SegmentLog(
            self._resources,
            opened,
            recovered.epochs,
            self._flusher,
            self._executor,
            self._sync_executor,
            self._scrub_executor,
        )
        self._logs[key] = log
        return log, recovered

    async def secure(self, directory: str, partitions: Sequence[int]) -> None:
        """Sync the logs just made, names and all, many of them together. Raises StorageFailed."""
        logs = [self._logs[directory, partition] for partition in partitions]
        paths = [log.active_path for log in logs]
        try:
            await self._loop.run_in_executor(self._executor, self._secure, directory, paths)
        except OSError as error:
            raise storage_failure(f"cannot sync the new logs of {directory}", error) from error
        for log in logs:
            log.note_secured()

    async def release(self, directory: str, partitions: Sequence[int]) -> None:
        """Let go of those of the logs that are open, without syncing them: the caller will not remember them, or could
        not make use of them."""
        keys = [(directory, partition) for partition in partitions if (directory, partition) in self._logs]
        await asyncio.gather(*(self._logs[key].abandon() for key in keys))
        for key in keys:
            del self._logs[key]
        self._unclean.update(keys)

    def all_opened(self) -> None:
        """The caller has opened every log it knows and remembers their epochs: closing them may count as clean."""
        self._all_opened = True

    async def delete(self, directory: str) -> None:
        """Remove a directory and all logs in it, closing those that are open. Once this returns the name is free, also
        after power loss. Deleting what does not exist is no error.

        Raises StorageFailed.
        """
        await self.release(directory, [partition for name, partition in self._logs if name == directory])
        try:
            await self._loop.run_in_executor(self._executor, self._delete, directory)
        except OSError as error:
            raise storage_failure(f"cannot delete {directory}", error) from error
        self._unclean = {key for key in self._unclean if key[0] != directory}

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
            raise storage_failure(f"cannot set {directory} aside", error) from error
        return aside

    async def close(self) -> None:
        """Sync and close every log, then end the engine's threads. Idempotent. Raises what closing a log raised, after
        all are closed."""
        if self._closed:
            return
        self._closed = True
        results = await asyncio.gather(*(log.close() for log in self._logs.values()), return_exceptions=True)
        if self._all_opened and not self._unclean and all(log.closed_cleanly for log in self._logs.values()):
            with suppress(OSError):  # without it the next start begins epochs, and nothing worse
                await self._loop.run_in_executor(self._executor, self._leave_mark)
        self._logs.clear()
        self._flusher.close()
        self._resources.pool.close()
        self._sync_executor.shutdown(wait=False)
        self._scrub_executor.shutdown(wait=False)
        if self._own_executor is not None:
            self._own_executor.shutdown(wait=False)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    # Below, everything runs in threads.

    def _recover(self, directory: str, partition: int, known: bool) -> tuple[OpenedLog, Recovered]:
        self._take_mark()
        path = f"{self._root}/{directory}"
        if not self._files.exists(path):
            if known:
                raise PartitionDamaged(path, 0, "the directory is missing; is its volume mounted?")
            with suppress(FileExistsError):  # another partition of the topic is opened at the same time
                self._files.make_directory(path)
            self._files.sync_directory(self._root)
        return recover(self._resources, path, partition, self._now_ms(), known=known)

    def _secure(self, directory: str, paths: Sequence[str]) -> None:
        if len(paths) >= BULK_AT:
            with suppress(OSError):  # then file by file, which tells whose failure it was
                self._files.sync_file_system(self._root)
                return
        for path in paths:
            with self._resources.pool.lease(path) as handle:
                self._files.fdatasync(handle.descriptor)
        self._files.sync_directory(f"{self._root}/{directory}")

    def _take_mark(self) -> None:
        """Look once whether all logs were closed cleanly, and take the mark away before anybody can append."""
        with self._mark_lock:
            if self._mark_taken:
                return
            mark = f"{self._root}/{CLOSED_MARK}"
            self._found_mark = self._files.exists(mark)
            if self._found_mark:
                self._files.unlink(mark)
                self._files.sync_directory(self._root)
            self._mark_taken = True

    def _leave_mark(self) -> None:
        self._files.close(self._files.open(f"{self._root}/{CLOSED_MARK}", writable=True, create=True))
        self._files.sync_directory(self._root)

    def _directories(self) -> set[str]:
        ours = (DELETED_PREFIX, ORPHANED_PREFIX, CLOSED_MARK)
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


def _with_epochs(recovered: Recovered, nothing_lost: bool, known: Epochs, epoch: int) -> Recovered:
    """What was recovered, with the epochs of the log from now on."""
    closed_cleanly = recovered.closed_cleanly and nothing_lost
    # A log that ends before its epoch begins was put back by hand, or its metadata was.
    if closed_cleanly and known.starts and known.first_offset <= recovered.next_offset:
        return replace(recovered, closed_cleanly=True, epochs=known)
    return replace(recovered, closed_cleanly=closed_cleanly, epochs=known.begin(epoch, recovered.next_offset))
