"""Topics in a lake: each record once for every reader, whatever dies meanwhile."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession

from cursus_grpc import Admin, Producer
from cursus_grpc.cli.failures import Failed
from cursus_grpc.cli.session import Session
from cursus_grpc.testing import Broker
from cursus_spark.pipeline import archive as job
from cursus_spark.pipeline.job import Job, _SparkFlags
from cursus_spark.pipeline.lake.archiving import Archive
from cursus_spark.pipeline.lake.compaction import compact_closed
from cursus_spark.pipeline.lake.directory import Directory
from cursus_spark.pipeline.lake.layout import Lake, LakeConflict
from tests.harness import spark as harness
from tests.spark.conftest import MakeTopic, Read
from tests.spark.test_stream_write import forget_last_batch, numbers

Run = Callable[..., Archive]


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


@pytest.fixture
def archive(spark: SparkSession, broker: Broker, lake: Path, checkpoint: str) -> Run:
    """Archives what there is into the test's lake."""

    def run(topics: str, **wanted: Any) -> Archive:
        given = {"lake": str(lake), "checkpoint": checkpoint, "topics": topics} | wanted
        return job.run(spark, job.Wanted(**given), {"bootstrap.servers": broker.address})

    return run


def rows(lake: Path, topic: str) -> list[dict[str, Any]]:
    """As pyarrow reads the lake, sorted."""
    found = ds.dataset(lake, format="parquet", partitioning="hive").to_table(filter=ds.field("topic") == topic)
    listed: list[dict[str, Any]] = found.to_pylist()
    return sorted(listed, key=lambda row: (row["partition"], row["offset"]))


def values(lake: Path, topic: str) -> list[int]:
    return sorted(int(row["value"]) for row in rows(lake, topic))


def files(lake: Path) -> list[str]:
    return sorted(str(one.relative_to(lake)) for one in lake.rglob("*.parquet"))


def test_the_lake_holds_all_that_the_topic_does(
    broker: Broker, make_topic: MakeTopic, read: Read, archive: Run, lake: Path
) -> None:
    topic = make_topic(3)
    with Producer(broker.address, acks="all") as producer:
        producer.send(
            topic, b"all", partition=0, key=b"k", timestamp_ms=1_767_323_045_001, headers=[("h", b"1"), ("n", None)]
        )
        producer.send(topic, None, partition=0, key=b"")
        producer.send(topic, b"", partition=1)
        producer.flush()
    numbers(broker, topic, 0, 3_000, 3)
    done = archive(topic)
    assert done.total.records == 3_003
    expected = [
        row.asDict(recursive=True)
        for row in read(topic, includeHeaders="true", extraColumns="all")
        .drop("batch_offset")
        .orderBy("partition", "offset")
        .collect()
    ]
    found = rows(lake, topic)
    times = ("timestamp", "append_time")
    for one in found:
        hour = one["append_time"].strftime("%Y-%m-%d %H")
        assert f"{one.pop('date')} {one.pop('hour'):02}" == hour
        one.update({name: one[name].replace(tzinfo=None) for name in times})
    assert [
        {name: bytes(value) if isinstance(value, bytearray) else value for name, value in one.items()}
        for one in expected
    ] == found
    assert len(pytest.importorskip("pandas").read_parquet(lake)) == 3_003
    assert all(name.startswith(f"topic={topic}/date=") for name in files(lake))


def test_an_archive_goes_on_where_it_was(broker: Broker, make_topic: MakeTopic, archive: Run, lake: Path) -> None:
    topic = make_topic(2)
    for begin in (0, 100, 200):
        numbers(broker, topic, begin, begin + 100, 2)
        assert archive(topic, max_records=30).total.records == 100
    assert values(lake, topic) == list(range(300))


def test_a_batch_that_is_repeated_is_stored_once(
    broker: Broker, make_topic: MakeTopic, archive: Run, lake: Path, checkpoint: str
) -> None:
    topic = make_topic(2)
    numbers(broker, topic, 0, 1_000, 2)
    archive(topic)
    before = files(lake)
    forget_last_batch(checkpoint)
    again = archive(topic)
    assert (again.total.records, again.total.known) == (0, 1_000)
    assert files(lake) == before
    numbers(broker, topic, 1_000, 1_100, 2)
    archive(topic)
    assert values(lake, topic) == list(range(1_100))


