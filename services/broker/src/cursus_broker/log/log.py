"""The segment log: one partition on local files, behind the promises of `api.py`.

State changes happen on the event loop and never across an `await`; threads get what they need as arguments and answer
with values. Deleting (`trim`, `retain`) is serialised by a lock; appending and reading go on meanwhile.
"""

from __future__ import annotations

import asyncio
import threading
import time
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import replace
from typing import Final, TypeVar

from cursus_broker.errors import OffsetOutOfRange, PartitionDamaged, RecordTooLarge, StorageFailed
from cursus_broker.log.api import Batch, Entry, EntryHeader, Offset, Retained, RetentionPolicy, TimedOffset
from cursus_broker.log.entry import (
    CONTROL,
    FIXED_BYTES,
    MAX_PAYLOAD_BYTES,
    MAX_PRODUCER_ID_BYTES,
    pack_header,
)
from cursus_broker.log.names import cut_name, parse_segment_file, prepared_name
from cursus_broker.log.recovery import OpenedLog
from cursus_broker.log.resources import Resources
from cursus_broker.log.retention import expired, is_old
from cursus_broker.log.segment import CannotUndo, Place, Segment, segment_path, store_index
from cursus_broker.log.sync import Flusher, GroupedSync, SyncPlan

T = TypeVar("T")

_PREPARE_AT: Final = 0.8
_MAX_HINTS: Final = 64
_HEADERS_AT_ONCE: Final = 512


