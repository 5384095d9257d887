"""The lake's layout, what tasks write into it, and how files appear."""

from __future__ import annotations

import doctest
import itertools
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cursus_grpc import TopicPartition
from cursus_spark.pipeline import replay as replay_module
from cursus_spark.pipeline.lake import layout as lake_module
from cursus_spark.pipeline.lake.directory import Directory
from cursus_spark.pipeline.lake.layout import (
    HOUR_MS,
    INCOMPLETE,
    SCHEMA,
    Hour,
    Lake,
    LakeConflict,
    LakeDamaged,
    LakeFile,
    Staged,
    overlapping,
)
from cursus_spark.pipeline.lake.writer import TaskFiles

BEGIN_MS = 450_000 * HOUR_MS
PLACE = TopicPartition("orders", 3)


def lake_in(path: Path) -> Lake:
    return Lake(Directory(str(path)))


def batch(offsets: list[int], hours: list[int], place: TopicPartition = PLACE, shift_ms: int = 0) -> pa.RecordBatch:
    """Rows as Spark hands them to a task."""
    times = pa.array([(BEGIN_MS + hour * HOUR_MS + shift_ms) * 1_000 for hour in hours], pa.timestamp("us", tz="UTC"))
    given: dict[str, Any] = {
        "topic": pa.array([place.topic] * len(offsets)),
        "partition": pa.array([place.partition] * len(offsets), pa.int32()),
        "offset": pa.array(offsets, pa.int64()),
        "value": pa.array([b"%d" % offset for offset in offsets], pa.binary()),
        "append_time": times,
        "timestamp": times,
    }
    for field in SCHEMA:
        given.setdefault(field.name, pa.nulls(len(offsets), field.type))
    return pa.RecordBatch.from_pydict(given)


def write(lake: Lake, batches: list[pa.RecordBatch], publish: bool = True) -> list[Staged]:
    """As a task and then the driver do."""
    ends: dict[TopicPartition, int] = {}
    for topic in lake.topics():
        for partition, files in lake.files(topic).items():
            ends[TopicPartition(topic, partition)] = files[-1].last + 1
    staged = []
    for report in TaskFiles(lake, f"{INCOMPLETE}/test", ends).write(batches):
        for one in report.to_pylist():
            file = LakeFile(one["partition"], one["first"], one["last"], Hour(one["topic"], one["hour"]))
            if one["staged"] is not None:
                staged.append(Staged(file, one["staged"]))
    if publish:
        lake.publish(staged)
    return staged


def offsets(lake: Path) -> list[int]:
    found: list[int] = (
        ds.dataset(lake, format="parquet", partitioning="hive").to_table(["offset"])["offset"].to_pylist()
    )
    return sorted(found)


def names(lake: Path) -> list[str]:
    return sorted(one.name for one in lake.rglob("*.parquet"))


def test_a_path_says_what_is_in_the_file() -> None:
    file = LakeFile(3, 120, 245, Hour("orders", 450_004))
    assert file.path == ("topic=orders/date=2021-05-03/hour=04/p00003-0000000000000000120-0000000000000000245.parquet")
    assert Hour.parse(file.hour.path) == file.hour
    assert Hour.parse("topic=orders/date=2021-13-03/hour=04") is None
    assert len(file) == 126


def test_files_are_cut_by_hour_and_where_offsets_are_missing(tmp_path: Path) -> None:
    lake = lake_in(tmp_path)
    write(lake, [batch([5, 6, 7], [0, 0, 1]), batch([8, 20, 21], [1, 1, 1])])
    found = [(file.hour.number - 450_000, file.first, file.last) for file in lake.files("orders")[3]]
    assert found == [(0, 5, 6), (1, 7, 8), (1, 20, 21)]
    assert offsets(tmp_path) == [5, 6, 7, 8, 20, 21]


def test_unpublished_files_are_seen_by_nobody(tmp_path: Path) -> None:
    lake = lake_in(tmp_path)
    write(lake, [batch([0], [0])])
    staged = write(lake, [batch([1, 2], [0, 0])], publish=False)
    assert (tmp_path / staged[0].staged).exists()
    assert offsets(tmp_path) == [0]
    assert names(tmp_path) == [LakeFile(3, 0, 0, Hour("orders", 450_000)).name]


