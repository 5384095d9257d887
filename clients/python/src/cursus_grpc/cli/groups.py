"""`cursus group …`: look at consumer groups, move them, delete them."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from cursus_grpc.cli import completion, places, resets
from cursus_grpc.cli.confirm import confirm
from cursus_grpc.cli.failures import HINTS, Failed
from cursus_grpc.cli.live import refreshed
from cursus_grpc.cli.output import (
    Cell,
    Column,
    column,
    drawn,
    duration,
    json_document,
    json_line,
    moment,
    number,
    plural,
    say,
    table,
)
from cursus_grpc.cli.place_type import PlaceType
from cursus_grpc.cli.session import Group, Session, pass_session
from cursus_grpc.types import GroupDescription, GroupMember, OffsetChange

if TYPE_CHECKING:
    from cursus_grpc import Admin

_LAG: Final[Sequence[Column]] = (
    column("TOPIC"),
    *map(number, ("PARTITION", "COMMITTED", "END", "LAG", "BEHIND")),
    column("MEMBER"),
)
_MOVED: Final = (
    "MOVED FROM is what was committed when power loss or damage cut the log below it; the group goes on from where the"
    " log ended then"
)


@click.group(cls=Group)
def group() -> None:
    """Look at consumer groups, move them, delete them."""


@group.command("list")
@pass_session
def list_groups(session: Session) -> None:
    """List all groups with their total lag."""
    with session.admin() as admin:
        found = [admin.describe_group(one.name) for one in admin.list_groups()]
    if session.json:
        json_document([_summary_json(one) for one in found])
        return
    table(
        [column("GROUP"), column("STATE"), *map(number, ("MEMBERS", "GENERATION", "LAG")), column("STRATEGY")],
        [
            [
                one.summary.name,
                one.summary.state,
                one.summary.member_count,
                one.summary.generation,
                total_lag(one),
                one.summary.strategy or "-",
            ]
            for one in found
        ],
    )


@group.command()
@click.argument("name", shell_complete=completion.groups)
@click.option("--watch", "-w", is_flag=True, help="Show it again and again until q or Ctrl-C.")
@click.option(
    "--interval",
    metavar="N",
    type=click.FloatRange(min=0.1),
    default=2.0,
    show_default=True,
    help="Seconds, for --watch.",
)
@pass_session
def describe(session: Session, name: str, watch: bool, interval: float) -> None:
    """Show a group's members and how far it has come in each partition."""
    with session.admin() as admin:
        if not watch:
            _show(session, admin.describe_group(name))
        elif session.json or not sys.stdout.isatty():
            for _ in refreshed(interval):
                json_line(_description_json(admin.describe_group(name)))
        else:
            _watch(admin, name, interval)


def _watch(admin: Admin, name: str, interval_s: float) -> None:
    from rich.console import Console
    from rich.console import Group as Stack
    from rich.live import Live
    from rich.text import Text

    with Live(console=Console(highlight=False), screen=False, auto_refresh=False) as live:
        for _ in refreshed(interval_s):
            found = admin.describe_group(name)
            head = Text(f"{time.strftime('%H:%M:%S')}  {_head(found)}")
            live.update(Stack(head, drawn(*_lag_table(found))), refresh=True)


def _show(session: Session, found: GroupDescription) -> None:
    if session.json:
        json_document(_description_json(found))
        return
    click.echo(_head(found))
    click.echo()
    table(*_lag_table(found))
    if is_moved(found):
        click.echo(_MOVED)
    if found.members:
        click.echo()
        table(
            [
                column("MEMBER"),
                column("CLIENT"),
                column("PEER"),
                column("TOPICS"),
                number("PARTITIONS"),
                column("INSTANCE"),
                column("JOINED"),
                column("LAST HEARTBEAT"),
            ],
            [
                [
                    member.member_id,
                    member.client_id,
                    member.peer,
                    ", ".join(member.topics) or f"/{member.topic_pattern}/",
                    len(member.partitions),
                    member.instance_id or None,
                    moment(member.joined_ms),
                    moment(member.last_heartbeat_ms),
                ]
                for member in found.members
            ],
        )


