"""The groups as the coordinator keeps them: each its state, its offsets, its observers, and its row in the store."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress

from cursus_broker.errors import CursusError, GroupNotFound, MemberNotFound, ResourceLimit, ShuttingDown
from cursus_broker.groups.api import GroupLimits, GroupStore
from cursus_broker.groups.assignors import MemberId, Strategy
from cursus_broker.groups.offsets import GroupOffsets
from cursus_broker.groups.plan import Tempo
from cursus_broker.groups.state import Group
from cursus_broker.groups.watch import MemberSignal
from cursus_broker.metadata.model import Snapshot, StoredGroup


class GroupRow:
    """Keeps the stored row of one group up with its state."""

    def __init__(self, group: Group, store: GroupStore, *, stored: bool) -> None:
        self._group = group
        self._store = store
        self._version = 0 if stored else 1
        self._saved = 0
        self._write: asyncio.Future[None] | None = None

    def changed(self) -> None:
        """The state has something new to store. Starts the write; a failure is met by the next `durable`."""
        self._version += 1
        with suppress(ResourceLimit, ShuttingDown):
            self._submit()

    def enqueue(self) -> None:
        """Have the row written before any write that is submitted later. Raises ResourceLimit, ShuttingDown."""
        if self._saved < self._version and (self._write is None or self._write.done()):
            self._submit()

    async def durable(self) -> None:
        """Return once all that had changed when this was called is on disk.

        Raises StorageFailed, ResourceLimit, ShuttingDown; a later call tries again.
        """
        wanted = self._version
        while self._saved < wanted:
            self.enqueue()
            if self._write is not None:
                await asyncio.shield(self._write)  # shared: the cancellation of one who waits is his alone

    def _submit(self) -> None:
        version = self._version

        def settled(error: CursusError | None) -> None:
            if error is None:
                self._saved = max(self._saved, version)

        group = self._group
        strategy = group.strategy.value if group.strategy else ""
        row = StoredGroup(group.name, group.generation, strategy, group.created_ms)
        self._write = asyncio.ensure_future(self._store.put_group(row, settled))
        self._write.add_done_callback(_look_at)


class GroupEntry:
    def __init__(self, group: Group, offsets: GroupOffsets, row: GroupRow) -> None:
        self.group = group
        self.offsets = offsets
        self.row = row
        self.due_reason = ""
        """What called last for the rebalance that the group is due for."""
        self._signals: dict[MemberId, MemberSignal] = {}

    def signal(self, member_id: MemberId) -> MemberSignal:
        """The signal of a live member."""
        return self._signals.setdefault(member_id, MemberSignal())

    def wake(self, member_id: MemberId) -> None:
        """There is news of the member; for one that is gone it is the last."""
        live = member_id in self.group.members
        signal = self._signals.get(member_id) if live else self._signals.pop(member_id, None)
        if signal is not None:
            signal.raise_()


class GroupTable:
    """The groups there are, by name."""

    def __init__(self, store: GroupStore, limits: GroupLimits, snapshot: Snapshot, tempo: Tempo) -> None:
        """Groups come back from the snapshot with generation and offsets, and without members: those join again."""
        self._store = store
        self._limits = limits
        self._tempo = tempo
        self._entries: dict[str, GroupEntry] = {}
        for stored in snapshot.groups:
            group = Group(
                stored.name,
                generation=stored.generation,
                strategy=Strategy(stored.strategy) if stored.strategy else None,
                created_ms=stored.created_ms,
                max_members=limits.max_members,
                tempo=tempo,
            )
            offsets = GroupOffsets(stored.name, store, snapshot.offsets.get(stored.name, {}))
            self.keep(GroupEntry(group, offsets, GroupRow(group, store, stored=True)))

    def __iter__(self) -> Iterator[GroupEntry]:
        return iter(self._entries.values())

    def get(self, name: str) -> GroupEntry | None:
        return self._entries.get(name)

    def existing(self, name: str) -> GroupEntry:
        """Raises GroupNotFound."""
        entry = self._entries.get(name)
        if entry is None:
            raise GroupNotFound(name)
        return entry

    def of_member(self, name: str, member_id: MemberId) -> GroupEntry:
        """The group that the member speaks of. Raises MemberNotFound if there is none."""
        entry = self._entries.get(name)
        if entry is None:
            raise MemberNotFound(name, member_id)
        return entry

    def get_or_new(self, name: str, now_ms: int) -> GroupEntry:
        """The group, or one that does not exist yet: it does once it is kept. Raises ResourceLimit."""
        if (entry := self._entries.get(name)) is not None:
            return entry
        if len(self._entries) >= self._limits.max_groups:
            raise ResourceLimit(f"there are {self._limits.max_groups} consumer groups, which is the limit")
        group = Group(name, created_ms=now_ms, max_members=self._limits.max_members, tempo=self._tempo)
        return GroupEntry(group, GroupOffsets(name, self._store, {}), GroupRow(group, self._store, stored=False))

    def keep(self, entry: GroupEntry) -> None:
        """From now on the group exists, unless there is one of its name already."""
        self._entries.setdefault(entry.group.name, entry)

    def remove(self, name: str) -> None:
        del self._entries[name]


def _look_at(write: asyncio.Future[None]) -> None:
    """A write nobody waits for may fail without a complaint from asyncio: `durable` sees that it is missing."""
    if not write.cancelled():
        write.exception()
