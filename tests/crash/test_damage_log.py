"""Bytes flipped, cut off or removed anywhere: the log opens or says where it is damaged. No record is ever wrong."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest

from cursus_broker.errors import OffsetOutOfRange, PartitionDamaged
from cursus_broker.log.api import Cut, Offset
from cursus_broker.log.checkpoint import Checkpoint
from cursus_broker.log.engine import SegmentEngine
from cursus_broker.log.settings import LogSettings
from tests.unit.broker.log.support import Stored, append, random_batch, read_all, retained, stored

SETTINGS = LogSettings(segment_bytes=3000, index_interval_bytes=500, linger_ms=60_000, flush_records=10**6)


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    """Where a test writes the log that it then damages copies of."""
    root = tmp_path / "sound"
    root.mkdir()
    return root


async def write_log(root: Path, seed: int, *, clean: bool) -> list[Stored]:
    """A log of some segments, trimmed at its beginning; the last batches unsynced if it is not closed cleanly."""
    rng = random.Random(seed)
    async with SegmentEngine(root, SETTINGS, now_ms=lambda: 0) as engine:
        log, _ = await engine.open("orders", 0)
        model = []
        for number in range(60):
            model.append(append(log, random_batch(rng), number))
            if number % 7 == 0:
                await log.sync(log.next_offset)
        await log.trim(Offset(40))
        if not clean:
            await log.abandon()
    return model


async def check_against(root: Path, model: list[Stored]) -> str:
    """Open and read everything that can be read. Answers how it went; fails for a record that was never appended."""
    by_offset = {entry.base_offset: entry for entry in model}
    outcome = "sound"
    async with SegmentEngine(root, SETTINGS, now_ms=lambda: 0) as engine:
        try:
            log, recovered = await engine.open("orders", 0)
        except PartitionDamaged as error:
            require_place(error, root)
            return "refused"
        if recovered.cut is not None:
            outcome = "cut"
            assert len(set_aside(recovered.cut)) == recovered.cut.bytes
        offset = log.earliest_offset
        while offset < log.next_offset:
            try:
                for entry in await log.read(offset, 1500):
                    assert stored(entry) == by_offset[entry.header.base_offset]
                    offset = entry.header.next_offset
            except PartitionDamaged as error:
                require_place(error, root)
                return "read refused"
        try:
            async for header in log.headers(log.earliest_offset):
                assert by_offset[header.base_offset].record_count == header.record_count
        except OffsetOutOfRange:
            pytest.fail("the log's own bounds are readable")
        await log.abandon()
    return outcome


def require_place(error: PartitionDamaged, root: Path) -> None:
    """The message has to name one of the log's files and a byte of it."""
    file = Path(error.path)
    assert file.parent == root / "orders"
    assert int(error.metadata["position"]) <= (file.stat().st_size if file.exists() else 0)


def set_aside(cut: Cut) -> bytes:
    return b"".join(Path(path).read_bytes() for path in cut.set_aside)


def damage(rng: random.Random, path: Path) -> None:
    content = bytearray(path.read_bytes())
    match rng.randrange(5):
        case 0 | 1:
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        case 2:
            del content[rng.randrange(len(content)) :]
        case 3:
            begin = rng.randrange(len(content))
            content[begin : begin + 100] = bytes(len(content[begin : begin + 100]))
        case _:
            begin = rng.randrange(len(content))
            del content[begin : begin + rng.randint(1, 200)]
    path.write_bytes(content)


@pytest.mark.parametrize("clean", [True, False])
async def test_random_damage_never_yields_a_wrong_record(tmp_path: Path, sound: Path, clean: bool) -> None:
    outcomes: dict[str, int] = {}
    model = await write_log(sound, 5, clean=clean)
    for seed in range(100):
        rng = random.Random(seed)
        root = tmp_path / f"damaged-{seed}"
        shutil.copytree(sound, root)
        damage(rng, rng.choice(sorted((root / "orders").iterdir())))
        outcome = await check_against(root, model)
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
        shutil.rmtree(root)
    # Guards the test: damage has to be noticed at opening, at reading, and to be harmless at times.
    assert {"sound", "refused", "read refused"} <= outcomes.keys(), outcomes


