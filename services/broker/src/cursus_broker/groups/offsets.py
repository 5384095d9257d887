"""How far a group has read: committed offsets, in memory as they are on disk.

What is shown is durable. What is on its way to the disk only serves to judge the commits behind it, so that offsets
of concurrent commits reach the disk in an order that never goes back.
"""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from cursus_broker.errors import CursusError, OffsetRegression, TopicNotFound
from cursus_broker.metadata.model import CommittedOffset, TopicPartition
from cursus_broker.metadata.store import Settled


class OffsetStore(Protocol):
    def commit_offsets(
        self, group: str, offsets: Mapping[TopicPartition, CommittedOffset], settled: Settled | None = None
    ) -> Awaitable[None]: ...


@dataclass(frozen=True, slots=True)
class OffsetReset:
    """What a reset does to one partition. `before` is None where nothing was committed."""

    before: int | None
    after: int


@dataclass(slots=True)
class _Track:
    """Writes on their way to the disk for one partition."""

    newest: int
    writes: int = 0


class GroupOffsets:
    """The committed offsets of one group."""

    def __init__(self, group: str, store: OffsetStore, committed: Mapping[TopicPartition, CommittedOffset]) -> None:
        self._group = group
        self._store = store
        self._committed = dict(committed)
        self._tracks: dict[TopicPartition, _Track] = {}

    @property
    def committed(self) -> Mapping[TopicPartition, CommittedOffset]:
        """What is durable. A view: copy it to keep it."""
        return self._committed

    def regression(self, partition: TopicPartition, next_offset: int) -> OffsetRegression | None:
        """The refusal of an offset that is behind; None if it may be committed. The same offset again may."""
        track = self._tracks.get(partition)
        committed = self._committed.get(partition)
        newest = track.newest if track else committed.next_offset if committed else 0
        if next_offset >= newest:
            return None
        return OffsetRegression(self._group, *partition, committed=newest, requested=next_offset)

    async def commit(
        self, offsets: Mapping[TopicPartition, CommittedOffset]
    ) -> dict[TopicPartition, CursusError | None]:
        """Make the offsets durable and then visible. The answer has a refusal for each one that is behind, or whose
        topic was deleted in the meantime.

        Raises StorageFailed; then none of the accepted offsets was stored or shown.
        """
        outcomes: dict[TopicPartition, CursusError | None] = dict.fromkeys(offsets)
        remaining = dict(offsets)
        while True:
            # Judged again in every round: others may have committed while this call waited to learn that a topic is
            # gone.
            for partition, committed in tuple(remaining.items()):
                outcomes[partition] = self.regression(partition, committed.next_offset)
                if outcomes[partition] is not None:
                    del remaining[partition]
            if not remaining:
                return outcomes
            try:
                await self._submit(remaining)
                return outcomes
            except TopicNotFound as gone:
                # All or nothing in the store: the others go again without the topic that is gone.
                for partition in [p for p in remaining if p.topic == gone.metadata["topic"]]:
                    outcomes[partition] = gone
                    del remaining[partition]

    async def reset(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Make the offsets durable and then visible, all or none, also those that go back.

        Raises StorageFailed, TopicNotFound.
        """
        if offsets:
            await self._submit(offsets)

    def forget_topics(self, gone: Collection[str]) -> None:
        """The topics were deleted; writes on their way for them will not be shown."""
        for table in (self._committed, self._tracks):
            for partition in [partition for partition in table if partition.topic in gone]:
                del table[partition]

    def _submit(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> Awaitable[None]:
        tracks: dict[TopicPartition, _Track] = {}

        def settled(error: CursusError | None) -> None:
            for partition, track in tracks.items():
                track.writes -= 1
                if self._tracks.get(partition) is not track:
                    continue  # the topic is gone, and perhaps there is another one of its name
                if error is None:
                    self._committed[partition] = offsets[partition]
                if not track.writes:
                    del self._tracks[partition]

        offsets = dict(offsets)
        durable = self._store.commit_offsets(self._group, offsets, settled)
        for partition, committed in offsets.items():
            track = self._tracks.setdefault(partition, _Track(committed.next_offset))
            track.newest = committed.next_offset
            track.writes += 1
            tracks[partition] = track
        return durable
