"""Saving what partitions know of their producers, so that a start need not read all headers of all logs.

Only producers that have changed are saved, each as it is when its turn comes. Nothing is saved before the log is synced
behind it: a ledger must never describe batches that power loss takes back.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

import structlog

from cursus_broker.errors import CursusError
from cursus_broker.log.api import Offset
from cursus_broker.metadata.model import LedgerChange, LedgerReach, StoredProducer, TopicPartition
from cursus_broker.metadata.store import MetadataStore
from cursus_broker.pace import Pace
from cursus_broker.topics.partition import Partition

log = structlog.get_logger(__name__)

# Partitions that are saved side by side, and producers at which no further partition joins them: their logs share
# syncs, their rows share transactions, and what is in memory for them stays below some 50 MB.
_PARTITIONS_AT_ONCE: Final = 1_000
_PRODUCERS_AT_ONCE: Final = 10_000

# Of one partition in one write, about 1 MB: other writes of the store wait for it.
_PRODUCERS_A_WRITE: Final = 500

# Steps of a slice that drafting one producer takes, and runs of sequences that take one more.
_DRAFT_STEPS: Final = 6
_RUNS_A_STEP: Final = 16

Due = tuple[UUID, Partition]
"""A partition to save, with its topic's id."""


@dataclass(slots=True)
class _Draft:
    """What is to be saved of one partition."""

    topic_id: UUID
    partition: Partition
    upto: Offset
    changed: set[bytes]
    producers: list[StoredProducer] = field(default_factory=list)
    forgotten: list[bytes] = field(default_factory=list)
    described: Offset = Offset(0)  # noqa: RUF009  # a number
    is_whole: bool = True
    is_saved: bool = False

    def changes(self) -> Iterator[LedgerChange]:
        """In parts. What is covered moves up with the last of them, and with it go those who were forgotten: before, a
        start would read their last headers and know them again without their beginning."""
        last = (len(self.producers) - 1) // _PRODUCERS_A_WRITE * _PRODUCERS_A_WRITE if self.producers else 0
        for at in range(0, last, _PRODUCERS_A_WRITE):
            yield LedgerChange(
                self.producers[at : at + _PRODUCERS_A_WRITE], (), self._reach(self.partition.ledger_upto)
            )
        yield LedgerChange(self.producers[last:], self.forgotten, self._reach(self.upto))

    def _reach(self, upto: Offset) -> LedgerReach:
        return LedgerReach(upto, self.described, self.is_whole)


class Ledgers:
    """Saves ledgers, for one caller at a time: saves of one partition must not overtake each other."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._saving = asyncio.Lock()

    async def save(self, due: Iterable[Due]) -> None:
        """Save these partitions. A failure is told in the log, and what was not saved will be the next time."""
        async with self._saving:
            waiting = deque(due)
            while waiting:
                drafts: list[_Draft] = []
                try:
                    await _draft_some(waiting, drafts)
                    await asyncio.gather(*(self._store_draft(one) for one in await _synced(drafts)))
                finally:
                    for draft in drafts:
                        if not draft.is_saved:
                            draft.partition.producers.put_back(draft.changed)

    async def _store_draft(self, draft: _Draft) -> None:
        partition = draft.partition
        try:
            for change in draft.changes():
                await self._store.put_ledger(TopicPartition(partition.topic, partition.id), draft.topic_id, change)
        except CursusError as error:
            _not_saved(draft, error)
        else:
            draft.is_saved = True
            partition.ledger_upto = draft.upto


async def _draft_some(waiting: deque[Due], drafts: list[_Draft]) -> None:
    """Take from those that wait as many as are saved side by side."""
    pace, producers = Pace(), 0
    while waiting and len(drafts) < _PARTITIONS_AT_ONCE and producers < _PRODUCERS_AT_ONCE:
        topic_id, partition = waiting.popleft()
        ledger = partition.producers
        draft = _Draft(topic_id, partition, partition.next_offset, ledger.take_changes())
        drafts.append(draft)
        partition.ledger_drafted()
        await pace.took()
        for producer_id in draft.changed:
            if (producer := ledger.get(producer_id)) is not None:
                draft.producers.append(producer.stored(producer_id))
                await pace.took(_DRAFT_STEPS + len(producer.seen) // _RUNS_A_STEP)
            elif (released := ledger.get_released(producer_id)) is not None:
                draft.producers.append(released.stored(producer_id))
                await pace.took()
            else:
                draft.forgotten.append(producer_id)
        # Read here, behind the last wait: nothing that was drafted lies behind it.
        draft.described, draft.is_whole = partition.next_offset, ledger.is_whole
        producers += len(draft.producers)


async def _synced(drafts: Sequence[_Draft]) -> list[_Draft]:
    """Those whose log survives power loss as far as they describe it."""
    synced: list[_Draft] = []
    syncing: list[tuple[_Draft, asyncio.Future[None]]] = []
    for draft in drafts:
        try:
            sync = draft.partition.sync_soon(draft.described)
        except CursusError as error:
            _not_saved(draft, error)
            continue
        if sync is None:
            synced.append(draft)
        else:
            syncing.append((draft, sync))
    outcomes = await asyncio.gather(*(sync for _, sync in syncing), return_exceptions=True)
    for (draft, _), outcome in zip(syncing, outcomes, strict=True):
        if isinstance(outcome, CursusError):
            _not_saved(draft, outcome)
        elif outcome is not None:
            raise outcome
        else:
            synced.append(draft)
    return synced


def _not_saved(draft: _Draft, error: CursusError) -> None:
    partition = draft.partition
    log.warning("ledger.not_saved", topic=partition.topic, partition=partition.id, cause=str(error))
