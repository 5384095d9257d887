"""`cursus publish`: send lines, files or JSON records to a topic."""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, Literal, get_args

import click

from cursus_grpc.cli import completion, formats, records_in
from cursus_grpc.cli.failures import HINTS, INTERRUPTED, Failed
from cursus_grpc.cli.interrupt import Interrupt, Interrupted
from cursus_grpc.cli.output import json_document, plural, say, size, stderr_console
from cursus_grpc.cli.records_in import Outgoing
from cursus_grpc.cli.session import Command, Session, pass_session
from cursus_grpc.cli.topic_settings import Assignment
from cursus_grpc.errors import CursusError
from cursus_grpc.types import Acks, Compression, RecordMetadata

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from cursus_grpc import Producer

_SHOW_EVERY_S: Final = 0.1
_ACKS: Final[dict[str, Acks]] = {"0": 0, "1": 1, "all": "all"}


class Tally:
    """What became of the records. Only the client's thread writes here; others look at `error`, and at the rest when
    all is settled."""

    def __init__(self) -> None:
        self.bytes = 0  # of the values sent; only the sending thread writes it
        self.failed = 0
        self.error: CursusError | None = None
        self.partitions: dict[int, list[int]] = {}
        """Records, first and last offset of each partition."""

    @property
    def records(self) -> int:
        return sum(count for count, _, _ in self.partitions.values())

    def note(self, place: RecordMetadata | None, error: CursusError | None) -> None:
        """Told of every record, in the order of its partition."""
        if place is None:
            self.failed += 1
            self.error = self.error or error
            return
        counted = self.partitions.get(place.partition)
        if counted is None:
            counted = self.partitions[place.partition] = [0, place.offset, place.offset]
        counted[0] += 1
        counted[2] = place.offset


class Pace:
    """At most `per_second` records a second, evenly; None: as fast as it goes."""

    def __init__(self, per_second: float | None) -> None:
        self._interval_s = 1 / per_second if per_second else 0.0
        self._next_at = time.monotonic()

    def wait(self) -> None:
        if self._interval_s:
            pause_s = self._next_at - time.monotonic()
            if pause_s > 0:
                time.sleep(pause_s)
            # From now on if we fell behind: a broker that stood still is not flooded afterwards.
            self._next_at = max(self._next_at, time.monotonic() - 1.0) + self._interval_s


class Bar:
    """The progress on stderr: by bytes where the input's size is known, else a count."""

    def __init__(self, progress: Progress, total_bytes: int | None) -> None:
        self._progress = progress
        self._task: TaskID = progress.add_task("publishing", total=total_bytes, records=0)
        self._shown_at = 0.0
        self._bytes = 0
        self._records = 0

    @staticmethod
    def shown(total_bytes: int | None) -> Progress:
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

        known = [BarColumn(), DownloadColumn(binary_units=True)] if total_bytes else []
        return Progress(
            TextColumn("publishing"),
            *known,
            TextColumn("{task.fields[records]:,} records"),
            TimeElapsedColumn(),
            console=stderr_console(),
            transient=True,
        )

    def note(self, read_bytes: int) -> None:
        self._bytes += read_bytes
        self._records += 1
        now = time.monotonic()
        if now - self._shown_at >= _SHOW_EVERY_S:
            self._shown_at = now
            self._progress.update(self._task, completed=self._bytes, records=self._records)