def test_a_file_cannot_be_told_from_the_one_a_repetition_writes(tmp_path: Path) -> None:
    one, other = lake_in(tmp_path / "one"), lake_in(tmp_path / "other")
    rows = batch(list(range(100)), [0] * 100)
    write(one, [rows])
    write(other, [rows.slice(0, 33), rows.slice(33)])
    (a,), (b,) = (list(path.rglob("*.parquet")) for path in (tmp_path / "one", tmp_path / "other"))
    assert (a.name, a.read_bytes()) == (b.name, b.read_bytes())


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.lists(st.integers(0, 59), max_size=5), min_size=1, max_size=3),
    st.lists(st.booleans(), min_size=20, max_size=20),
)
def test_any_repetition_completes_what_is_there(
    tmp_path_factory: pytest.TempPathFactory, splits: list[list[int]], kept: list[bool]
) -> None:
    """Attempts that divide the rows in other ways, each killed when some of its files had appeared."""
    path = tmp_path_factory.mktemp("lake")
    lake = lake_in(path)
    rows = batch(list(range(60)), [offset // 25 for offset in range(60)])
    keep = itertools.cycle(kept)
    for cuts in [*splits, []]:
        ends = [*sorted({*cuts, 60} - {0})]
        for begin, end in zip([0, *ends], ends, strict=False):
            staged = write(lake, [rows.slice(begin, end - begin)], publish=False)
            lake.publish([one for one in staged if cuts == [] or next(keep)])
    assert offsets(path) == list(range(60))


def test_other_records_under_the_same_offsets_are_noticed(tmp_path: Path) -> None:
    lake = lake_in(tmp_path)
    write(lake, [batch([0, 1, 2], [0, 0, 0])])
    with pytest.raises(LakeConflict, match="deleted and made anew"):
        write(lake, [batch([1, 2, 3], [0, 0, 0], shift_ms=7)])


def test_two_writers_of_the_same_records_cannot_both_publish(tmp_path: Path) -> None:
    lake = lake_in(tmp_path)
    one = write(lake, [batch([0, 1, 2], [0, 0, 0])], publish=False)
    other = write(lake, [batch([1, 2, 3], [0, 0, 0])], publish=False)
    same = write(lake, [batch([0, 1, 2], [0, 0, 0])], publish=False)
    assert lake.publish(one) == 1
    with pytest.raises(LakeConflict, match="one archive at a time"):
        lake.publish(other)
    assert lake.publish(same) == 0
    assert offsets(tmp_path) == [0, 1, 2]


def test_what_no_archive_wrote_is_refused(tmp_path: Path) -> None:
    lake = lake_in(tmp_path)
    write(lake, [batch([0, 1], [0, 0])])
    (file,) = tmp_path.rglob("*.parquet")
    stranger = file.with_name("part-0.parquet")
    stranger.write_bytes(b"")
    with pytest.raises(LakeDamaged, match=r"part-0\.parquet was not written by an archive"):
        lake.files("orders")
    stranger.rename(file.with_name(LakeFile(3, 1, 1, Hour("orders", 450_000)).name))
    with pytest.raises(LakeDamaged, match="hold the same records"):
        lake.files("orders")


def test_overlapping_files_are_found() -> None:
    hour = Hour("t", 1)
    files = [LakeFile(0, first, first + 9, hour) for first in (0, 10, 30)]
    assert overlapping(files, 9, 10) == files[:2]
    assert overlapping(files, 20, 29) == []
    assert overlapping(files, 25, 99) == files[2:]


def test_times_never_go_back_and_the_slowest_partition_closes(tmp_path: Path) -> None:
    lake = lake_in(tmp_path)
    assert lake.closed_before("orders") == 0
    lake.note_archived("orders", {0: 50, 1: 70})
    lake.note_archived("orders", {0: 40, 1: 80})
    assert lake.archived_until("orders") == {0: 50, 1: 80}
    assert lake.closed_before("orders") == 50
    lake.note_archived("orders", {2: 0})
    assert lake.closed_before("orders") == 0, "a new partition has to catch up"


def test_a_lake_has_one_identity_and_goes_to_executors(tmp_path: Path) -> None:
    lake = lake_in(tmp_path)
    assert not lake.is_one
    assert lake.id == lake_in(tmp_path).id
    assert pickle.loads(pickle.dumps(lake)).id == lake.id
    assert lake.is_one
    (tmp_path / "_cursus" / "lake.json").write_text('{"id": "x", "layout": 99}')
    with pytest.raises(LakeDamaged, match="has layout 99"):
        _ = lake_in(tmp_path).id


def test_examples_in_the_code_are_right() -> None:
    for module in (lake_module, replay_module):
        found = doctest.testmod(module)
        assert found.attempted
        assert not found.failed
