"""When written data is made to survive power loss.

`GroupedSync` belongs to one log: one sync of its files serves everybody who waits, and while one runs the next group
gathers. `Flusher` belongs to the engine: it starts the syncs nobody waits for, oldest data first, few at a time.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from cursus_broker.errors import StorageFailed
from cursus_broker.log.segment import Segment

FLUSH_CONCURRENCY: Final = 2
"""Background syncs at once. A disk gains little from more, and those who wait for a sync must get their turn."""


@dataclass(frozen=True, slots=True)
class SyncPlan:
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

    def sync_finished(self, plan: SyncPlan) -> None:
        """Called on the loop before those who wait are woken."""

    def sync_failed(self, failure: StorageFailed) -> None: ...


class GroupedSync:
    """The syncs of one log, one at a time. A failure is final: after it the kernel may have dropped the dirty pages, so
    a second fdatasync that succeeds would prove nothing."""

    def __init__(self, source: Source, synced_offset: int, executor: Executor) -> None:
        self._source = source
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

    def start(self) -> asyncio.Future[None]:
        """Start a sync unless one runs; answers the one that runs. Its result tells nothing: see `failure`."""
        if self._running is None:
            plan = self._source.plan_sync()
            self._running = self._loop.run_in_executor(self._executor, self._source.perform_sync, plan)
            self._running.add_done_callback(partial(self._finished, plan))
        return self._running

    async def settled(self) -> None:
        """Return when no sync runs."""
        while self._running is not None:
            await asyncio.wait([self._running])
            await asyncio.sleep(0)  # the callback of the future runs after those who wait for it are scheduled

    def _finished(self, plan: SyncPlan, future: asyncio.Future[None]) -> None:
        self._running = None
        error = asyncio.CancelledError() if future.cancelled() else future.exception()
        if error is not None:
            self.failure = StorageFailed(f"sync failed: {error!r}; the log takes no more until it is opened anew")
            self._source.sync_failed(self.failure)
            for _, woken in self._waiting:
                if not woken.done():
                    woken.set_exception(StorageFailed(str(self.failure)))
            self._waiting.clear()
            return
        assert plan.upto >= self.synced_offset
        self.synced_offset = plan.upto
        self._source.sync_finished(plan)
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
    """Starts background syncs: `linger_ms` after a log's first unsynced append, or at once when it is told to hurry."""

    def __init__(self, linger_ms: int, concurrency: int = FLUSH_CONCURRENCY) -> None:
        self._linger = linger_ms / 1000
        self._concurrency = concurrency
        self._loop = asyncio.get_running_loop()
        # In the order of their deadlines: all linger equally long, and those in a hurry are put in front.
        self._dirty: OrderedDict[GroupedSync, float] = OrderedDict()
        self._running = 0
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._dirty)

    def note_dirty(self, sync: GroupedSync) -> None:
        """The log has something unsynced since now."""
        if sync not in self._dirty:
            self._dirty[sync] = self._loop.time() + self._linger
            self._arm()

    def hurry(self, sync: GroupedSync) -> None:
        """The log has enough unsynced: do not linger."""
        if self._dirty.get(sync) != 0.0:
            self._dirty[sync] = 0.0
            self._dirty.move_to_end(sync, last=False)
            self._pump()

    def forget(self, sync: GroupedSync) -> None:
        self._dirty.pop(sync, None)

    def close(self) -> None:
        self._dirty.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        if self._timer is None and self._dirty and self._running < self._concurrency:
            deadline = next(iter(self._dirty.values()))
            self._timer = self._loop.call_at(deadline, self._due)

    def _due(self) -> None:
        self._timer = None
        self._pump()

    def _pump(self) -> None:
        now = self._loop.time()
        while self._dirty and self._running < self._concurrency:
            sync, deadline = next(iter(self._dirty.items()))
            if deadline > now:
                break
            del self._dirty[sync]
            if sync.failure is None:
                self._running += 1
                sync.start().add_done_callback(self._flushed)
        self._arm()

    def _flushed(self, _future: asyncio.Future[None]) -> None:
        self._running -= 1
        self._pump()
