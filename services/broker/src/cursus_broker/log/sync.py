"""When written data is made to survive power loss.

`GroupedSync` belongs to one log: one sync of its files serves everybody who waits, and while one runs the next group
gathers. `Flusher` belongs to the engine: it starts the syncs nobody waits for, oldest data first, few at a time.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import Executor
from functools import partial
from typing import Final, NamedTuple, Protocol

from cursus_broker.errors import StorageFailed
from cursus_broker.log.files import Files
from cursus_broker.log.segment import Segment

FLUSH_CONCURRENCY: Final = 2
"""Background syncs at once. A disk gains little from more, and those who wait for a sync must get their turn."""


BULK_AT: Final = 64
"""From this many dirty logs on, one sync of the whole file system replaces theirs. Measured with 1,000 of them: 15 ms
against 180 ms for small writes, 210 against 310 ms for 54 KB each, on an idle interpreter. On a busy one every single
fdatasync also waits up to 5 ms to get the interpreter back, and the thousand took seconds. Not for few logs: the sync
also writes what other programs have left dirty."""

_REST: Final = 9
"""After a background sync that took t no other is hurried for this many t; what has lingered long enough does not wait.
Writing to a file that is being synced is slow: without the rest a busy log, in a hurry after every batch, would always
be syncing, and an append took 220 µs instead of 60. All logs rest together: a thousand of them would else be synced one
by one, a batch each, before enough are dirty to be synced at once."""


class SyncPlan(NamedTuple):
    """What one sync covers, fixed when it starts."""

    upto: int  # everything below this offset is in the files named here, or was synced before
    written_bytes: int
    segments: tuple[Segment, ...]  # with unsynced bytes, oldest first
    sealed: tuple[Segment, ...]  # those of them that do not grow any more
    sync_directory: bool  # names have appeared since the directory was last synced


class Source(Protocol):
    """The log, as its sync sees it."""

    def plan_sync(self) -> SyncPlan: ...

    def perform_sync(self, plan: SyncPlan) -> None:
        """Runs in a thread. Raises OSError."""

    def count_sync(self, seconds: float) -> None:
        """A sync of the whole file system covered the log's plan. Runs in a thread."""

    def sync_finished(self, plan: SyncPlan) -> None:
        """Called on the loop before those who wait are woken."""

    def sync_failed(self, failure: StorageFailed) -> None: ...


class GroupedSync:
    """The syncs of one log, one at a time. A failure is final: after it the kernel may have dropped the dirty pages, so
    a second fdatasync that succeeds would prove nothing."""

    def __init__(self, source: Source, synced_offset: int, executor: Executor) -> None:
        self.source = source
        self._executor = executor
        self._loop = asyncio.get_running_loop()
        self._running: asyncio.Future[None] | None = None
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self.synced_offset = synced_offset
        self.failure: StorageFailed | None = None

    async def wait(self, upto: int) -> None:
        """Return once all below `upto` is synced, starting a sync if need be. Raises StorageFailed."""
        if upto <= self.synced_offset:
            return
        if self.failure is not None:
            raise self.failure
        woken: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append((upto, woken))
        self.start()
        await woken

    async def flush(self) -> None:
        """Sync what there is now, also bytes that hold no record, as in a new segment. Raises StorageFailed."""
        await self.settled()
        if self.failure is None:
            self.start()
            await self.settled()
        if self.failure is not None:
            raise self.failure

    def start(self) -> asyncio.Future[None]:
        """Start a sync unless one runs; answers the one that runs. Its result tells nothing: see `failure`."""
        if self._running is None:
            plan = self.source.plan_sync()
            self._running = self._loop.run_in_executor(self._executor, self.source.perform_sync, plan)
            self._running.add_done_callback(partial(self._performed, plan))
        return self._running

    def join(self, bulk: asyncio.Future[None]) -> SyncPlan | None:
        """Leave the next sync to somebody who syncs many logs at once, calls `finish`, and then ends `bulk`. None if a
        sync runs already."""
        if self._running is not None:
            return None
        self._running = bulk
        return self.source.plan_sync()

    async def settled(self) -> None:
        """Return when no sync runs."""
        while self._running is not None:
            await asyncio.wait([self._running])
            await asyncio.sleep(0)  # the callback of the future runs after those who wait for it are scheduled

    def _performed(self, plan: SyncPlan, future: asyncio.Future[None]) -> None:
        self.finish(plan, asyncio.CancelledError() if future.cancelled() else future.exception())

    def finish(self, plan: SyncPlan, error: BaseException | None) -> None:
        """Take note of what became of a sync, and wake those it concerns."""
        self._running = None
        if error is not None:
            self.failure = StorageFailed(f"sync failed: {error!r}; the log takes no more until it is opened anew")
            self.source.sync_failed(self.failure)
            for _, woken in self._waiting:
                if not woken.done():
                    woken.set_exception(StorageFailed(str(self.failure)))
            self._waiting.clear()
            return
        assert plan.upto >= self.synced_offset
        self.synced_offset = plan.upto
        self.source.sync_finished(plan)
        if not self._waiting:
            return
        still_waiting = []
        for upto, woken in self._waiting:
            if upto > plan.upto:
                still_waiting.append((upto, woken))
            elif not woken.done():
                woken.set_result(None)
        self._waiting = still_waiting
        if still_waiting:
            self.start()


