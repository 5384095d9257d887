"""The log as its callers see it. Random orders of operations are in tests/property/test_log_model.py."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from cursus_broker.errors import DiskFull, OffsetOutOfRange, PartitionDamaged, RecordTooLarge, StorageFailed
from cursus_broker.log import entry
from cursus_broker.log.api import Log, Offset, RetentionPolicy
from cursus_broker.log.engine import SegmentEngine
from cursus_broker.log.files import RealFiles
from cursus_broker.log.settings import LogSettings
from tests.harness.waiting import eventually
from tests.unit.broker.log.conftest import OpenEngine
from tests.unit.broker.log.support import append, batch_of, read_all, stored

exists = RealFiles().exists


class FailingFiles(RealFiles):
    """A disk that fails on demand: `short` takes that many bytes of the next write, then is full."""

    def __init__(self) -> None:
        self.short: int | None = None
        self.broken: set[str] = set()

    def writev(self, descriptor: int, buffers: Sequence[bytes]) -> int:
        self._check("writev")
        if self.short is not None:
            taken = b"".join(buffers)[: self.short]
            self.short = 0 if taken else None
            if not taken:
                raise OSError(errno.ENOSPC, "disk full")
            return super().writev(descriptor, (taken,))
        return super().writev(descriptor, buffers)

    def truncate(self, descriptor: int, size: int) -> None:
        self._check("truncate")
        super().truncate(descriptor, size)

    def fdatasync(self, descriptor: int) -> None:
        self._check("fdatasync")
        super().fdatasync(descriptor)

    def pread_cached(self, descriptor: int, buffer: memoryview, position: int) -> int:
        return 0 if "cache" in self.broken else super().pread_cached(descriptor, buffer, position)

    def pread(self, descriptor: int, buffer: memoryview, position: int) -> int:
        self._check("pread")
        return super().pread(descriptor, buffer, position)

    def _check(self, name: str) -> None:
        if name in self.broken:
            raise OSError(errno.EIO, "broken")


async def test_it_keeps_the_promises_of_the_protocol(engine: SegmentEngine) -> None:
    log: Log = (await engine.open("orders", 0))[0]
    header = log.append(batch_of(b"first", 3, b"p", 7), 1000)
    assert (header.base_offset, header.next_offset, header.append_time_ms) == (0, 3, 1000)
    (read,) = await log.read(Offset(0), 1000)
    assert read.header == header
    assert await log.read(Offset(3), 1000) == ()
    assert [found async for found in log.headers(Offset(1))] == [header]
    assert log.unsynced_bytes > 0
    await log.sync(Offset(3))
    assert (log.synced_offset, log.unsynced_bytes, log.syncs) == (3, 0, 1)


@pytest.mark.parametrize("offset", [-1, 4])
async def test_a_read_outside_the_log_tells_its_bounds(engine: SegmentEngine, offset: int) -> None:
    log, _ = await engine.open("orders", 0)
    log.append(batch_of(b"x", 3), 0)
    with pytest.raises(OffsetOutOfRange) as caught:
        await log.read(Offset(offset), 100)
    assert (caught.value.metadata["earliest"], caught.value.metadata["latest"]) == ("0", "3")


async def test_a_read_gives_whole_entries_up_to_its_limit_and_at_least_one(engine: SegmentEngine) -> None:
    log, _ = await engine.open("orders", 0)
    for _ in range(6):
        log.append(batch_of(bytes(200), 2), 0)
    size = 200 + entry.FIXED_BYTES
    assert [found.header.base_offset for found in await log.read(Offset(3), 2 * size)] == [2, 4]
    assert len(await log.read(Offset(0), 1)) == 1
    assert len(await log.read(Offset(0), 3 * size - 1)) == 2
    assert len(await log.read(Offset(0), 9 * size, 3)) == 1
    assert [found.header.base_offset for found in await log.read(Offset(2), 9 * size, 4)] == [2, 4]
    assert len(await log.read(Offset(0), 9 * size, 1)) == 1


async def test_an_entry_larger_than_a_segment_gets_its_own(engine: SegmentEngine) -> None:
    log, _ = await engine.open("orders", 0)
    model = [append(log, batch_of(bytes([number]) * size), 0) for number, size in enumerate((10, 9000, 10, 10))]
    assert log.segment_count == 3
    assert await read_all(log) == model


async def test_a_batch_beyond_the_limit_is_refused_and_nothing_is_left(
    engine: SegmentEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cursus_broker.log.log.MAX_PAYLOAD_BYTES", 100)
    log, _ = await engine.open("orders", 0)
    with pytest.raises(RecordTooLarge):
        log.append(batch_of(bytes(101)), 0)
    assert log.next_offset == 0


async def test_segments_roll_by_age_even_when_idle(open_engine: OpenEngine) -> None:
    log, _ = await open_engine(segment_ms=1000).open("orders", 0)
    assert not log.roll_if_old(5000)  # nothing in it: nothing to seal
    append(log, batch_of(b"x"), 10)
    assert not log.roll_if_old(999)
    assert log.roll_if_old(1000)
    append(log, batch_of(b"y"), 1500)
    append(log, batch_of(b"z"), 2000)  # by the append itself
    assert log.segment_count == 3


async def test_a_log_may_roll_by_its_own_measures(engine: SegmentEngine) -> None:
    log, _ = await engine.open("orders", 0)
    log.configure(segment_bytes=10**6, segment_ms=None)
    for _ in range(20):
        append(log, batch_of(bytes(300)), 0)
    assert log.segment_count == 1


async def test_the_next_segment_is_prepared_ahead(engine: SegmentEngine, tmp_path: Path) -> None:
    log, _ = await engine.open("orders", 0)
    append(log, batch_of(bytes(1800)), 0)
    prepared = f"{tmp_path}/orders/partition_0.next.tmp"
    await eventually(lambda: log._prepared)
    assert exists(prepared)
    append(log, batch_of(bytes(1000)), 0)
    assert not exists(prepared)
    assert log.segment_count == 2


async def test_reading_goes_on_while_the_log_grows_and_rolls(open_engine: OpenEngine) -> None:
    files = FailingFiles()
    files.broken = {"cache"}  # every read goes through a thread
    log, _ = await open_engine(files=files).open("orders", 0)
    model = [append(log, batch_of(b"0"), 0)]
    found = []
    offset = Offset(0)
    while len(model) < 120 or offset < log.next_offset:
        reading = asyncio.ensure_future(log.read(offset, 700))
        await asyncio.sleep(0)
        if len(model) < 120:
            model += [append(log, batch_of(b"%d" % (len(model) + n) * 20), 0) for n in range(3)]
        entries = await reading
        found += [stored(read) for read in entries]
        offset = entries[-1].header.next_offset
    assert found == model


async def test_a_short_write_leaves_nothing_behind(open_engine: OpenEngine) -> None:
    files = FailingFiles()
    log, _ = await open_engine(files=files).open("orders", 0)
    model = [append(log, batch_of(b"before"), 0)]
    for files.short in (0, 1, 40, 65):
        size = log.size_bytes
        with pytest.raises(DiskFull):
            log.append(batch_of(b"too much"), 0)
        assert (log.next_offset, log.size_bytes) == (1, size)
    model.append(append(log, batch_of(b"after"), 0))
    assert await read_all(log) == model
    await log.close()
    reopened, recovered = await open_engine().open("orders", 0)
    assert recovered.cut is None
    assert await read_all(reopened) == model


async def test_a_log_that_cannot_undo_a_write_refuses_more(open_engine: OpenEngine) -> None:
    files = FailingFiles()
    log, _ = await open_engine(files=files).open("orders", 0)
    model = [append(log, batch_of(b"before"), 0)]
    files.short, files.broken = 30, {"truncate"}
    with pytest.raises(StorageFailed, match="unknown state"):
        log.append(batch_of(b"half"), 0)
    files.broken = set()
    with pytest.raises(StorageFailed, match="unknown state"):
        log.append(batch_of(b"more"), 0)
    assert await read_all(log) == model
    await log.close()
    reopened, recovered = await open_engine().open("orders", 0)
    assert recovered.cut is not None
    assert await read_all(reopened) == model


async def test_a_full_disk_at_a_roll_costs_only_the_append_that_met_it(open_engine: OpenEngine) -> None:
    files = FailingFiles()
    log, _ = await open_engine(files=files).open("orders", 0)
    model = [append(log, batch_of(bytes(1500)), 0)]
    files.short = 0
    with pytest.raises(DiskFull, match="new segment"):
        log.append(batch_of(bytes(1500)), 0)
    model.append(append(log, batch_of(bytes(1501)), 0))
    assert (log.segment_count, log.next_offset) == (2, 2)
    assert await read_all(log) == model


async def test_a_disk_that_cannot_be_read_is_not_called_damage(open_engine: OpenEngine) -> None:
    files = FailingFiles()
    log, _ = await open_engine(files=files).open("orders", 0)
    append(log, batch_of(b"x"), 0)
    files.broken = {"cache", "pread"}
    with pytest.raises(StorageFailed, match="cannot read"):
        await log.read(Offset(0), 100)


async def test_damage_found_by_a_reader_names_file_and_position(engine: SegmentEngine, tmp_path: Path) -> None:
    log, _ = await engine.open("orders", 0)
    append(log, batch_of(b"good"), 0)
    position = log.size_bytes
    append(log, batch_of(b"bad" * 10), 0)
    path = f"{tmp_path}/orders/partition_0_segment_0.log"
    descriptor = os.open(path, os.O_RDWR)
    os.pwrite(descriptor, b"?", position + entry.FIXED_BYTES + 3)
    os.close(descriptor)
    assert [stored(found).payload for found in await log.read(Offset(0), 70)] == [b"good"]
    with pytest.raises(PartitionDamaged) as caught:
        await log.read(Offset(1), 1000)
    assert caught.value.path == path
    assert caught.value.metadata["file"] == "/".join(path.split("/")[-2:])
    assert caught.value.metadata["position"] == str(position)


async def test_a_wrong_index_is_never_believed_over_the_log(open_engine: OpenEngine) -> None:
    """Even one whose checksum is right: positions shifted by a byte, as a bug might write them."""
    log, _ = await open_engine().open("orders", 0)
    model = [append(log, batch_of(b"%d" % number * 50), number) for number in range(60)]
    await log.close()
    log, _ = await open_engine().open("orders", 0)
    segment = log._extent.segments[1]
    index = segment.load_index(log._resources)
    for at in range(len(index)):
        index.positions[at] += 1
    for wanted in model[:30]:
        (read, *_) = await log.read(Offset(wanted.base_offset), 100)
        assert stored(read) == wanted


async def test_time_is_found_across_segments_and_a_clock_that_steps_back(engine: SegmentEngine) -> None:
    log, _ = await engine.open("orders", 0)
    times = [100, 200, 150, 160, 400, 300, 500]
    for time_ms in times:
        append(log, batch_of(bytes(700)), time_ms)
    assert log.segment_count > 2
    for wanted, offset in ((0, 0), (150, 1), (201, 4), (350, 4), (401, 6)):
        found = await log.find_time(wanted)
        assert found is not None
        assert (found.offset, found.append_time_ms) == (offset, times[offset])
    assert await log.find_time(501) is None
    await log.trim(Offset(5))
    found = await log.find_time(0)
    assert found is not None
    assert found.offset == 5


async def test_a_trim_frees_whole_segments_and_hides_the_rest(engine: SegmentEngine, tmp_path: Path) -> None:
    log, _ = await engine.open("orders", 0)
    model = [append(log, batch_of(bytes(700), 2), 0) for _ in range(7)]
    assert await log.trim(Offset(5)) == 5
    assert log.earliest_offset == 5
    assert not exists(f"{tmp_path}/orders/partition_0_segment_0.log")
    assert await read_all(log) == model[2:]
    with pytest.raises(OffsetOutOfRange):
        await log.read(Offset(4), 100)
    assert await log.trim(Offset(3)) == 5
    with pytest.raises(OffsetOutOfRange):
        await log.trim(Offset(15))


async def test_a_log_that_was_trimmed_to_nothing_goes_on_counting(open_engine: OpenEngine) -> None:
    log, _ = await open_engine().open("orders", 0)
    for _ in range(7):
        append(log, batch_of(bytes(700), 2), 0)
    assert await log.trim(Offset(14)) == 14
    assert (log.segment_count, log.size_bytes) == (1, entry.CONTROL_BYTES)
    await log.close()
    log, _ = await open_engine().open("orders", 0)
    assert (log.earliest_offset, log.next_offset) == (14, 14)
    assert append(log, batch_of(b"x"), 0).base_offset == 14


async def test_a_cancelled_trim_is_finished(engine: SegmentEngine) -> None:
    log, _ = await engine.open("orders", 0)
    for _ in range(7):
        append(log, batch_of(bytes(700)), 0)
    trimming = asyncio.ensure_future(log.trim(Offset(6)))
    await asyncio.sleep(0)
    trimming.cancel()
    with pytest.raises(asyncio.CancelledError):
        await trimming
    await log.close()
    assert log.earliest_offset == 6


async def test_retention_by_age_reaches_an_idle_log(engine: SegmentEngine) -> None:
    log, _ = await engine.open("orders", 0)
    for number in range(4):
        append(log, batch_of(bytes(700)), 1000 + number)
    report = await log.retain(RetentionPolicy(max_age_ms=500), 1501)
    assert (report.rolled, report.removed_segments, log.earliest_offset) == (False, 1, 2)
    report = await log.retain(RetentionPolicy(max_age_ms=500), 5000)
    assert (report.rolled, report.earliest_offset, log.next_offset) == (True, 4, 4)
    assert log.size_bytes == entry.CONTROL_BYTES


async def test_a_closed_log_refuses_and_is_closed_again_without_harm(engine: SegmentEngine) -> None:
    log, _ = await engine.open("orders", 0)
    append(log, batch_of(b"x"), 0)
    await asyncio.gather(log.close(), log.close())
    assert (log.synced_offset, engine.open_descriptors) == (1, 0)
    with pytest.raises(StorageFailed, match="closed"):
        log.append(batch_of(b"y"), 0)


async def test_two_thousand_segments_need_few_descriptors(tmp_path: Path) -> None:
    settings = LogSettings(segment_bytes=1024, linger_ms=60_000, flush_records=10**9, open_files=32)
    payload = bytes(900)
    most = 0
    before = len(os.listdir("/proc/self/fd"))
    async with SegmentEngine(tmp_path, settings, files=Unsynced()) as engine:
        log, _ = await engine.open("orders", 0)
        for number in range(2_000):
            log.append(batch_of(payload), number)
        assert log.segment_count == 2_000
        await log.abandon()
    async with SegmentEngine(tmp_path, settings, files=Unsynced()) as engine:
        log, recovered = await engine.open("orders", 0)
        assert (recovered.segments, recovered.next_offset) == (2_000, 2_000)
        offset = Offset(0)
        while entries := await log.read(offset, 10**5):
            offset = entries[-1].header.next_offset
            most = max(most, len(os.listdir("/proc/self/fd")) - before)
        assert offset == 2_000
        assert engine.open_descriptors <= 32
        await log.abandon()
    # Some for the threads' files in use at one moment and the event loop's own.
    assert most <= 32 + 16


class Unsynced(RealFiles):
    """Thousands of syncs would test the patience of whoever waits, and nothing else here."""

    def fdatasync(self, descriptor: int) -> None: ...
