"""Records from the lake in a topic again: as they were, in their order, and once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from cursus_grpc import Admin, Producer
from cursus_grpc.cli.failures import Failed
from cursus_grpc.testing import Broker
from cursus_spark.pipeline import archive, replay
from cursus_spark.pipeline.lake import reader as lake_reader
from cursus_spark.pipeline.lake.directory import Directory
from cursus_spark.pipeline.lake.layout import Lake
from cursus_spark.pipeline.lake.reader import Times
from cursus_spark.pipeline.replay import Replay, Replayed
from tests.harness import spark as harness
from tests.spark.conftest import MakeTopic, Read

PARTITIONS = 3
RECORDS = 3_000

Run = Callable[..., Replayed]

Archived = tuple[Path, str]


@pytest.fixture(scope="module")
def archived(spark: SparkSession, broker: Broker, admin: Admin, tmp_path_factory: pytest.TempPathFactory) -> Archived:
    """A lake with a topic that has everything a record can have, archived in several batches."""
    topic = "to-be-archived"
    admin.create_topic(topic, PARTITIONS)
    with Producer(broker.address, acks="all") as producer:
        producer.send(topic, None, partition=0, key=b"")
        producer.send(topic, b"", partition=0, event_type="placed", schema_version=3, aggregate_version=2**63 + 1)
        producer.send(topic, b"x", partition=1, metadata="{}", headers=[("h", b"1"), ("none", None)])
        for number in range(RECORDS):
            producer.send(topic, b"%d" % number, key=b"key %d" % (number % 50), timestamp_ms=1_767_323_045_000 + number)
    directory = tmp_path_factory.mktemp("archived")
    wanted = archive.Wanted(str(directory / "lake"), str(directory / "checkpoint"), topic, max_records=1_000)
    archive.run(spark, wanted, {"bootstrap.servers": broker.address})
    return directory / "lake", topic


@pytest.fixture
def run(spark: SparkSession, broker: Broker, admin: Admin, archived: Archived) -> Run:
    def run(target: str, **given: Any) -> Replayed:
        lake, topic = archived
        defaults: dict[str, Any] = {"lake": Lake(Directory(str(lake))), "topic": topic, "target": target}
        wanted = Replay(**defaults | given)
        return replay.run(wanted, admin, lambda: spark, {"bootstrap.servers": broker.address})

    return run


COLUMNS = ["key", "value", "partition", "headers", "timestamp", "event_type", "schema_version"]
COLUMNS += ["aggregate_version", "metadata"]


def rows(frame: DataFrame, *columns: str) -> list[Any]:
    return frame.orderBy("partition", "offset").select(*(columns or COLUMNS)).collect()


def everything(read: Read, topic: str) -> DataFrame:
    return read(topic, includeHeaders="true", extraColumns="all")


def test_what_was_archived_comes_back_as_it_was(
    make_topic: MakeTopic, read: Read, run: Run, archived: Archived
) -> None:
    target = make_topic(PARTITIONS)
    assert run(target).stored == RECORDS + 3
    assert rows(everything(read, target)) == rows(everything(read, archived[1]))
    assert run(target).stored == 0, "the same replay again stores nothing"
    assert run(target, name="once-more").stored == RECORDS + 3


def test_fewer_partitions_keep_the_order_of_each_key(
    make_topic: MakeTopic, read: Read, run: Run, archived: Archived
) -> None:
    target = make_topic(2)
    assert run(target).by_key
    by_key: list[dict[bytes, list[bytes]]] = []
    for topic in (archived[1], target):
        found: dict[bytes, list[bytes]] = {}
        for row in rows(read(topic).where("length(key) > 0"), "key", "value"):
            found.setdefault(bytes(row["key"]), []).append(bytes(row["value"]))
        by_key.append(found)
    assert by_key[0] == by_key[1]
    assert len(by_key[0]) == 50
    with pytest.raises(Failed, match="has 2 partitions, and 'to-be-archived' at least 3"):
        run(target, by_key=False)


def test_an_interrupted_replay_goes_on(
    spark: SparkSession,
    make_topic: MakeTopic,
    read: Read,
    run: Run,
    archived: Archived,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A file of the lake cannot be read at first: what lies before it is stored."""
    lake, topic = archived
    target = make_topic(PARTITIONS)
    last = sorted(lake.rglob("p00001-*.parquet"))[-1]
    hidden = last.rename(lake.parent / "hidden")
    last.write_bytes(b"not a file of Parquet's")
    with pytest.raises(PySparkException):
        run(target)
    hidden.rename(last)
    assert read(target).count() > 0
    run(target)
    assert rows(everything(read, target)) == rows(everything(read, topic))


def test_a_part_by_time(make_topic: MakeTopic, read: Read, run: Run, archived: Archived) -> None:
    target = make_topic(PARTITIONS)
    source = everything(read, archived[1])
    times = sorted({row["ms"] for row in source.selectExpr("unix_millis(append_time) AS ms").collect()})
    middle = times[len(times) // 2]
    run(target, times=Times(begin_ms=middle))
    expected = source.where(f"unix_millis(append_time) >= {middle}")
    assert rows(everything(read, target)) == rows(expected)
    run(target, times=Times(end_ms=middle))
    assert read(target).count() == RECORDS + 3
    with pytest.raises(Failed, match="nothing of 'to-be-archived' in that time; it has topic="):
        run(target, times=Times(end_ms=1))


def test_no_faster_than_asked(monkeypatch: pytest.MonkeyPatch, archived: Archived) -> None:
    """By the clock that the pace follows."""
    lake = Lake(Directory(str(archived[0])))
    files = lake.files(archived[1])[0]
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    monkeypatch.setattr("time.sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    done = 0
    for piece in lake_reader.paced(lake_reader.read(lake, files, Times()), 100.0):
        assert done <= now[0] * 100.0 + 1e-6
        done += piece.num_rows
        assert piece.num_rows <= 20
    assert done == sum(map(len, files))
    assert now[0] == pytest.approx((done - 20) / 100.0, abs=0.2)


def test_what_cannot_be_replayed_is_told(run: Run, tmp_path: Path) -> None:
    with pytest.raises(Failed, match="topic 'nowhere' does not exist"):
        run("nowhere")
    with pytest.raises(Failed, match="the lake has no topic 'other'; it has to-be-archived"):
        run("nowhere", topic="other")
    with pytest.raises(Failed, match="is no lake"):
        run("nowhere", lake=Lake(Directory(str(tmp_path))))


def test_the_command(broker: Broker, make_topic: MakeTopic, read: Read, archived: Archived, tmp_path: Path) -> None:
    lake, topic = archived
    target = make_topic(PARTITIONS)
    command = [
        str(Path(sys.executable).with_name("cursus-pipeline")),
        "replay",
        "--broker",
        broker.address,
        "-o",
        "json",
    ]
    command += ["--lake", str(lake), "--topic", topic, "--to", target, "--rate", "100000/s", "--master", "local[2]"]
    done = subprocess.run(command, env=harness.environment(tmp_path), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["job"], told["records"], told["partitioning"]) == ("replay", RECORDS + 3, "same")
    assert rows(everything(read, target)) == rows(everything(read, topic))
