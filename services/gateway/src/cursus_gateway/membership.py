"""Consumer groups for legacy members: who joins under which id, who still owns what, and whose commits count.

Legacy members cannot acknowledge a rebalance, so they join *at once*: partitions come to them and go from them without
a handover. They are fenced by ownership, not by generation (RULE 36): some never learn that a generation passed.
"""

from __future__ import annotations

import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from cursus_gateway.dialect import commands as c
from cursus_gateway.dialect import replies
from cursus_gateway.epochs import ReadUpTo
from cursus_gateway.refusals import Refused
from cursus_gateway.settings import GroupSettings
from cursus_gateway.statuses import refused_by_status
from cursus_gateway.upstream import (
    COMMIT_OFFSETS,
    DESCRIBE_GROUP,
    FETCH_OFFSETS,
    HEARTBEAT,
    JOIN_GROUP,
    LEAVE_GROUP,
    SYNC_GROUP,
    Upstream,
)
from cursus_proto.bounds import portions
from cursus_proto.v1 import group_service_pb2 as pb
from cursus_proto.v1 import records_pb2

_UUID: Final = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_JAVA_REQUESTED: Final = re.compile(_UUID)
_JAVA_MEMBER: Final = re.compile(_UUID + r"-\d{4}")
_GIVEN_ID: Final = re.compile(r".+-\d{4}")

# A member polls several partitions many times a second; asking about it once in this time is enough.
_STANDING_LASTS_S: Final = 0.5
_MAX_STANDINGS: Final = 10_000
# How long a join waits for partitions that others have to hand over. Clients wait 5 s.
_HANDOVER_WAIT_MS: Final = 1_500
_GONE: Final = frozenset({"MEMBER_NOT_FOUND", "GROUP_NOT_FOUND", "MEMBER_FENCED"})


def is_java(member: str) -> bool:
    return _JAVA_MEMBER.fullmatch(member) is not None


@dataclass(frozen=True, slots=True)
class _Standing:
    """What the broker said of a member a moment ago."""

    known: bool
    generation: int
    must_rejoin: bool
    until: float