@click.command(
    cls=Command,
    epilog="\b\nExamples:\n"
    "  echo hello | cursus publish greetings\n"
    "  printf 'ann:tea\\nmia:coffee\\n' | cursus publish orders --key-delimiter :\n"
    "  cursus publish orders --key ann --value '' --null\n"
    "  cursus consume orders -f json | cursus publish copy --format json\n"
    "  cursus publish logs app.log --rate 1000",
)
@click.argument("topic", shell_complete=completion.topics)
@click.argument("files", nargs=-1, type=click.Path(path_type=Path))
@click.option("--value", "-v", "values", multiple=True, help="Publish this instead of reading. May be repeated.")
@click.option(
    "--format",
    "-f",
    "form",
    type=click.Choice(["lines", "json", "file"]),
    default="lines",
    show_default=True,
    help="A record is a line, a JSON object on a line, or a whole file.",
)
@click.option("--key", "-k", help="The key of every record.")
@click.option("--key-delimiter", "-K", metavar="TEXT", help="Lines are KEY, this, VALUE; \\t \\xHH as in --delimiter.")
@click.option("--delimiter", "-D", metavar="TEXT", help="What ends a line; \\0 \\t \\xHH as in a format. Default: \\n.")
@click.option("--null", "-Z", is_flag=True, help="An empty value is null, a tombstone. JSON says null itself.")
@click.option("--header", "-H", "headers", type=Assignment(), multiple=True, help="For every record. May be repeated.")
@click.option("--partition", "-p", metavar="N", type=click.IntRange(min=0), help="Default: by key, or in turn.")
@click.option(
    "--acks", type=click.Choice(list(_ACKS)), default="1", show_default=True, help="0 accepted, 1 written, all synced."
)
@click.option("--compression", type=click.Choice(get_args(Compression)), default="none", show_default=True)
@click.option(
    "--rate", metavar="N", type=click.FloatRange(min=0, min_open=True), help="At most this many records a second."
)
@click.option(
    "--delivery-timeout",
    metavar="N",
    type=click.FloatRange(min=0, min_open=True),
    default=120.0,
    show_default=True,
    help="Seconds a record may take, over all retries.",
)
@click.option("--progress/--no-progress", default=None, help="Default: where stderr is a terminal.")
@click.option("--quiet", "-q", is_flag=True, help="No summary on stderr.")
@pass_session
def publish(
    session: Session,
    topic: str,
    files: tuple[Path, ...],
    values: tuple[str, ...],
    form: Literal["lines", "json", "file"],
    key: str | None,
    key_delimiter: str | None,
    delimiter: str | None,
    null: bool,
    headers: tuple[tuple[str, str], ...],
    partition: int | None,
    acks: str,
    compression: Compression,
    rate: float | None,
    delivery_timeout: float,
    progress: bool | None,
    quiet: bool,
) -> int:
    """Publish lines from stdin, or what FILES hold (- is stdin)."""
    if values and files:
        raise click.UsageError("give --value or FILES, not both")
    if values and form == "file":
        raise click.UsageError("--format file reads FILES; --value is a line, or with --format json an object")
    if key_delimiter is not None and (key is not None or form != "lines" or not key_delimiter):
        raise click.UsageError("--key-delimiter splits lines; it does not go with --key or another --format")
    if delimiter is not None and (values or form != "lines" or not delimiter):
        raise click.UsageError("--delimiter ends lines that are read; it does not go with --value or another --format")
    if null and form == "json":
        raise click.UsageError('--null is for lines, files and --value; in JSON a null is "value": null')
    default = Outgoing(
        None,
        None if key is None else _encoded(key),
        tuple((name, _encoded(value)) for name, value in headers) or None,
        partition,
    )
    parse = _parse(form, _unescaped("--key-delimiter", key_delimiter), null)
    if values:
        records = records_in.parsed(map(_encoded, values), parse, "--value", "number")
        total_bytes: int | None = None
    else:
        sources = files or (Path("-"),)
        total_bytes = _total_bytes(sources)
        records = _records(sources, form, parse, _unescaped("--delimiter", delimiter) or b"\n")
    if progress is None:
        typed = not files and sys.stdin.isatty()
        progress = not values and not typed and sys.stderr.isatty()
    with session.admin() as admin:
        admin.describe_topic(topic)  # a mistyped name is told before anything is read
        max_record_bytes = admin.broker_info().max_batch_bytes
    tally, began = Tally(), time.monotonic()
    with (
        Interrupt.watched() as interrupt,
        session.producer(
            acks=_ACKS[acks],
            compression=compression,
            delivery_timeout_s=delivery_timeout,
            max_record_bytes=max_record_bytes,
            on_delivery=tally.note,
        ) as producer,
        Bar.shown(total_bytes) if progress else nullcontext() as shown,
    ):
        bar = Bar(shown, total_bytes) if shown is not None else None
        refused: Exception | None = None
        try:
            taken = _no_larger(records, max_record_bytes)
            _send(producer, topic, taken, default, Pace(rate), bar, tally, interrupt)
        except Interrupted:
            pass  # what was read so far is delivered; a second Ctrl-C gives up on that
        except (Failed, CursusError, OSError) as error:
            refused = error  # told when it is known what became of the records before
        finally:
            if not producer.flush(delivery_timeout):
                say("warning: the delivery timeout passed with records unsettled")
    _report(session, topic, tally, time.monotonic() - began, quiet)
    if tally.error is not None:
        say(f"{plural(tally.failed, 'record')} not published")
        raise tally.error
    if refused is not None:
        raise refused
    return INTERRUPTED if interrupt.requested else 0


