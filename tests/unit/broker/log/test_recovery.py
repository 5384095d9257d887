"""What opening finds and does. Random damage and power loss are in tests/crash."""

from __future__ import annotations

from pathlib import Path

import pytest

from cursus_broker.errors import PartitionDamaged
from cursus_broker.log.api import Offset
from cursus_broker.log.engine import SegmentEngine
from cursus_broker.log.entry import CONTROL_BYTES
from cursus_broker.log.log import SegmentLog
from tests.unit.broker.log.conftest import OpenEngine
from tests.unit.broker.log.support import Stored, append, batch_of, read_all


async def fill(engine: SegmentEngine, count: int = 9) -> tuple[SegmentLog, list[Stored]]:
    """Two batches of 700 bytes fill a segment."""
    log, _ = await engine.open("orders", 0)
    model = [append(log, batch_of(bytes([number]) * 700), 100 + number) for number in range(count)]
    await log.sync(log.next_offset)
    return log, model


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "orders"


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def indexes(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.glob("*.index")}


async def test_a_new_log_is_empty(engine: SegmentEngine) -> None:
    log, recovered = await engine.open("orders", 0)
    assert (recovered.next_offset, recovered.segments, recovered.walked_bytes) == (0, 1, 0)
    assert (log.earliest_offset, log.next_offset, log.size_bytes) == (0, 0, CONTROL_BYTES)


async def test_after_a_clean_close_nothing_is_walked(open_engine: OpenEngine) -> None:
    log, model = await fill(open_engine())
    await log.close()
    log, recovered = await open_engine().open("orders", 0)
    assert (recovered.walked_bytes, recovered.rebuilt_indexes, recovered.cut) == (0, 0, None)
    model.append(append(log, batch_of(b"more"), 0))
    assert await read_all(log) == model


async def test_after_a_crash_the_last_segment_is_walked(open_engine: OpenEngine) -> None:
    log, model = await fill(open_engine())
    await log.abandon()
    log, recovered = await open_engine().open("orders", 0)
    assert 0 < recovered.walked_bytes < log.size_bytes
    assert recovered.cut is None
    assert await read_all(log) == model


async def test_an_index_of_an_earlier_size_is_not_believed(open_engine: OpenEngine) -> None:
    """After a clean close the last segment has an index; the appends of the next life make it stale."""
    log, model = await fill(open_engine())
    await log.close()
    log, _ = await open_engine().open("orders", 0)
    model.append(append(log, batch_of(b"more"), 0))
    await log.abandon()
    log, _ = await open_engine().open("orders", 0)
    assert await read_all(log) == model


async def test_missing_and_damaged_indexes_are_made_again(open_engine: OpenEngine, directory: Path) -> None:
    log, model = await fill(open_engine())
    await log.close()
    before = indexes(directory)
    (directory / "partition_0_segment_0.index").unlink()
    (directory / "partition_0_segment_1.index").write_bytes(b"rubbish")
    log, recovered = await open_engine().open("orders", 0)
    assert recovered.rebuilt_indexes == 2
    assert indexes(directory) == before
    assert await read_all(log) == model


async def test_leftovers_are_removed_and_foreign_files_left_alone(open_engine: OpenEngine, directory: Path) -> None:
    log, _ = await fill(open_engine())
    await log.close()
    kept = names(directory) | {"notes.txt", "partition_7.next.tmp"}
    for name in ("partition_0.next.tmp", "partition_0_segment_0.index.tmp", "partition_0_segment_99.index"):
        (directory / name).write_bytes(b"left over")
    (directory / "notes.txt").write_bytes(b"mine")
    (directory / "partition_7.next.tmp").write_bytes(b"another partition's")
    _, recovered = await open_engine().open("orders", 0)
    assert recovered.removed_files == 3
    assert names(directory) == kept


class Crash(Exception):
    pass


