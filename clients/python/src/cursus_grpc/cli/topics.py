"""`cursus topic …`: make, look at, change and delete topics."""

from __future__ import annotations

from collections.abc import Mapping

import click

from cursus_grpc.cli import completion, places
from cursus_grpc.cli.confirm import confirm
from cursus_grpc.cli.output import column, duration, json_document, moment, number, plural, say, size, table
from cursus_grpc.cli.place_type import PlaceType
from cursus_grpc.cli.session import Later, LaterGroup, Session, pass_session
from cursus_grpc.cli.topic_settings import SETTINGS, Assignment, config_of
from cursus_grpc.types import BEGINNING, PartitionInfo, TopicConfig, TopicDescription, TopicInfo

_set = click.option(
    "--set", "settings", type=Assignment(), multiple=True, help=f"A setting: {', '.join(SETTINGS)}. May be repeated."
)
_label = click.option("--label", "labels", type=Assignment(), multiple=True, help="A note. May be repeated.")
_name = click.argument("name", shell_complete=completion.topics)


@click.group(
    cls=LaterGroup,
    later={
        "apply": Later(
            "cursus_grpc.cli.provisioning:apply",
            "Create and change topics until they are as a JSON FILE says; - reads stdin.",
        )
    },
)
def topic() -> None:
    """Make, look at, change and delete topics."""


@topic.command(epilog="Example: cursus topic create orders --partitions 4 --set retention_ms=7d")
@click.argument("name")
@click.option(
    "--partitions", "-p", metavar="N", type=click.IntRange(min=1), help="How many. Default: the broker's setting."
)
@_set
@_label
@click.option("--if-not-exists", is_flag=True, help="A topic of this name that is there already is fine.")
@pass_session
def create(
    session: Session,
    name: str,
    partitions: int | None,
    settings: tuple[tuple[str, str], ...],
    labels: tuple[tuple[str, str], ...],
    if_not_exists: bool,
) -> None:
    """Create a topic."""
    config = config_of(settings, labels)
    with session.admin() as admin:
        existing = next((one for one in admin.list_topics() if one.name == name), None) if if_not_exists else None
        made = existing or admin.create_topic(name, partitions, config)
    if session.json:
        json_document(_topic_json(made))
    else:
        what = "exists already" if existing else "created"
        say(f"topic {name} {what}, {plural(made.partition_count, 'partition')}")


@topic.command("list")
@pass_session
def list_topics(session: Session) -> None:
    """List all topics with their sizes."""
    with session.admin() as admin:
        found = [admin.describe_topic(one.name) for one in admin.list_topics()]
    if session.json:
        json_document([_description_json(one) for one in found])
        return
    table(
        [column("TOPIC"), number("PARTITIONS"), number("RECORDS"), number("SIZE"), column("CREATED")],
        [
            [
                one.topic.name,
                one.topic.partition_count,
                sum(map(retained, one.partitions)),
                size(sum(part.size_bytes for part in one.partitions)),
                moment(one.topic.created_ms),
            ]
            for one in found
        ],
    )


@topic.command()
@_name
@pass_session
def describe(session: Session, name: str) -> None:
    """Show a topic's settings, those it takes from the broker included, and the state of its partitions."""
    with session.admin() as admin:
        found = admin.describe_topic(name)
    if session.json:
        json_document(_description_json(found))
        return
    info = found.topic
    lines = [("topic", info.name), ("id", info.topic_id), ("created", moment(info.created_ms))]
    lines += _setting_lines(found)
    lines += [(f"label {key}", value) for key, value in info.config.labels.items()]
    width = max(len(key) for key, _ in lines)
    click.echo("\n".join(f"{key:<{width}}  {value}" for key, value in lines))
    click.echo()
    damaged = any(part.damage for part in found.partitions)
    heads = [
        *map(number, ("PARTITION", "EARLIEST", "NEXT", "SYNCED", "RECORDS", "SIZE", "SEGMENTS")),
        *([column("DAMAGE")] if damaged else []),
    ]
    table(
        heads,
        [
            [
                part.partition,
                part.earliest_offset,
                part.next_offset,
                part.synced_offset,
                retained(part),
                size(part.size_bytes),
                part.segment_count,
                *([part.damage] if damaged else []),
            ]
            for part in found.partitions
        ],
    )


@topic.command(epilog="Example: cursus topic update orders --set retention_bytes=1GiB --reset segment_ms")
@_name
@_set
@_label
@click.option(
    "--reset", multiple=True, type=click.Choice(SETTINGS), help="Back to the broker's default. May be repeated."
)
@pass_session
def update(
    session: Session,
    name: str,
    settings: tuple[tuple[str, str], ...],
    labels: tuple[tuple[str, str], ...],
    reset: tuple[str, ...],
) -> None:
    """Change a topic's settings. `--label NAME=` removes a label."""
    if not (settings or labels or reset):
        raise click.UsageError("nothing to change; give --set, --reset or --label")
    with session.admin() as admin:
        updated = admin.update_topic(name, config_of(settings, labels), reset)
    if session.json:
        json_document(_topic_json(updated))
        return
    said = ", ".join(f"{key}={value}" for key, value in _config_json(updated.config).items())
    say(f"topic {name} updated: {said or 'all settings are the defaults of the broker'}")