class SegmentLog:
    """See `api.Log`. Made by `SegmentEngine.open`; lives on the event loop that opened it."""

    def __init__(
        self, resources: Resources, opened: OpenedLog, flusher: Flusher, executor: Executor, sync_executor: Executor
    ) -> None:
        self._resources = resources
        self._settings = resources.settings
        self._directory = opened.directory
        self._partition = opened.partition
        self._segments = opened.segments
        self._bases = [segment.base_offset for segment in opened.segments]
        self._active = opened.segments[-1]
        self._checkpoint = opened.checkpoint
        self._earliest = opened.earliest_offset
        self._next = self._active.next_offset
        self._flusher = flusher
        self._executor = executor
        self._loop = asyncio.get_running_loop()
        self._sync = GroupedSync(self, self._next, sync_executor)
        self._names_unsynced = opened.names_unsynced
        self._unsynced_sealed: list[Segment] = []
        self._unsynced_records = 0
        self._written_bytes = self._synced_bytes = 0
        self._refusal: str | None = None
        self._closing: asyncio.Task[None] | None = None
        self._deleting = asyncio.Lock()
        self._background: set[asyncio.Future[object]] = set()
        self._file_lock = threading.Lock()  # sealing and unlinking, both in threads, must not cross
        self._prepared: str | None = None
        self._preparing = False
        # Where the reader that stopped at an offset goes on; spares sequential readers the index and the search.
        self._hints: OrderedDict[int, tuple[Segment, int]] = OrderedDict()
        self._sealed_bytes = sum(segment.size_bytes for segment in self._segments[:-1])
        # Plain counters for metrics.
        self.appended_records = 0
        self.appended_bytes = 0
        self.syncs = 0
        self.sync_seconds_total = 0.0
        self.last_sync_seconds = 0.0
        self.seal_failures = 0  # indexes or checkpoints that could not be written; recovery does without them

    @property
    def earliest_offset(self) -> Offset:
        return Offset(self._earliest)

    @property
    def next_offset(self) -> Offset:
        return Offset(self._next)

    @property
    def synced_offset(self) -> Offset:
        return Offset(self._sync.synced_offset)

    @property
    def size_bytes(self) -> int:
        return self._sealed_bytes + self._active.size_bytes

    @property
    def unsynced_bytes(self) -> int:
        return self._written_bytes - self._synced_bytes

    @property
    def segment_count(self) -> int:
        return len(self._segments)

    @property
    def is_closed(self) -> bool:
        return self._closing is not None and self._closing.done()

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
        # The one deliberate system call on the loop: a writev into the page cache, about 30 µs for 54 KB.
        if self._refusal is not None:
            raise StorageFailed(self._refusal)
        payload, producer_id = batch.payload, batch.producer_id
        if len(payload) > MAX_PAYLOAD_BYTES or len(producer_id) > MAX_PRODUCER_ID_BYTES:
            raise RecordTooLarge(f"a batch of {len(payload)} bytes cannot be stored: the most is {MAX_PAYLOAD_BYTES}")
        assert batch.record_count > 0
        assert not batch.flags & CONTROL
        settings, active = self._settings, self._active
        size = FIXED_BYTES + len(producer_id) + len(payload)
        if not active.is_empty and (
            active.size_bytes + size > settings.segment_bytes or now_ms - active.created_ms >= settings.segment_ms
        ):
            self._roll(now_ms)
            active = self._active
        head = pack_header(batch, self._next, now_ms, self._sync.synced_offset)
        self._write(active, head, payload, size)
        self._resources.fault("after_write")
        header = EntryHeader(
            Offset(self._next),
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
        active.note(header, size, settings.index_interval_bytes)
        # Visible before synced: a reader may see a batch that power loss takes back. Acks -1 waits for `sync`.
        self._next = header.next_offset
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
        old = not self._active.is_empty and now_ms - self._active.created_ms >= self._settings.segment_ms
        if old and self._refusal is None:
            self._roll(now_ms)
            return True
        return False

    def _write(self, segment: Segment, head: bytes, payload: bytes, size: int) -> None:
        try:
            segment.write(self._resources, (head, payload), size)
        except OSError as error:
            raise StorageFailed(f"cannot append to {segment.path}: {error}") from error
        except CannotUndo as error:
            self._refusal = f"{segment.path} is in an unknown state: {error}; open the log anew"
            raise StorageFailed(self._refusal) from error

    def _roll(self, now_ms: int) -> None:
        """Begin a new segment. The old one is sealed once it is synced; nothing waits for that here."""
        self._resources.fault("before_roll")
        number = self._active.number + 1
        path = segment_path(self._directory, self._partition, number)
        prepared, self._prepared = self._prepared, None
        try:
            segment = Segment.create(
                self._resources, path, number, self._next, now_ms, self._sync.synced_offset, prepared
            )
        except OSError as error:
            raise StorageFailed(f"cannot begin a new segment: {error}") from error
        self._unsynced_sealed.append(self._active)
        self._sealed_bytes += self._active.size_bytes
        self._segments.append(segment)
        self._bases.append(segment.base_offset)
        self._active = segment
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

    async def read(self, offset: Offset, max_bytes: int) -> Sequence[Entry]:
        self._check_range(offset)
        if offset == self._next:
            return ()
        segment = self._segment_of(offset)
        hint = self._hint(segment, offset)
        start = hint or self._place_of(segment, offset)
        taken = None if start is None else segment.read_cached(self._resources, start, offset, max_bytes)
        if taken is None:
            size_bytes = segment.size_bytes
            # Only a hint is known to be right. What an index says is looked up again, and checked, in the thread.
            sequential = hint is not None and segment is not self._active
            taken = await self._in_thread(
                offset,
                segment,
                lambda: segment.read(self._resources, hint, offset, max_bytes, size_bytes, sequential),
            )
        self._remember(taken.next_offset, segment, taken.position)
        return taken.entries

    async def headers(self, offset: Offset) -> AsyncIterator[EntryHeader]:
        self._check_range(offset)
        wanted: int = offset
        while wanted < self._next:
            segment = self._segment_of(wanted)
            place: Place | None = None
            while wanted < segment.next_offset:
                start, size_bytes = place, segment.size_bytes
                read = segment.read_headers
                found, following = await self._in_thread(
                    wanted,
                    segment,
                    lambda: read(self._resources, start, wanted, size_bytes, _HEADERS_AT_ONCE),  # noqa: B023
                )
                place, wanted = following, following.offset
                for header in found:
                    yield header

    async def find_time(self, time_ms: int) -> TimedOffset | None:
        for segment in tuple(self._segments):
            if segment.max_append_ms < time_ms or segment.next_offset <= self._earliest or segment.removed:
                continue
            size_bytes, find = segment.size_bytes, segment.find_time
            try:
                header = await self._in_thread(
                    self._earliest,
                    segment,
                    lambda: find(self._resources, time_ms, self._earliest, size_bytes),  # noqa: B023
                )
            except OffsetOutOfRange:
                continue  # trimmed meanwhile
            if header is not None:
                return TimedOffset(Offset(max(header.base_offset, self._earliest)), header.append_time_ms)
        return None

    def _check_range(self, offset: int) -> None:
        if not self._earliest <= offset <= self._next:
            raise OffsetOutOfRange(offset, self._earliest, self._next)

    def _segment_of(self, offset: int) -> Segment:
        if offset >= self._active.base_offset:
            return self._active
        return self._segments[bisect_right(self._bases, offset) - 1]

    def _hint(self, segment: Segment, offset: int) -> Place | None:
        hint = self._hints.get(offset)
        return Place(offset, hint[1]) if hint is not None and hint[0] is segment else None

    def _place_of(self, segment: Segment, offset: int) -> Place | None:
        index = segment.cached_index(self._resources)
        return None if index is None else Place(*index.find_offset(offset))

    def _remember(self, offset: int, segment: Segment, position: int) -> None:
        hints = self._hints
        hints[offset] = (segment, position)
        if len(hints) > _MAX_HINTS:
            hints.popitem(last=False)

    async def _in_thread(self, offset: int, segment: Segment, work: Callable[[], T]) -> T:
        """Run a read in a thread and translate its failures."""
        try:
            return await self._loop.run_in_executor(self._executor, work)
        except OSError as error:
            if segment.removed:
                raise OffsetOutOfRange(offset, self._earliest, self._next) from error
            if isinstance(error, FileNotFoundError):
                raise PartitionDamaged(segment.path, 0, "the file is missing") from error
            raise StorageFailed(f"cannot read {segment.path}: {error}") from error

    # Syncing. `GroupedSync` calls back.

    async def sync(self, upto: Offset) -> None:
        assert upto <= self._next, f"cannot sync up to {upto}: the log ends at {self._next}"
        await self._sync.wait(upto)

    def plan_sync(self) -> SyncPlan:
        sealed = tuple(self._unsynced_sealed)
        plan = SyncPlan(self._next, self._written_bytes, (*sealed, self._active), sealed, self._names_unsynced)
        self._unsynced_sealed.clear()
        self._unsynced_records = 0
        self._names_unsynced = False
        return plan

    def perform_sync(self, plan: SyncPlan) -> None:
        started = time.perf_counter()
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
        self.count_sync(time.perf_counter() - started)

    def count_sync(self, seconds: float) -> None:
        # Written by one sync at a time, so a thread may: the loop only reads them.
        self.last_sync_seconds = seconds
        self.sync_seconds_total += seconds
        self.syncs += 1

    def sync_finished(self, plan: SyncPlan) -> None:
        assert self._sync.synced_offset <= self._next
        self._synced_bytes = plan.written_bytes
        if plan.sealed:
            self._in_background(lambda: self._seal(plan.sealed)).add_done_callback(self._seal_done)
        if self._unsynced_records >= self._settings.flush_records:
            self._flusher.hurry(self._sync)
        elif self._unsynced_records:
            self._flusher.note_dirty(self._sync)

    def sync_failed(self, failure: StorageFailed) -> None:
        self._refusal = str(failure)

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
        if before > self._next:
            raise OffsetOutOfRange(before, self._earliest, self._next)
        return await self._uninterrupted(self._trim(before))

    async def retain(self, policy: RetentionPolicy, now_ms: int) -> Retained:
        """Remove the segments that the policy retires. Raises StorageFailed."""
        return await self._uninterrupted(self._retain(policy, now_ms))

    async def _retain(self, policy: RetentionPolicy, now_ms: int) -> Retained:
        segments_before, bytes_before = len(self._segments), self.size_bytes
        rolled = self.roll_if_old(now_ms)
        if not self._active.is_empty and self._refusal is None and is_old(self._active, policy, now_ms):
            self._roll(now_ms)
            rolled = True
        count = expired(self._segments, policy, now_ms)
        if count:
            await self._trim(self._segments[count - 1].next_offset)
        removed = max(segments_before + rolled - len(self._segments), 0)
        return Retained(Offset(self._earliest), removed, max(bytes_before - self.size_bytes, 0), rolled)

    async def _trim(self, before: int) -> Offset:
        async with self._deleting:
            if before <= self._earliest:
                return Offset(self._earliest)
            if before == self._next and not self._active.is_empty and self._refusal is None:
                # All of the active segment goes. In a segment of its own the log remembers where it goes on.
                self._roll(self._active.max_append_ms)
            # Otherwise power loss could leave a log that ends before it begins.
            await self._sync.wait(before)
            synced = self._sync.synced_offset
            try:
                await self._loop.run_in_executor(
                    self._executor, lambda: self._checkpoint.advance(earliest_offset=before, synced_offset=synced)
                )
            except OSError as error:
                raise StorageFailed(f"cannot write {self._checkpoint.path}: {error}") from error
            self._resources.fault("after_trim_checkpoint")
            self._earliest = before
            doomed = self._detach(before)
            if doomed:
                await self._loop.run_in_executor(self._executor, self._unlink, doomed)
            return Offset(self._earliest)

    def _detach(self, before: int) -> list[Segment]:
        """Take the segments wholly below `before` out of the log."""
        count = 0
        while self._segments[count] is not self._active and self._segments[count].next_offset <= before:
            count += 1
        doomed = self._segments[:count]
        del self._segments[:count], self._bases[:count]
        for segment in doomed:
            segment.removed = True
            self._sealed_bytes -= segment.size_bytes
        self._unsynced_sealed = [segment for segment in self._unsynced_sealed if not segment.removed]
        for offset in [offset for offset, (segment, _) in self._hints.items() if segment.removed]:
            del self._hints[offset]
        return doomed

    def _unlink(self, doomed: Sequence[Segment]) -> None:
        """Remove files, oldest first. Runs in a thread. What cannot be removed now goes when the log is opened: the
        checkpoint says that it is not part of the log."""
        files, numbers = self._resources.files, {segment.number for segment in doomed}
        with self._file_lock, suppress(OSError):
            cuts = [parsed for name in files.list(self._directory) if (parsed := parse_segment_file(name))]
            for segment in doomed:
                self._resources.pool.forget(segment.path)
                self._resources.indexes.forget(segment.path)
                files.unlink(segment.path)
                if files.exists(segment.index_path):
                    files.unlink(segment.index_path)
                self._resources.fault("after_unlink")
            for partition, number, kind in cuts:
                if partition == self._partition and number in numbers and kind.startswith("cut-"):
                    files.unlink(f"{self._directory}/{cut_name(partition, number, int(kind.removeprefix('cut-')))}")

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
        try:
            if sync and not failed:
                await self._sync.wait(self._next)
        finally:
            self._flusher.forget(self._sync)
            await self._sync.settled()
            self._flusher.forget(self._sync)
            while self._background:
                await asyncio.wait(self._background)
            finish = sync and not failed and self._sync.failure is None
            await self._loop.run_in_executor(self._executor, self._release, finish)

    def _release(self, finish: bool) -> None:
        """The last work on the files. Runs in a thread."""
        files, active = self._resources.files, self._active
        try:
            if finish and active.index is not None and active.indexed_bytes != active.size_bytes:
                # So that the next start need not walk the segment.
                store_index(files, active, active.index)
                self._checkpoint.advance(synced_offset=self._next)
            if self._prepared is not None:
                files.unlink(self._prepared)
                self._prepared = None
        except OSError:
            self.seal_failures += 1
        for segment in self._segments:
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
