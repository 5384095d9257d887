"""`cursus-pipeline archive`: topics into a lake of Parquet files."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import click
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from cursus_grpc import AsyncAdmin, CursusError
from cursus_grpc.cli.failures import Failed
from cursus_grpc.cli.output import duration, plural, say, size
from cursus_grpc.cli.session import Command
from cursus_spark.options import OptionRefused, Options
from cursus_spark.pipeline.job import Job, takes_job
from cursus_spark.pipeline.lake.archiving import Archive
from cursus_spark.pipeline.lake.compaction import Compaction, compact_closed
from cursus_spark.pipeline.lake.directory import Directory
from cursus_spark.pipeline.lake.layout import ABOUT, SCHEMA, Lake
from cursus_spark.pipeline.progress import describe_batch, follow
from cursus_spark.planning import Extents, ask, find_extents
from cursus_spark.read_options import ReadOptions
from cursus_spark.schema import ALL_COLUMNS

PARQUET: Final = "parquet"
GROUP_PREFIX: Final = "cursus-archive"
_NOTE_EVERY_S: Final = 60.0
"""Between two notes on how far the archive is: they close hours, and cost a question to the broker."""

_COLUMNS: Final = ", ".join(f"{name} {ALL_COLUMNS[name].simpleString()}" for name in ("topic", *SCHEMA.names))


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to archive, and how."""

    lake: str
    checkpoint: str
    topics: str | None = None
    pattern: str | None = None
    interval: str | None = None
    """Between micro-batches; None: everything that is there now, then end."""
    max_records: int = 1_000_000
    ignore_data_loss: bool = False
    compact: bool = False

    def source(self, connection: Mapping[str, str]) -> dict[str, str]:
        """For Spark's reader. Unsynced records are never archived: power loss could take them from the broker, and put
        others in their place."""
        chosen = {"subscribe": self.topics} if self.topics is not None else {"subscribePattern": self.pattern}
        return {
            **connection,
            **{name: value for name, value in chosen.items() if value is not None},
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": str(self.max_records),
            "failOnDataLoss": "false" if self.ignore_data_loss else "true",
            "readUpTo": "synced",
            "groupIdPrefix": GROUP_PREFIX,
        }


@click.command(cls=Command)
@click.option("--topics", metavar="A,B", help="The topics, separated by commas.")
@click.option("--pattern", metavar="REGEX", help="Or: all topics whose whole name matches, also new ones.")
@click.option(
    "--lake", metavar="DIR", required=True, help="Where the files go: a path or URI that all executors reach."
)
@click.option("--checkpoint", metavar="DIR", required=True, help="Where Spark notes how far the archive is.")
@click.option("--available-now", is_flag=True, help="Archive what is there now, then end.")
@click.option("--interval", metavar="TIME", default="1m", show_default=True, help="Else: between two micro-batches.")
@click.option(
    "--max-records",
    metavar="N",
    type=click.IntRange(min=1),
    default=1_000_000,
    show_default=True,
    help="At most so many records in a micro-batch. A file holds no more than one.",
)
@click.option(
    "--compact", is_flag=True, help="Merge the small files of closed hours, as `cursus-pipeline compact` does."
)
@click.option("--ignore-data-loss", is_flag=True, help="Go on where records expired before they were archived.")
@click.option(
    "--format",
    "written_format",
    metavar="NAME",
    default=PARQUET,
    show_default=True,
    help="Another format that Spark can write (orc, avro, delta), by that format's own rules.",
)
@takes_job
def archive(
    job: Job,
    topics: str | None,
    pattern: str | None,
    lake: str,
    checkpoint: str,
    available_now: bool,
    interval: str,
    max_records: int,
    compact: bool,
    ignore_data_loss: bool,
    written_format: str,
) -> None:
    """Archive topics as Parquet files, LAKE/topic=T/date=D/hour=H, each record exactly once for every reader.

    Date and hour are those of the append time, in UTC. The archive can be stopped and killed at any time, and goes on
    where it was when it is started again with the same checkpoint.
    """
    if (topics is None) == (pattern is None):
        raise click.UsageError("give either --topics or --pattern")
    wanted = Wanted(
        lake=lake,
        checkpoint=checkpoint,
        topics=topics,
        pattern=pattern,
        interval=None if available_now else _interval(interval),
        max_records=max_records,
        ignore_data_loss=ignore_data_loss,
        compact=compact,
    )
    # What the source would refuse is refused before Spark starts, and so is a broker that is not there.
    options = ReadOptions.parse(wanted.source(job.source_options), streaming=True)
    job.reach()
    began = time.monotonic()
    if written_format.lower() != PARQUET:
        if compact:
            raise click.UsageError(f"--compact is for {PARQUET} only")
        archive_by_spark(job, wanted, written_format)
        return
    archiving = _Archiving(wanted, options, job.source_options)
    finished = archiving.run(lambda: job.spark)
    _tell(job, archiving, time.monotonic() - began, finished)


def run(spark: SparkSession, wanted: Wanted, connection: Mapping[str, str]) -> Archive:
    """The job without its command line: archive until the stream ends. Raises what it failed with."""
    options = ReadOptions.parse(wanted.source(connection), streaming=True)
    archiving = _Archiving(wanted, options, connection)
    archiving.run(lambda: spark)
    return archiving.archive


