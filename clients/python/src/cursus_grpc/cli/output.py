"""What the command shows: tables for people, JSON for programs, talk on stderr.

On a terminal tables are drawn to fit it. Anywhere else they are plain columns of full width, because a pipe has none.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

import click

from cursus_grpc.cli.formats import printable

if TYPE_CHECKING:
    # At run time where something is drawn: a pipe needs nothing of it, and it takes longer to import than the rest.
    from rich.console import Console
    from rich.table import Table as RichTable

Cell = str | int | None
_MISSING: Final = "-"


@dataclass(frozen=True, slots=True)
class Column:
    """A column's head; numbers are `right`."""

    head: str
    right: bool = False


def column(head: str) -> Column:
    return Column(head)


def number(head: str) -> Column:
    return Column(head, right=True)


def json_document(value: object) -> None:
    """One JSON document on stdout."""
    _write_json(json.dumps(value, ensure_ascii=False, indent=2))


def json_line(value: object) -> None:
    """One line of a JSON stream on stdout, seen at once by whoever reads the pipe."""
    _write_json(json.dumps(value, ensure_ascii=False))


def _write_json(text: str) -> None:
    # Always UTF-8, as JSON is, whatever the terminal's encoding. A name may hold what UTF-8 cannot say.
    sys.stdout.buffer.write(text.encode("utf-8", "backslashreplace") + b"\n")
    sys.stdout.buffer.flush()


def table(columns: Sequence[Column], rows: Iterable[Sequence[Cell]], title: str = "") -> None:
    """A table on stdout."""
    if sys.stdout.isatty():
        from rich.console import Console

        Console(highlight=False).print(drawn(columns, rows, title))
        return
    if title:
        click.echo(title)
    for line in plain_lines(columns, rows):
        click.echo(line)


def drawn(columns: Sequence[Column], rows: Iterable[Sequence[Cell]], title: str = "") -> RichTable:
    """A table as a terminal shows it; also for live views."""
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    made = RichTable(
        title=Text(printable(title)) if title else None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False
    )
    for one in columns:
        made.add_column(one.head, justify="right" if one.right else "left", overflow="fold")
    for row in rows:
        made.add_row(*(Text(_shown(cell)) for cell in row))
    return made


def plain_lines(columns: Sequence[Column], rows: Iterable[Sequence[Cell]]) -> list[str]:
    """The table as plain lines: columns aligned, two spaces between them, nothing cut.

    >>> plain_lines([column("NAME"), number("N")], [["orders", 4], ["a", None]])
    ['NAME    N', 'orders  4', 'a       -']
    """
    cells = [[one.head for one in columns], *([_shown(cell) for cell in row] for row in rows)]
    widths = [max(len(row[at]) for row in cells) for at in range(len(columns))]
    return [
        "  ".join(
            text.rjust(width) if one.right else text.ljust(width)
            for text, width, one in zip(row, widths, columns, strict=True)
        ).rstrip()
        for row in cells
    ]


def _shown(cell: Cell) -> str:
    return _MISSING if cell is None else f"{cell:,}" if isinstance(cell, int) else printable(cell)


def say(text: str) -> None:
    """Something for the person in front of it, on stderr."""
    click.echo(text, err=True)


def stderr_console() -> Console:
    """For progress bars and live views of commands whose data goes to stdout."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def size(count: float) -> str:
    """Bytes in the unit that suits them.

    >>> size(512), size(1536), size(5 * 1024**3)
    ('512 B', '1.5 KiB', '5.0 GiB')
    """
    if abs(count) < 1024:
        return f"{count:.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        count /= 1024
        if abs(count) < 1024:
            return f"{count:.1f} {unit}"
    return f"{count / 1024:.1f} TiB"


def plural(count: int, noun: str) -> str:
    """A count with its noun.

    >>> plural(1, "record"), plural(2000, "record")
    ('1 record', '2,000 records')
    """
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def duration(seconds: float) -> str:
    """A time span in one or two units.

    >>> duration(0.25), duration(95), duration(7300), duration(200_000)
    ('0.2 s', '1m35s', '2h01m', '2d07h')
    """
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    whole = int(seconds)
    if whole < 3_600:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < 86_400:
        return f"{whole // 3_600}h{whole % 3_600 // 60:02}m"
    return f"{whole // 86_400}d{whole % 86_400 // 3_600:02}h"


def moment(time_ms: int) -> str:
    """A time as the user's clock shows it."""
    return datetime.fromtimestamp(time_ms / 1000).astimezone().isoformat(sep=" ", timespec="seconds")