class Membership:
    def __init__(self, upstream: Upstream, settings: GroupSettings) -> None:
        self._upstream = upstream
        self._settings = settings
        self._standings: OrderedDict[tuple[str, str, int], _Standing] = OrderedDict()

    async def join(self, command: c.JoinGroup) -> str:
        """RULES 19 and 35. Raises Refused."""
        group = await self._describe(command.group)
        live = {member.member_id: member for member in group.members}
        member_id = _member_id(command.member, live)
        topics = {command.topic, *(live[member_id].topics if member_id in live else ())}
        request = pb.JoinGroupRequest(
            group=command.group,
            topics=sorted(topics),
            member_id=member_id,
            client_id="cursus-gateway",
            session_timeout_ms=self._settings.session_timeout_ms,
            at_once=True,
        )
        joined = await self._upstream.call(JOIN_GROUP, request)
        partitions = _of_topic(joined.partitions, command.topic)
        if not partitions and not joined.complete:
            synced = await self._sync(command.group, joined.member_id, joined.generation)
            partitions = _of_topic(synced, command.topic)
        resumed = command.generation is not None and member_id in live
        return replies.joined(joined.generation, joined.member_id, partitions, resumed=resumed)

    async def sync(self, command: c.SyncGroup) -> str:
        """What the member owns now; nothing for one that is not there (RULE 20)."""
        group = await self._describe(command.group)
        generation = group.summary.generation
        partitions: Sequence[int] = ()
        if any(member.member_id == command.member for member in group.members):
            synced = await self._sync(command.group, command.member, generation)
            partitions = _of_topic(synced, command.topic)
        spelt = replies.assignments(partitions)
        return f"OK generation={generation} member={command.member} {spelt}"

    async def _sync(self, group: str, member: str, generation: int) -> Sequence[records_pb2.TopicPartition]:
        request = pb.SyncGroupRequest(
            group=group, member_id=member, generation=generation, max_wait_ms=_HANDOVER_WAIT_MS
        )
        try:
            synced = await self._upstream.call(SYNC_GROUP, request)
        except Refused as refused:
            if refused.reason != "GENERATION_MISMATCH":
                raise
            request.generation = int(refused.metadata["current"])
            synced = await self._upstream.call(SYNC_GROUP, request)
        found: Sequence[records_pb2.TopicPartition] = synced.partitions
        return found

    async def leave(self, command: c.LeaveGroup) -> str:
        """A member that is not there has left."""
        try:
            await self._upstream.call(LEAVE_GROUP, pb.LeaveGroupRequest(group=command.group, member_id=command.member))
        except Refused as refused:
            if refused.reason not in _GONE:
                raise
        return f"OK group={command.group} member={command.member} left=true"

    async def heartbeat(self, command: c.Heartbeat) -> str:
        """RULE 21."""
        request = pb.HeartbeatRequest(group=command.group, member_id=command.member, generation=command.generation or 0)
        try:
            answer = await self._upstream.call(HEARTBEAT, request)
        except Refused as refused:
            if refused.reason not in _GONE:
                raise
            current = 0
        else:
            current = answer.generation
            if command.generation is None or not answer.must_sync:
                return f"OK member={command.member} generation={current}"
        if is_java(command.member):
            return replies.java_must_rejoin_later(command.group, current)
        return replies.must_rejoin(command.group, command.member, command.generation or 0, current)

    async def obstacle(self, topic: str, partition: int, group: str, member: str, generation: int) -> str | None:
        """What to tell a member instead of data, or None if it may read. Counts as a sign of life (RULES 34, 36, 37).

        A Java member is told of every rebalance here, also of partitions it gained: it learns of them nowhere else.
        """
        if not group or not member:
            return None
        standing = await self._standing(group, member, generation)
        if not standing.known or not standing.must_rejoin:
            return None
        if is_java(member):
            return replies.java_must_rejoin(group, standing.generation)
        described = await self._describe(group)
        for place in described.partitions:
            if (place.topic, place.partition) == (topic, partition) and place.member_id not in ("", member):
                return replies.generation_mismatch(group, member, generation, standing.generation)
        return None

    def is_clear(self, group: str, member: str, generation: int) -> bool:
        """Whether `obstacle` would find none without asking anybody."""
        if not group or not member:
            return True
        known = self._standings.get((group, member, generation))
        return known is not None and not known.must_rejoin and time.monotonic() < known.until

    async def _standing(self, group: str, member: str, generation: int) -> _Standing:
        key, now = (group, member, generation), time.monotonic()
        known = self._standings.get(key)
        if known is not None and now < known.until:
            return known
        request = pb.HeartbeatRequest(group=group, member_id=member, generation=generation)
        until = now + _STANDING_LASTS_S
        try:
            answer = await self._upstream.call(HEARTBEAT, request)
            standing = _Standing(True, answer.generation, answer.must_sync, until)
        except Refused as refused:
            if refused.reason not in _GONE:
                raise
            standing = _Standing(False, 0, False, until)
        self._standings[key] = standing
        self._standings.move_to_end(key)
        while len(self._standings) > _MAX_STANDINGS:
            self._standings.popitem(last=False)
        return standing

    async def committed(self, group: str, topic: str, partition: int, member: str = "") -> int | None:
        """The next offset the group wants to read; None if it has committed nothing."""
        place = records_pb2.TopicPartition(topic=topic, partition=partition)
        request = pb.FetchOffsetsRequest(group=group, partitions=[place], member_id=member)
        try:
            answer = await self._upstream.call(FETCH_OFFSETS, request)
        except Refused as refused:
            if refused.reason not in _GONE or not member:
                raise
            return await self.committed(group, topic, partition)
        found = answer.offsets[0]
        return found.next_offset if found.HasField("next_offset") else None

    async def commit(
        self, topic: str, group: str, offsets: Mapping[int, ReadUpTo], member: str = "", generation: int = 0
    ) -> dict[int, Refused | None]:
        """Commits for whoever may: a member for what it owns, others for what nobody owns. Without a member's name the
        right to commit is not asked for (RULE 23): the commit is then made in the owner's name. Raises Refused."""
        try:
            outcomes = await self._commit(topic, group, offsets, member, generation)
        except Refused as refused:
            if refused.reason not in _GONE or not member:
                raise
            # It expired, or the broker forgot it in a restart: it may still commit what nobody else owns.
            return await self._commit(topic, group, offsets, "", 0)
        if not member:
            refused_ones = [p for p, r in outcomes.items() if r is not None and r.reason == "NOT_OWNER"]
            if refused_ones:
                owners = {
                    place.partition: place.member_id
                    for place in (await self._describe(group)).partitions
                    if place.topic == topic
                }
                for partition in refused_ones:
                    owner = owners.get(partition, "")
                    outcomes |= await self._commit(topic, group, {partition: offsets[partition]}, owner, 0)
        return outcomes

    async def _commit(
        self, topic: str, group: str, offsets: Mapping[int, ReadUpTo], member: str, generation: int
    ) -> dict[int, Refused | None]:
        outcomes: dict[int, Refused | None] = {}
        for part in portions(list(offsets.items())):
            request = pb.CommitOffsetsRequest(
                group=group, member_id=member, generation=generation, fencing=pb.FENCING_OWNERSHIP
            )
            for partition, (offset, epoch) in part:
                request.offsets.add(topic=topic, partition=partition, next_offset=offset, leader_epoch=epoch)
            answer = await self._upstream.call(COMMIT_OFFSETS, request)
            outcomes |= {
                result.partition: refused_by_status(result.error) if result.HasField("error") else None
                for result in answer.results
            }
        return outcomes

    async def _describe(self, group: str) -> pb.DescribeGroupResponse:
        """The group, without members if there is none of that name."""
        try:
            described: pb.DescribeGroupResponse = await self._upstream.call(
                DESCRIBE_GROUP, pb.DescribeGroupRequest(group=group)
            )
            return described
        except Refused as refused:
            if refused.reason != "GROUP_NOT_FOUND":
                raise
            return pb.DescribeGroupResponse()


def _member_id(requested: str, live: Mapping[str, object]) -> str:
    """The id a join is for: a live member's own, a Java member's known by its UUID, one given earlier, or a new one."""
    if requested in live:
        return requested
    if _JAVA_REQUESTED.fullmatch(requested):
        for member_id in sorted(live):
            if member_id.startswith(requested) and is_java(member_id):
                return member_id
    elif _GIVEN_ID.fullmatch(requested):
        return requested
    return f"{requested}-{secrets.randbelow(10_000):04d}"


def _of_topic(partitions: Sequence[records_pb2.TopicPartition], topic: str) -> list[int]:
    return sorted(place.partition for place in partitions if place.topic == topic)
