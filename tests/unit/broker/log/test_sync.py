"""Grouped syncs and the flusher, on real files whose syncs the test can hold and count."""

from __future__ import annotations

import asyncio

import pytest

from cursus_broker.errors import StorageFailed
from cursus_broker.log.api import Offset
from cursus_broker.log.log import SegmentLog
from cursus_broker.log.sync import BULK_AT, FLUSH_CONCURRENCY
from tests.harness.disks import HeldFiles
from tests.harness.waiting import eventually
from tests.unit.broker.log.conftest import OpenEngine
from tests.unit.broker.log.support import append, batch_of


async def synced(log: SegmentLog) -> None:
    """Wait until the background flush has reached the end of the log."""
    await eventually(lambda: log.synced_offset == log.next_offset)


async def test_one_sync_serves_all_who_wait_and_the_next_group_gathers_meanwhile(open_engine: OpenEngine) -> None:
    files = HeldFiles()
    log, _ = await open_engine(files=files).open("orders", 0)
    files.hold()
    append(log, batch_of(b"first"), 0)
    first = [asyncio.ensure_future(log.sync(Offset(1))) for _ in range(10)]
    await files.sync_started()
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
    files.hold()
    append(log, batch_of(b"first"), 0)
    syncing = asyncio.ensure_future(log.sync(Offset(1)))
    await files.sync_started()
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
    files.hold()
    append(log, batch_of(b"first"), 0)
    leaving, staying = (asyncio.ensure_future(log.sync(Offset(1))) for _ in range(2))
    await files.sync_started()
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
    files.hold()
    engine = open_engine(files=files, linger_ms=3_600_000, flush_records=1)
    logs = [(await engine.open("orders", number))[0] for number in range(2 * BULK_AT)]
    append(logs[0], batch_of(b"x"), 0)
    await files.sync_started()
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


# Syncs that are asked for


async def test_what_is_synced_need_not_be_asked_for(open_engine: OpenEngine) -> None:
    files = HeldFiles()
    log, _ = await open_engine(files=files, linger_ms=3_600_000).open("orders", 0)
    append(log, batch_of(b"first"), 0)
    await log.sync(Offset(1))
    append(log, batch_of(b"second"), 0)
    syncs = files.syncs
    assert log.sync_soon(Offset(1)) is None
    assert (files.syncs, log.synced_offset) == (syncs, 1)


async def test_a_log_that_is_asked_does_not_linger(open_engine: OpenEngine) -> None:
    log, _ = await open_engine(linger_ms=3_600_000).open("orders", 0)
    for number in range(1, 4):
        append(log, batch_of(b"x"), 0)
        asked = log.sync_soon(Offset(number))
        assert asked is not None
        await asked
        assert log.synced_offset == number


async def test_all_who_ask_while_a_sync_runs_share_the_next(open_engine: OpenEngine) -> None:
    files = HeldFiles()
    log, _ = await open_engine(files=files, linger_ms=3_600_000).open("orders", 0)
    files.hold()
    append(log, batch_of(b"x"), 0)
    asked = [log.sync_soon(Offset(1))]
    await files.sync_started()
    for number in range(2, 12):
        append(log, batch_of(b"x"), 0)
        asked += [log.sync_soon(Offset(number)), log.sync_soon(Offset(number))]
    files.may_sync.set()
    await asyncio.gather(*(one for one in asked if one is not None))
    assert files.syncs == 2


async def test_one_who_cannot_wait_takes_those_along_who_asked(open_engine: OpenEngine) -> None:
    files = HeldFiles()
    log, _ = await open_engine(files=files, linger_ms=3_600_000).open("orders", 0)
    append(log, batch_of(b"x"), 0)
    asked = log.sync_soon(Offset(1))
    assert asked is not None
    await log.sync(Offset(1))
    await asked
    append(log, batch_of(b"y"), 0)
    await log.sync(Offset(2))
    assert files.syncs == 2, "the log that was asked and has been synced is not synced again"