@group.command(
    epilog="\b\nExamples:\n"
    "  cursus group reset billing --to beginning\n"
    "  cursus group reset billing --to @-1h --topic orders --partition 3 --yes\n"
    "  cursus group describe billing -o json > saved.json\n"
    "  cursus group reset billing --file saved.json --yes",
)
@click.argument("name", shell_complete=completion.groups)
@click.option("--to", "to", type=PlaceType(), help=f"The place: {places.GRAMMAR}.")
@click.option("--like", metavar="GROUP", shell_complete=completion.groups, help="Where another group is.")
@click.option(
    "--file",
    "saved",
    type=click.Path(path_type=Path, allow_dash=True),
    help="What was saved: JSON of `group describe`, or lines of TOPIC PARTITION OFFSET.",
)
@click.option(
    "--topic",
    "-t",
    "topics",
    multiple=True,
    shell_complete=completion.topics,
    help="Only this one; may be repeated. Default: all the group has read.",
)
@click.option(
    "--partition",
    "-p",
    "partitions",
    metavar="N",
    type=click.IntRange(min=0),
    multiple=True,
    help="Only this one, of the one --topic; may be repeated.",
)
@click.option("--yes", "-y", is_flag=True, help="Do it without being asked.")
@pass_session
def reset(session: Session, /, name: str, **wanted: Any) -> None:
    """Move a group's committed offsets, after showing what would change.

    The group must not be reading the partitions. A group that does not exist is made.
    """
    yes: bool = wanted.pop("yes")
    plan = resets.Wanted(**wanted)
    with session.admin() as admin:
        targets = plan.targets(admin, name)
        changes = admin.reset_offsets(name, targets, dry_run=True)
        moved = sum(change.before != change.after for change in changes)
        if not session.json:
            table(
                [column("TOPIC"), *map(number, ("PARTITION", "NOW", "THEN", "MOVES"))],
                [_change_row(change) for change in changes],
            )
        elif not yes:
            json_document(_changes_json(name, changes, done=False))
        confirm(f"Move {moved} of {len(changes)} offsets of {name}?", yes=yes, ask=not session.json)
        # What was previewed, not what the place means by now: records keep coming.
        done = admin.reset_offsets(name, {change.partition: change.after for change in changes})
    if session.json:
        json_document(_changes_json(name, done, done=True))
    else:
        say(f"moved {moved} of {len(done)} offsets of {name}")


