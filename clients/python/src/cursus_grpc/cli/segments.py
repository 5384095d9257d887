"""`cursus segments inspect`: look into a data directory without a broker, and find damage."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cursus_grpc.cli.failures import REFUSED, Failed
from cursus_grpc.cli.formats import json_fields
from cursus_grpc.cli.formats import json_line as record_line
from cursus_grpc.cli.output import column, json_line, moment, number, plural, say, size, stderr_console, table
from cursus_grpc.cli.session import Group, Session, pass_session
from cursus_grpc.errors import BatchTooLarge, CorruptBatch

if TYPE_CHECKING:
    from rich.progress import Progress

    # At run time only when it is needed: it needs the broker's package.
    from cursus_grpc.cli.inspection import Damage, EntrySeen, Partition, SegmentSeen


@click.group(cls=Group)
def segments() -> None:
    """Look into segment files, without a broker."""


@segments.command(
    epilog="\b\nExamples:\n"
    "  cursus segments inspect data\n"
    "  cursus segments inspect data --topic orders --partition 0 --records\n"
    "  cursus segments inspect data/logs/orders/partition_0_segment_3.log --entries -o json"
)
@click.argument("path", type=click.Path(exists=True, path_type=Path))
@click.option("--topic", "-t", help="Only this one.")
@click.option("--partition", "-p", metavar="N", type=click.IntRange(min=0), help="Only this one.")
@click.option("--entries", "-e", is_flag=True, help="Print every entry, not only segments and damage.")
@click.option("--records", "-r", is_flag=True, help="Print every entry and the records in it, as `consume -f json`.")
@pass_session
def inspect(
    session: Session, path: Path, topic: str | None, partition: int | None, entries: bool, records: bool
) -> int:
    """Walk the segments in PATH, verify every checksum and name what is damaged.

    PATH is a data directory, a topic's directory in it, or one segment file. Nothing is changed. Status 1 if anything
    is damaged.
    """
    try:
        from cursus_grpc.cli import inspection
    except ImportError as error:
        raise Failed(f"this needs the broker's package: {error}", "pip install cursus-broker", "NO_BROKER") from error
    found = inspection.find(path, topic, partition)
    if not found:
        raise Failed(f"there are no such segments in {path}", "name a data directory, a topic's directory or a segment")
    if inspection.in_use(path):
        say("warning: a broker runs on this directory; what it writes now may look like a torn tail")
    damage: list[Damage] = []
    rows: list[SegmentSeen] = []
    entries = entries or records
    with _progress(found, shown=not entries) as note:
        for one in found:
            for seen in inspection.inspect(one):
                if isinstance(seen, inspection.EntrySeen):
                    note(seen)
                    if entries:
                        _show_entry(session, seen)
                    if records:
                        _show_records(session, one, seen)
                elif isinstance(seen, inspection.Damage):
                    damage.append(seen)
                    if session.json:
                        json_line(_damage_json(seen))
                else:
                    rows.append(seen)
                    if session.json:
                        json_line(_segment_json(seen))
    if session.json:
        json_line({"kind": "summary", "segments": len(rows), "records": _records(rows), "damage": len(damage)})
    else:
        _show_segments(rows)
        for bad in damage:
            click.echo(f"{click.style('torn tail' if bad.tail else 'DAMAGE', fg='red', bold=True)} {described(bad)}")
        size_bytes = sum(row.size_bytes for row in rows)
        verdict = plural(len(damage), "damaged place") if damage else "no damage"
        say(f"{plural(len(rows), 'segment')}, {plural(_records(rows), 'record')}, {size(size_bytes)}: {verdict}")
        if any(not bad.tail for bad in damage):
            say("docs/storage-format.md says how to give up a damaged end; restoring the file from a copy is better")
    return REFUSED if damage else 0


def described(bad: Damage) -> str:
    """Where it is, what it is, what it costs."""
    text = f"{bad.path}: byte {bad.position}, offset {bad.offset}: {bad.cause}"
    if bad.next_position is not None and bad.next_offset is not None:
        lost = bad.next_offset - bad.offset
        return (
            f"{text}; {plural(lost, 'record')} lost, sound again at byte {bad.next_position}, offset {bad.next_offset}"
        )
    if bad.tail:
        return f"{text}; nothing sound follows, a broker that starts cuts it off and sets it aside"
    return f"{text}; nothing sound follows in this file"


def _records(rows: list[SegmentSeen]) -> int:
    return sum(row.records for row in rows)


def _show_segments(rows: list[SegmentSeen]) -> None:
    table(
        [
            column("TOPIC"),
            *map(number, ("PARTITION", "SEGMENT", "BASE", "NEXT", "ENTRIES", "RECORDS", "SIZE")),
            column("INDEX"),
            column("LAST APPEND"),
        ],
        [
            [
                row.topic,
                row.partition,
                row.number,
                row.base_offset,
                row.next_offset,
                row.entries,
                row.records,
                size(row.size_bytes),
                row.index,
                None if row.last_ms is None else moment(row.last_ms),
            ]
            for row in rows
        ],
    )


def _show_entry(session: Session, seen: EntrySeen) -> None:
    header = seen.header
    if session.json:
        json_line(_entry_json(seen))
        return
    where = f"{seen.path.parent.name}/{seen.path.name} byte {seen.position}"
    offsets = f"offsets {header.base_offset}-{header.next_offset - 1}, {header.record_count} records"
    stored = f"{header.payload_bytes} bytes, codec {header.codec}, {moment(header.append_time_ms)}"
    producer = f", producer {header.producer_id.hex()} epoch {header.producer_epoch} sequence {header.first_sequence}"
    click.echo(f"{where}: {offsets}, {stored}{producer if header.producer_id else ''}")


def _show_records(session: Session, found: Partition, seen: EntrySeen) -> None:
    from cursus_grpc.cli import inspection

    try:
        for record in inspection.records_of(found, seen):
            if session.json:
                json_line({"kind": "record", **json_fields(record)})
            else:
                click.echo(b"  " + record_line(record), nl=False)
    except (CorruptBatch, BatchTooLarge) as error:
        # The bytes are those the producer sent, so the log is sound; it is consumers that cannot make sense of them.
        if session.json:
            json_line({"kind": "unreadable", "file": str(seen.path), "position": seen.position, "cause": str(error)})
        else:
            click.echo(f"  {error}")


def _entry_json(seen: EntrySeen) -> dict[str, object]:
    header = seen.header
    return {
        "kind": "entry",
        "file": str(seen.path),
        "position": seen.position,
        "base_offset": header.base_offset,
        "record_count": header.record_count,
        "append_time_ms": header.append_time_ms,
        "payload_bytes": header.payload_bytes,
        "payload_crc32c": f"{header.payload_crc:08x}",
        "codec": header.codec,
        "flags": header.flags,
        "producer_id": header.producer_id.hex(),
        "producer_epoch": header.producer_epoch,
        "first_sequence": header.first_sequence,
    }


def _damage_json(bad: Damage) -> dict[str, object]:
    return {
        "kind": "torn_tail" if bad.tail else "damage",
        "file": str(bad.path),
        "position": bad.position,
        "offset": bad.offset,
        "cause": bad.cause,
        "next_position": bad.next_position,
        "next_offset": bad.next_offset,
    }


def _segment_json(row: SegmentSeen) -> dict[str, object]:
    return {
        "kind": "segment",
        "topic": row.topic,
        "partition": row.partition,
        "segment": row.number,
        "file": str(row.path),
        "size_bytes": row.size_bytes,
        "base_offset": row.base_offset,
        "next_offset": row.next_offset,
        "entries": row.entries,
        "records": row.records,
        "index": row.index,
    }


class _Note:
    """Told of every entry; shows how far the walk has come."""

    def __init__(self, progress: Progress | None, total_bytes: int) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=total_bytes) if progress is not None else None

    def __call__(self, seen: EntrySeen) -> None:
        if self._progress is not None and self._task is not None:
            self._progress.advance(self._task, seen.header.payload_bytes)


@contextmanager
def _progress(found: list[Partition], *, shown: bool) -> Iterator[_Note]:
    if not shown or not sys.stderr.isatty():
        yield _Note(None, 0)
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    total = sum(one.segment(at).stat().st_size for one in found for at in one.numbers)
    with Progress(
        TextColumn("walking"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TimeRemainingColumn(),
        console=stderr_console(),
        transient=True,
    ) as progress:
        yield _Note(progress, total)
