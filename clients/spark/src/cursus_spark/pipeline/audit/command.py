"""`cursus-pipeline audit`: prove from the log that a topic is complete."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import click

from cursus_grpc.cli import places
from cursus_grpc.cli.output import plural, say
from cursus_grpc.cli.session import Command
from cursus_spark.options import OptionRefused, Options
from cursus_spark.pipeline.audit.examination import Question, examine
from cursus_spark.pipeline.audit.findings import CHECKS, Severity
from cursus_spark.pipeline.audit.report import page
from cursus_spark.pipeline.audit.scope import Scope, find_scope
from cursus_spark.pipeline.job import FOUND, Job, takes_job
from cursus_spark.planning import ask

_RECORDS_A_TASK: Final = 1_000_000
_MOST_TASKS: Final = 2_000


def _place(_context: click.Context, parameter: click.Parameter, text: str) -> places.WrittenPlace:
    try:
        return places.parse(text, int(time.time() * 1_000))
    except ValueError as error:
        raise click.BadParameter(str(error), param=parameter) from None


def _severities(_context: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, Severity]:
    """What was said about the checks; those of which nothing was said are left out."""
    said = {}
    for one in given:
        name, equals, severity = one.partition("=")
        if name not in CHECKS:
            raise click.BadParameter(f"there is no check {name!r}; there are {', '.join(CHECKS)}", param=parameter)
        if not equals or severity not in {each.value for each in Severity}:
            raise click.BadParameter(f"{one!r} is not {name}=violation, {name}=note or {name}=off", param=parameter)
        said[name] = Severity(severity)
    return said


def _window_ms(_context: click.Context, parameter: click.Parameter, text: str) -> int:
    try:
        found = Options({"window": text}, ["window"]).duration_ms("window")
    except OptionRefused:
        found = None
    if not found:
        raise click.BadParameter(f"{text!r} is not a time span; for example 30m, 45s or 2h", param=parameter)
    return found


@click.command(
    cls=Command,
    epilog="\b\nExamples:\n"
    "  cursus-pipeline audit --topic orders --report orders.html\n"
    "  cursus-pipeline audit --topic orders --from @-1d --check timestamp-order=violation\n"
    "\b\nChecks, and what they count as unless --check says otherwise:\n"
    + "".join(f"  {check.name:20} {check.default.value:10} {check.title}\n" for check in CHECKS.values()),
)
@click.option("--topic", "-t", required=True, help="The topic.")
@click.option(
    "--partition", "-p", "partitions", type=click.IntRange(min=0), multiple=True, help="Only this one. May be repeated."
)
@click.option(
    "--from",
    "begin",
    metavar="PLACE",
    default="beginning",
    callback=_place,
    help=f"Where to begin: {places.GRAMMAR}. [beginning]",
)
@click.option(
    "--until",
    metavar="PLACE",
    default="end",
    callback=_place,
    help="Where to end, likewise; not beyond what is synced. [end]",
)
@click.option(
    "--window", metavar="SPAN", default="30m", callback=_window_ms, help="How long the broker remembers contents. [30m]"
)
@click.option(
    "--check",
    "said",
    metavar="NAME=violation|note|off",
    multiple=True,
    callback=_severities,
    help="What a check counts as. May be repeated.",
)
@click.option(
    "--report",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Write a page of HTML with plots to this file.",
)
@takes_job
def audit(
    job: Job,
    topic: str,
    partitions: tuple[int, ...],
    begin: places.WrittenPlace,
    until: places.WrittenPlace,
    window: int,
    said: dict[str, Severity],
    report: Path | None,
) -> int:
    """Prove from the log that a topic is complete, or say what is wrong with it.

    Looks for missing offsets and sequences, for records that are stored twice, for what is out of order and for what
    cannot be read. Ends with status 0 if there is no violation and with 3 if there is one.
    """
    if report is not None and not report.parent.is_dir():
        raise click.BadParameter(f"there is no directory {report.parent}", param_hint="--report")
    scope = ask(job.endpoint, lambda admin: find_scope(admin, topic, begin, until, partitions))
    severities = {name: said.get(name, _default(name, scope)) for name in CHECKS}
    say(f"auditing {plural(scope.records, 'record')} in {plural(len(scope.ranges), 'partition')} of {topic}")
    question = Question(scope, window, severities)
    job.shuffle_into(min(scope.records // _RECORDS_A_TASK, _MOST_TASKS))
    outcome = examine(job.spark, job.source_options, question)
    if report is not None:
        report.write_text(page(outcome), encoding="utf-8")
        say(f"report written to {report}")
    job.finish(outcome.document(), outcome.text())
    return FOUND if outcome.violations else 0


def _default(name: str, scope: Scope) -> Severity:
    if name == "content-duplicates" and not scope.deduplicates_content:
        return Severity.NOTE  # nobody promised anything
    return CHECKS[name].default