@group.command(
    "remove-member",
    epilog="\b\nExamples:\n"
    "  cursus group remove-member billing 3f2a90c1\n"
    "  cursus group remove-member billing --instance billing-2 --yes",
)
@click.argument("name", shell_complete=completion.groups)
@click.argument("member_ids", metavar="[MEMBER]...", nargs=-1, shell_complete=completion.members)
@click.option("--instance", "instances", metavar="ID", multiple=True, help="A static member. May be repeated.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@pass_session
def remove_member(
    session: Session, name: str, member_ids: tuple[str, ...], instances: tuple[str, ...], yes: bool
) -> None:
    """Make members leave a group: one that hangs, or a static one that will not come back.

    Its partitions go to the others at once. A member that still runs joins again by itself.
    """
    if not member_ids and not instances:
        raise click.UsageError("name a member by its id, or with --instance; `cursus group describe` shows both")
    with session.admin() as admin:
        members = {member.member_id: member for member in admin.describe_group(name).members}
        static = {member.instance_id: member for member in members.values() if member.instance_id}
        for known, wanted, what in ((members, member_ids, "member"), (static, instances, "static member")):
            for one in wanted:
                if one not in known:
                    raise Failed(f"group {name} has no {what} {one}", HINTS["MEMBER_NOT_FOUND"], "MEMBER_NOT_FOUND")
        leaving = {one.member_id: one for one in (*map(members.get, member_ids), *map(static.get, instances)) if one}
        for member in leaving.values():
            instance = f", instance {member.instance_id}" if member.instance_id else ""
            say(f"{member.member_id}{instance}: {member.client_id} at {member.peer}, {_owned(member)}")
        confirm(f"Remove from {name}?", yes=yes)
        for member in leaving.values():
            admin.remove_member(name, member_id=member.member_id)
    if session.json:
        json_document({"group": name, "removed": list(leaving)})
    else:
        say(f"removed {', '.join(leaving)} from {name}")


def _owned(member: GroupMember) -> str:
    return plural(len(member.partitions), "partition")


@group.command()
@click.argument("names", nargs=-1, required=True, shell_complete=completion.groups)
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@pass_session
def delete(session: Session, names: tuple[str, ...], yes: bool) -> None:
    """Delete groups and what they have committed."""
    with session.admin() as admin:
        for name in names:
            say(_head(admin.describe_group(name)))
        confirm("Delete for good?", yes=yes)
        for name in names:
            admin.delete_group(name)
    if session.json:
        json_document({"deleted": list(names)})
    else:
        say(f"deleted {', '.join(names)}")


def total_lag(found: GroupDescription) -> int:
    """Records between what is committed and the ends of the partitions, over all of them."""
    return sum(part.lag_records for part in found.partitions)


def _head(found: GroupDescription) -> str:
    one = found.summary
    state = f"{one.state}, {plural(one.member_count, 'member')}, generation {one.generation}, {one.strategy or '-'}"
    return f"group {one.name}: {state}, lag {total_lag(found):,} in {plural(len(found.partitions), 'partition')}"


def is_moved(found: GroupDescription) -> bool:
    """Whether a cut of a log has moved one of the group's offsets."""
    return any(part.truncated_from is not None for part in found.partitions)


def _lag_table(found: GroupDescription) -> tuple[Sequence[Column], Iterable[list[Cell]]]:
    rows = _lag_rows(found)
    if not is_moved(found):
        return _LAG, rows
    columns = (*_LAG[:-1], number("MOVED FROM"), _LAG[-1])
    moved = [[*row[:-1], part.truncated_from, row[-1]] for row, part in zip(rows, found.partitions, strict=True)]
    return columns, moved


def _lag_rows(found: GroupDescription) -> list[list[Cell]]:
    return [
        [
            part.partition.topic,
            part.partition.partition,
            part.committed_offset,
            part.next_offset,
            part.lag_records,
            duration(part.lag_seconds) if part.lag_records else None,
            part.member_id or None,
        ]
        for part in found.partitions
    ]


def _change_row(change: OffsetChange) -> list[Cell]:
    moves = None if change.before is None else f"{change.after - change.before:+,}".replace("+0", "0")
    return [change.partition.topic, change.partition.partition, change.before, change.after, moves]


def _changes_json(name: str, changes: Iterable[OffsetChange], *, done: bool) -> dict[str, object]:
    return {
        "group": name,
        "done": done,
        "changes": [
            {
                "topic": change.partition.topic,
                "partition": change.partition.partition,
                "before": change.before,
                "after": change.after,
            }
            for change in changes
        ],
    }


def _summary_json(found: GroupDescription) -> dict[str, object]:
    one = found.summary
    return {
        "group": one.name,
        "state": one.state,
        "member_count": one.member_count,
        "generation": one.generation,
        "strategy": one.strategy,
        "lag_records": total_lag(found),
    }


def _description_json(found: GroupDescription) -> dict[str, object]:
    return {
        **_summary_json(found),
        "partitions": [
            {
                "topic": part.partition.topic,
                "partition": part.partition.partition,
                "committed_offset": part.committed_offset,
                "truncated_from": part.truncated_from,
                "earliest_offset": part.earliest_offset,
                "next_offset": part.next_offset,
                "lag_records": part.lag_records,
                "lag_seconds": part.lag_seconds,
                "member_id": part.member_id,
                "metadata": part.metadata,
            }
            for part in found.partitions
        ],
        "members": [
            {
                "member_id": member.member_id,
                "instance_id": member.instance_id,
                "client_id": member.client_id,
                "peer": member.peer,
                "topics": list(member.topics),
                "topic_pattern": member.topic_pattern,
                "partitions": [{"topic": place.topic, "partition": place.partition} for place in member.partitions],
                "joined_ms": member.joined_ms,
                "last_heartbeat_ms": member.last_heartbeat_ms,
            }
            for member in found.members
        ],
    }