def test_a_batch_killed_halfway_is_completed(
    broker: Broker, make_topic: MakeTopic, archive: Run, lake: Path, checkpoint: str
) -> None:
    """Some of its files were published, others were left unfinished."""
    topic = make_topic(4)
    numbers(broker, topic, 0, 1_000, 4)
    archive(topic)
    before = files(lake)
    for name in before[::2]:
        (lake / name).unlink()
    (staging,) = (lake / "_cursus" / "incomplete").iterdir()
    left = staging / "0" / "of a killed task.part"
    left.parent.mkdir()
    left.write_bytes(b"half a file")
    forget_last_batch(checkpoint)
    again = archive(topic)
    assert (again.total.records, again.total.known) == (500, 500)
    assert not left.exists()
    assert files(lake) == before
    assert values(lake, topic) == list(range(1_000))


def test_tasks_divided_in_another_way_store_the_same(
    spark: SparkSession,
    broker: Broker,
    make_topic: MakeTopic,
    lake: Path,
    checkpoint: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = make_topic(1)
    numbers(broker, topic, 0, 1_000, 1)
    plain = job.Wanted.source

    def run(tasks: int) -> Archive:
        monkeypatch.setattr(
            job.Wanted, "source", lambda self, given: {**plain(self, given), "minPartitions": str(tasks)}
        )
        wanted = job.Wanted(lake=str(lake), checkpoint=checkpoint, topics=topic)
        return job.run(spark, wanted, {"bootstrap.servers": broker.address})

    run(3)
    assert len(files(lake)) == 3
    (lake / files(lake)[1]).unlink()
    forget_last_batch(checkpoint)
    run(5)
    assert values(lake, topic) == list(range(1_000))


def test_a_task_that_is_tried_again_leaves_nothing(
    spark: SparkSession, broker: Broker, make_topic: MakeTopic, read: Read, lake: Path, tmp_path: Path
) -> None:
    topic = make_topic(1)
    numbers(broker, topic, 0, 1_000, 1)
    marker = tmp_path / "failed once"

    def fail_first(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        if not marker.exists():
            marker.touch()
            raise RuntimeError("the first attempt fails here")

    whole = read(topic, includeHeaders="true", extraColumns="all")
    batch = whole.mapInArrow(fail_first, whole.schema)
    archive = Archive(Lake(Directory(str(lake))), Directory(str(tmp_path / "checkpoint")))
    archive.open()
    archive.write(batch, 0)
    assert marker.exists()
    assert values(lake, topic) == list(range(1_000))
    assert list(lake.rglob("*.part")) == []


def test_a_new_checkpoint_resumes_from_what_the_lake_has(
    broker: Broker, make_topic: MakeTopic, archive: Run, lake: Path, tmp_path: Path
) -> None:
    topic = make_topic(2)
    numbers(broker, topic, 0, 100, 2)
    archive(topic)
    numbers(broker, topic, 100, 200, 2)
    again = archive(topic, checkpoint=str(tmp_path / "another"))
    assert (again.total.records, again.total.known) == (100, 0)
    assert values(lake, topic) == list(range(200))


def test_a_topic_made_anew_is_not_mixed_with_the_old(
    broker: Broker, admin: Admin, make_topic: MakeTopic, archive: Run, tmp_path: Path
) -> None:
    topic = make_topic(1)
    numbers(broker, topic, 0, 100, 1)
    archive(topic)
    admin.delete_topic(topic)
    admin.create_topic(topic, 1)
    numbers(broker, topic, 0, 50, 1)
    with pytest.raises(LakeConflict, match="up to offset 99, and the broker up to 49: the topic was deleted"):
        archive(topic, checkpoint=str(tmp_path / "another"))
    numbers(broker, topic, 0, 500, 1)
    with pytest.raises(LakeConflict, match="holds another record under offset 99"):
        archive(topic, checkpoint=str(tmp_path / "third"))


def test_checkpoints_belong_to_one_lake(broker: Broker, make_topic: MakeTopic, archive: Run, tmp_path: Path) -> None:
    topic = make_topic(1)
    numbers(broker, topic, 0, 10, 1)
    archive(topic)
    with pytest.raises(LakeConflict, match="belongs to another lake"):
        archive(topic, lake=str(tmp_path / "other"))


def test_two_archives_of_one_lake_do_not_store_twice(
    broker: Broker, make_topic: MakeTopic, read: Read, lake: Path, tmp_path: Path
) -> None:
    topic = make_topic(1)
    numbers(broker, topic, 0, 100, 1)
    rows_of = read(topic, includeHeaders="true", extraColumns="all")
    one, other = (Archive(Lake(Directory(str(lake))), Directory(str(tmp_path / name))) for name in ("1", "2"))
    one.open()
    other.open()
    one.write(rows_of.where("offset < 60"), 0)
    with pytest.raises(LakeConflict, match="one lake takes a topic from one archive at a time"):
        other.write(rows_of, 0)
    assert values(lake, topic) == list(range(60))


def test_a_topic_that_fails_says_why(make_topic: MakeTopic, archive: Run) -> None:
    with pytest.raises(ValueError, match="topic 'nowhere' does not exist"):
        archive("nowhere")


def test_hours_are_closed_and_compacted(
    broker: Broker, make_topic: MakeTopic, archive: Run, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker stamps the times, so the hour is closed by pretending that the partitions were quiet for long."""
    topic = make_topic(2)
    for begin in (0, 100, 200):
        numbers(broker, topic, begin, begin + 100, 2)
        archive(topic)
    before = rows(lake, topic)
    opened = Lake(Directory(str(lake)))
    assert not compact_closed(opened).hours, "the hour goes on"
    opened.note_archived(topic, dict.fromkeys((0, 1), opened.closed_before(topic) + 2 * 3_600_000))
    done = compact_closed(opened)
    assert done.files_after < done.files_before >= 6
    assert rows(lake, topic) == before
    numbers(broker, topic, 300, 400, 2)
    archive(topic, compact=True)
    assert values(lake, topic) == list(range(400))


def test_other_formats_are_written_by_spark(
    spark: SparkSession, broker: Broker, make_topic: MakeTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = make_topic(2)
    numbers(broker, topic, 0, 100, 2)
    session = Session()
    session.flags["broker"] = broker.address
    monkeypatch.setattr(Job, "spark", spark)
    running = Job("archive", session, _SparkFlags(None, {}))
    wanted = job.Wanted(str(tmp_path / "orc"), str(tmp_path / "checkpoint"), topic)
    job.archive_by_spark(running, wanted, "orc")
    assert spark.read.orc(wanted.lake).where(f"topic = '{topic}'").count() == 100
    with pytest.raises(Failed, match="Spark has no format 'nonsense' here"):
        job.archive_by_spark(running, replace(wanted, checkpoint=str(tmp_path / "other")), "nonsense")


def test_the_command(broker: Broker, make_topic: MakeTopic, tmp_path: Path) -> None:
    topic = make_topic(2)
    numbers(broker, topic, 0, 500, 2)
    lake, checkpoint = tmp_path / "lake", tmp_path / "checkpoint"
    command = [
        str(Path(sys.executable).with_name("cursus-pipeline")),
        "archive",
        "--broker",
        broker.address,
        "-o",
        "json",
    ]
    command += ["--topics", topic, "--lake", str(lake), "--checkpoint", str(checkpoint), "--available-now", "--compact"]
    command += ["--max-records", "100", "--master", "local[2]"]
    env = harness.environment(tmp_path)
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["job"], told["records"], told["partitions"], told["finished"]) == ("archive", 500, 2, True)
    assert "batch 4: 100 records" in done.stderr
    assert values(lake, topic) == list(range(500))
    assert Counter(len(Path(name).parts) for name in files(lake)) == {4: told["files"]}