class Flusher:
    """Starts background syncs: `linger_ms` after a log's first unsynced append, and at once for a log in a hurry when
    the last sync is over for long enough. Few at a time, oldest deadline first; very many are synced together."""

    def __init__(self, files: Files, root: str, linger_ms: int, executor: Executor) -> None:
        self._files = files
        self._root = root
        self._linger = linger_ms / 1000
        self._executor = executor
        self._loop = asyncio.get_running_loop()
        # The dirty logs in the order of their deadlines, which is the order they became dirty in.
        self._deadlines: dict[GroupedSync, float] = {}
        self._hurried: dict[GroupedSync, None] = {}  # those of them that are not to linger, in their order
        self._running = 0
        self._rested_at = 0.0  # when the next hurried sync may start, by the loop's clock
        self._timer: asyncio.TimerHandle | None = None
        self.bulk_syncs = 0

    def __len__(self) -> int:
        return len(self._deadlines)

    def note_dirty(self, sync: GroupedSync) -> None:
        """The log has something unsynced since now."""
        if sync not in self._deadlines:
            self._deadlines[sync] = self._loop.time() + self._linger
            if len(self._deadlines) == 1:
                self._arm()

    def hurry(self, sync: GroupedSync) -> None:
        """The log has enough unsynced: do not linger longer than the rest takes."""
        self.note_dirty(sync)
        if sync not in self._hurried:
            self._hurried[sync] = None
            if len(self._hurried) == 1:
                self._arm()

    def forget(self, sync: GroupedSync) -> None:
        self._deadlines.pop(sync, None)
        self._hurried.pop(sync, None)

    def close(self) -> None:
        self._deadlines.clear()
        self._hurried.clear()
        self._arm()

    def _arm(self) -> None:
        """Set the timer to when there is something to do next."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        # With all threads busy the end of a sync goes on with the logs that wait.
        if self._deadlines and self._running < FLUSH_CONCURRENCY:
            deadline = next(iter(self._deadlines.values()))
            if self._hurried and not self._running:
                deadline = min(deadline, self._rested_at)
            self._timer = self._loop.call_at(deadline, self._due)

    def _due(self) -> None:
        due = self._pop_due(FLUSH_CONCURRENCY - self._running) or self._pop_hurried()
        if due and len(self._deadlines) >= BULK_AT:
            # All that is dirty, due or not: it is written anyway.
            due += [sync for sync in self._deadlines if sync.failure is None]
            self._deadlines.clear()
            self._hurried.clear()
            self._start_bulk(due)
            due = []
        for sync in due:
            self._running += 1
            sync.start().add_done_callback(partial(self._flushed, self._loop.time()))
        self._arm()

    def _pop_due(self, limit: int) -> list[GroupedSync]:
        now = self._loop.time()
        due: list[GroupedSync] = []
        while self._deadlines and len(due) < limit:
            sync, deadline = next(iter(self._deadlines.items()))
            if deadline > now:
                break
            self.forget(sync)
            if sync.failure is None:
                due.append(sync)
        return due

    def _pop_hurried(self) -> list[GroupedSync]:
        """The log that has been in a hurry for longest, if it is time for one."""
        if not self._hurried or self._running or self._loop.time() < self._rested_at:
            return []
        sync = next(iter(self._hurried))
        self.forget(sync)
        return [] if sync.failure is not None else [sync]

    def _start_bulk(self, syncs: list[GroupedSync]) -> None:
        # One future for all of them: with a thousand logs, one each would cost as much as their appends.
        bulk: asyncio.Future[None] = self._loop.create_future()
        parts = [(sync, plan) for sync in syncs if (plan := sync.join(bulk)) is not None]
        self._running += FLUSH_CONCURRENCY  # beside it another sync would only wait for the same disk
        self.bulk_syncs += 1
        started = self._loop.time()
        synced = self._loop.run_in_executor(
            self._executor, self._sync_together, [(sync.source, plan) for sync, plan in parts]
        )
        synced.add_done_callback(partial(self._bulk_done, started, bulk, parts))

    def _sync_together(self, parts: list[tuple[Source, SyncPlan]]) -> list[Exception | None]:
        """Sync all plans at once and answer what became of each. Runs in a thread."""
        started = time.perf_counter()
        try:
            self._files.sync_file_system(self._root)
        except OSError:
            # Not possible here, or somebody's write failed, maybe a foreign one: each file knows about itself.
            return [_outcome(source, plan) for source, plan in parts]
        seconds = time.perf_counter() - started
        for source, _ in parts:
            source.count_sync(seconds)
        return [None] * len(parts)

    def _bulk_done(
        self,
        started: float,
        bulk: asyncio.Future[None],
        parts: list[tuple[GroupedSync, SyncPlan]],
        synced: asyncio.Future[list[Exception | None]],
    ) -> None:
        for (sync, plan), error in zip(parts, synced.result(), strict=True):
            sync.finish(plan, error)
        bulk.set_result(None)
        self._running -= FLUSH_CONCURRENCY - 1
        self._flushed(started, bulk)

    def _flushed(self, started: float, _future: asyncio.Future[None]) -> None:
        now = self._loop.time()
        self._rested_at = now + _REST * (now - started)
        self._running -= 1
        self._due()


def _outcome(source: Source, plan: SyncPlan) -> Exception | None:
    try:
        source.perform_sync(plan)
    except Exception as error:  # whatever it is, it is the log's failure and reported there
        return error
    return None
