"""When written data is made to survive power loss.

`GroupedSync` belongs to one log: one sync of its files serves everybody who waits, and while one runs the next group
gathers. `Flusher` belongs to the engine: it starts the syncs that can wait for a good moment, few at a time: those
somebody has asked for, then those nobody waits for, oldest data first.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import Final, NamedTuple, Protocol

from cursus_broker.errors import StorageFailed
from cursus_broker.log.files import Files
from cursus_broker.log.resources import ObserveSync, unobserved
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


_ASKED_REST: Final = 3
"""After a round of syncs that somebody asked for and that took t, the next round may begin after this many t. Those who
ask, which are commits of consumer groups, would else keep a busy log syncing without a pause: a consumer at the end of
the log asks again after every batch. The rest costs it no throughput: when it has to wait it has read all that is
synced, and one that is slower than the publishers is behind the synced offset and never asks."""

_MAX_ASKED_REST_S: Final = 0.05
"""A sync that took very long, as when a disk stands still for once, makes nobody wait as long again."""


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

    def sync_wanted(self) -> None:
        """Somebody waits for another sync, which may begin at a good moment."""


class _Waiter(NamedTuple):
    upto: int
    woken: asyncio.Future[None]
    at_once: bool  # the sync is not to wait for a good moment


class GroupedSync:
    """The syncs of one log, one at a time. A failure is final: after it the kernel may have dropped the dirty pages, so
    a second fdatasync that succeeds would prove nothing."""

    def __init__(self, source: Source, synced_offset: int, executor: Executor) -> None:
        self.source = source
        self._executor = executor
        self._loop = asyncio.get_running_loop()
        self._running: asyncio.Future[None] | None = None
        self._waiting: list[_Waiter] = []
        self.synced_offset = synced_offset
        self.failure: StorageFailed | None = None

    async def wait(self, upto: int) -> None:
        """Return once all below `upto` is synced, starting a sync if need be. Raises StorageFailed."""
        if upto > self.synced_offset:
            woken = self._enqueue(upto, at_once=True)
            self.start()
            await woken

    def ask(self, upto: int) -> asyncio.Future[None] | None:
        """Have all below `upto` synced at the next good moment. The answer ends then, or fails with StorageFailed; None
        if all of it is synced already. Raises StorageFailed."""
        if upto <= self.synced_offset:
            return None
        woken = self._enqueue(upto, at_once=False)
        if self._running is None:
            self.source.sync_wanted()
        return woken

    @property
    def is_awaited(self) -> bool:
        """True while somebody waits for the log."""
        return any(not waiter.woken.done() for waiter in self._waiting)

    def _enqueue(self, upto: int, *, at_once: bool) -> asyncio.Future[None]:
        if self.failure is not None:
            raise self.failure.again()
        woken: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(_Waiter(upto, woken, at_once))
        return woken

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
            cause = (error.strerror if isinstance(error, OSError) else None) or repr(error)
            failure = StorageFailed(f"sync failed: {cause}; the partition takes no more until it is opened anew")
            self.source.sync_failed(failure)
            self.end(failure)
            return
        assert plan.upto >= self.synced_offset
        self.synced_offset = plan.upto
        self.source.sync_finished(plan)
        if not self._waiting:
            return
        still_waiting = []
        for waiter in self._waiting:
            if waiter.woken.done():
                continue  # whoever it was has gone away
            if waiter.upto > plan.upto:
                still_waiting.append(waiter)
            else:
                waiter.woken.set_result(None)
        self._waiting = still_waiting
        if any(waiter.at_once for waiter in still_waiting):
            self.start()
        elif still_waiting:
            self.source.sync_wanted()

    def end(self, failure: StorageFailed) -> None:
        """No sync follows, for this reason: tell those who wait, and those who come later."""
        self.failure = self.failure or failure
        for waiter in self._waiting:
            if not waiter.woken.done():
                waiter.woken.set_exception(self.failure.again())
        self._waiting.clear()


class _Round:
    """The syncs that were asked for before they began. Those asked for meanwhile make the next round."""

    def __init__(self) -> None:
        self.waiting: dict[GroupedSync, None] = {}
        self.running = 0
        self.started = 0.0
        self.next_at = 0.0  # when the next round may begin, by the loop's clock


_Done = Callable[[float, asyncio.Future[None]], None]


class Flusher:
    """Starts syncs at a good moment: `linger_ms` after a log's first unsynced append; earlier for a log in a hurry, if
    the last sync is over for long enough; and earlier still for one that somebody asked for. Few at a time, oldest
    first; very many are synced together."""

    def __init__(
        self,
        files: Files,
        root: str,
        linger_ms: int,
        executor: Executor,
        observe_sync: ObserveSync = unobserved,
    ) -> None:
        self._files = files
        self._root = root
        self._linger = linger_ms / 1000
        self._observe_sync = observe_sync
        self._executor = executor
        self._loop = asyncio.get_running_loop()
        # The dirty logs in the order of their deadlines, which is the order they became dirty in.
        self._deadlines: dict[GroupedSync, float] = {}
        self._hurried: dict[GroupedSync, None] = {}  # those of them that are not to linger, in their order
        self._asked: dict[GroupedSync, None] = {}  # those that somebody waits for, in their order
        self._round = _Round()
        self._running = 0
        self._rested_at = 0.0  # when the next hurried sync may start, by the loop's clock
        self._timer: asyncio.Handle | None = None
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

    def ask(self, sync: GroupedSync) -> None:
        """Somebody waits for the log, which has something unsynced: sync it in the next round. All that ask before it
        begins share it, and if they are very many, one sync of the file system."""
        if sync not in self._asked:
            self._asked[sync] = None
            if len(self._asked) == 1:
                self._arm()

    def forget(self, sync: GroupedSync) -> None:
        self._deadlines.pop(sync, None)
        self._hurried.pop(sync, None)
        self._asked.pop(sync, None)
        self._round.waiting.pop(sync, None)

    def close(self) -> None:
        for logs in (self._deadlines, self._hurried, self._asked, self._round.waiting):
            logs.clear()
        self._arm()

    def _arm(self) -> None:
        """Set the timer to when there is something to do next."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        # With all threads busy the end of a sync goes on with the logs that wait.
        if self._running >= FLUSH_CONCURRENCY:
            return
        moments: list[float] = []
        if self._deadlines:
            moments.append(next(iter(self._deadlines.values())))
        if self._hurried and not self._running:
            moments.append(self._rested_at)
        if self._round.waiting or (self._asked and not self._round.running):
            moments.append(self._round.next_at)
        if moments:
            self._timer = self._loop.call_at(min(moments), self._due)

    def _due(self) -> None:
        free = FLUSH_CONCURRENCY - self._running
        asked = self._pop_asked(free)
        due = [] if asked else self._pop_due(free) or self._pop_hurried()
        if len(asked) >= BULK_AT or (due and len(self._deadlines) >= BULK_AT):
            # All that is dirty, due or not: it is written anyway.
            together = dict.fromkeys((*asked, *due, *self._deadlines))
            self._deadlines.clear()
            self._hurried.clear()
            self._start_bulk([sync for sync in together if sync.failure is None], in_round=bool(asked))
            asked, due = [], []
        for sync in asked:
            self._round.running += 1
            self._start(sync, self._answered)
        for sync in due:
            self._start(sync, self._flushed)
        self._arm()

    def _start(self, sync: GroupedSync, done: _Done) -> None:
        self._running += 1
        sync.start().add_done_callback(partial(done, self._loop.time()))

    def _pop_asked(self, limit: int) -> list[GroupedSync]:
        """What is next in the round, which begins here if it is time for one; all of it if it is very much."""
        now, current = self._loop.time(), self._round
        if self._asked and not current.waiting and not current.running and now >= current.next_at and limit > 0:
            # Others may have synced some of them meanwhile.
            current.waiting = {sync: None for sync in self._asked if sync.is_awaited}
            current.started = now
            self._asked = {}
        count = len(current.waiting) if len(current.waiting) >= BULK_AT else max(limit, 0)
        asked = list(itertools.islice(current.waiting, count))
        for sync in asked:
            self.forget(sync)
        return asked

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

    def _start_bulk(self, syncs: list[GroupedSync], *, in_round: bool) -> None:
        # One future for all of them: with a thousand logs, one each would cost as much as their appends.
        bulk: asyncio.Future[None] = self._loop.create_future()
        parts = [(sync, plan) for sync in syncs if (plan := sync.join(bulk)) is not None]
        self._running += FLUSH_CONCURRENCY  # beside it another sync would only wait for the same disk
        self._round.running += in_round
        self.bulk_syncs += 1
        done = partial(self._answered if in_round else self._flushed, self._loop.time())
        synced = self._loop.run_in_executor(
            self._executor, self._sync_together, [(sync.source, plan) for sync, plan in parts]
        )
        synced.add_done_callback(partial(self._bulk_done, done, bulk, parts))

    def _sync_together(self, parts: list[tuple[Source, SyncPlan]]) -> list[Exception | None]:
        """Sync all plans at once and answer what became of each. Runs in a thread."""
        started = time.perf_counter()
        try:
            self._files.sync_file_system(self._root)
        except OSError:
            # Not possible here, or somebody's write failed, maybe a foreign one: each file knows about itself.
            return [_outcome(source, plan) for source, plan in parts]
        seconds = time.perf_counter() - started
        self._observe_sync(seconds)  # once: it was one sync
        for source, _ in parts:
            source.count_sync(seconds)
        return [None] * len(parts)

    def _bulk_done(
        self,
        done: Callable[[asyncio.Future[None]], None],
        bulk: asyncio.Future[None],
        parts: list[tuple[GroupedSync, SyncPlan]],
        synced: asyncio.Future[list[Exception | None]],
    ) -> None:
        for (sync, plan), error in zip(parts, synced.result(), strict=True):
            sync.finish(plan, error)
        bulk.set_result(None)
        self._running -= FLUSH_CONCURRENCY - 1
        done(bulk)

    def _answered(self, started: float, future: asyncio.Future[None]) -> None:
        """A sync of the round is over, and with the last one the round."""
        current = self._round
        current.running -= 1
        if not current.running and not current.waiting:
            now = self._loop.time()
            current.next_at = now + min(_ASKED_REST * (now - current.started), _MAX_ASKED_REST_S)
        self._flushed(started, future)

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
