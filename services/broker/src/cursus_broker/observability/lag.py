"""How old the oldest record is that a group has still to read: lag as a person feels it.

The age of a record is in its batch's header, in memory for the newest records and on disk for the rest. So it is looked
up beside the scrapes, in slices, with a bound on what is read from disk in one round; a scrape only subtracts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from cursus_broker.errors import CursusError
from cursus_broker.groups.coordinator import GroupCoordinator
from cursus_broker.groups.views import OffsetView
from cursus_broker.log.api import Offset
from cursus_broker.metadata.model import TopicPartition
from cursus_broker.pace import Pace
from cursus_broker.topics.catalog import Catalog
from cursus_broker.topics.partition import Partition

LOOKUPS_A_ROUND: Final = 256
"""Headers read from disk in one round, each in a thread. A place beyond them keeps the age it had, which is that of a
record read since, so it errs towards too old; those that have waited longest come first."""


class _Place(NamedTuple):
    group: str
    place: TopicPartition


class _Found(NamedTuple):
    """The record a group reads next, and when it was appended."""

    offset: Offset
    leader_epoch: int  # another one has other records at the same offsets
    append_time_ms: int
    round: int


class LagAges:
    """The ages, as of the last round of looking."""

    def __init__(self, catalog: Catalog, coordinator: GroupCoordinator, clock: Callable[[], float] = time.time) -> None:
        self._catalog = catalog
        self._coordinator = coordinator
        self._clock = clock
        self._round = 0
        self._found: dict[_Place, _Found] = {}
        self._oldest_ms: dict[tuple[str, str], int | None] = {}

    def seconds(self) -> Iterator[tuple[tuple[str, str], float]]:
        """Group and topic with the age of the oldest record it has still to read there, 0 if it has read all."""
        now = self._clock()
        for key, oldest_ms in self._oldest_ms.items():
            yield key, 0.0 if oldest_ms is None else max(0.0, now - oldest_ms / 1000)

    async def look(self) -> None:
        """Look at every place of every group once."""
        self._round += 1
        pace = Pace()
        found: dict[_Place, _Found] = {}
        oldest_ms: dict[tuple[str, str], int | None] = {}
        on_disk: list[tuple[_Place, Partition, Offset]] = []
        for summary in self._coordinator.list_groups():
            try:
                offsets = self._coordinator.describe(summary.name).offsets
            except CursusError:
                continue  # deleted meanwhile
            for place, view in offsets.items():
                await pace.took()
                oldest_ms.setdefault((summary.name, place.topic), None)
                if not view.lag_records:
                    continue
                key = _Place(summary.name, place)
                try:
                    partition = self._catalog.partition(*place)
                except CursusError:
                    continue  # deleted meanwhile
                offset = _next_to_read(view)
                known = self._found.get(key)
                if known is not None and (known.offset, known.leader_epoch) == (offset, partition.leader_epoch):
                    found[key] = known._replace(round=self._round)
                elif (append_time_ms := _in_memory(partition, offset)) is not None:
                    found[key] = _Found(offset, partition.leader_epoch, append_time_ms, self._round)
                else:
                    on_disk.append((key, partition, offset))
                    if known is not None and known.leader_epoch == partition.leader_epoch:
                        found[key] = known
        on_disk.sort(key=lambda one: found[one[0]].round if one[0] in found else 0)
        for key, partition, offset in on_disk[:LOOKUPS_A_ROUND]:
            try:
                header = await partition.log.header_at(offset)
            except CursusError:
                continue  # trimmed or closed meanwhile, or damaged, which its readers are told
            if header is not None:
                found[key] = _Found(offset, partition.leader_epoch, header.append_time_ms, self._round)
        for (group, place), one in found.items():
            await pace.took()
            known_ms = oldest_ms[group, place.topic]
            oldest_ms[group, place.topic] = (
                one.append_time_ms if known_ms is None else min(known_ms, one.append_time_ms)
            )
        self._found, self._oldest_ms = found, oldest_ms


def _next_to_read(view: OffsetView) -> Offset:
    committed = view.committed.next_offset if view.committed else 0
    return Offset(max(committed, view.earliest_offset))


def _in_memory(partition: Partition, offset: Offset) -> int | None:
    entries = partition.tail.read(offset, 1)
    return entries[0].header.append_time_ms if entries else None
