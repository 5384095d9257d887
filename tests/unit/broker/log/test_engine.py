from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from cursus_broker.errors import PartitionDamaged, StorageFailed
from cursus_broker.log.api import Engine, Offset
from cursus_broker.log.engine import SegmentEngine
from cursus_broker.log.epochs import Epochs, EpochStart
from cursus_broker.log.files import RealFiles
from cursus_broker.log.forgetful import ForgetfulFiles
from cursus_broker.log.sync import BULK_AT
from tests.unit.broker.log.conftest import OpenEngine
from tests.unit.broker.log.support import append, batch_of, read_all


async def test_a_deleted_name_is_free_at_once(engine: SegmentEngine, tmp_path: Path) -> None:
    seam: Engine = engine
    log, _ = await seam.open("orders", 0)
    append(log, batch_of(b"old"), 0)
    await seam.delete("orders")
    assert os.listdir(tmp_path) == []
    log, _ = await engine.open("orders", 0)
    model = [append(log, batch_of(b"new"), 0)]
    assert await read_all(log) == model


async def test_deleting_what_does_not_exist_is_no_error(engine: SegmentEngine) -> None:
    await engine.delete("nothing")


async def test_an_interrupted_deletion_is_finished_at_the_next_start(open_engine: OpenEngine, tmp_path: Path) -> None:
    def fault(point: str) -> None:
        if point == "after_delete_rename":
            raise OSError("the process dies here")

    engine = open_engine(fault=fault)
    await engine.open("orders", 0)
    with pytest.raises(StorageFailed):
        await engine.delete("orders")
    # Named as no topic can be.
    (leftover,) = os.listdir(tmp_path)
    assert "~" in leftover
    assert await open_engine().remove_leftovers() == 1
    assert os.listdir(tmp_path) == []


async def test_a_directory_that_cannot_be_made_is_a_storage_failure(open_engine: OpenEngine, tmp_path: Path) -> None:
    engine = open_engine()
    os.close(os.open(tmp_path / "orders", os.O_CREAT))
    with pytest.raises(StorageFailed, match="orders"):
        await engine.open("orders", 0)


async def test_closing_the_engine_closes_its_logs_and_descriptors(open_engine: OpenEngine) -> None:
    engine = open_engine()
    log, _ = await engine.open("orders", 0)
    append(log, batch_of(b"x"), 0)
    await engine.close()
    await engine.close()
    assert log.is_closed
    assert (log.synced_offset, engine.open_descriptors) == (1, 0)


def epochs_of(*starts: tuple[int, int]) -> Epochs:
    return Epochs(tuple(EpochStart(*start) for start in starts))


FIRST = epochs_of((1, 0))


async def test_a_clean_stop_and_start_keeps_the_epoch(open_engine: OpenEngine) -> None:
    engine = open_engine()
    log, recovered = await engine.open("orders", 0)
    assert recovered.epochs == FIRST
    append(log, batch_of(b"x"), 0)
    engine.all_opened()
    await engine.close()
    for epoch in (2, 3):
        engine = open_engine()
        log, recovered = await engine.open("orders", 0, FIRST, epoch)
        assert recovered.closed_cleanly
        assert (recovered.epochs, log.leader_epoch) == (FIRST, 1)
        assert await engine.directories() == {"orders"}
        engine.all_opened()
        await engine.close()


async def test_a_log_that_was_not_closed_begins_an_epoch_at_its_end(open_engine: OpenEngine) -> None:
    log, _ = await open_engine().open("orders", 0)
    append(log, batch_of(b"xyz", 3), 0)
    await log.abandon()
    log, recovered = await open_engine().open("orders", 0, FIRST, 7)
    assert not recovered.closed_cleanly
    assert recovered.epochs == epochs_of((1, 0), (7, 3))
    assert log.leader_epoch == 7
    assert log.truncated(4, 1) == 3
    assert log.truncated(3, 1) is None


async def test_records_lost_behind_a_clean_close_begin_an_epoch_although_nothing_shows(
    open_engine: OpenEngine, tmp_path: Path
) -> None:
    """Power loss may leave the last segment as its index says, so that nothing has to be walked."""
    engine = open_engine()
    log, _ = await engine.open("orders", 0)
    append(log, batch_of(b"kept"), 0)
    engine.all_opened()
    await engine.close()
    segment = tmp_path / "orders" / "partition_0_segment_0.log"
    size_bytes = segment.stat().st_size
    engine = open_engine()
    log, recovered = await engine.open("orders", 0, FIRST, 2)
    engine.all_opened()
    assert recovered.epochs == FIRST
    append(log, batch_of(b"lost"), 0)
    await log.abandon()
    os.truncate(segment, size_bytes)
    log, recovered = await open_engine().open("orders", 0, FIRST, 3)
    assert (recovered.next_offset, recovered.walked_bytes) == (1, 0)
    assert not recovered.closed_cleanly
    assert log.truncated(2, 1) == 1


async def test_a_start_that_was_given_up_does_not_make_the_stop_before_it_clean(open_engine: OpenEngine) -> None:
    engine = open_engine()
    for partition in range(2):
        log, _ = await engine.open("orders", partition)
        append(log, batch_of(b"x"), 0)
        await log.close()
    # All segments have indexes that fit, but nobody has said that these are all logs.
    await engine.close()
    engine = open_engine()
    await engine.open("orders", 0, FIRST, 2)
    await engine.close()
    _, recovered = await open_engine().open("orders", 1, FIRST, 3)
    assert recovered.epochs == epochs_of((1, 0), (3, 1))


