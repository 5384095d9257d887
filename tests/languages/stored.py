"""What a topic holds, and what an example has printed of it, in one form."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import NamedTuple

from tests.harness.clients import Client


class Line(NamedTuple):
    """A record as an example prints it."""

    partition: int
    offset: int
    key: str | None
    value: str | None


class Acknowledged(NamedTuple):
    """A batch as `publish` tells it."""

    partition: int
    offset: int
    records: int


async def stored(address: str, topic: str, partitions: int) -> list[Line]:
    """Every record of a topic, sorted."""
    async with Client.connect(address) as client:
        return [
            Line(
                partition,
                one.offset,
                one.record.key.decode() if one.record.HasField("key") else None,
                one.record.value.decode() if one.record.HasField("value") else None,
            )
            for partition in range(partitions)
            for one in await client.read_all(topic, partition)
        ]


def printed(lines: Iterable[str]) -> list[Line]:
    """The records an example has printed, in its order. The form of the lines is part of what they promise."""
    found = []
    for line in lines:
        assert re.match(r'^\{"partition":\d+,"offset":\d+,"key":.*,"value":.*\}$', line), line
        found.append(Line(**json.loads(line)))
    return found


def acknowledged(lines: Iterable[str]) -> list[Acknowledged]:
    """The batches `publish` has told."""
    found = []
    for line in lines:
        match = re.fullmatch(r"partition=(\d+) offset=(\d+) count=(\d+)", line)
        assert match, line
        found.append(Acknowledged(*map(int, match.groups())))
    return found


def covered(batches: Iterable[Acknowledged]) -> list[tuple[int, int]]:
    """Partition and offset of every acknowledged record, sorted."""
    return sorted((batch.partition, batch.offset + index) for batch in batches for index in range(batch.records))