@topic.command("add-partitions")
@_name
@click.argument("partitions", type=click.IntRange(min=1))
@pass_session
def add_partitions(session: Session, name: str, partitions: int) -> None:
    """Raise a topic's number of partitions to PARTITIONS.

    Keys spread anew: records of one key that are published afterwards may go to another partition than those before.
    """
    with session.admin() as admin:
        updated = admin.add_partitions(name, partitions)
    if session.json:
        json_document(_topic_json(updated))
    else:
        say(f"topic {name} has {plural(updated.partition_count, 'partition')} now")


@topic.command()
@click.argument("names", nargs=-1, required=True, shell_complete=completion.topics)
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@pass_session
def delete(session: Session, names: tuple[str, ...], yes: bool) -> None:
    """Delete topics with all their records and what groups have committed for them."""
    with session.admin() as admin:
        doomed = [admin.describe_topic(name) for name in names]
        for one in doomed:
            records = sum(map(retained, one.partitions))
            say(f"{one.topic.name}: {plural(one.topic.partition_count, 'partition')}, {plural(records, 'record')}")
        confirm("Delete for good?", yes=yes)
        for one in doomed:
            admin.delete_topic(one.topic.name)
    if session.json:
        json_document({"deleted": list(names)})
    else:
        say(f"deleted {', '.join(names)}")


@topic.command(
    "trim-prefix",
    epilog="\b\nExamples:\n"
    "  cursus topic trim-prefix orders --before @-1d\n"
    "  cursus topic trim-prefix orders --before 5000 --partition 3 --yes",
)
@_name
@click.option("--before", type=PlaceType(), required=True, help=f"The first place to keep: {places.GRAMMAR}.")
@click.option(
    "--partition", "-p", "partitions", metavar="N", type=click.IntRange(min=0), multiple=True, help="May be repeated."
)
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@pass_session
def trim_prefix(
    session: Session, name: str, before: places.WrittenPlace, partitions: tuple[int, ...], yes: bool
) -> None:
    """Delete the oldest records of a topic, after showing what would go.

    Records cannot be read any more from then on; the disk is freed by whole segments.
    """
    with session.admin() as admin:
        wanted = places.starts(admin, name, before, partitions)
        listed = admin.list_offsets(name, BEGINNING, partitions)
        doomed = {at: max(0, wanted[at] - listed[at].earliest_offset) for at in sorted(wanted)}
        if not session.json:
            table(
                [*map(number, ("PARTITION", "EARLIEST", "THEN", "NEXT", "RECORDS TO DELETE"))],
                [[at, listed[at].earliest_offset, wanted[at], listed[at].next_offset, doomed[at]] for at in doomed],
            )
        elif not yes:
            json_document(_trim_json(name, doomed, {at: one.earliest_offset for at, one in listed.items()}, done=False))
        records = plural(sum(doomed.values()), "record")
        confirm(f"Delete {records} of {name} for good?", yes=yes, ask=not session.json)
        # What was previewed, not what the place means by now.
        left = admin.delete_records(name, {at: wanted[at] for at, count in doomed.items() if count})
    if session.json:
        json_document(_trim_json(name, doomed, {**{at: wanted[at] for at in doomed}, **left}, done=True))
    else:
        say(f"deleted {records} of {name}")


def _trim_json(name: str, doomed: Mapping[int, int], earliest: Mapping[int, int], *, done: bool) -> dict[str, object]:
    return {
        "topic": name,
        "done": done,
        "partitions": [
            {"partition": at, "earliest_offset": earliest[at], "records": count} for at, count in doomed.items()
        ],
    }


def _setting_lines(found: TopicDescription) -> list[tuple[str, str]]:
    """Every setting with what it amounts to, and whose it is where it is not the topic's own."""
    lines = []
    for name in SETTINGS:
        own = getattr(found.topic.config, name)
        if own is not None:
            lines.append((name, _shown_setting(name, own)))
        elif found.effective_config is not None:
            lines.append((name, f"{_shown_setting(name, getattr(found.effective_config, name))} (default)"))
    return lines


def _shown_setting(name: str, value: int | bool | None) -> str:
    if value is None:
        return "no limit"
    if isinstance(value, bool):
        return "on" if value else "off"
    if value < 0:
        return f"{value}, no limit"
    if name.endswith("_ms"):
        return f"{value}, {duration(value / 1000)}" if value >= 1000 else str(value)
    return f"{value}, {size(value)}" if value >= 1024 else str(value)


def retained(part: PartitionInfo) -> int:
    """How many records the partition holds."""
    return part.next_offset - part.earliest_offset


def _config_json(config: TopicConfig) -> dict[str, object]:
    """What deviates from the broker's defaults."""
    said = {name: value for name in SETTINGS if (value := getattr(config, name)) is not None}
    return {**said, "labels": dict(config.labels)} if config.labels else said


def _topic_json(info: TopicInfo) -> dict[str, object]:
    return {
        "name": info.name,
        "topic_id": info.topic_id,
        "partition_count": info.partition_count,
        "created_ms": info.created_ms,
        "config": _config_json(info.config),
    }


def _description_json(found: TopicDescription) -> dict[str, object]:
    effective = found.effective_config
    return {
        **_topic_json(found.topic),
        # A setting that is null has no limit; without any the broker is too old to tell.
        "effective_config": None if effective is None else {name: getattr(effective, name) for name in SETTINGS},
        "partitions": [
            {
                "partition": part.partition,
                "earliest_offset": part.earliest_offset,
                "next_offset": part.next_offset,
                "synced_offset": part.synced_offset,
                "size_bytes": part.size_bytes,
                "segment_count": part.segment_count,
                "damage": part.damage,
            }
            for part in found.partitions
        ],
    }
