"""`cursus consume`: print the records of topics, from any place, up to the end or for ever, alone or in a group."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, BinaryIO, Final

import click

from cursus_grpc.cli import completion, formats, places
from cursus_grpc.cli.failures import Failed
from cursus_grpc.cli.interrupt import Interrupt, Interrupted
from cursus_grpc.cli.output import plural, say
from cursus_grpc.cli.place_type import PlaceType
from cursus_grpc.cli.session import Command, Session, pass_session
from cursus_grpc.errors import LogTruncated
from cursus_grpc.types import BEGINNING, END, TopicPartition

if TYPE_CHECKING:
    from cursus_grpc import Admin, Consumer, Record

# Printed between two looks at the signals.
_BATCH_RECORDS: Final = 5_000
_BATCH_BYTES: Final = 4 * 1024 * 1024
_IDLE_S: Final = 0.5
"""How long nothing has to come before a group is asked whether it has read everything."""


@dataclass
class Sink:
    """Where records are printed. Counts them, and ends the flow when there are enough."""

    stream: BinaryIO
    printer: formats.Printer
    interrupt: Interrupt
    limit: int | None
    count: int = 0
    partitions: set[TopicPartition] = field(default_factory=set)

    @property
    def room(self) -> int:
        """How many records may still be printed."""
        return sys.maxsize if self.limit is None else self.limit - self.count

    def write(self, records: Sequence[Record]) -> None:
        """Print these and let go of them. Raises BrokenPipeError."""
        # One write: with PYTHONUNBUFFERED, which containers like to set, each would be a system call.
        self.stream.write(self.printer(records))
        self.stream.flush()
        self.count += len(records)
        # A look at each record's batch, and not at each record.
        self.partitions.update(
            TopicPartition(one.topic, one.partition) for one in {record._batch for record in records}
        )


@click.command(
    cls=Command,
    epilog="\b\n" + "PLACE is one of\n"
    "  beginning, end         the ends of each partition\n"
    "  42                     an offset\n"
    "  -5                     the last five records of each partition\n"
    "  @-10m, @-1h30m, @-2d   that long ago\n"
    "  @2026-05-01T12:00:00Z  a time; without a zone it is yours\n"
    "  @1777636800000         milliseconds since 1970\n"
    "\n"
    "\b\nFORMAT is text, json, hex, or a string with\n"
    "  %t topic  %p partition  %o offset  %k key  %s value  %h headers  %T timestamp\n"
    "  %K and %S the lengths of key and value, -1 for none;  \\n \\t \\xHH  as in C\n"
    "\n"
    "\b\nExamples:\n"
    "  cursus consume orders --from @-10m --follow --format '%p:%o %k=%s\\n'\n"
    "  cursus consume --regex 'orders-.*' --format '%t %s\\n'",
)
@click.argument("topics", nargs=-1, required=True, shell_complete=completion.topics)
@click.option(
    "--regex", "-r", is_flag=True, help="TOPICS are patterns; those of the topics whose whole name matches are read."
)
@click.option("--from", "start", type=PlaceType(), help="Where to begin. Default: the beginning, or the group's place.")
@click.option(
    "--until", type=PlaceType(), help="Where to stop, this place not included. Default: the end as it is now."
)
@click.option("--follow", "-F", is_flag=True, help="Wait for more instead of stopping at the end.")
@click.option(
    "--partition", "-p", "partitions", metavar="N", type=click.IntRange(min=0), multiple=True, help="May be repeated."
)
@click.option("--group", "-g", shell_complete=completion.groups, help="Read as a member of this group, and commit.")
@click.option("--count", "-c", metavar="N", type=click.IntRange(min=0), help="Stop after this many records.")
@click.option("--format", "-f", "form", metavar="FORMAT", help="How a record is printed. Default: text.")
@click.option(
    "--delimiter", "-D", metavar="TEXT", help="What ends a record of text; \\0 \\t \\xHH as in a format. Default: \\n."
)
@click.option("--null", "-Z", is_flag=True, help="Print keys and values that are null as NULL, not as nothing.")
@click.option("--quiet", "-q", is_flag=True, help="No summary on stderr.")
@pass_session
def consume(
    session: Session,
    topics: tuple[str, ...],
    regex: bool,
    start: places.WrittenPlace | None,
    until: places.WrittenPlace | None,
    follow: bool,
    partitions: tuple[int, ...],
    group: str | None,
    count: int | None,
    form: str | None,
    delimiter: str | None,
    null: bool,
    quiet: bool,
) -> None:
    """Print the records of topics.

    Without --follow it stops at the end. Partitions are then printed one after the other, each in its order.
    """
    printer = _printer(session, form, delimiter, null)
    if follow and until is not None:
        raise click.UsageError("--follow never stops, --until does: give one of them")
    if partitions and (regex or len(topics) > 1):
        raise click.UsageError("--partition needs the one topic it belongs to")
    wanted = Wanted(tuple(dict.fromkeys(topics)), regex)
    with Interrupt.watched() as interrupt:
        sink = Sink(sys.stdout.buffer, printer, interrupt, count)
        with suppress(Interrupted):
            if group is not None:
                _refuse_with_group(start, until, partitions)
                _as_member(session, wanted, group, start, follow, sink)
            elif follow:
                _following(session, wanted, start, partitions, sink)
            else:
                _bounded(session, wanted, start, until, partitions, sink)
    if not quiet:
        if sink.interrupt.requested and sys.stderr.isatty():
            say("")  # the terminal has written ^C where the next line would begin
        say(_summary(sink))


def _printer(session: Session, form: str | None, delimiter: str | None, null: bool) -> formats.Printer:
    try:
        end = None if delimiter is None else formats.unescaped(delimiter)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--delimiter") from error
    name = form or ("json" if session.json else "text")
    try:
        return formats.named(name, terminal=sys.stdout.isatty(), null=b"NULL" if null else b"", delimiter=end)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--format") from error


def _summary(sink: Sink) -> str:
    where = f" of {len(sink.partitions)} partitions" if len(sink.partitions) > 1 else ""
    topics = len({place.topic for place in sink.partitions})
    return plural(sink.count, "record") + where + (f" of {topics} topics" if topics > 1 else "")


@dataclass(frozen=True, slots=True)
class Wanted:
    """The topics to read: names, or patterns of names."""

    said: tuple[str, ...]
    regex: bool

    def __post_init__(self) -> None:
        for pattern in self.said if self.regex else ():
            try:
                re.compile(pattern)
            except re.error as error:
                raise click.BadParameter(f"{pattern!r} is no pattern: {error}", param_hint="TOPICS") from error

    @property
    def pattern(self) -> str:
        """All patterns as one, for a group."""
        return "|".join(f"(?:{one})" for one in self.said) if self.regex else ""

    def names(self, admin: Admin) -> list[str]:
        """The names, which need not be there, or those that match. Raises Failed for a pattern that none matches."""
        if not self.regex:
            return list(self.said)
        there = [topic.name for topic in admin.list_topics()]
        for pattern in self.said:
            if not any(re.fullmatch(pattern, name) for name in there):
                raise Failed(f"no topic matches {pattern!r}", "`cursus topic list` shows the topics", "TOPIC_NOT_FOUND")
        return [name for name in there if re.fullmatch(self.pattern, name)]


def _refuse_with_group(
    start: places.WrittenPlace | None, until: places.WrittenPlace | None, partitions: tuple[int, ...]
) -> None:
    if partitions or until is not None:
        raise click.UsageError("a group decides itself which partitions to read: no --partition and no --until with it")
    if start not in (None, BEGINNING, END):
        raise click.UsageError(
            "with --group, --from is beginning or end, for partitions it has never read; `cursus group reset` moves it"
        )


def _bounded(
    session: Session,
    wanted: Wanted,
    start: places.WrittenPlace | None,
    until: places.WrittenPlace | None,
    partitions: tuple[int, ...],
    sink: Sink,
) -> None:
    ranges: dict[TopicPartition, tuple[int, int]] = {}
    with session.admin() as admin, sink.interrupt.waiting():
        for topic in wanted.names(admin):
            starts = places.starts(admin, topic, BEGINNING if start is None else start, partitions)
            ends = places.offsets(admin, topic, END, partitions)
            if until is not None:
                stops = places.offsets(admin, topic, until, partitions)
                ends = {partition: min(end, stops[partition]) for partition, end in ends.items()}
            ranges |= {TopicPartition(topic, at): (starts[at], ends[at]) for at in sorted(starts)}
    with session.consumer() as consumer:
        for place, (first, end) in ranges.items():
            _range(session, consumer, place, first, end, sink)


def _range(session: Session, consumer: Consumer, place: TopicPartition, start: int, end: int, sink: Sink) -> None:
    while start < end and sink.room:
        records = consumer.range(*place, start, end)
        try:
            while chunk := _take(records, sink):
                sink.write(chunk)
                start = chunk[-1].offset + 1
            return
        except LogTruncated as error:
            say(f"warning: {place.topic}[{place.partition}]: {error}")
            start = min(start, error.offset)
            with session.admin() as admin, sink.interrupt.waiting():
                now = places.offsets(admin, place.topic, END, [place.partition])
            end = min(end, now[place.partition])


def _take(records: Iterator[Record], sink: Sink) -> list[Record]:
    """Some records at a time: the signals can be watched for a batch at the cost of one record."""
    taken: list[Record] = []
    taken_bytes = 0
    with sink.interrupt.waiting():
        for record in islice(records, min(_BATCH_RECORDS, sink.room)):
            taken.append(record)
            taken_bytes += len(record.value or b"")
            if taken_bytes >= _BATCH_BYTES:
                break
    return taken


def _following(
    session: Session, wanted: Wanted, start: places.WrittenPlace | None, partitions: tuple[int, ...], sink: Sink
) -> None:
    begin: dict[TopicPartition, int] = {}
    with session.admin() as admin, sink.interrupt.waiting():
        for topic in wanted.names(admin):
            starts = places.starts(admin, topic, BEGINNING if start is None else start, partitions)
            begin |= {TopicPartition(topic, partition): offset for partition, offset in starts.items()}
    with session.consumer() as consumer:
        consumer.assign(begin)
        while sink.room:
            with sink.interrupt.waiting():
                records = consumer.poll_batch(min(_BATCH_RECORDS, sink.room))
            sink.write(records)


def _as_member(
    session: Session, wanted: Wanted, group: str, start: places.WrittenPlace | None, follow: bool, sink: Sink
) -> None:
    if not (wanted.regex and follow):
        with session.admin() as admin, sink.interrupt.waiting():
            # A group may wait for a topic that is not there yet; a person mistypes names.
            for topic in wanted.names(admin):
                admin.describe_topic(topic)
    with session.consumer(group=group, reset="latest" if start is END else "earliest") as consumer:
        consumer.subscribe(() if wanted.regex else wanted.said, wanted.pattern)
        told_of_waiting = False
        # Leaving the block counts the last batch as processed: it has been printed, and what was not is read again.
        while sink.room and not sink.interrupt.requested:
            with sink.interrupt.waiting():
                records = consumer.poll_batch(min(_BATCH_RECORDS, sink.room), None if follow else _IDLE_S)
                if not records and consumer.assignment() and _at_end(consumer):
                    return
                if not records and not consumer.assignment() and not told_of_waiting:
                    say(f"waiting for partitions: other members of {group} may have all of them")
                    told_of_waiting = True
            sink.write(records)


def _at_end(consumer: Consumer) -> bool:
    return all(consumer.lag(partition) == 0 for partition in consumer.assignment())