@pytest.mark.parametrize("point", ["after_trim_checkpoint", "after_unlink"])
async def test_an_interrupted_trim_is_finished(open_engine: OpenEngine, directory: Path, point: str) -> None:
    def fault(reached: str) -> None:
        if reached == point:
            raise Crash

    log, model = await fill(open_engine(fault=fault))
    with pytest.raises(Crash):
        await log.trim(Offset(5))
    await log.abandon()
    log, recovered = await open_engine().open("orders", 0)
    assert recovered.removed_segments >= 1
    assert (log.earliest_offset, await read_all(log)) == (5, model[5:])
    assert "partition_0_segment_1.log" not in names(directory)


@pytest.mark.parametrize("number", [0, 1, 4])
async def test_a_missing_segment_is_damage(open_engine: OpenEngine, directory: Path, number: int) -> None:
    log, _ = await fill(open_engine())
    await log.close()
    (directory / f"partition_0_segment_{number}.log").unlink()
    with pytest.raises(PartitionDamaged) as caught:
        await open_engine().open("orders", 0)
    assert str(directory) in caught.value.path


async def test_segments_that_do_not_continue_each_other_are_damage(open_engine: OpenEngine, directory: Path) -> None:
    log, _ = await fill(open_engine())
    await log.close()
    for kind in ("log", "index"):
        content = (directory / f"partition_0_segment_3.{kind}").read_bytes()
        (directory / f"partition_0_segment_2.{kind}").write_bytes(content)
    with pytest.raises(PartitionDamaged, match="begins at offset 6 where 4 was expected") as caught:
        await open_engine().open("orders", 0)
    assert caught.value.metadata["file"].endswith("partition_0_segment_2.log")


async def test_a_last_segment_that_lost_synced_entries_is_damage(open_engine: OpenEngine, directory: Path) -> None:
    log, _ = await fill(open_engine())
    await log.close()
    path = directory / "partition_0_segment_4.log"
    path.write_bytes(path.read_bytes()[:CONTROL_BYTES])
    with pytest.raises(PartitionDamaged, match="synced up to 9"):
        await open_engine().open("orders", 0)


async def test_a_tail_torn_across_segments_is_set_aside_whole(open_engine: OpenEngine, directory: Path) -> None:
    """Power was lost after a roll and before any sync: the older file lost bytes, the newer one did not."""
    log, _ = await open_engine().open("orders", 0)
    model = [append(log, batch_of(bytes([number]) * 700), 0) for number in range(5)]
    await log.abandon()
    first = directory / "partition_0_segment_0.log"
    first.write_bytes(first.read_bytes()[:-10])
    log, recovered = await open_engine().open("orders", 0)
    assert recovered.cut is not None
    assert len(recovered.cut.set_aside) == 3
    assert await read_all(log) == model[:1]
    # The cut files go with the segment they were cut from.
    append(log, batch_of(bytes(1900)), 0)
    append(log, batch_of(bytes(1900)), 0)
    await log.trim(Offset(2))
    assert not [name for name in names(directory) if name.startswith("partition_0_segment_0")]


async def test_an_empty_file_after_a_crash_is_no_loss(open_engine: OpenEngine, directory: Path) -> None:
    log, model = await fill(open_engine())
    await log.close()
    (directory / "partition_0_segment_5.log").write_bytes(b"")
    log, recovered = await open_engine().open("orders", 0)
    assert (recovered.cut, recovered.removed_files) == (None, 1)
    model.append(append(log, batch_of(bytes(1900)), 0))
    assert await read_all(log) == model


async def test_partitions_of_a_directory_are_independent(open_engine: OpenEngine, directory: Path) -> None:
    engine = open_engine()
    first, _ = await engine.open("orders", 1)
    eleventh, _ = await engine.open("orders", 11)
    ones = [append(first, batch_of(b"one"), 0)]
    elevens = [append(eleventh, batch_of(b"eleven"), 0)]
    await engine.close()
    (directory / "partition_1_segment_0.log").write_bytes(b"rubbish")
    engine = open_engine()
    with pytest.raises(PartitionDamaged):
        await engine.open("orders", 1)
    eleventh, _ = await engine.open("orders", 11)
    assert await read_all(eleventh) == elevens
    assert ones
