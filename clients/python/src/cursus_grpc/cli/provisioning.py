"""`cursus topic apply`: topics as a file says they should be. What is missing is made, what differs is changed, and
what the file does not name is left alone. Run twice, the second run changes nothing.

The file is a JSON list, or an object whose `topics` is one:

    [{"name": "orders", "partitions": 4, "settings": {"retention_ms": "7d"}, "labels": {"team": "kitchen"}}]
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import IO, TYPE_CHECKING, Any, Final

import click

from cursus_grpc.cli.failures import Failed
from cursus_grpc.cli.output import json_document, plural, say
from cursus_grpc.cli.session import Command, Session, pass_session
from cursus_grpc.cli.topic_settings import config_of
from cursus_grpc.errors import CursusError
from cursus_grpc.types import TopicConfig, TopicInfo

if TYPE_CHECKING:
    from cursus_grpc import Admin

_KEYS: Final = ("name", "partitions", "settings", "labels")
_PAUSE_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Wanted:
    """One topic of the file. `partitions` None leaves the number to the broker, or as it is."""

    name: str
    partitions: int | None
    config: TopicConfig


@dataclass(frozen=True, slots=True)
class Change:
    """What `apply` did about one topic, in the word a program reads and the sentence for a person."""

    name: str
    outcome: str
    told: str


def read_topics(text: str) -> list[Wanted]:
    """The topics of a file. Raises click.UsageError with everything that is wrong with it."""
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise click.UsageError(f"the file is not JSON: {error}") from None
    items = content.get("topics") if isinstance(content, dict) else content
    if not isinstance(items, list):
        raise click.UsageError('the file is a JSON list of topics, or an object {"topics": […]}')
    wanted: list[Wanted] = []
    problems: list[str] = []
    for place, item in enumerate(items, 1):
        try:
            wanted.append(_read_topic(item))
        except click.UsageError as error:
            problems.append(f"topic {place}: {error.message}")
    names = [one.name for one in wanted]
    problems += [f"{name} is named twice" for name in sorted({name for name in names if names.count(name) > 1})]
    if problems:
        raise click.UsageError("; ".join(problems))
    return wanted


def _read_topic(item: Any) -> Wanted:
    if not isinstance(item, dict):
        raise click.UsageError(f"an object with a name is needed, not {item!r}")
    if unknown := [key for key in item if key not in _KEYS]:
        raise click.UsageError(f"there is no {', '.join(map(repr, unknown))}; there are {', '.join(_KEYS)}")
    name, partitions = item.get("name"), item.get("partitions")
    if not isinstance(name, str) or not name:
        raise click.UsageError(f"name is text, not {name!r}")
    if partitions is not None and (not isinstance(partitions, int) or isinstance(partitions, bool) or partitions < 1):
        raise click.UsageError(f"partitions is a whole number from 1, not {partitions!r}")
    return Wanted(name, partitions, config_of(_pairs(item, "settings"), _pairs(item, "labels")))


def _pairs(item: Mapping[str, Any], key: str) -> tuple[tuple[str, str], ...]:
    found = item.get(key) or {}
    if not isinstance(found, dict) or any(isinstance(value, (dict, list)) or value is None for value in found.values()):
        raise click.UsageError(f"{key} is an object of plain values, not {found!r}")
    # A float is how YAML tools write large integers.
    return tuple(
        (name, str(int(value)) if isinstance(value, float) and value.is_integer() else str(value))
        for name, value in found.items()
    )


def changed_settings(is_: TopicConfig, wanted: TopicConfig) -> list[str]:
    """The names of settings and labels that the file gives another value.

    >>> changed_settings(TopicConfig(retention_ms=5, segment_bytes=7), TopicConfig(retention_ms=6))
    ['retention_ms']
    """
    named = [field.name for field in fields(TopicConfig) if field.name != "labels"]
    found = [name for name in named if getattr(wanted, name) not in (None, getattr(is_, name))]
    return found + [f"label {name}" for name, value in wanted.labels.items() if is_.labels.get(name) != value]


def apply_topics(admin: Admin, wanted: list[Wanted]) -> list[Change]:
    """Make it so. Raises Failed before anything is changed if a topic would have to lose partitions."""
    there = {info.name: info for info in admin.list_topics()}
    shrinking = [
        f"{one.name} has {plural(there[one.name].partition_count, 'partition')} and cannot have {one.partitions}"
        for one in wanted
        if one.name in there and one.partitions is not None and one.partitions < there[one.name].partition_count
    ]
    if shrinking:
        raise Failed("; ".join(shrinking), "a topic never loses partitions; nothing was changed", "SHRINKING_TOPIC")
    return [_apply(admin, one, there.get(one.name)) for one in wanted]


def _apply(admin: Admin, one: Wanted, there: TopicInfo | None) -> Change:
    if there is None:
        made = admin.create_topic(one.name, one.partitions, one.config)
        return Change(one.name, "created", f"created, {plural(made.partition_count, 'partition')}")
    told: list[str] = []
    if one.partitions is not None and one.partitions > there.partition_count:
        admin.add_partitions(one.name, one.partitions)
        told.append(f"has {plural(one.partitions, 'partition')} now, it had {there.partition_count}")
    if changed := changed_settings(there.config, one.config):
        admin.update_topic(one.name, one.config, ())
        told.append(f"changed {', '.join(changed)}")
    return Change(one.name, "updated" if told else "unchanged", "; ".join(told) or "is as it should be")


def _reach(session: Session, wait_s: float) -> Admin:
    """The broker, as soon as there is one. Raises the last reason why there is none when the time is over."""
    ends_at = time.monotonic() + wait_s
    told = False
    while True:
        try:
            return session.admin()
        except CursusError as error:
            left_s = ends_at - time.monotonic()
            if not error.retriable or left_s <= 0:
                raise
            if not told:
                say(f"waiting for the broker, at most {wait_s:g} s: {error}")
                told = True
            time.sleep(min(_PAUSE_S, left_s))


@click.command(cls=Command, epilog="Example: cursus topic apply topics.json --wait 60")
@click.argument("file", type=click.File("r", encoding="utf-8"))
@click.option(
    "--wait", "wait_s", metavar="SECONDS", type=click.FloatRange(min=0), default=0.0, help="Wait for the broker; 0."
)
@pass_session
def apply(session: Session, file: IO[str], wait_s: float) -> None:
    """Create and change topics until they are as a JSON FILE says; - reads stdin.

    Each topic has a name and may have partitions, settings and labels. Topics and settings that the file does not name
    stay as they are; nothing is ever deleted.
    """
    try:
        wanted = read_topics(file.read())
    except UnicodeDecodeError:
        raise click.UsageError("the file is not UTF-8") from None
    with _reach(session, wait_s) as admin:
        changes = apply_topics(admin, wanted)
    if session.json:
        json_document([{"name": change.name, "outcome": change.outcome} for change in changes])
        return
    for change in changes:
        say(f"topic {change.name} {change.told}")