@pytest.mark.parametrize("clean", [True, False])
async def test_a_missing_file_is_noticed_or_harmless(tmp_path: Path, sound: Path, clean: bool) -> None:
    model = await write_log(sound, 6, clean=clean)
    for victim in sorted((sound / "orders").iterdir()):
        root = tmp_path / "damaged"
        shutil.copytree(sound, root)
        (root / "orders" / victim.name).unlink()
        outcome = await check_against(root, model)
        if victim.name.endswith(".index"):
            assert outcome == "sound"
        else:
            assert outcome in ("refused", "cut")
        shutil.rmtree(root)


async def test_a_flipped_byte_among_synced_entries_is_damage_and_not_a_torn_tail(tmp_path: Path) -> None:
    """The checkpoint knows nothing of the active segment; the entries behind the bad one bear witness."""
    rng = random.Random(3)
    async with SegmentEngine(tmp_path, SETTINGS) as engine:
        log, _ = await engine.open("orders", 0)
        positions = []
        for _ in range(4):
            positions.append(log.size_bytes)
            append(log, random_batch(rng), 0)
            await log.sync(log.next_offset)
        await log.abandon()
    path = tmp_path / "orders" / "partition_0_segment_0.log"
    content = bytearray(path.read_bytes())
    content[positions[1] + 70] ^= 1
    path.write_bytes(content)
    async with SegmentEngine(tmp_path, SETTINGS) as engine:
        with pytest.raises(PartitionDamaged, match="checksum") as caught:
            await engine.open("orders", 0)
    assert caught.value.path == str(path)
    assert caught.value.metadata["position"] == str(positions[1])
    assert path.read_bytes() == content


async def test_a_hole_among_unsynced_entries_is_cut_and_set_aside(tmp_path: Path) -> None:
    rng = random.Random(4)
    async with SegmentEngine(tmp_path, SETTINGS) as engine:
        log, _ = await engine.open("orders", 0)
        first = append(log, random_batch(rng), 0)
        hole = log.size_bytes
        append(log, random_batch(rng), 0)
        append(log, random_batch(rng), 0)
        await log.abandon()
    path = tmp_path / "orders" / "partition_0_segment_0.log"
    content = bytearray(path.read_bytes())
    content[hole : hole + 80] = bytes(80)
    path.write_bytes(content)
    async with SegmentEngine(tmp_path, SETTINGS) as engine:
        log, recovered = await engine.open("orders", 0)
        assert recovered.cut is not None
        assert (recovered.cut.position, recovered.cut.offset) == (hole, first.next_offset)
        assert recovered.cut.bytes == len(content) - hole
        assert set_aside(recovered.cut) == content[hole:]
        assert log.next_offset == first.next_offset


async def test_a_torn_tail_costs_only_the_entry_it_tore(tmp_path: Path) -> None:
    rng = random.Random(8)
    async with SegmentEngine(tmp_path, SETTINGS) as engine:
        log, _ = await engine.open("orders", 0)
        first = append(log, random_batch(rng), 0)
        kept_bytes = log.size_bytes
        append(log, random_batch(rng), 0)
        whole_bytes = log.size_bytes
        await log.abandon()
    path = tmp_path / "orders" / "partition_0_segment_0.log"
    content = path.read_bytes()
    for size in range(kept_bytes + 1, whole_bytes, 9):
        path.write_bytes(content[:size])
        async with SegmentEngine(tmp_path, SETTINGS) as engine:
            log, recovered = await engine.open("orders", 0)
            assert recovered.cut is not None
            assert (log.next_offset, log.size_bytes) == (first.next_offset, kept_bytes)
            await log.abandon()


async def test_a_damaged_end_can_be_given_up_as_the_documentation_says(sound: Path) -> None:
    model = await write_log(sound, 9, clean=True)
    directory = sound / "orders"
    victim, *later = sorted(directory.glob("*.log"), key=lambda path: int(path.stem.rpartition("_")[2]))[2:]
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 1
    victim.write_bytes(content)
    victim.with_suffix(".index").unlink()
    async with SegmentEngine(sound, SETTINGS, now_ms=lambda: 0) as engine:
        with pytest.raises(PartitionDamaged) as caught:
            await engine.open("orders", 0)
    os.truncate(victim, int(caught.value.metadata["position"]))
    for path in later:
        path.unlink()
        path.with_suffix(".index").unlink()
    (directory / "partition_0.checkpoint").write_bytes(Checkpoint(40).pack())
    async with SegmentEngine(sound, SETTINGS, now_ms=lambda: 0) as engine:
        log, recovered = await engine.open("orders", 0)
        assert recovered.cut is None
        assert log.earliest_offset == 40
        assert await read_all(log) == retained(model, 40, log.next_offset)
        assert log.next_offset > 40
