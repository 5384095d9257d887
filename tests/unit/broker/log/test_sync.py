"""Grouped syncs and the flusher, on real files whose syncs the test can hold and count."""

from __future__ import annotations

import asyncio
import errno
import threading

import pytest

from cursus_broker.errors import StorageFailed
from cursus_broker.log.api import Offset
from cursus_broker.log.files import RealFiles
from cursus_broker.log.log import SegmentLog
from cursus_broker.log.sync import BULK_AT
from tests.harness.waiting import eventually
from tests.unit.broker.log.conftest import OpenEngine
from tests.unit.broker.log.support import append, batch_of


class HeldFiles(RealFiles):
    """Syncs that wait for the test's permission, are counted, and fail if they are told to."""

    def __init__(self) -> None:
        self.may_sync = threading.Event()
        self.may_sync.set()
        self.started = threading.Semaphore(0)
        self.at_once = self.most_at_once = self.syncs = self.file_system_syncs = 0
        self.fails = self.file_system_fails = False
        self._lock = threading.Lock()

    def fdatasync(self, descriptor: int) -> None:
        with self._lock:
            self.syncs += 1
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        self.started.release()
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


async def has_started(files: HeldFiles) -> None:
    assert await asyncio.to_thread(files.started.acquire, timeout=60)


async def synced(log: SegmentLog) -> None:
    """Wait until the background flush has reached the end of the log."""
    await eventually(lambda: log.synced_offset == log.next_offset)


async def test_one_sync_serves_all_who_wait_and_the_next_group_gathers_meanwhile(open_engine: OpenEngine) -> None:
    files = HeldFiles()
    log, _ = await open_engine(files=files).open("orders", 0)
    files.may_sync.clear()
    append(log, batch_of(b"first"), 0)
    first = [asyncio.ensure_future(log.sync(Offset(1))) for _ in range(10)]
    await has_started(files)
    append(log, batch_of(b"second"), 0)
    second = [asyncio.ensure_future(log.sync(Offset(2))) for _ in range(10)]
    await asyncio.sleep(0)
    files.may_sync.set()
    await asyncio.gather(*first, *second)
    assert files.syncs == 2
    assert log.synced_offset == 2


async def test_a_sync_that_started_before_an_append_does_not_cover_it(open_engine: OpenEngine) -> None:
    files = HeldFiles()
    log, _ = await open_engine(files=files).open("orders", 0)
    files.may_sync.clear()
    append(log, batch_of(b"first"), 0)
    syncing = asyncio.ensure_future(log.sync(Offset(1)))
    await has_started(files)
    append(log, batch_of(b"second"), 0)
    files.may_sync.set()
    await syncing
    assert (log.synced_offset, log.next_offset) == (1, 2)
    assert log.unsynced_bytes > 0


async def test_a_failed_sync_is_final(open_engine: OpenEngine) -> None:
    files = HeldFiles()
    log, _ = await open_engine(files=files).open("orders", 0)
    append(log, batch_of(b"first"), 0)
    files.fails = True
    results = await asyncio.gather(*(log.sync(Offset(1)) for _ in range(3)), return_exceptions=True)
    assert all(isinstance(result, StorageFailed) for result in results)
    files.fails = False
    with pytest.raises(StorageFailed):
        await log.sync(Offset(1))
    with pytest.raises(StorageFailed):
        log.append(batch_of(b"second"), 0)
    assert log.synced_offset == 0
    await log.close()


async def test_a_waiter_that_leaves_does_not_disturb_the_others(open_engine: OpenEngine) -> None:
    files = HeldFiles()
    log, _ = await open_engine(files=files).open("orders", 0)
    files.may_sync.clear()
    append(log, batch_of(b"first"), 0)
    leaving, staying = (asyncio.ensure_future(log.sync(Offset(1))) for _ in range(2))
    await has_started(files)
    leaving.cancel()
    files.may_sync.set()
    await staying
    assert leaving.cancelled()


async def test_written_data_is_synced_after_lingering(open_engine: OpenEngine) -> None:
    log, _ = await open_engine(linger_ms=5).open("orders", 0)
    append(log, batch_of(b"first"), 0)
    await synced(log)
    append(log, batch_of(b"second"), 0)
    await synced(log)


async def test_enough_records_do_not_linger(open_engine: OpenEngine) -> None:
    log, _ = await open_engine(linger_ms=3_600_000, flush_records=10).open("orders", 0)
    append(log, batch_of(b"few", 9), 0)
    append(log, batch_of(b"enough", 1), 0)
    await synced(log)


async def test_logs_in_a_hurry_take_turns_and_none_has_to_linger(open_engine: OpenEngine) -> None:
    files = HeldFiles()
    engine = open_engine(files=files, linger_ms=3_600_000, flush_records=1)
    logs = [(await engine.open("orders", number))[0] for number in range(5)]
    for log in logs:
        append(log, batch_of(b"x"), 0)
    for log in logs:
        await synced(log)
    assert files.most_at_once == 1


async def test_many_logs_in_a_hurry_are_synced_together(open_engine: OpenEngine) -> None:
    files = HeldFiles()
    files.may_sync.clear()
    engine = open_engine(files=files, linger_ms=3_600_000, flush_records=1)
    logs = [(await engine.open("orders", number))[0] for number in range(2 * BULK_AT)]
    append(logs[0], batch_of(b"x"), 0)
    await has_started(files)
    for log in logs[1:]:
        append(log, batch_of(b"x"), 0)
    files.may_sync.set()
    for log in logs:
        await synced(log)
    assert (files.syncs, files.file_system_syncs) == (1, 1)


async def test_the_flusher_syncs_few_logs_at_a_time(open_engine: OpenEngine) -> None:
    files = HeldFiles()
    engine = open_engine(files=files, linger_ms=1)
    logs = [(await engine.open("orders", number))[0] for number in range(12)]
    for log in logs:
        append(log, batch_of(b"x"), 0)
    for log in logs:
        await synced(log)
    assert files.most_at_once <= 2


@pytest.mark.parametrize("file_system_fails", [False, True])
async def test_very_many_dirty_logs_are_synced_together(open_engine: OpenEngine, file_system_fails: bool) -> None:
    files = HeldFiles()
    files.file_system_fails = file_system_fails
    engine = open_engine(files=files, linger_ms=20)
    logs = [(await engine.open("orders", number))[0] for number in range(2 * BULK_AT)]
    for log in logs:
        append(log, batch_of(b"x"), 0)
    for log in logs:
        await synced(log)
    assert files.file_system_syncs >= 1
    # Where the whole cannot be synced, every log still is, by itself.
    assert (files.syncs >= BULK_AT) == file_system_fails


async def test_a_failure_found_in_bulk_stays_with_its_log(open_engine: OpenEngine) -> None:
    files = HeldFiles()
    files.file_system_fails = files.fails = True
    engine = open_engine(files=files, linger_ms=20)
    logs = [(await engine.open("orders", number))[0] for number in range(2 * BULK_AT)]
    for log in logs[1:]:
        append(log, batch_of(b"x"), 0)
    await eventually(lambda: all(log.refusal is not None for log in logs[1:]))
    files.fails = False
    append(logs[0], batch_of(b"x"), 0)
    await logs[0].sync(Offset(1))
