"""A sync that the disk refuses: nothing that was in doubt is believed before it was written anew.

After a failed fsync the kernel holds the pages as clean, so that the next one succeeds and proves nothing.
`ForgetfulFiles.refuse_syncs` behaves like that.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from cursus_broker.errors import StorageFailed
from cursus_broker.log.api import Offset
from cursus_broker.log.engine import SegmentEngine
from cursus_broker.log.epochs import Epochs
from cursus_broker.log.forgetful import ForgetfulFiles
from cursus_broker.log.log import SegmentLog
from cursus_broker.log.settings import LogSettings
from tests.unit.broker.log.support import Stored, append, random_batch, read_all

SETTINGS = LogSettings(segment_bytes=2048, index_interval_bytes=300, linger_ms=60_000, flush_records=10**9)


class Doubtful:
    """A log with synced records, and behind them some whose sync was refused."""

    def __init__(self, root: Path, seed: int) -> None:
        root.mkdir()
        self.root = root
        self.rng = random.Random(seed)
        self.files = ForgetfulFiles(root)
        self.model: list[Stored] = []
        self.synced_offset = 0
        self.epochs = Epochs()

    def engine(self) -> SegmentEngine:
        return SegmentEngine(self.root, SETTINGS, files=self.files, now_ms=lambda: 0)

    async def refuse(self, log: SegmentLog, doubtful: int) -> None:
        for _ in range(3):
            self.model.append(append(log, random_batch(self.rng), 0))
        await log.sync(log.next_offset)
        self.synced_offset = log.synced_offset
        self.model += [append(log, random_batch(self.rng), 0) for _ in range(doubtful)]
        self.files.refuse_syncs(0)
        with pytest.raises(StorageFailed):
            await log.sync(log.next_offset)
        self.files.refuse_syncs(None)

    async def reopen(self, engine: SegmentEngine, epoch: int) -> SegmentLog:
        log, recovered = await engine.open("orders", 0, self.epochs, epoch)
        assert recovered.epochs.current == epoch, "as after power loss: an epoch begins"
        self.epochs = recovered.epochs
        return log

    async def check(self, log: SegmentLog) -> None:
        """What was synced is there, and what is there is what was written, without a gap."""
        found = await read_all(log)
        assert found == self.model[: len(found)]
        assert log.next_offset >= self.synced_offset
        self.model = found
        # What opening kept survives power loss from now on.
        assert log.synced_offset == log.next_offset
        self.synced_offset = log.next_offset


def drop_end(path: Path) -> None:
    """As if the kernel had forgotten the last bytes of a file."""
    content = path.read_bytes()
    path.write_bytes(content[:-20] + bytes(20))


async def begun(doubt: Doubtful, engine: SegmentEngine) -> SegmentLog:
    log, recovered = await engine.open("orders", 0, None, 1)
    await engine.secure("orders", [0])
    doubt.epochs = recovered.epochs
    return log


@pytest.mark.parametrize("doubtful", [1, 4, 40])
@pytest.mark.parametrize("restart", [False, True])
async def test_what_a_reopened_log_serves_survives_power_loss(tmp_path: Path, doubtful: int, restart: bool) -> None:
    """Opened by its own process, or by the next one: it must not take the page cache's word."""
    for seed in range(20):
        doubt = Doubtful(tmp_path / str(seed), seed)
        engine = doubt.engine()
        log = await begun(doubt, engine)
        await doubt.refuse(log, doubtful)
        await log.abandon()
        if restart:
            await engine.close()
            engine = doubt.engine()
        log = await doubt.reopen(engine, 2)
        assert log.next_offset == doubt.model[-1].next_offset, "the bytes were all in memory: none needed to go"
        await doubt.check(log)
        doubt.model.append(append(log, random_batch(doubt.rng), 0))
        await log.sync(log.next_offset)
        doubt.synced_offset = log.next_offset
        await log.abandon()
        await engine.close()
        doubt.files.power_loss(doubt.rng)
        async with doubt.engine() as engine:
            await doubt.check(await doubt.reopen(engine, 3))


async def test_power_may_fail_at_every_operation_of_reopening(tmp_path: Path) -> None:
    operations = 0
    for cut_after in range(1, 200):
        doubt = Doubtful(tmp_path / str(cut_after), cut_after)
        engine = doubt.engine()
        log = await begun(doubt, engine)
        await doubt.refuse(log, 12)
        await log.abandon()
        before = doubt.files.operations
        doubt.files.cut_power_after(cut_after)
        over = False
        try:
            log = await doubt.reopen(engine, 2)
            over = True
            await log.abandon()
        except StorageFailed:
            operations = cut_after
        await engine.close()
        doubt.files.power_loss(doubt.rng)
        async with doubt.engine() as engine:
            await doubt.check(await doubt.reopen(engine, 3))
        if over and doubt.files.operations > before:
            break
    assert operations > 5, "the power never failed within reopening"


async def test_the_disk_may_refuse_every_sync_of_reopening_and_the_next_attempt_starts_anew(tmp_path: Path) -> None:
    """The process may also die between two attempts: the mark is still there."""
    refused = 0
    for allowed in range(50):
        doubt = Doubtful(tmp_path / str(allowed), allowed)
        engine = doubt.engine()
        log = await begun(doubt, engine)
        await doubt.refuse(log, 12)
        await log.abandon()
        doubt.files.refuse_syncs(allowed)
        try:
            log = await doubt.reopen(engine, 2)
        except StorageFailed:
            refused += 1
            doubt.files.refuse_syncs(None)
            if allowed % 2:
                await engine.close()
                engine = doubt.engine()
            log = await doubt.reopen(engine, 2)
            over = False
        else:
            over = True
        await doubt.check(log)
        await log.abandon()
        await engine.close()
        doubt.files.power_loss(doubt.rng)
        async with doubt.engine() as engine:
            await doubt.check(await doubt.reopen(engine, 3))
        if over:
            break
    assert refused >= 2, "no sync of reopening was refused"


async def test_a_sync_refused_while_a_log_is_opened_leaves_its_mark_too(tmp_path: Path) -> None:
    """A writer that was killed had nobody to hear of the failure: the next start does, once, and starts anew."""
    doubt = Doubtful(tmp_path / "log", 5)
    engine = doubt.engine()
    log = await begun(doubt, engine)
    doubt.model += [append(log, random_batch(doubt.rng), 0) for _ in range(6)]
    await log.abandon()
    await engine.close()
    doubt.files.refuse_syncs(0)
    engine = doubt.engine()
    with pytest.raises(StorageFailed):
        await doubt.reopen(engine, 2)
    doubt.files.refuse_syncs(None)
    log = await doubt.reopen(engine, 2)
    await doubt.check(log)
    await log.abandon()
    await engine.close()
    doubt.files.power_loss(doubt.rng)
    async with doubt.engine() as engine:
        await doubt.check(await doubt.reopen(engine, 3))


async def test_bytes_that_the_kernel_dropped_after_a_refused_sync_are_cut(tmp_path: Path) -> None:
    """Some file systems throw the pages away: then reading finds what the disk has."""
    doubt = Doubtful(tmp_path / "log", 8)
    async with doubt.engine() as engine:
        log = await begun(doubt, engine)
        await doubt.refuse(log, 2)
        await log.abandon()
        drop_end(Path(log.active_path))
        log, recovered = await engine.open("orders", 0, doubt.epochs, 2)
        assert recovered.cut is not None
        assert recovered.cut.offset == doubt.model[-1].base_offset == log.next_offset
        assert log.truncated(Offset(log.next_offset + 1), 1) == log.next_offset
        await doubt.check(log)