class FailingSyncs(RealFiles):
    failing = False

    def fdatasync(self, descriptor: int) -> None:
        if self.failing:
            raise OSError("the disk is gone")
        super().fdatasync(descriptor)


async def test_a_log_that_could_not_be_synced_is_not_closed_cleanly(open_engine: OpenEngine) -> None:
    files = FailingSyncs()
    engine = open_engine(files=files)
    log, _ = await engine.open("orders", 0)
    engine.all_opened()
    append(log, batch_of(b"x"), 0)
    files.failing = True
    with pytest.raises(StorageFailed):
        await log.sync(Offset(1))
    await engine.close()
    _, recovered = await open_engine().open("orders", 0, FIRST, 2)
    assert not recovered.closed_cleanly


async def test_a_log_opened_again_by_the_same_engine_remembers_how_it_was_closed(engine: SegmentEngine) -> None:
    log, _ = await engine.open("orders", 0)
    append(log, batch_of(b"x"), 0)
    await log.close()
    log, recovered = await engine.open("orders", 0, FIRST, 2)
    assert recovered.epochs == FIRST
    await log.abandon()
    log, recovered = await engine.open("orders", 0, FIRST, 2)
    assert recovered.epochs == epochs_of((1, 0), (2, 1))


async def test_a_log_that_ends_before_its_epoch_was_put_back_and_begins_one(open_engine: OpenEngine) -> None:
    engine = open_engine()
    log, _ = await engine.open("orders", 0)
    append(log, batch_of(b"x"), 0)
    engine.all_opened()
    await engine.close()
    _, recovered = await open_engine().open("orders", 0, epochs_of((1, 0), (2, 5)), 3)
    assert recovered.closed_cleanly
    assert recovered.epochs == epochs_of((1, 0), (3, 1))


async def test_a_known_log_without_its_directory_is_damage_and_nothing_is_made(
    engine: SegmentEngine, tmp_path: Path
) -> None:
    with pytest.raises(PartitionDamaged, match="the directory is missing") as refused:
        await engine.open("orders", 0, FIRST, 2)
    assert refused.value.path == str(tmp_path / "orders")
    assert os.listdir(tmp_path) == []


async def test_a_known_log_without_a_segment_is_damage_and_nothing_is_touched(
    open_engine: OpenEngine, tmp_path: Path
) -> None:
    engine = open_engine()
    for partition in range(2):
        log, _ = await engine.open("orders", partition)
        append(log, batch_of(b"x"), 0)
    await engine.close()
    (tmp_path / "orders" / "partition_1_segment_0.log").unlink()
    (tmp_path / "orders" / "partition_1.checkpoint").unlink()
    (tmp_path / "orders" / "partition_1.next.tmp").touch()
    before = sorted(os.listdir(tmp_path / "orders"))
    engine = open_engine()
    with pytest.raises(PartitionDamaged, match="no segment of partition 1") as refused:
        await engine.open("orders", 1, FIRST, 2)
    assert refused.value.path == str(tmp_path / "orders")
    assert sorted(os.listdir(tmp_path / "orders")) == before
    log, _ = await engine.open("orders", 0, FIRST, 2)
    assert log.next_offset == 1


@pytest.mark.parametrize("count", [3, BULK_AT])
async def test_secured_logs_are_there_after_power_loss(open_engine: OpenEngine, tmp_path: Path, count: int) -> None:
    files = ForgetfulFiles(tmp_path)
    engine = open_engine(files=files)
    for partition in range(count):
        await engine.open("orders", partition)
    await engine.secure("orders", range(count))
    files.cut_power_after(0)
    for seed in range(3):
        files.power_loss(random.Random(seed))
        engine = open_engine(files=files)
        for partition in range(count):
            log, recovered = await engine.open("orders", partition, FIRST, 2)
            assert (recovered.next_offset, recovered.cut, recovered.removed_files) == (0, None, 0)
            await log.abandon()


class CountedSyncs(RealFiles):
    syncs = 0

    def fdatasync(self, descriptor: int) -> None:
        self.syncs += 1
        super().fdatasync(descriptor)


async def test_very_many_logs_are_secured_together(open_engine: OpenEngine) -> None:
    files = CountedSyncs()
    engine = open_engine(files=files)
    for partition in range(BULK_AT):
        await engine.open("orders", partition)
    before = files.syncs
    await engine.secure("orders", range(BULK_AT))
    assert files.syncs == before
    await engine.open("few", 0)
    await engine.secure("few", [0])
    assert files.syncs == before + 1


@pytest.mark.parametrize("seed", range(20))
async def test_a_log_trimmed_to_its_end_has_a_segment_after_power_loss(
    open_engine: OpenEngine, tmp_path: Path, seed: int
) -> None:
    files = ForgetfulFiles(tmp_path)
    engine = open_engine(files=files)
    log, _ = await engine.open("orders", 0)
    await engine.secure("orders", [0])
    append(log, batch_of(b"x"), 0)
    await log.sync(Offset(1))
    assert await log.trim(Offset(1)) == 1
    files.cut_power_after(0)
    await log.abandon()
    files.power_loss(random.Random(seed))
    _, recovered = await open_engine(files=files).open("orders", 0, FIRST, 2)
    assert (recovered.earliest_offset, recovered.next_offset, recovered.cut) == (1, 1, None)
