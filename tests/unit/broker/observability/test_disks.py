from __future__ import annotations

import shutil
from pathlib import Path

from cursus_broker.observability.disks import DiskCollector


def collected(directories: dict[str, Path]) -> dict[tuple[str, str], float]:
    return {
        (sample.name, sample.labels["directory"]): sample.value
        for metric in DiskCollector(directories).collect()
        for sample in metric.samples
    }


def test_size_and_free_space_are_those_of_the_file_system(tmp_path: Path) -> None:
    found = collected({"data": tmp_path})
    usage = shutil.disk_usage(tmp_path)
    assert found["cursus_disk_size_bytes", "data"] == usage.total
    # Others write to the disk too, so not exactly what it was a moment ago.
    assert abs(found["cursus_disk_free_bytes", "data"] - usage.free) < usage.total / 10


def test_directories_on_one_file_system_are_told_once(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    assert {name for _, name in collected({"data": tmp_path, "logs": tmp_path / "logs"})} == {"data"}


def test_another_file_system_is_told_by_its_own_name(tmp_path: Path) -> None:
    assert {name for _, name in collected({"data": tmp_path, "logs": Path("/proc")})} == {"data", "logs"}


def test_a_directory_that_is_gone_has_no_numbers(tmp_path: Path) -> None:
    assert collected({"data": tmp_path / "missing"}) == {}
