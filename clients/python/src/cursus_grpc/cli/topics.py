"""`cursus topic …`: make, look at, change and delete topics."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, Final

import click

from cursus_grpc import TopicConfig
from cursus_grpc.cli import completion
from cursus_grpc.cli.confirm import confirm
from cursus_grpc.cli.output import column, json_document, moment, number, plural, say, size, table
from cursus_grpc.cli.session import Group, Session, pass_session
from cursus_grpc.types import PartitionInfo, TopicDescription, TopicInfo

SETTINGS: Final = tuple(field.name for field in fields(TopicConfig) if field.name != "labels")
"""The settings of a topic, by the names the client and the broker have for them."""

_TRUE: Final = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
_UNITS: Final = {
    "_ms": {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000},
    "_bytes": {"b": 1, "k": 2**10, "kib": 2**10, "m": 2**20, "mib": 2**20, "g": 2**30, "gib": 2**30},
}


class Assignment(click.ParamType[tuple[str, str]]):
    """NAME=VALUE."""

    name = "NAME=VALUE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        name, equals, rest = value.partition("=")
        if not equals or not name:
            self.fail(f"{value!r} is not NAME=VALUE", param, ctx)
        return name, rest


def config_of(settings: tuple[tuple[str, str], ...], labels: tuple[tuple[str, str], ...]) -> TopicConfig:
    """What `--set` and `--label` say. Raises click.UsageError."""
    config = TopicConfig(labels=dict(labels))
    for name, text in settings:
        if name not in SETTINGS:
            raise click.UsageError(f"there is no topic setting {name!r}; there are {', '.join(SETTINGS)}")
        value: Any = _switch(name, text) if name == "content_deduplication" else quantity(name, text)
        config = replace(config, **{name: value})
    return config


def quantity(name: str, text: str) -> int:
    """A number, with a unit that suits the setting's name: 7d for `…_ms`, 64MiB for `…_bytes`. Raises UsageError.

    >>> quantity("retention_ms", "7d"), quantity("segment_bytes", "64MiB"), quantity("retention_bytes", "-1")
    (604800000, 67108864, -1)
    """
    units = next((units for suffix, units in _UNITS.items() if name.endswith(suffix)), {})
    digits = text.rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
    unit = text[len(digits) :].lower()
    try:
        return int(digits) * (units[unit] if unit else 1)
    except (ValueError, KeyError):
        known = f", perhaps with one of {', '.join(units)}" if units else ""
        raise click.UsageError(f"{name} is a whole number{known}, not {text!r}") from None


def _switch(name: str, text: str) -> bool:
    found = _TRUE.get(text.lower())
    if found is None:
        raise click.UsageError(f"{name} is true or false, not {text!r}")
    return found


_set = click.option(
    "--set", "settings", type=Assignment(), multiple=True, help=f"A setting: {', '.join(SETTINGS)}. May be repeated."
)
_label = click.option("--label", "labels", type=Assignment(), multiple=True, help="A note. May be repeated.")
_name = click.argument("name", shell_complete=completion.topics)


@click.group(cls=Group)
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
    """Show a topic's settings and the state of its partitions."""
    with session.admin() as admin:
        found = admin.describe_topic(name)
    if session.json:
        json_document(_description_json(found))
        return
    info = found.topic
    lines = [("topic", info.name), ("id", info.topic_id), ("created", moment(info.created_ms))]
    lines += [(key, str(value)) for key, value in _config_json(info.config).items() if key != "labels"]
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
    return {
        **_topic_json(found.topic),
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
