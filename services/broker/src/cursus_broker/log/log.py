"""The segment log: one partition on local files, behind the promises of `api.py`.

State changes happen on the event loop and never across an `await`; threads get what they need as arguments and answer
with values. Appending, rolling, syncing and closing are here; `reader.py` reads and `trim.py` deletes, over the same
`Extent`.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from typing import Final, TypeVar

from cursus_broker.errors import OffsetOutOfRange, PartitionDamaged, RecordTooLarge, StorageFailed, storage_failure
from cursus_broker.log.api import (
    MANY_RECORDS,
    Batch,
    Entry,
    EntryHeader,
    Offset,
    Pause,
    Retained,
    RetentionPolicy,
    TimedOffset,
)
from cursus_broker.log.damage import Damages
from cursus_broker.log.entry import (
    CONTROL,
    FIXED_BYTES,
    MAX_PAYLOAD_BYTES,
    MAX_PRODUCER_ID_BYTES,
    pack_header,
)
from cursus_broker.log.epochs import Epochs
from cursus_broker.log.extent import Extent
from cursus_broker.log.names import prepared_name
from cursus_broker.log.reader import LogReader
from cursus_broker.log.recovery import OpenedLog
from cursus_broker.log.refused import RefusedSync
from cursus_broker.log.resources import Resources
from cursus_broker.log.retention import expired, is_old
from cursus_broker.log.scrub import verify
from cursus_broker.log.segment import CannotUndo, Segment, segment_path, store_index
from cursus_broker.log.sync import Flusher, GroupedSync, SyncPlan
from cursus_broker.log.trim import Trimmer

T = TypeVar("T")

_PREPARE_AT: Final = 0.8
"""How full the active segment is when the file of the next one is created."""


class SegmentLog:
    """See `api.Log`. Made by `SegmentEngine.open`; lives on the event loop that opened it."""

    def __init__(
        self,
        resources: Resources,
        opened: OpenedLog,
        epochs: Epochs,
        flusher: Flusher,
        executor: Executor,
        sync_executor: Executor,
        scrub_executor: Executor,
    ) -> None:
        self._resources = resources
        self._epochs = epochs
        self.leader_epoch = epochs.current
        self._settings = resources.settings
        self._directory = opened.directory
        self._partition = opened.partition
        self._extent = Extent(opened.segments, opened.earliest_offset)
        self._checkpoint = opened.checkpoint
        self._refused_sync = RefusedSync(resources.files, opened.directory, opened.partition)
        self._flusher = flusher
        self._executor = executor
        self._loop = asyncio.get_running_loop()
        self._sync = GroupedSync(self, self._extent.next_offset, sync_executor)
        self._file_lock = threading.Lock()  # sealing and unlinking, both in threads, must not cross
        self._damages = Damages(opened.directory, opened.partition, resources.observe_damage)
        self._scrub_executor = scrub_executor
        self._reader = LogReader(resources, self._extent, executor, self._damages)
        self._trimmer = Trimmer(
            resources, self._extent, opened.checkpoint, opened.directory, opened.partition, executor, self._file_lock
        )
        self._names_unsynced = opened.names_unsynced
        self._unsynced_sealed: list[Segment] = []
        self._unsynced_records = 0
        self._written_bytes = self._synced_bytes = 0
        self._refusal: str | None = None
        self._closing: asyncio.Task[None] | None = None
        self.closed_cleanly = False  # with everything synced
        self._background: set[asyncio.Future[object]] = set()
        self._prepared: str | None = None
        self._preparing = False
        # Plain counters for metrics.
        self.appended_records = 0
        self.appended_bytes = 0
        self.syncs = 0
        self.sync_seconds_total = 0.0
        self.last_sync_seconds = 0.0
        self.seal_failures = 0  # indexes or checkpoints that could not be written; recovery does without them

    @property
    def earliest_offset(self) -> Offset:
        return Offset(self._extent.earliest_offset)

    @property
    def next_offset(self) -> Offset:
        return Offset(self._extent.next_offset)

    @property
    def synced_offset(self) -> Offset:
        return Offset(self._sync.synced_offset)

    def truncated(self, offset: int, epoch: int) -> Offset | None:
        if epoch >= self.leader_epoch:
            return None
        first_offset = self._epochs.truncated(offset, epoch)
        return None if first_offset is None else Offset(max(first_offset, self._extent.earliest_offset))

    @property
    def size_bytes(self) -> int:
        return self._extent.size_bytes

    @property
    def unsynced_bytes(self) -> int:
        return self._written_bytes - self._synced_bytes

    @property
    def segment_count(self) -> int:
        return len(self._extent.segments)

    @property
    def is_closed(self) -> bool:
        return self._closing is not None and self._closing.done()

    @property
    def active_path(self) -> str:
        """The file that grows."""
        return self._extent.active.path

    def note_secured(self) -> None:
        """A log just made was synced from outside, before anything was appended."""
        self._names_unsynced = False

    @property
    def damage(self) -> PartitionDamaged | None:
        return self._damages.last

    @property
    def refusal(self) -> str | None:
        """Why appends are refused; None while they are not."""
        return self._refusal

    def configure(self, *, segment_bytes: int | None, segment_ms: int | None) -> None:
        """Let this log roll by its own measures; None follows the engine's settings. Takes effect at the next roll."""
        shared = self._resources.settings
        self._settings = replace(
            shared,
            segment_bytes=shared.segment_bytes if segment_bytes is None else segment_bytes,
            segment_ms=shared.segment_ms if segment_ms is None else segment_ms,
        )

    # Appending.

    def append(self, batch: Batch, now_ms: int) -> EntryHeader:
        # The one deliberate system call on the loop: a writev into the page cache, about 50 µs for 54 KB.
        if self._refusal is not None:
            raise StorageFailed(self._refusal)
        payload, producer_id = batch.payload, batch.producer_id
        if len(payload) > MAX_PAYLOAD_BYTES or len(producer_id) > MAX_PRODUCER_ID_BYTES:
            raise RecordTooLarge(f"a batch of {len(payload)} bytes cannot be stored: the most is {MAX_PAYLOAD_BYTES}")
        assert batch.record_count > 0
        assert not batch.flags & CONTROL
        settings, active = self._settings, self._extent.active
        size = FIXED_BYTES + len(producer_id) + len(payload)
        if not active.is_empty and (
            active.size_bytes + size > settings.segment_bytes or now_ms - active.created_ms >= settings.segment_ms
        ):
            self._roll(now_ms)
            active = self._extent.active
        head = pack_header(batch, self._extent.next_offset, now_ms, self._sync.synced_offset)
        self._write(active, head, payload, size)
        self._resources.fault("after_write")
        header = EntryHeader(
            Offset(self._extent.next_offset),
            batch.record_count,
            now_ms,
            len(payload),
            batch.payload_crc,
            batch.codec,
            batch.flags,
            producer_id,
            batch.producer_epoch,
            batch.first_sequence,
        )
        # Visible before synced: a reader may see a batch that power loss takes back. Acks -1 waits for `sync`.
        active.note(header, size, settings.index_interval_bytes)
        self._written_bytes += size
        self.appended_records += batch.record_count
        self.appended_bytes += size
        if self._unsynced_records == 0:
            self._flusher.note_dirty(self._sync)
        self._unsynced_records += batch.record_count
        if self._unsynced_records >= settings.flush_records:
            self._flusher.hurry(self._sync)
        if active.size_bytes > _PREPARE_AT * settings.segment_bytes:
            self._prepare_next()
        return header

    def roll_if_old(self, now_ms: int) -> bool:
        """Begin a new segment if the active one has records and was begun `segment_ms` ago: idle logs age too.

        Raises StorageFailed.
        """
        old = not self._extent.active.is_empty and now_ms - self._extent.active.created_ms >= self._settings.segment_ms
        if old and self._refusal is None:
            self._roll(now_ms)
            return True
        return False

    def _write(self, segment: Segment, head: bytes, payload: bytes, size: int) -> None:
        try:
            segment.write(self._resources, (head, payload), size)
        except OSError as error:
            raise storage_failure("cannot append", error) from error
        except CannotUndo as error:
            self._refusal = f"the end of the log is in an unknown state: {error}; it has to be opened anew"
            raise StorageFailed(self._refusal) from error

    def _roll(self, now_ms: int) -> None:
        """Begin a new segment. The old one is sealed once it is synced; nothing waits for that here."""
        self._resources.fault("before_roll")
        number = self._extent.active.number + 1
        path = segment_path(self._directory, self._partition, number)
        prepared, self._prepared = self._prepared, None
        try:
            segment = Segment.create(
                self._resources, path, number, self._extent.next_offset, now_ms, self._sync.synced_offset, prepared
            )
        except OSError as error:
            raise storage_failure("cannot begin a new segment", error) from error
        self._unsynced_sealed.append(self._extent.begin(segment))
        self._names_unsynced = True
        self._flusher.note_dirty(self._sync)
        self._resources.fault("after_roll")

    def _prepare_next(self) -> None:
        """Create the next segment's file ahead of time, so that the roll has only to rename it."""
        if self._prepared is not None or self._preparing:
            return
        self._preparing = True
        path = f"{self._directory}/{prepared_name(self._partition)}"
        files = self._resources.files

        def create() -> None:
            files.close(files.open(path, writable=True, create=True))

        def created(future: asyncio.Future[None]) -> None:
            self._preparing = False
            # If it failed the roll creates the file itself, and reports its own failure.
            if not future.cancelled() and future.exception() is None:
                self._prepared = path

        self._in_background(create).add_done_callback(created)

    # Reading.

    async def read(self, offset: Offset, max_bytes: int, max_records: int = MANY_RECORDS) -> Sequence[Entry]:
        return await self._reader.read(offset, max_bytes, max_records)

    def headers(self, offset: Offset) -> AsyncIterator[EntryHeader]:
        return self._reader.headers(offset)

    async def header_at(self, offset: Offset) -> EntryHeader | None:
        return await self._reader.header_at(offset)

    async def find_time(self, time_ms: int) -> TimedOffset | None:
        return await self._reader.find_time(time_ms)

    async def scrub(self, offset: Offset, pause: Pause) -> Offset | None:
        sealed = (one for one in self._extent.segments[:-1] if one.next_offset > offset)
        segment = next(sealed, None)
        if segment is None:
            return None
        await self._verify(segment, pause)
        return Offset(segment.next_offset)

    async def recheck(self) -> PartitionDamaged | None:
        for path in self._damages.paths:
            segment = next((one for one in self._extent.segments if one.path == path), None)
            if segment is not None:
                # A file that was restored has another inode, and maybe another index.
                self._resources.pool.forget(path)
                self._resources.indexes.forget(path)
                await self._verify(segment, lambda _: True)
        return self.damage

    async def _verify(self, segment: Segment, pause: Pause) -> None:
        try:
            files = self._resources.files
            sound = await self._loop.run_in_executor(self._scrub_executor, verify, files, segment, pause)
        except PartitionDamaged as damage:
            if not segment.removed:
                self._damages.note(damage, "scrub")
        except FileNotFoundError:
            if not segment.removed:
                self._damages.note(PartitionDamaged(segment.path, 0, "the file is missing"), "scrub")
        except OSError as error:
            if not segment.removed:
                raise storage_failure("cannot read", error) from error
        else:
            if sound:
                self._damages.found_sound(segment.path)

    # Syncing. `GroupedSync` calls back.

    async def sync(self, upto: Offset) -> None:
        assert upto <= self._extent.next_offset, f"cannot sync up to {upto}: the log ends at {self._extent.next_offset}"
        await self._sync.wait(upto)

    def sync_soon(self, upto: Offset) -> asyncio.Future[None] | None:
        assert upto <= self._extent.next_offset, f"cannot sync up to {upto}: the log ends at {self._extent.next_offset}"
        return self._sync.ask(upto)

    def plan_sync(self) -> SyncPlan:
        sealed = tuple(self._unsynced_sealed)
        segments = (*sealed, self._extent.active)
        plan = SyncPlan(self._extent.next_offset, self._written_bytes, segments, sealed, self._names_unsynced)
        self._unsynced_sealed.clear()
        self._unsynced_records = 0
        self._names_unsynced = False
        return plan

    def perform_sync(self, plan: SyncPlan) -> None:
        started = time.perf_counter()
        try:
            self._sync_files(plan)
        except OSError:
            self._refused_sync.leave()
            raise
        seconds = time.perf_counter() - started
        self._resources.observe_sync(seconds)
        self.count_sync(seconds)

    def _sync_files(self, plan: SyncPlan) -> None:
        self._resources.fault("before_sync")
        if plan.sync_directory:
            self._resources.files.sync_directory(self._directory)
        for segment in plan.segments:
            try:
                with self._resources.pool.lease(segment.path) as handle:
                    self._resources.files.fdatasync(handle.descriptor)
            except FileNotFoundError:
                # Trimmed while the sync was on its way. Nothing of it is left to lose.
                if not segment.removed:
                    raise

    def count_sync(self, seconds: float) -> None:
        # Written by one sync at a time, so a thread may: the loop only reads them.
        self.last_sync_seconds = seconds
        self.sync_seconds_total += seconds
        self.syncs += 1

    def sync_finished(self, plan: SyncPlan) -> None:
        assert self._sync.synced_offset <= self._extent.next_offset
        self._synced_bytes = plan.written_bytes
        if plan.sealed:
            self._in_background(lambda: self._seal(plan.sealed)).add_done_callback(self._seal_done)
        if self._unsynced_records >= self._settings.flush_records:
            self._flusher.hurry(self._sync)
        elif self._unsynced_records:
            self._flusher.note_dirty(self._sync)

    def sync_failed(self, failure: StorageFailed) -> None:
        self._refusal = str(failure)

    def sync_wanted(self) -> None:
        self._flusher.ask(self._sync)

    def _seal(self, segments: Sequence[Segment]) -> None:
        """Write the indexes of synced segments. Runs in a thread."""
        with self._file_lock:
            for segment in segments:
                index = segment.index
                if segment.removed or index is None:
                    continue
                store_index(self._resources.files, segment, index)
                self._resources.indexes.put(segment.path, index)
                segment.index = None
            self._checkpoint.advance(synced_offset=segments[-1].next_offset)

    def _seal_done(self, future: asyncio.Future[None]) -> None:
        if not future.cancelled() and future.exception() is not None:
            self.seal_failures += 1

    # Deleting.

    async def trim(self, before: Offset) -> Offset:
        if before > self._extent.next_offset:
            raise OffsetOutOfRange(before, self._extent.earliest_offset, self._extent.next_offset)
        return await self._uninterrupted(self._trim(before))

    async def retain(self, policy: RetentionPolicy, now_ms: int) -> Retained:
        """Remove the segments that the policy retires. Raises StorageFailed."""
        return await self._uninterrupted(self._retain(policy, now_ms))

    async def _retain(self, policy: RetentionPolicy, now_ms: int) -> Retained:
        segments_before, bytes_before = len(self._extent.segments), self.size_bytes
        rolled = self.roll_if_old(now_ms)
        if not self._extent.active.is_empty and self._refusal is None and is_old(self._extent.active, policy, now_ms):
            self._roll(now_ms)
            rolled = True
        count = expired(self._extent.segments, policy, now_ms)
        if count:
            await self._trim(self._extent.segments[count - 1].next_offset)
        removed = max(segments_before + rolled - len(self._extent.segments), 0)
        return Retained(Offset(self._extent.earliest_offset), removed, max(bytes_before - self.size_bytes, 0), rolled)

    async def _trim(self, before: int) -> Offset:
        await self._trimmer.trim(before, self._sync, self._roll_for_trim, self._segments_detached)
        return Offset(self._extent.earliest_offset)

    def _roll_for_trim(self) -> None:
        if self._refusal is None:
            self._roll(self._extent.active.max_append_ms)

    def _segments_detached(self) -> None:
        self._unsynced_sealed = [segment for segment in self._unsynced_sealed if not segment.removed]
        self._reader.forget_removed()
        self._damages.keep_only({segment.path for segment in self._extent.segments})

    # Closing.

    async def close(self) -> None:
        if self._closing is None:
            self._closing = self._loop.create_task(self._close(sync=True))
        await asyncio.shield(self._closing)

    async def abandon(self) -> None:
        """Let go of every file without syncing: for a log that is about to be deleted, or that a test lets crash."""
        if self._closing is None:
            self._closing = self._loop.create_task(self._close(sync=False))
        await asyncio.shield(self._closing)

    async def _close(self, *, sync: bool) -> None:
        failed = self._refusal is not None
        self._refusal = self._refusal or "the log is closed"
        self._damages.close()
        try:
            # A new segment's control entry is no record, but its index will vouch for it: see `_release`.
            if sync and not failed and (self._names_unsynced or self.unsynced_bytes):
                await self._sync.flush()
        finally:
            self._flusher.forget(self._sync)
            await self._sync.settled()
            self._flusher.forget(self._sync)
            while self._background:
                await asyncio.wait(self._background)
            finish = sync and not failed and self._sync.failure is None
            self._sync.end(StorageFailed("the log is closed"))
            await self._loop.run_in_executor(self._executor, self._release, finish)
            self.closed_cleanly = finish

    def _release(self, finish: bool) -> None:
        """The last work on the files. Runs in a thread."""
        files, active = self._resources.files, self._extent.active
        try:
            if finish and active.index is not None and active.indexed_bytes != active.size_bytes:
                # So that the next start need not walk the segment.
                store_index(files, active, active.index)
                self._checkpoint.advance(synced_offset=self._extent.next_offset)
            if self._prepared is not None:
                files.unlink(self._prepared)
                self._prepared = None
        except OSError:
            self.seal_failures += 1
        for segment in self._extent.segments:
            self._resources.pool.forget(segment.path)
            self._resources.indexes.forget(segment.path)

    def _in_background(self, work: Callable[[], T]) -> asyncio.Future[T]:
        future = self._loop.run_in_executor(self._executor, work)
        self._background.add(future)  # type: ignore[arg-type]  # only waited for, never read
        future.add_done_callback(self._background.discard)
        return future

    async def _uninterrupted(self, work: Coroutine[object, object, T]) -> T:
        """Finish `work` even if the caller is cancelled: half a deletion in memory would not match the disk."""
        task = self._loop.create_task(work)
        self._background.add(task)  # type: ignore[arg-type]  # only waited for, never read
        task.add_done_callback(self._background.discard)
        return await asyncio.shield(task)
