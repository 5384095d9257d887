"""Committed offsets above the end of their log: power loss or damage took records that a group had read.

They are moved back to the end before the partition is served, or the group would skip what is stored there next. What
was committed is kept beside the offset, so that it can be seen and restored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final

import structlog

from cursus_broker.errors import CursusError
from cursus_broker.groups.api import PartitionLog, Topics
from cursus_broker.groups.entry import GroupEntry, GroupTable
from cursus_broker.metadata.model import CommittedOffset, TopicPartition

log = structlog.get_logger(__name__)

MAX_LINES: Final = 100
"""Logged for one opening, a line for each group and topic; one more line counts the rest."""
_SHOWN: Final = 5  # partitions named in a line
_LOOKED_AT_ONCE: Final = 1_000  # offsets: about a millisecond of the event loop
_MOVED_AT_ONCE: Final = 10_000  # offsets: some tens of milliseconds of the store's thread
_GROUPS_AT_ONCE: Final = 1_000  # writes that the store takes into one transaction


@dataclass(slots=True)
class _Told:
    """What is to be said of one group and topic."""

    partitions: int = 0
    records: int = 0
    moved: list[str] = field(default_factory=list)


class Truncation:
    """Moves committed offsets back, and counts them."""

    def __init__(self, groups: GroupTable, topics: Topics) -> None:
        self._groups = groups
        self._topics = topics
        self.moved_offsets = 0

    async def partitions_opened(self, opened: Mapping[TopicPartition, PartitionLog] | None = None) -> None:
        """Move back what is committed above the end of these partitions, of all by default. To be called before they
        are served. One that could not be opened is left alone: nobody knows where it ends.

        Raises StorageFailed.
        """
        told: dict[tuple[str, str], _Told] = {}
        moves: dict[GroupEntry, dict[TopicPartition, CommittedOffset]] = {}
        looked = moved_offsets = 0
        for entry in tuple(self._groups):
            for place in tuple(entry.offsets.committed) if opened is None else opened:
                if (looked := looked + 1) % _LOOKED_AT_ONCE == 0:
                    await asyncio.sleep(0)
                committed = entry.offsets.committed.get(place)
                moved = None if committed is None else self._moved(place, committed, opened)
                if committed is None or moved is None:
                    continue
                moves.setdefault(entry, {})[place] = moved
                _note(told.setdefault((entry.group.name, place.topic), _Told()), place, committed, moved)
                moved_offsets += 1
                if moved_offsets % _MOVED_AT_ONCE == 0 or len(moves) == _GROUPS_AT_ONCE:
                    await _store(moves)
                    moves = {}
        await _store(moves)
        self.moved_offsets += moved_offsets
        _tell(told)

    def _moved(
        self,
        place: TopicPartition,
        committed: CommittedOffset,
        opened: Mapping[TopicPartition, PartitionLog] | None,
    ) -> CommittedOffset | None:
        """What is to stand there instead; None if it can stay."""
        try:
            partition = self._topics.partition(*place) if opened is None else opened[place]
        except CursusError:
            return None
        if committed.next_offset <= partition.next_offset:
            return None
        # After several cuts without a commit between them, what the group committed is still the first.
        first = committed.next_offset if committed.truncated_from is None else committed.truncated_from
        return replace(
            committed, next_offset=partition.next_offset, leader_epoch=partition.leader_epoch, truncated_from=first
        )


async def _store(moves: dict[GroupEntry, dict[TopicPartition, CommittedOffset]]) -> None:
    # Submitted in one step of the loop: the store puts them into one transaction.
    await asyncio.gather(*(entry.offsets.reset(of_group) for entry, of_group in moves.items()))


def _note(told: _Told, place: TopicPartition, before: CommittedOffset, after: CommittedOffset) -> None:
    told.partitions += 1
    told.records += before.next_offset - after.next_offset
    if len(told.moved) < _SHOWN:
        told.moved.append(f"{place.partition}: {before.next_offset} -> {after.next_offset}")


def _tell(told: dict[tuple[str, str], _Told]) -> None:
    for (group, topic), one in islice(told.items(), MAX_LINES):
        log.warning(
            "groups.offsets.truncated",
            group=group,
            topic=topic,
            partitions=one.partitions,
            records=one.records,
            moved=one.moved,
        )
    if len(told) > MAX_LINES:
        rest = list(islice(told.values(), MAX_LINES, None))
        log.warning(
            "groups.offsets.truncated_more",
            groups_and_topics=len(rest),
            partitions=sum(one.partitions for one in rest),
            records=sum(one.records for one in rest),
        )
