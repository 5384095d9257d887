"""Committing, resetting and looking up the offsets of groups.

A commit never outlives the records before it: it is stored only when the log is synced up to its offset. Where that
has to be waited for, everything is judged again afterwards: meanwhile the member may have lost the partition, another
commit may have come, and the topic may be another one of its name. Commits that wait together share the syncs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

import structlog

from cursus_broker.errors import CursusError, GroupNotEmpty, InvalidRequest, TopicNotFound
from cursus_broker.groups.api import GroupLimits, OffsetCommit, PartitionLog, Topics
from cursus_broker.groups.assignors import MemberId
from cursus_broker.groups.entry import GroupEntry, GroupTable
from cursus_broker.groups.members import validate_name
from cursus_broker.groups.offsets import OffsetReset
from cursus_broker.groups.state import Fencing
from cursus_broker.log.api import Offset
from cursus_broker.metadata.model import CommittedOffset, TopicPartition

log = structlog.get_logger(__name__)

_SHOWN: Final = 5  # partitions named in a line

Partitions = dict[TopicPartition, PartitionLog]


@dataclass(frozen=True, slots=True)
class Claim:
    """Who wants to commit, and by what right. Without a member id it is somebody outside the group."""

    group: str
    member_id: MemberId
    generation: int
    fencing: Fencing


@dataclass(slots=True)
class _Judged:
    entry: GroupEntry
    accepted: Partitions = field(default_factory=dict)
    refused: dict[TopicPartition, CursusError | None] = field(default_factory=dict)

    def refuse(self, place: TopicPartition, refusal: CursusError) -> None:
        del self.accepted[place]
        self.refused[place] = refusal


class Commits:
    """The committed offsets of all groups. `now_ms` is the clock of sessions, `time_ms` that of the wall."""

    def __init__(
        self,
        groups: GroupTable,
        topics: Topics,
        limits: GroupLimits,
        now_ms: Callable[[], int],
        time_ms: Callable[[], int],
    ) -> None:
        self._groups = groups
        self._topics = topics
        self._limits = limits
        self._now_ms = now_ms
        self._time_ms = time_ms

    async def commit(
        self,
        group: str,
        offsets: Mapping[TopicPartition, OffsetCommit],
        *,
        member_id: MemberId = "",
        generation: int = 0,
        fencing: Fencing = Fencing.GENERATION,
    ) -> dict[TopicPartition, CursusError | None]:
        """Commit for the partitions the caller may commit for; the answer has None or the refusal for each. Without a
        member id the caller is outside the group, which is created if there is none.

        Raises InvalidRequest, MemberNotFound, MemberFenced, ResourceLimit, and StorageFailed if the offsets cannot be
        stored. A log that cannot be synced refuses its own partition only.
        """
        if member_id:
            self._groups.of_member(group, member_id).group.refresh(member_id, self._now_ms())
        else:
            validate_name("group name", group)
        claim = Claim(group, member_id, generation, fencing)
        judged = self._judge(claim, offsets)
        syncs = _Syncs.start({p: (one, offsets[p].next_offset) for p, one in judged.accepted.items()})
        if syncs is not None:
            failed = await syncs.finished()
            before, judged = judged, self._judge(claim, offsets)
            for place, partition in tuple(judged.accepted.items()):
                if place in failed:
                    judged.refuse(place, failed[place])
                elif before.accepted.get(place) is not partition:
                    judged.refuse(place, TopicNotFound(place.topic))  # there is another one of its name
        now = self._time_ms()
        entry, refused = judged.entry, judged.refused
        accepted = {
            place: CommittedOffset(offsets[place].next_offset, offsets[place].metadata, now, partition.leader_epoch)
            for place, partition in judged.accepted.items()
        }
        if accepted:
            entry.row.enqueue()  # before the offsets: in the store they refer to their group
            self._groups.keep(entry)
        stored = await entry.offsets.commit(accepted)
        return {place: refused[place] if place in refused else stored[place] for place in offsets}

    def fetch(
        self, group: str, partitions: Collection[TopicPartition] | None = None
    ) -> dict[TopicPartition, CommittedOffset]:
        """What is committed, for all partitions or those asked for. Nothing for a group that does not exist: a group
        that never committed is no error.
        """
        entry = self._groups.get(group)
        if entry is None:
            return {}
        committed = entry.offsets.committed
        wanted = committed if partitions is None else partitions
        return {partition: committed[partition] for partition in wanted if partition in committed}

    async def reset(
        self, group: str, offsets: Mapping[TopicPartition, int], *, dry_run: bool = False
    ) -> dict[TopicPartition, OffsetReset]:
        """Set committed offsets, also back, all or none. A group that does not exist is created.

        Raises InvalidRequest, TopicNotFound, PartitionNotFound, PartitionDamaged, ResourceLimit, StorageFailed;
        GroupNotEmpty if a live member reads one of the partitions.
        """
        validate_name("group name", group)
        entry, partitions = self._judge_reset(group, offsets)
        syncs = None if dry_run else _Syncs.start({p: (one, offsets[p]) for p, one in partitions.items()})
        if syncs is not None:
            failed, before = await syncs.finished(), partitions
            entry, partitions = self._judge_reset(group, offsets)
            for place, partition in partitions.items():
                if before[place] is not partition:
                    raise TopicNotFound(place.topic)  # there is another one of its name
            for failure in failed.values():
                raise failure
        committed = entry.offsets.committed
        changes = {
            place: OffsetReset(committed[place].next_offset if place in committed else None, offset)
            for place, offset in offsets.items()
        }
        if not dry_run:
            entry.row.enqueue()  # before the offsets: in the store they refer to their group
            self._groups.keep(entry)
            now = self._time_ms()
            moved = {p: CommittedOffset(offset, "", now, partitions[p].leader_epoch) for p, offset in offsets.items()}
            await entry.offsets.reset(moved)
            log.info(
                "groups.offsets.reset",
                group=group,
                partitions=len(offsets),
                moved=[
                    f"{p.topic}[{p.partition}]: {c.before} -> {c.after}" for p, c in islice(changes.items(), _SHOWN)
                ],
            )
        return changes

    def _judge(self, claim: Claim, offsets: Mapping[TopicPartition, OffsetCommit]) -> _Judged:
        """Raises MemberNotFound, MemberFenced, ResourceLimit."""
        if claim.member_id:
            entry = self._groups.of_member(claim.group, claim.member_id)
            entry.group.member(claim.member_id)
        else:
            entry = self._groups.get_or_new(claim.group, self._time_ms())
        judged = _Judged(entry)
        for place, commit in offsets.items():
            try:
                judged.accepted[place] = self._examined(place, commit)
            except CursusError as refusal:
                judged.refused[place] = refusal
                continue
            not_his = entry.group.refusal(claim.member_id, claim.generation, place, claim.fencing)
            if (forbidden := not_his or entry.offsets.regression(place, commit.next_offset)) is not None:
                judged.refuse(place, forbidden)
        return judged

    def _judge_reset(self, group: str, offsets: Mapping[TopicPartition, int]) -> tuple[GroupEntry, Partitions]:
        entry = self._groups.get_or_new(group, self._time_ms())
        state, partitions = entry.group, Partitions()
        for place, next_offset in offsets.items():
            partitions[place] = self._examined(place, OffsetCommit(next_offset))
            if state.is_read(place):
                raise GroupNotEmpty(group, len(state.members))
        return entry, partitions

    def _examined(self, place: TopicPartition, commit: OffsetCommit) -> PartitionLog:
        """The partition, if the offset can stand in it. Raises what says why it cannot."""
        partition = self._topics.partition(*place)
        partition.check_epoch(commit.next_offset, commit.leader_epoch)
        log_next = partition.next_offset
        if not 0 <= commit.next_offset <= log_next:
            raise InvalidRequest(
                f"offset {commit.next_offset} of {place} is not between 0 and the log's next offset {log_next}",
                requested=commit.next_offset,
                latest=log_next,
            )
        if len(commit.metadata.encode()) > self._limits.max_metadata_bytes:
            raise InvalidRequest(f"the metadata of an offset has at most {self._limits.max_metadata_bytes} bytes")
        return partition


class _Syncs:
    """The syncs that some offsets have to wait for."""

    def __init__(self) -> None:
        self._waiting: dict[TopicPartition, asyncio.Future[None]] = {}
        self._failed: dict[TopicPartition, CursusError] = {}

    @classmethod
    def start(cls, offsets: Mapping[TopicPartition, tuple[PartitionLog, int]]) -> _Syncs | None:
        """Asked all in one step, so that many logs share a sync. None if all is synced: the usual case away from the
        end of a log, and the only thing to find out then."""
        syncs = cls()
        for place, (partition, upto) in offsets.items():
            try:
                if (waiting := partition.sync_soon(Offset(upto))) is not None:
                    syncs._waiting[place] = waiting
            except CursusError as failure:
                syncs._failed[place] = failure
        return syncs if syncs._waiting or syncs._failed else None

    async def finished(self) -> dict[TopicPartition, CursusError]:
        """Wait for all of them, and answer why those failed that did."""
        try:
            if self._waiting:
                await asyncio.wait(self._waiting.values())
        finally:
            for place, waiting in self._waiting.items():
                if not waiting.done():
                    waiting.cancel()  # the caller has gone away
                elif isinstance(failure := waiting.exception(), CursusError):
                    self._failed[place] = failure
        return self._failed
