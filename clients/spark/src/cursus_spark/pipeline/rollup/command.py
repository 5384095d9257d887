"""`cursus-pipeline rollup`: a topic in windows of event time, to another topic and to Parquet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import click
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from cursus_grpc import AsyncAdmin
from cursus_grpc.cli.output import plural, say
from cursus_grpc.cli.session import Command
from cursus_grpc.errors import TopicNotFound
from cursus_spark.options import OptionRefused, Options
from cursus_spark.pipeline.job import Job, takes_job
from cursus_spark.pipeline.progress import describe_batch, follow
from cursus_spark.pipeline.rollup.outputs import Outputs
from cursus_spark.pipeline.rollup.windows import OBSERVED, SCHEMA, FieldRefused, JsonField, Rollup, results
from cursus_spark.planning import TopicMissing, ask


def _span_ms(_context: click.Context, parameter: click.Parameter, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return Options({"span": text}, ["span"]).duration_ms("span")
    except OptionRefused:
        raise click.BadParameter(f"{text!r} is not a time span; for example 90s, 1m or 2h", param=parameter) from None


def _field(_context: click.Context, parameter: click.Parameter, text: str | None) -> JsonField | None:
    """None also for the key, which needs no path."""
    if text is None or (text == "key" and parameter.name == "by"):
        return None
    try:
        return JsonField.parse(text)
    except FieldRefused as error:
        raise click.BadParameter(f"{error}{', or key' if parameter.name == 'by' else ''}", param=parameter) from None


def _percentiles(_context: click.Context, parameter: click.Parameter, text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() and 0 <= int(part) <= 100 for part in parts):
        raise click.BadParameter(f"{text!r} is not a list of whole numbers from 0 to 100", param=parameter)
    return tuple(dict.fromkeys(map(int, parts)))


@dataclass
class Totals:
    """What this run has seen, added up from the reports of its micro-batches."""

    records: int = 0
    unparsed: int = 0
    ungrouped: int = 0
    unmeasured: int = 0
    late: int = 0

    def describe(self, report: dict[str, Any]) -> str:
        """A micro-batch in a line. Takes note of what it did."""
        seen = report.get("observedMetrics", {}).get(OBSERVED)
        counts = seen.asDict() if hasattr(seen, "asDict") else dict(seen or {})
        late = sum(one.get("numRowsDroppedByWatermark", 0) for one in report.get("stateOperators", []))
        self.records += int(report["numInputRows"])
        self.late += late
        line = describe_batch(report)
        for name in ("unparsed", "ungrouped", "unmeasured"):
            count = int(counts.get(name) or 0)
            setattr(self, name, getattr(self, name) + count)
        if late:
            line += f", {late:,} too late"
        watermark = report.get("eventTime", {}).get("watermark")
        return f"{line}, watermark {watermark}" if watermark else line


@click.command(
    cls=Command,
    epilog="\b\nExamples:\n"
    "  cursus-pipeline rollup --topic clicks --window 1m --by key --to clicks-per-minute --checkpoint /data/rollup\n"
    "  cursus-pipeline rollup --topic orders --window 1h --slide 10m --by json:$.shop --measure json:$.amount \\\n"
    "      --lake /data/lake/orders --checkpoint /data/rollup-orders --available-now",
)
@click.option("--topic", "-t", required=True, help="The topic to read.")
@click.option(
    "--window", "window_ms", metavar="SPAN", required=True, callback=_span_ms, help="How long a window is: 1m."
)
@click.option(
    "--slide", "slide_ms", metavar="SPAN", callback=_span_ms, help="A window begins every so often. [--window]"
)
@click.option(
    "--watermark",
    "watermark_ms",
    metavar="SPAN",
    default="10m",
    callback=_span_ms,
    help="How late a record may be. [10m]",
)
@click.option(
    "--by", metavar="key|json:$.FIELD", required=True, callback=_field, help="What the records are grouped by."
)
@click.option(
    "--measure", metavar="json:$.FIELD", callback=_field, help="A number to sum up; without it records are counted."
)
@click.option(
    "--percentiles",
    metavar="N,N",
    default="50,95,99",
    callback=_percentiles,
    help="Of the measure, approximate. [50,95,99]",
)
@click.option("--to", metavar="TOPIC", help="Write results to this topic, as JSON.")
@click.option("--lake", metavar="DIR", help="Write results to Parquet files in this directory.")
@click.option("--checkpoint", metavar="DIR", required=True, help="Where the job remembers how far it is.")
@click.option(
    "--from",
    "begin",
    type=click.Choice(["earliest", "latest"]),
    default="earliest",
    help="Where a new checkpoint begins. [earliest]",
)
@click.option("--max-records", metavar="N", type=click.IntRange(min=1), help="Read at most so many in a micro-batch.")
@click.option("--available-now", is_flag=True, help="End when everything that is there now is read.")
@takes_job
def rollup(
    job: Job,
    topic: str,
    window_ms: int,
    slide_ms: int | None,
    watermark_ms: int,
    by: JsonField | None,
    measure: JsonField | None,
    percentiles: tuple[int, ...],
    to: str | None,
    lake: str | None,
    checkpoint: str,
    begin: str,
    max_records: int | None,
    available_now: bool,
) -> None:
    """Count and measure a topic's records in windows of event time.

    A window is written once, when the watermark has passed its end. Records that come later than that are dropped, and
    counted; so are those whose JSON cannot be read. Start it again with the same checkpoint to go on.
    """
    if to is None and lake is None:
        raise click.UsageError("name where the results go: --to, --lake or both")
    if to == topic:
        raise click.UsageError("--to is the topic that is read: the results would be read again")
    slide_ms = window_ms if slide_ms is None else slide_ms
    if window_ms < 1 or not 0 < slide_ms <= window_ms:
        raise click.UsageError("--slide has to be above 0 and at most --window, or records would fall between windows")
    ask(job.endpoint, lambda admin: _check_topics(admin, [name for name in (topic, to) if name is not None]))

    job.shuffle_into(1)
    asked = Rollup(window_ms, slide_ms, watermark_ms, by, measure, percentiles)
    outputs = Outputs(job.source_options, to, lake and lake.rstrip("/"), checkpoint.rstrip("/"))
    source = {"subscribe": topic, "startingOffsets": begin}
    if max_records is not None:
        source["maxOffsetsPerTrigger"] = str(max_records)
    totals = Totals()
    query = start(job.spark, source, asked, outputs, available_now=available_now)
    say(f"rolling up {topic}; checkpoint in {checkpoint}")
    finished = follow(query, totals.describe)
    _finish(job, totals, outputs, finished)


def start(
    spark: SparkSession, source: Mapping[str, str], asked: Rollup, outputs: Outputs, *, available_now: bool
) -> StreamingQuery:
    """Start the query, from where its checkpoint is. `source` says what it reads."""
    rows = spark.readStream.format("cursus").schema(SCHEMA).options(**outputs.source_options).options(**source).load()
    writer = results(rows, asked).writeStream.outputMode("append").foreachBatch(outputs.store)
    writer = writer.option("checkpointLocation", outputs.checkpoint)
    query = (writer.trigger(availableNow=True) if available_now else writer).start()
    outputs.query.set_result(str(query.id))
    return query


async def _check_topics(admin: AsyncAdmin, topics: list[str]) -> None:
    for topic in topics:
        try:
            await admin.describe_topic(topic)
        except TopicNotFound as error:
            raise TopicMissing(f"topic {topic!r} does not exist") from error


def _finish(job: Job, totals: Totals, outputs: Outputs, finished: bool) -> None:
    skipped = [
        (totals.unparsed, "whose value is not JSON"),
        (totals.ungrouped, "without the field they are grouped by"),
    ]
    lines = [f"left out: {plural(count, 'record')} {why}" for count, why in skipped if count]
    if totals.late:
        lines.append(
            f"dropped: {totals.late:,} too late, as counted behind the first aggregation: see docs/pipeline.md"
        )
    if totals.unmeasured:
        lines.append(f"counted but not measured: {plural(totals.unmeasured, 'record')} without a number there")
    lines.append(f"read {plural(totals.records, 'record')}, stored {plural(outputs.results, 'result')}")
    job.finish(
        {
            "finished": finished,
            "records": totals.records,
            "results": outputs.results,
            "unparsed": totals.unparsed,
            "ungrouped": totals.ungrouped,
            "unmeasured": totals.unmeasured,
            "late": totals.late,
        },
        "\n".join(lines),
    )
