"""`cursus-pipeline replay`: a topic's records from the lake into a topic.

A task reads one partition of the lake from its first record to its last and is a producer of the sink, so that order is
kept, and what an interrupted replay has stored is recognised when it is repeated.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import click
import pyarrow as pa
from pyspark.sql import SparkSession

from cursus_grpc import END, Admin, CursusError, Timestamp
from cursus_grpc.cli import places
from cursus_grpc.cli.failures import Failed
from cursus_grpc.cli.output import duration, plural, say
from cursus_grpc.cli.session import Command
from cursus_grpc.errors import TopicNotFound
from cursus_spark.pipeline.job import Job, takes_job
from cursus_spark.pipeline.lake.directory import Directory
from cursus_spark.pipeline.lake.layout import Lake, LakeFile
from cursus_spark.pipeline.lake.reader import Times, paced, read
from cursus_spark.pipeline.progress import watched

_RATE: Final = re.compile(r"(\d+(?:\.\d+)?)(?:/(s|m|h))?")
_PER_S: Final[Mapping[str, float]] = {"s": 1.0, "m": 60.0, "h": 3600.0}

_COLUMNS: Final = {
    "key": "binary",
    "value": "binary",
    "partition": "int",
    "timestamp": "timestamp",
    "headers": "array<struct<key:string,value:binary>>",
    "event_type": "binary",
    "schema_version": "bigint",
    "aggregate_version": "bigint",
    "metadata": "binary",
}


@dataclass(frozen=True, slots=True)
class Replay:
    """What to replay, and under which name it is known again."""

    lake: Lake
    topic: str
    target: str
    times: Times = field(default_factory=Times)
    rows_per_s: float | None = None
    name: str | None = None
    by_key: bool | None = None
    """None: by partition if the target has as many, else by key."""

    @property
    def id(self) -> str:
        """The same for the same replay: repeating it stores nothing twice."""
        if self.name is not None:
            return self.name
        of = (self.lake.directory.location, self.topic, self.target, self.times)
        return f"replay-{hashlib.sha256(repr(of).encode()).hexdigest()[:24]}"


@dataclass(frozen=True, slots=True)
class Replayed:
    """What came of it."""

    id: str
    partitions: int
    stored: int
    """Records that the target has more than before."""
    by_key: bool


@click.command(cls=Command)
@click.option("--lake", metavar="DIR", required=True, help="The lake that `archive` wrote.")
@click.option("--topic", metavar="NAME", required=True, help="The topic in the lake.")
@click.option("--to", "target", metavar="NAME", required=True, help="The topic to write to; it has to exist.")
@click.option("--from", "begin", metavar="TIME", help="Only records appended then or later: @-1d, @2026-05-01T12:00Z.")
@click.option("--until", "end", metavar="TIME", help="Only records appended before.")
@click.option("--rate", metavar="N/s", help="At most so many records a second in all: 500/s, 10000/m.")
@click.option("--id", "name", metavar="NAME", help="What a repetition is known by. [made from lake, topics and times]")
@click.option(
    "--partitioning",
    type=click.Choice(["auto", "same", "key"]),
    default="auto",
    show_default=True,
    help="Into the same partitions, or by key; auto: the same, if the target has as many.",
)
@takes_job
def replay(
    job: Job,
    lake: str,
    topic: str,
    target: str,
    begin: str | None,
    end: str | None,
    rate: str | None,
    name: str | None,
    partitioning: str,
) -> None:
    """Write a topic's records from the lake to a topic again: keys, values, headers and timestamps as they were.

    A replay that was interrupted goes on when it is started again in the same way, and one that was finished stores
    nothing again. Give it another --id to store everything once more.
    """
    wanted = Replay(
        lake=Lake(Directory(lake)),
        topic=topic,
        target=target,
        times=_times(begin, end),
        rows_per_s=None if rate is None else _rate(rate),
        name=name,
        by_key={"auto": None, "same": False, "key": True}[partitioning],
    )
    began = time.monotonic()
    with job.session.admin() as admin:
        done = run(wanted, admin, lambda: job.spark, job.source_options)
    took_s = time.monotonic() - began
    job.finish(
        {
            "id": done.id,
            "topic": topic,
            "to": target,
            "partitions": done.partitions,
            "records": done.stored,
            "partitioning": "key" if done.by_key else "same",
            "seconds": round(took_s, 3),
        },
        f"{done.id}: {target} has {plural(done.stored, 'record')} more, of"
        f" {plural(done.partitions, 'partition')} of {topic}, in {duration(took_s)}"
        if done.stored
        else f"{done.id}: everything was there already; nothing was stored. Another --id stores it once more",
    )


def run(wanted: Replay, admin: Admin, spark: Callable[[], SparkSession], connection: Mapping[str, str]) -> Replayed:
    """The job without its command line. Raises Failed, LakeDamaged, and what Spark raises."""
    partitions = _files(wanted)
    try:
        count = admin.describe_topic(wanted.target).topic.partition_count
    except TopicNotFound as error:
        raise Failed(
            f"topic {wanted.target!r} does not exist",
            f"`cursus topic create {wanted.target} --partitions {max(partitions) + 1}` makes it",
            "TOPIC_NOT_FOUND",
        ) from error
    by_key = wanted.by_key if wanted.by_key is not None else max(partitions) >= count
    if not by_key and max(partitions) >= count:
        raise Failed(
            f"topic {wanted.target!r} has {plural(count, 'partition')}, and {wanted.topic!r} at least"
            f" {max(partitions) + 1}",
            "add partitions, or give --partitioning key",
        )
    before = _stored(admin, wanted.target)
    session = spark()
    _write(wanted, partitions, session, connection, by_key, lambda: _stored(admin, wanted.target) - before)
    return Replayed(wanted.id, len(partitions), _stored(admin, wanted.target) - before, by_key)


def _files(wanted: Replay) -> dict[int, list[LakeFile]]:
    lake = wanted.lake
    if not lake.is_one:
        raise Failed(f"{lake.directory.location} is no lake: `cursus-pipeline archive` makes one", reason="NO_LAKE")
    found = lake.files(wanted.topic)
    if not found:
        known = ", ".join(lake.topics()) or "none"
        raise Failed(f"the lake has no topic {wanted.topic!r}; it has {known}", reason="TOPIC_NOT_FOUND")
    chosen = {number: [one for one in files if wanted.times.admits(one)] for number, files in found.items()}
    if not any(chosen.values()):
        hours = [one.hour for files in found.values() for one in files]
        raise Failed(
            f"the lake has nothing of {wanted.topic!r} in that time; it has {min(hours).path} to {max(hours).path}",
            reason="NOTHING_THERE",
        )
    return {number: files for number, files in chosen.items() if files}


def _write(
    wanted: Replay,
    partitions: Mapping[int, list[LakeFile]],
    spark: SparkSession,
    connection: Mapping[str, str],
    by_key: bool,
    stored: Callable[[], int],
) -> None:
    columns = {name: kind for name, kind in _COLUMNS.items() if not (by_key and name == "partition")}
    # A task is the partition with its number, whatever others there are when the replay is repeated.
    files = [partitions.get(number, []) for number in range(max(partitions) + 1)]
    at_once = min(len(partitions), max(1, spark.sparkContext.defaultParallelism))
    rows_per_s = None if wanted.rows_per_s is None else wanted.rows_per_s / at_once
    lake, times, names = wanted.lake, wanted.times, list(columns)

    def records(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch["id"].to_pylist():
                for rows in paced(read(lake, files[number], times), rows_per_s):
                    yield rows.select(names)

    numbers = spark.range(0, len(files), 1, numPartitions=len(files))
    rows = numbers.mapInArrow(records, ", ".join(f"{name} {kind}" for name, kind in columns.items()))
    writer = rows.write.format("cursus").mode("append").options(**connection).option("topic", wanted.target)
    writer = writer.option("txnAppId", wanted.id).option("txnVersion", "0")
    say(f"replay {wanted.id}: {plural(len(partitions), 'partition')} of {wanted.topic} to {wanted.target}")

    def told() -> str:
        # The sink waits for a broker that is away; so can this.
        try:
            return f"{plural(stored(), 'record')} stored"
        except CursusError:
            return ""

    with watched(spark, "replaying", told):
        writer.save()


def _stored(admin: Admin, topic: str) -> int:
    return sum(one.next_offset for one in admin.list_offsets(topic, END).values())


def _times(begin: str | None, end: str | None) -> Times:
    given = Times(
        **{
            name: _time(text, option)
            for name, text, option in (("begin_ms", begin, "--from"), ("end_ms", end, "--until"))
            if text is not None
        }
    )
    if given.begin_ms >= given.end_ms:
        raise click.BadParameter("is not after --from", param_hint="--until")
    return given


def _time(text: str, option: str) -> int:
    try:
        found = places.parse(text if text.startswith("@") else f"@{text}", time.time_ns() // 1_000_000)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint=option) from None
    assert isinstance(found, Timestamp)
    return found.ms


def _rate(text: str) -> float:
    """
    >>> _rate("500/s"), _rate("120/m"), _rate("7")
    (500.0, 2.0, 7.0)
    """
    found = _RATE.fullmatch(text)
    if found is None or float(found[1]) <= 0:
        raise click.BadParameter(f"{text!r} is no rate; for example 500/s or 10000/m", param_hint="--rate")
    return float(found[1]) / _PER_S[found[2] or "s"]
