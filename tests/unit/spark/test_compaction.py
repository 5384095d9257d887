"""Merging the files of an hour: nothing is lost or doubled, wherever it is killed."""

from __future__ import annotations

import errno
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from cursus_grpc import TopicPartition
from cursus_grpc.cli.failures import Failed
from cursus_spark.pipeline.lake import compaction, rename_exchange
from cursus_spark.pipeline.lake.compaction import compact_closed, groups
from cursus_spark.pipeline.lake.directory import Directory
from cursus_spark.pipeline.lake.layout import HOUR_MS, Hour, Lake, LakeDamaged, LakeFile
from cursus_spark.pipeline.lake.rename_exchange import ExchangeUnsupported, exchange
from tests.unit.spark.test_lake import BEGIN_MS, batch, lake_in, names, offsets, write

OTHER = TopicPartition("orders", 4)


class Killed(BaseException):
    """Nothing of ours catches it, as nothing catches SIGKILL."""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "lake"


@pytest.fixture
def lake(root: Path) -> Lake:
    """Two hours of small files, of which the first is closed."""
    lake = lake_in(root)
    for offset in range(0, 12, 2):
        write(lake, [batch([offset, offset + 1], [0 if offset < 8 else 1] * 2)])
    write(lake, [batch([100], [0], OTHER), batch([101], [0], OTHER)])
    lake.note_archived("orders", {3: BEGIN_MS + HOUR_MS + 5, 4: BEGIN_MS + HOUR_MS})
    return lake


ALL = [*range(12), 100, 101]


def test_closed_hours_are_merged_and_others_left(lake: Lake, root: Path, tmp_path: Path) -> None:
    done = compact_closed(lake)
    assert (done.hours, done.files_before, done.files_after) == (1, 5, 2)
    found = [(file.hour.number - 450_000, file.first, file.last) for file in lake.files("orders")[3]]
    assert found == [(0, 0, 7), (1, 8, 9), (1, 10, 11)]
    assert offsets(root) == ALL
    assert [one.name for one in tmp_path.iterdir()] == ["lake"], "nothing is left beside it"
    again = compact_closed(lake)
    assert not again.hours


def test_merged_rows_keep_their_order_and_content(lake: Lake, root: Path) -> None:
    compact_closed(lake)
    (file,) = [one for one in root.rglob("*.parquet") if one.name.startswith("p00003-0000000000000000000-")]
    rows = pq.read_table(file, partitioning=None).to_pylist()
    assert [(row["offset"], row["value"]) for row in rows] == [(offset, b"%d" % offset) for offset in range(8)]


@pytest.mark.parametrize("step", ["merged", "before swap", "swapped", "removed"])
def test_a_kill_at_any_step_loses_and_doubles_nothing(lake: Lake, root: Path, tmp_path: Path, step: str) -> None:
    def kill(at: str) -> None:
        assert offsets(root) == ALL, f"readers see it all at {at!r}"
        if at == step:
            raise Killed

    before = names(root)
    with pytest.raises(Killed):
        compact_closed(lake, fault=kill)
    assert offsets(root) == ALL
    assert (names(root) == before) == (step in ("merged", "before swap"))
    compact_closed(lake)
    assert offsets(root) == ALL
    assert not compact_closed(lake).hours
    assert [one.name for one in tmp_path.iterdir()] == ["lake"]


def test_a_kill_while_the_old_files_are_removed(lake: Lake, root: Path, tmp_path: Path) -> None:
    def kill(step: str) -> None:
        if step == "swapped":
            raise Killed

    with pytest.raises(Killed):
        compact_closed(lake, fault=kill)
    left = sorted((tmp_path / ".lake.compaction").rglob("*.parquet"))
    assert len(left) == 5
    left[0].unlink()
    compact_closed(lake)
    assert offsets(root) == ALL


def test_what_the_lake_lacks_is_not_removed(lake: Lake, tmp_path: Path) -> None:
    """A file that was added to the old directory by a process that knows no lock."""
    late = tmp_path / ".lake.compaction" / LakeFile(3, 500, 501, Hour("orders", 450_000)).path
    late.parent.mkdir(parents=True)
    late.write_bytes(b"records")
    with pytest.raises(LakeDamaged, match="holds records that the lake lacks"):
        compact_closed(lake)
    assert late.exists()


def test_a_file_that_appears_meanwhile_is_kept(lake: Lake, root: Path) -> None:
    added: list[bool] = []

    def add(step: str) -> None:
        if step == "merged" and not added:
            added.append(True)
            write(lake, [batch([12], [0])])

    # In another hour than the next offsets, which no broker does, but it must not matter.
    assert not compact_closed(lake, fault=add).hours
    assert offsets(root) == sorted([*ALL, 12])
    assert compact_closed(lake).hours == 1
    assert offsets(root) == sorted([*ALL, 12])


def test_groups_are_neighbours_up_to_a_size() -> None:
    hour = Hour("t", 1)
    files = [LakeFile(0, first, first + 9, hour, 10) for first in (0, 10, 20, 40)] + [LakeFile(1, 50, 51, hour, 10)]
    assert groups(files, 1_000) == [files[:3], files[3:4], files[4:]]
    assert groups(files, 25) == [files[:2], files[2:3], files[3:4], files[4:]]


def test_a_damaged_file_stops_the_merge(lake: Lake, root: Path) -> None:
    first, second = sorted(root.rglob("p00003-*.parquet"))[:2]
    second.write_bytes(first.read_bytes()[:0] + _one_row(first))
    before = names(root)
    with pytest.raises(LakeDamaged, match="holds 7 records, where the names of its files promise 8"):
        compact_closed(lake)
    assert names(root) == before


def _one_row(file: Path) -> bytes:
    pq.write_table(pq.read_table(file, partitioning=None).slice(0, 1), file.with_suffix(".short"))
    return file.with_suffix(".short").rename(file.parents[4] / "short").read_bytes()


def test_a_file_system_that_cannot_swap_is_refused(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    def cannot(one: Path, other: Path) -> None:
        raise ExchangeUnsupported(errno.EINVAL, "the file system cannot swap two directories", str(one))

    monkeypatch.setattr(compaction, "exchange", cannot)
    with pytest.raises(Failed, match="the lake cannot be compacted: the file system cannot swap two directories"):
        compact_closed(lake)


def test_a_staging_directory_in_the_lake_is_refused(lake: Lake, root: Path) -> None:
    with pytest.raises(Failed, match="is in the lake, where readers would find it"):
        compact_closed(lake, root / "staging")


def test_only_one_process_compacts(lake: Lake) -> None:
    with lake.directory.lock("_cursus/compaction.lock"), pytest.raises(Failed, match="another process compacts"):
        compact_closed(lake)


def test_remote_lakes_are_refused(tmp_path: Path) -> None:
    class Remote(Directory):
        local = None

    with pytest.raises(Failed, match="is not on a local file system"):
        compact_closed(Lake(Remote(str(tmp_path))))


def test_directories_change_places(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for path in (one, other):
        path.mkdir()
        (path / path.name).touch()
    exchange(one, other)
    assert [path.name for path in one.iterdir()] == ["other"]
    assert [path.name for path in other.iterdir()] == ["one"]
    with pytest.raises(FileNotFoundError):
        exchange(one, tmp_path / "missing")


def test_a_system_without_the_call_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rename_exchange, "_renameat2", lambda: None)
    with pytest.raises(ExchangeUnsupported, match="this system has no renameat2"):
        exchange(tmp_path, tmp_path)
