"""The work of an audit: what is read, in which order it is asked, and what becomes of damage."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from cursus_grpc.cli.output import say
from cursus_spark.options import Options
from cursus_spark.pipeline.audit import checks, statistics
from cursus_spark.pipeline.audit.batches import SCHEMA, batches
from cursus_spark.pipeline.audit.findings import Finding, Severity
from cursus_spark.pipeline.audit.report import Audit
from cursus_spark.pipeline.audit.scope import Damage, Scope, read, sound_pieces, survey
from cursus_spark.pipeline.audit.statistics import PartitionStatistics, Timeline
from cursus_spark.pipeline.progress import watched

_DAMAGED: Final = ("PartitionDamaged", "CorruptBatch")
"""How a task fails that met a damaged log."""


@dataclass(frozen=True, slots=True)
class Question:
    """What an audit is to find out."""

    scope: Scope
    window_ms: int
    severities: Mapping[str, Severity]


def examine(spark: SparkSession, source_options: Mapping[str, str], question: Question) -> Audit:
    """Read what can be read, and judge it. Raises what Spark fails with, but for damage, which is a finding."""
    scope = question.scope
    try:
        return _examine(spark, source_options, question, scope.damage)
    except PySparkException as error:
        if not any(name in str(error) for name in _DAMAGED):
            raise
    say("the log is damaged; looking for what can be read")
    endpoint = Options(source_options, source_options).endpoint()
    with watched(spark, "surveying"):
        found = survey(spark, endpoint, scope.ranges)
    return _examine(spark, source_options, question, (*scope.damage, *found))


def _examine(
    spark: SparkSession, source_options: Mapping[str, str], question: Question, damage: tuple[Damage, ...]
) -> Audit:
    """In one pass over the records, and in a second one for the order of timestamps."""
    ranges, severities = question.scope.ranges, question.severities
    pieces = sound_pieces(ranges, [one for one in damage if one.end is not None])
    stats = [PartitionStatistics(one.partition, one.start, one.end) for one in ranges]
    timeline = Timeline(0, 1)
    findings: list[Finding]
    if pieces:
        found = batches(read(spark, source_options, pieces, SCHEMA)).persist()
        try:
            with watched(spark, "reading records"):
                stats = statistics.of_partitions(found, ranges)
            timeline = statistics.timeline(found, stats)
            hits: list[DataFrame] = [
                checks.offset_gaps(found, pieces),
                checks.append_order(found),
                checks.sequences(found),
                checks.contents(found, question.window_ms),
            ]
            if severities["timestamp-order"] is not Severity.OFF:
                hits.append(checks.timestamp_order(read(spark, source_options, pieces, checks.TIMES_SCHEMA)))
            with watched(spark, "checking"):
                findings = checks.judge(hits, damage, severities)
        finally:
            found.unpersist()
    else:
        findings = checks.judge([], damage, severities)
    return Audit(
        topic=question.scope.topic,
        broker=source_options["bootstrap.servers"],
        made_ms=int(time.time() * 1_000),
        window_ms=question.window_ms,
        severities=severities,
        partitions=stats,
        timeline=timeline,
        findings=findings,
    )