class _Archiving:
    """A run of the job into a lake of our own layout."""

    def __init__(self, wanted: Wanted, options: ReadOptions, connection: Mapping[str, str]) -> None:
        self.wanted = wanted
        self._options = options
        self._source = wanted.source(connection)
        self.archive = Archive(Lake(Directory(wanted.lake)), Directory(wanted.checkpoint))
        self.compacted = Compaction()
        self._noted_at = 0.0

    def run(self, spark: Callable[[], SparkSession]) -> bool:
        """Answers whether the stream came to its end by itself."""
        options = self._options
        if self.wanted.compact:
            Compaction.check(self.archive.lake)
        new = self.archive.open()

        async def extents(admin: AsyncAdmin) -> Extents:
            return await find_extents(admin, options.selection, read_unsynced=False)

        if new:
            found = ask(options.endpoint, extents)
            self._source["startingOffsets"] = self.archive.starting_offsets(found)
            self.archive.check_same_topics(options.endpoint, found)
        writer = _stream(spark(), self._source).writeStream.foreachBatch(self._write)
        query = _start(writer, self.wanted)
        finished = follow(query, self._describe)
        self._note(force=True)
        return finished

    def _write(self, rows: DataFrame, batch_id: int) -> None:
        self.archive.write(rows, batch_id)
        self._note(force=False)

    def _note(self, *, force: bool) -> None:
        """Close hours and, if asked to, compact them. The records are archived: no failure of this is one of theirs."""
        if not force and time.monotonic() - self._noted_at < _NOTE_EVERY_S:
            return
        self._noted_at = time.monotonic()
        try:
            self.archive.note_progress(self._options.endpoint, self._options.selection)
        except CursusError as error:
            say(f"warning: hours are not closed yet: {error}")
            return
        if self.wanted.compact:
            self.compacted.add(compact_closed(self.archive.lake))

    def _describe(self, progress: dict[str, Any]) -> str:
        written = self.archive.batches.get(progress["batchId"])
        if written is None:
            return describe_batch(progress)
        known = f", {plural(written.known, 'record')} were there already" if written.known else ""
        return f"{describe_batch(progress)}, {plural(written.files, 'file')}, {size(written.size)}{known}"


def _stream(spark: SparkSession, source: Mapping[str, str]) -> DataFrame:
    return spark.readStream.format("cursus").schema(_COLUMNS).options(**source).load()


def _start(writer: DataStreamWriter, wanted: Wanted) -> StreamingQuery:
    writer = writer.option("checkpointLocation", wanted.checkpoint)
    if wanted.interval is None:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=wanted.interval).start()


def archive_by_spark(job: Job, wanted: Wanted, written_format: str) -> None:
    """Another format, by Spark's own writer: exactly once for those who read it by that format's rules."""
    if Lake(Directory(wanted.lake)).is_one:
        raise Failed(
            f"{wanted.lake} is a lake of Parquet files (it has {ABOUT}); give another format its own directory"
        )
    spark = job.spark
    hours = _stream(spark, wanted.source(job.source_options)).selectExpr(
        "*", "date_format(append_time, 'yyyy-MM-dd') AS date", "date_format(append_time, 'HH') AS hour"
    )
    writer = hours.writeStream.format(written_format).partitionBy("topic", "date", "hour").option("path", wanted.lake)
    try:
        query = _start(writer, wanted)
    except (PySparkException, Py4JJavaError) as error:
        # Some of these are not made exceptions of PySpark's.
        if "Failed to find the data source" not in str(error) and "Failed to find data source" not in str(error):
            raise
        raise Failed(
            f"Spark has no format {written_format!r} here",
            "add its package with --conf spark.jars.packages=GROUP:ARTIFACT:VERSION",
            "FORMAT_UNKNOWN",
        ) from error
    began = time.monotonic()
    records = 0

    def describe(progress: dict[str, Any]) -> str:
        nonlocal records
        records += int(progress["numInputRows"])
        return describe_batch(progress)

    finished = follow(query, describe)
    summary = {"records": records, "format": written_format, "lake": wanted.lake, "finished": finished}
    job.finish(
        summary, f"archived {plural(records, 'record')} as {written_format} in {duration(time.monotonic() - began)}"
    )


def _tell(job: Job, archiving: _Archiving, took_s: float, finished: bool) -> None:
    total, compacted = archiving.archive.total, archiving.compacted
    summary: dict[str, object] = {
        "records": total.records,
        "files": total.files,
        "bytes": total.size,
        "partitions": len(total.partitions),
        "already_there": total.known,
        "seconds": round(took_s, 3),
        "lake": archiving.archive.lake.directory.location,
        "finished": finished,
    }
    text = (
        f"archived {plural(total.records, 'record')} of {plural(len(total.partitions), 'partition')} in"
        f" {plural(total.files, 'file')}, {size(total.size)}, in {duration(took_s)}"
    )
    if total.known:
        text += f"; {plural(total.known, 'record')} were there already"
    if archiving.wanted.compact:
        summary["compacted"] = compacted.summary()
        text += f"\n{compacted.text()}"
    job.finish(summary, text)


def _interval(given: str) -> str:
    """`1m` as Spark says it."""
    try:
        ms = Options({"interval": given}, ["interval"]).duration_ms("interval")
    except OptionRefused as error:
        raise click.BadParameter(str(error).partition(": ")[2], param_hint="--interval") from None
    return f"{ms} milliseconds"