def _send(
    producer: Producer,
    topic: str,
    records: Iterator[Outgoing],
    default: Outgoing,
    pace: Pace,
    bar: Bar | None,
    tally: Tally,
    interrupt: Interrupt,
) -> None:
    """Send everything, up to the first record that could not be delivered. Raises Interrupted, between two records."""
    while tally.error is None:
        interrupt.begin_waiting()
        try:
            pace.wait()
            record = next(records, None)
        finally:
            interrupt.end_waiting()
        if record is None:
            return
        value_bytes = len(record.value or b"")
        producer.send(
            topic,
            record.value,
            default.key if record.key is None else record.key,
            partition=default.partition,
            timestamp_ms=record.timestamp_ms,
            headers=default.headers if record.headers is None else record.headers,
            event_type=record.event_type,
            schema_version=record.schema_version,
            aggregate_version=record.aggregate_version,
            metadata=record.metadata,
        )
        tally.bytes += value_bytes
        if bar is not None:
            bar.note(value_bytes + 1)


def _parse(form: str, key_delimiter: bytes | None, null: bool) -> records_in.Parse:
    """What makes a record of a line, or of a file."""
    parse: records_in.Parse = records_in.from_json if form == "json" else records_in.plain
    if key_delimiter is not None:
        parse = records_in.keyed(key_delimiter)
    return records_in.empty_as_null(parse) if null else parse


def _unescaped(option: str, text: str | None) -> bytes | None:
    try:
        return None if text is None else formats.unescaped(text)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint=option) from error


def _records(sources: tuple[Path, ...], form: str, parse: records_in.Parse, delimiter: bytes) -> Iterator[Outgoing]:
    """The records of all sources, one after the other."""
    for source in sources:
        if str(source) == "-":
            if sys.stdin.isatty() and form != "file":
                say("a record a line; Ctrl-D ends")
            yield from _of(sys.stdin.buffer, "stdin", form, parse, delimiter)
        else:
            with source.open("rb") as stream:
                yield from _of(stream, str(source), form, parse, delimiter)


def _of(stream: BinaryIO, name: str, form: str, parse: records_in.Parse, delimiter: bytes) -> Iterator[Outgoing]:
    if form == "file":
        yield parse(stream.read())
    else:
        yield from records_in.parsed(records_in.lines(stream, delimiter), parse, name)


def _no_larger(records: Iterator[Outgoing], max_bytes: int) -> Iterator[Outgoing]:
    """The records, up to one that no broker with this limit takes. The producer would speak of its own buffer."""
    for record in records:
        if record.value is not None and len(record.value) > max_bytes:
            raise Failed(
                f"a record has {len(record.value):,} bytes, and the broker takes at most {max_bytes:,}",
                HINTS["RECORD_TOO_LARGE"],
                "RECORD_TOO_LARGE",
            )
        yield record


def _total_bytes(sources: tuple[Path, ...]) -> int | None:
    """The size of the input, None if it cannot be known. Raises Failed for what cannot be read at all, before anything
    is published."""
    total = 0
    for source in sources:
        if str(source) == "-":
            found = os.fstat(sys.stdin.fileno())
        elif source.is_dir():
            raise Failed(f"{source} is a directory", "name its files", "BAD_INPUT")
        else:
            found = source.stat()
        if not stat.S_ISREG(found.st_mode):
            return None
        total += found.st_size
    return total


def _encoded(text: str) -> bytes:
    """An argument as the shell passed it, also if it is not UTF-8."""
    return os.fsencode(text)


def _report(session: Session, topic: str, tally: Tally, seconds: float, quiet: bool) -> None:
    partitions = sorted(tally.partitions.items())
    if session.json:
        json_document(
            {
                "topic": topic,
                "records": tally.records,
                "failed": tally.failed,
                "seconds": round(seconds, 3),
                "partitions": [
                    {"partition": partition, "records": count, "first_offset": first, "last_offset": last}
                    for partition, (count, first, last) in partitions
                ],
            }
        )
    elif not quiet:
        where = ", ".join(
            f"partition {partition} offset {first}"
            if first == last
            else f"partition {partition} offsets {first}-{last}"
            for partition, (_, first, last) in partitions[:8]
        )
        more = f" and {len(partitions) - 8} more partitions" if len(partitions) > 8 else ""
        what = f"{plural(tally.records, 'record') if partitions else 'nothing'} to {topic}"
        if partitions and not tally.failed:
            what += f", {size(tally.bytes)}"
        say(f"published {what}{': ' if where else ''}{where}{more}")
