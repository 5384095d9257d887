"""`cursus top`: rates, lag and sizes per topic, live."""

from __future__ import annotations

import sys
import time
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from cursus_grpc.cli.live import refreshed
from cursus_grpc.cli.output import Cell, column, drawn, duration, json_line, number, plain_lines, plural, size
from cursus_grpc.cli.session import Command, Session, pass_session
from cursus_grpc.cli.topics import retained
from cursus_grpc.errors import NotFound
from cursus_grpc.types import BrokerInfo

if TYPE_CHECKING:
    from rich.live import Live

    from cursus_grpc import Admin

_HEADS = [
    column("TOPIC"),
    *map(number, ("PARTS", "RECORDS", "SIZE", "IN/S", "IN BYTES/S", "OUT/S", "LAG")),
    column("SLOWEST GROUP"),
]
_SORTS = {"in": "in_per_s", "out": "out_per_s", "lag": "lag_records", "size": "size_bytes", "records": "records"}


@dataclass(frozen=True, slots=True)
class Sample:
    """What the broker said of a topic at one moment. `next_sum` and `committed_sum` only grow while nobody resets."""

    partitions: int
    records: int
    size_bytes: int
    next_sum: int
    committed_sum: int
    lag_records: int
    slowest_group: str


@dataclass(frozen=True, slots=True)
class Row:
    """A topic between two samples. Rates are None for the first one."""

    topic: str
    now: Sample
    in_per_s: float | None
    in_bytes_per_s: float | None
    out_per_s: float | None


def sample(admin: Admin) -> dict[str, Sample]:
    """Every topic. One that is deleted meanwhile is left out."""
    lags: dict[str, dict[str, int]] = {}
    committed: dict[str, int] = {}
    for summary in admin.list_groups():
        try:
            described = admin.describe_group(summary.name)
        except NotFound:
            continue
        for part in described.partitions:
            topic = part.partition.topic
            of_topic = lags.setdefault(topic, {})
            of_topic[summary.name] = of_topic.get(summary.name, 0) + part.lag_records
            committed[topic] = committed.get(topic, 0) + (part.committed_offset or 0)
    found: dict[str, Sample] = {}
    for info in admin.list_topics():
        try:
            parts = admin.describe_topic(info.name).partitions
        except NotFound:
            continue
        groups = lags.get(info.name, {})
        slowest = max(groups, key=lambda name: groups[name], default="")
        found[info.name] = Sample(
            len(parts),
            sum(map(retained, parts)),
            sum(part.size_bytes for part in parts),
            sum(part.next_offset for part in parts),
            committed.get(info.name, 0),
            groups.get(slowest, 0),
            slowest,
        )
    return found


def rows(before: dict[str, Sample], now: dict[str, Sample], seconds: float) -> list[Row]:
    """What happened between two samples. A topic that is new has no rates yet."""
    found = []
    for topic, sampled in now.items():
        earlier = before.get(topic)
        if earlier is None or seconds <= 0 or earlier.next_sum > sampled.next_sum:
            found.append(Row(topic, sampled, None, None, None))
            continue
        came_in = (sampled.next_sum - earlier.next_sum) / seconds
        # Retention makes a topic smaller while records come in; then the average record tells the bytes.
        grown = sampled.size_bytes - earlier.size_bytes
        average = sampled.size_bytes / sampled.records if sampled.records else 0.0
        in_bytes = grown / seconds if grown >= 0 else came_in * average
        went_out = max(0.0, (sampled.committed_sum - earlier.committed_sum) / seconds)
        found.append(Row(topic, sampled, came_in, in_bytes, went_out))
    return found


@click.command(cls=Command)
@click.option(
    "--interval",
    "-i",
    metavar="N",
    type=click.FloatRange(min=0.1),
    default=2.0,
    show_default=True,
    help="Seconds between two looks.",
)
@click.option(
    "--count",
    "-c",
    metavar="N",
    type=click.IntRange(min=1),
    help="Stop after this many looks. Default: at q or Ctrl-C.",
)
@click.option(
    "--sort", type=click.Choice(list(_SORTS)), default="in", show_default=True, help="What stands at the top."
)
@pass_session
def top(session: Session, interval: float, count: int | None, sort: str) -> None:
    """Show rates, lag and sizes of all topics, live.

    IN is what was published, OUT what groups have committed. Rates need two looks.
    """
    terminal = sys.stdout.isatty() and not session.json
    before: dict[str, Sample] = {}
    sampled_at = time.monotonic()
    with session.admin() as admin, _live() if terminal else nullcontext() as view:
        for _ in refreshed(interval, count):
            now, at = sample(admin), time.monotonic()
            shown = sorted(rows(before, now, at - sampled_at), key=lambda row: _weight(row, sort), reverse=True)
            before, sampled_at = now, at
            info = admin.broker_info()
            if session.json:
                json_line({"time_ms": info.now_ms, "topics": [_row_json(row) for row in shown]})
            elif view is not None:
                _draw(view, info, shown)
            else:
                click.echo("\n".join([head(info), *plain_lines(_HEADS, map(_cells, shown)), ""]))


def _live() -> Live:
    from rich.console import Console
    from rich.live import Live

    return Live(console=Console(highlight=False), auto_refresh=False)


def _draw(view: Live, info: BrokerInfo, shown: list[Row]) -> None:
    from rich.console import Group as Stack
    from rich.text import Text

    fitting = max(1, view.console.height - 7)
    more = f", {len(shown) - fitting} more topics below" if len(shown) > fitting else ""
    foot = Text(f"q ends{more}", style="dim")
    view.update(Stack(Text(head(info)), drawn(_HEADS, map(_cells, shown[:fitting])), foot), refresh=True)


def _weight(row: Row, sort: str) -> tuple[float, str]:
    name = _SORTS[sort]
    value = getattr(row, name, None) if name in ("in_per_s", "out_per_s") else getattr(row.now, name)
    return (value or 0.0, row.topic)


def head(info: BrokerInfo) -> str:
    """The broker in one line."""
    up_s = (info.now_ms - info.started_ms) / 1000
    held = f"{plural(info.topic_count, 'topic')}, {plural(info.partition_count, 'partition')}, {size(info.log_bytes)}"
    free = f"{size(info.disk_free_bytes)} of {size(info.disk_total_bytes)} free"
    return f"broker {info.broker_id}, version {info.version}, up {duration(up_s)}; {held} of log, {free}"


def _cells(row: Row) -> list[Cell]:
    return [
        row.topic,
        row.now.partitions,
        row.now.records,
        size(row.now.size_bytes),
        None if row.in_per_s is None else f"{row.in_per_s:,.0f}",
        None if row.in_bytes_per_s is None else size(row.in_bytes_per_s),
        None if row.out_per_s is None else f"{row.out_per_s:,.0f}",
        row.now.lag_records if row.now.slowest_group else None,
        row.now.slowest_group or None,
    ]


def _row_json(row: Row) -> dict[str, object]:
    return {
        "topic": row.topic,
        "partition_count": row.now.partitions,
        "records": row.now.records,
        "size_bytes": row.now.size_bytes,
        "in_per_s": row.in_per_s,
        "in_bytes_per_s": row.in_bytes_per_s,
        "out_per_s": row.out_per_s,
        "lag_records": row.now.lag_records,
        "slowest_group": row.now.slowest_group or None,
    }