async def test_few_logs_that_are_asked_are_synced_few_at_a_time(open_engine: OpenEngine) -> None:
    files = HeldFiles()
    engine = open_engine(files=files, linger_ms=3_600_000)
    logs = [(await engine.open("orders", number))[0] for number in range(BULK_AT - 1)]
    for log in logs:
        append(log, batch_of(b"x"), 0)
    await asyncio.gather(*(one for log in logs if (one := log.sync_soon(Offset(1))) is not None))
    assert (files.syncs, files.file_system_syncs) == (BULK_AT - 1, 0)
    assert files.most_at_once <= 2


async def test_many_logs_that_are_asked_at_once_cost_one_sync_of_the_file_system(open_engine: OpenEngine) -> None:
    files = HeldFiles()
    engine = open_engine(files=files, linger_ms=3_600_000)
    logs = [(await engine.open("orders", number))[0] for number in range(5 * BULK_AT)]
    for log in logs:
        append(log, batch_of(b"x"), 0)
    asked = [log.sync_soon(Offset(1)) for log in logs[: 4 * BULK_AT]]
    await asyncio.gather(*(one for one in asked if one is not None))
    assert (files.syncs, files.file_system_syncs) == (0, 1)
    assert all(log.synced_offset == 1 for log in logs), "those that nobody asked for are written anyway"


async def test_one_log_that_is_asked_does_not_sync_all_that_are_dirty(open_engine: OpenEngine) -> None:
    files = HeldFiles()
    engine = open_engine(files=files, linger_ms=3_600_000)
    logs = [(await engine.open("orders", number))[0] for number in range(2 * BULK_AT)]
    for log in logs:
        append(log, batch_of(b"x"), 0)
    asked = logs[0].sync_soon(Offset(1))
    assert asked is not None
    await asked
    assert (files.syncs, files.file_system_syncs) == (1, 0)


@pytest.mark.parametrize("count", [2, 2 * BULK_AT])
async def test_a_log_that_fails_fails_those_who_asked_for_it(open_engine: OpenEngine, count: int) -> None:
    files = HeldFiles()
    files.file_system_fails = files.fails = True
    engine = open_engine(files=files, linger_ms=3_600_000)
    logs = [(await engine.open("orders", number))[0] for number in range(count)]
    for log in logs:
        append(log, batch_of(b"x"), 0)
    asked = [log.sync_soon(Offset(1)) for log in logs]
    results = await asyncio.gather(*(one for one in asked if one is not None), return_exceptions=True)
    assert [type(result) for result in results] == [StorageFailed] * count
    with pytest.raises(StorageFailed):
        logs[0].sync_soon(Offset(1))
    for log in logs:
        await log.close()


@pytest.mark.parametrize("end", ["abandon", "close"])
async def test_nobody_waits_for_a_log_that_is_closed(open_engine: OpenEngine, end: str) -> None:
    """The log is asked while all threads are busy, and closed before its turn comes."""
    files = HeldFiles()
    engine = open_engine(files=files, linger_ms=3_600_000)
    logs = [(await engine.open("orders", number))[0] for number in range(FLUSH_CONCURRENCY + 1)]
    for log in logs:
        append(log, batch_of(b"x"), 0)
    files.hold()
    busy = [log.sync_soon(Offset(1)) for log in logs[:-1]]
    for _ in busy:
        await files.sync_started()
    asked = logs[-1].sync_soon(Offset(1))
    assert asked is not None
    if end == "abandon":
        await logs[-1].abandon()
        assert isinstance((await asyncio.gather(asked, return_exceptions=True))[0], StorageFailed)
        with pytest.raises(StorageFailed):
            logs[-1].sync_soon(Offset(1))
    files.may_sync.set()
    if end == "close":
        await logs[-1].close()
        await asked
    await asyncio.gather(*(one for one in busy if one is not None))


async def test_one_who_asked_and_left_costs_the_others_nothing(open_engine: OpenEngine) -> None:
    files = HeldFiles()
    log, _ = await open_engine(files=files, linger_ms=3_600_000).open("orders", 0)
    append(log, batch_of(b"x"), 0)
    leaving, staying = log.sync_soon(Offset(1)), log.sync_soon(Offset(1))
    assert leaving is not None
    assert staying is not None
    leaving.cancel()
    await staying
    assert files.syncs == 1
