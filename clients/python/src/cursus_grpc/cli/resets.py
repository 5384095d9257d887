"""Where `cursus group reset` moves a group: a place, another group's offsets, or a file's."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cursus_grpc.cli import places
from cursus_grpc.cli.failures import Failed
from cursus_grpc.types import Place, TopicPartition

if TYPE_CHECKING:
    from cursus_grpc import Admin


@dataclass(frozen=True, slots=True)
class Wanted:
    """What was asked for. Raises click.UsageError where that contradicts itself."""

    to: places.WrittenPlace | None
    like: str | None
    saved: Path | None
    topics: tuple[str, ...]
    partitions: tuple[int, ...]

    def __post_init__(self) -> None:
        if sum(one is not None for one in (self.to, self.like, self.saved)) != 1:
            raise click.UsageError("say where to: one of --to, --like and --file")
        if self.partitions and len(self.topics) != 1:
            raise click.UsageError("--partition needs the one --topic it belongs to")

    def targets(self, admin: Admin, group: str) -> dict[str | TopicPartition, Place]:
        """An offset for every partition to move. Raises Failed if there is none, TopicNotFound and the like."""
        if self.to is not None:
            found = self._by_place(admin, group, self.to)
        elif self.like is not None:
            found = self._limited(committed(admin, self.like))
            if not found:
                raise Failed(f"group {self.like} has committed nothing here", "`cursus group list` shows the groups")
        else:
            assert self.saved is not None
            found = self._limited(read_saved(self.saved))
            if not found:
                raise Failed(f"{self.saved} holds no offsets of these partitions")
        return dict(found)

    def _by_place(self, admin: Admin, group: str, place: places.WrittenPlace) -> dict[TopicPartition, int]:
        wanted: dict[str, set[int]] = {topic: set(self.partitions) for topic in self.topics}
        if not wanted:
            for topic, partition in committed(admin, group):
                wanted.setdefault(topic, set()).add(partition)
        if not wanted:
            raise Failed(f"group {group} has committed nothing yet", "name what to set with --topic")
        return {
            TopicPartition(topic, partition): offset
            for topic, partitions in sorted(wanted.items())
            for partition, offset in places.offsets(admin, topic, place, sorted(partitions)).items()
        }

    def _limited(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Those of the topics and partitions asked for."""
        return {
            place: offset
            for place, offset in sorted(offsets.items())
            if (not self.topics or place.topic in self.topics)
            and (not self.partitions or place.partition in self.partitions)
        }


def committed(admin: Admin, group: str) -> dict[TopicPartition, int]:
    """What a group has committed."""
    return {place: one.offset for place, one in admin.fetch_offsets(group).items() if one.offset is not None}


def read_saved(path: Path) -> dict[TopicPartition, int]:
    """The offsets in a file, `-` for stdin. Raises Failed naming the line."""
    text = sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
    return _from_json(text, path) if text.lstrip().startswith("{") else _from_lines(text, path)


def _from_json(text: str, path: Path) -> dict[TopicPartition, int]:
    """As `group describe --output json` prints it; partitions without a committed offset are left out."""
    try:
        return {
            TopicPartition(str(part["topic"]), int(part["partition"])): int(part["committed_offset"])
            for part in json.loads(text)["partitions"]
            if part["committed_offset"] is not None
        }
    except (ValueError, KeyError, TypeError) as error:
        raise Failed(f"{path} is not what `cursus group describe --output json` prints: {error!r}") from error


def _from_lines(text: str, path: Path) -> dict[TopicPartition, int]:
    """TOPIC PARTITION OFFSET, separated by blanks or commas; `#` begins a comment."""
    found: dict[TopicPartition, int] = {}
    for at, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].replace(",", " ").split()
        if not words:
            continue
        try:
            topic, partition, offset = words
            found[TopicPartition(topic, int(partition))] = int(offset)
        except ValueError:
            raise Failed(f"{path}, line {at}: it is TOPIC PARTITION OFFSET, not {line.strip()!r}") from None
    return found
