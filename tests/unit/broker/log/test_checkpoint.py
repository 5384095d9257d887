from __future__ import annotations

from pathlib import Path

import pytest

from cursus_broker.errors import PartitionDamaged
from cursus_broker.log.checkpoint import Checkpoint, CheckpointFile
from cursus_broker.log.files import RealFiles


def checkpoint_file(directory: Path) -> CheckpointFile:
    return CheckpointFile(RealFiles(), str(directory), 4)


def test_numbers_only_grow(tmp_path: Path) -> None:
    file = checkpoint_file(tmp_path)
    assert file.load() is None
    file.advance(earliest_offset=10, synced_offset=50)
    file.advance(earliest_offset=5)
    file.advance(synced_offset=60)
    assert checkpoint_file(tmp_path).load() == Checkpoint(10, 60)
    assert [path.name for path in tmp_path.iterdir()] == ["partition_4.checkpoint"]


def test_any_flipped_bit_is_damage_that_names_the_file(tmp_path: Path) -> None:
    checkpoint_file(tmp_path).advance(earliest_offset=10, synced_offset=50)
    path = tmp_path / "partition_4.checkpoint"
    content = path.read_bytes()
    for at in range(len(content)):
        path.write_bytes(content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :])
        with pytest.raises(PartitionDamaged) as caught:
            checkpoint_file(tmp_path).load()
        assert caught.value.path == str(path)
