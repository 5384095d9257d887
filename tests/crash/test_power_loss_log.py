"""Power loss at any moment: what was synced is there, what was not may be missing from the end only."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from cursus_broker.errors import StorageFailed
from cursus_broker.log.api import Offset, RetentionPolicy
from cursus_broker.log.engine import SegmentEngine
from cursus_broker.log.forgetful import ForgetfulFiles
from cursus_broker.log.log import SegmentLog
from cursus_broker.log.settings import LogSettings
from tests.unit.broker.log.support import Stored, append, random_batch, read_all, retained

SETTINGS = LogSettings(segment_bytes=2048, index_interval_bytes=300, open_files=8, linger_ms=1, flush_records=40)


class Life:
    """A log that loses power again and again, and what it has promised so far."""

    def __init__(self, root: Path, seed: int) -> None:
        self.root = root
        self.rng = random.Random(seed)
        self.files = ForgetfulFiles(root)
        self.model: list[Stored] = []
        self.synced = 0
        self.earliest = 0  # trimmed for sure
        self.earliest_asked = 0  # trimmed, or not, when the power failed
        self.now_ms = 1_000
        self.cuts = 0

    async def run(self, steps: int) -> None:
        """One life: open, check, work, lose power."""
        # Some lives end within recovery, some within the work, some between two steps.
        self.files.cut_power_after(self.rng.choice((None, self.rng.randint(1, 60), self.rng.randint(1, 300))))
        engine = SegmentEngine(self.root, SETTINGS, files=self.files, now_ms=lambda: self.now_ms)
        try:
            log, recovered = await engine.open("orders", 3)
            self.cuts += recovered.cut is not None
            await self.check(log)
            try:
                for _ in range(self.rng.randint(0, steps)):
                    await self.step(log)
            finally:
                await log.abandon()
                self.synced = max(self.synced, log.synced_offset)
        except StorageFailed:
            pass  # the power failed
        finally:
            await engine.close()
        self.files.power_loss(self.rng)

    async def check(self, log: SegmentLog) -> None:
        assert log.next_offset >= self.synced
        assert self.earliest <= log.earliest_offset <= self.earliest_asked
        assert await read_all(log) == retained(self.model, log.earliest_offset, log.next_offset)
        self.model = retained(self.model, log.earliest_offset, log.next_offset)
        self.earliest = self.earliest_asked = log.earliest_offset
        # What recovery has kept it has also synced.
        assert log.synced_offset == log.next_offset
        self.synced = log.next_offset

    async def step(self, log: SegmentLog) -> None:
        self.now_ms += self.rng.randint(0, 50)
        match self.rng.randrange(20):
            case 0 | 1:
                await log.sync(Offset(self.rng.randint(log.synced_offset, log.next_offset)))
                self.synced = max(self.synced, log.synced_offset)
            case 2:
                before = self.rng.randint(log.earliest_offset, log.next_offset)
                self.earliest_asked = max(self.earliest_asked, before)
                self.earliest = await log.trim(Offset(before))
            case 3:
                self.earliest_asked = log.next_offset
                retained_report = await log.retain(RetentionPolicy(max_bytes=self.rng.randint(0, 20_000)), self.now_ms)
                self.earliest = self.earliest_asked = retained_report.earliest_offset
            case 4:
                log.roll_if_old(self.now_ms + SETTINGS.segment_ms)
            case _:
                batch = random_batch(self.rng)
                # Even if the append fails, its bytes may be found on disk: it was never answered, so both are right.
                entry = Stored(log.next_offset, batch.record_count, batch.payload)
                assert append(log, batch, self.now_ms) == entry
                self.model.append(entry)


@pytest.mark.parametrize("seed", range(40))
async def test_synced_records_survive_power_loss_and_only_the_tail_may_miss(tmp_path: Path, seed: int) -> None:
    life = Life(tmp_path, seed)
    for _ in range(8):
        await life.run(steps=80)
    assert life.files.operations > 0


async def test_torn_tails_do_occur_in_these_lives(tmp_path: Path) -> None:
    """Guards the test above: a disk that never tears anything would prove nothing."""
    life = Life(tmp_path, 7)
    for _ in range(25):
        await life.run(steps=60)
    assert life.cuts > 0


async def test_a_sync_covers_the_segments_that_were_rolled_before_it(tmp_path: Path) -> None:
    files = ForgetfulFiles(tmp_path)
    async with SegmentEngine(tmp_path, LogSettings(segment_bytes=1024, linger_ms=60_000), files=files) as engine:
        log, _ = await engine.open("orders", 0)
        rng = random.Random(1)
        model = [append(log, random_batch(rng), 0) for _ in range(30)]
        assert log.segment_count > 3
        await log.sync(log.next_offset)
        await log.abandon()
    files.power_loss(rng)
    async with SegmentEngine(tmp_path, files=files) as engine:
        log, recovered = await engine.open("orders", 0)
        assert recovered.cut is None
        assert await read_all(log) == model


@pytest.mark.parametrize("rolled", [False, True])
async def test_an_empty_segment_that_was_closed_cleanly_survives(tmp_path: Path, rolled: bool) -> None:
    """Its control entry was once not synced, because no record waited for it, and its index vouched for it."""
    for seed in range(20):
        (root := tmp_path / str(seed)).mkdir()
        files, rng = ForgetfulFiles(root), random.Random(seed)
        async with SegmentEngine(root, SETTINGS, files=files) as engine:
            log, _ = await engine.open("orders", 0)
            if rolled:
                append(log, random_batch(rng), 0)
                await log.sync(log.next_offset)
                log.roll_if_old(2**62)
        files.power_loss(rng)
        async with SegmentEngine(root, SETTINGS, files=files) as engine:
            log, _ = await engine.open("orders", 0)
            entry = append(log, random_batch(rng), 0)
            await log.abandon()
        async with SegmentEngine(root, SETTINGS, files=files) as engine:
            log, recovered = await engine.open("orders", 0)
            assert recovered.cut is None
            assert (await read_all(log))[-1] == entry


async def test_a_deleted_directory_stays_deleted_and_its_name_is_free(tmp_path: Path) -> None:
    files = ForgetfulFiles(tmp_path)
    rng = random.Random(2)
    async with SegmentEngine(tmp_path, files=files) as engine:
        log, _ = await engine.open("orders", 0)
        append(log, random_batch(rng), 0)
        await log.sync(log.next_offset)
        await engine.delete("orders")
    files.power_loss(rng)
    async with SegmentEngine(tmp_path, files=files) as engine:
        await engine.remove_leftovers()
        assert files.list(str(tmp_path)) == []
        log, _ = await engine.open("orders", 0)
        assert (log.earliest_offset, log.next_offset) == (0, 0)


@pytest.mark.parametrize("seed", range(12))
async def test_a_log_begun_anew_by_recovery_survives_power_loss_at_any_moment(tmp_path: Path, seed: int) -> None:
    """Nothing of the first segment is sound, so all of it is set aside. At no moment is the log without a segment: that
    would be taken for lost files."""
    cut_at = 0
    finished = False
    while not finished:
        (root := tmp_path / str(cut_at)).mkdir()
        files, rng = ForgetfulFiles(root), random.Random(seed)
        async with SegmentEngine(root, SETTINGS, files=files) as engine:
            log, recovered = await engine.open("orders", 0)
            await engine.secure("orders", [0])
            append(log, random_batch(rng), 0)
            await log.abandon()
        with (root / "orders" / "partition_0_segment_0.log").open("r+b") as segment:
            segment.write(b"rubbish")
        files = ForgetfulFiles(root)
        files.cut_power_after(cut_at)
        async with SegmentEngine(root, SETTINGS, files=files) as engine:
            try:
                log, _ = await engine.open("orders", 0, recovered.epochs, 2)
                await log.abandon()
                finished = True
            except StorageFailed:
                cut_at += 1  # the power failed in the middle
        files.power_loss(rng)
        async with SegmentEngine(root, SETTINGS, files=files) as engine:
            log, _ = await engine.open("orders", 0, recovered.epochs, 3)
            assert log.next_offset <= 1
            await log.abandon()
    assert cut_at > 5
