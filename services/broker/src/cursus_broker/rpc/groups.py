"""GroupService on the wire. What groups do is in groups/coordinator.py."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Final

from cursus_broker.consume.fetch import LOOKED_UP_TOGETHER, resolve
from cursus_broker.errors import CursusError, InvalidRequest
from cursus_broker.groups.api import OffsetCommit
from cursus_broker.groups.assignors import Strategy
from cursus_broker.groups.coordinator import GroupCoordinator
from cursus_broker.groups.members import (
    DEFAULT_REBALANCE_TIMEOUT_MS,
    DEFAULT_SESSION_TIMEOUT_MS,
    JoinRequest,
    Subscription,
)
from cursus_broker.groups.state import Fencing, GroupState
from cursus_broker.groups.views import GroupSummary, MemberView, OffsetView
from cursus_broker.log.api import Offset
from cursus_broker.metadata.model import TopicPartition
from cursus_broker.pace import Pace
from cursus_broker.rpc.convert import partitions_to_proto, place_from_proto
from cursus_broker.rpc.status import to_status
from cursus_broker.topics.catalog import Catalog
from cursus_proto.v1 import group_service_pb2 as pb

_STRATEGIES: Final = {
    pb.ASSIGNMENT_STRATEGY_UNSPECIFIED: None,
    pb.ASSIGNMENT_STRATEGY_MODULO: Strategy.MODULO,
    pb.ASSIGNMENT_STRATEGY_RANGE: Strategy.RANGE,
    pb.ASSIGNMENT_STRATEGY_STICKY: Strategy.STICKY,
}
_STRATEGIES_TO_PROTO: Final = {strategy: number for number, strategy in _STRATEGIES.items()}
_FENCING: Final = {
    pb.FENCING_UNSPECIFIED: Fencing.GENERATION,
    pb.FENCING_GENERATION: Fencing.GENERATION,
    pb.FENCING_OWNERSHIP: Fencing.OWNERSHIP,
}
_STATES: Final = {
    GroupState.EMPTY: pb.GROUP_STATE_EMPTY,
    GroupState.STABLE: pb.GROUP_STATE_STABLE,
    GroupState.REBALANCING: pb.GROUP_STATE_REBALANCING,
}


class GroupServicer:
    def __init__(self, coordinator: GroupCoordinator, catalog: Catalog) -> None:
        self._coordinator = coordinator
        self._catalog = catalog

    async def join_group(self, request: pb.JoinGroupRequest, peer: str) -> pb.JoinGroupResponse:
        joined = await self._coordinator.join(
            join_request(
                group=request.group,
                topics=request.topics,
                pattern=request.topic_pattern,
                member_id=request.member_id,
                instance_id=request.instance_id,
                client_id=request.client_id,
                strategy=request.strategy,
                session_timeout_ms=request.session_timeout_ms,
                rebalance_timeout_ms=request.rebalance_timeout_ms,
                at_once=request.at_once,
                peer=peer,
            )
        )
        return pb.JoinGroupResponse(
            member_id=joined.member_id,
            generation=joined.generation,
            partitions=partitions_to_proto(joined.assignment.granted),
            complete=joined.assignment.complete,
        )

    async def sync_group(self, request: pb.SyncGroupRequest, _: str) -> pb.SyncGroupResponse:
        assignment = await self._coordinator.sync(
            request.group, request.member_id, request.generation, request.max_wait_ms
        )
        return pb.SyncGroupResponse(
            generation=assignment.generation,
            partitions=partitions_to_proto(assignment.granted),
            complete=assignment.complete,
        )

    async def heartbeat(self, request: pb.HeartbeatRequest, _: str) -> pb.HeartbeatResponse:
        answer = await self._coordinator.heartbeat(request.group, request.member_id, request.generation)
        return pb.HeartbeatResponse(generation=answer.generation, must_sync=answer.must_sync)

    async def leave_group(self, request: pb.LeaveGroupRequest, _: str) -> pb.LeaveGroupResponse:
        if bool(request.member_id) == bool(request.instance_id):
            raise InvalidRequest("name either the member or the instance that leaves")
        await self._coordinator.leave(request.group, request.member_id, instance_id=request.instance_id)
        return pb.LeaveGroupResponse()

    async def commit_offsets(self, request: pb.CommitOffsetsRequest, _: str) -> pb.CommitOffsetsResponse:
        if request.fencing not in _FENCING:
            raise InvalidRequest(f"fencing {request.fencing} is unknown")
        outcomes = await self._coordinator.commit(
            request.group,
            commits_from_proto(request.offsets),
            member_id=request.member_id,
            generation=request.generation,
            fencing=_FENCING[request.fencing],
        )
        return pb.CommitOffsetsResponse(results=results_to_proto(request.offsets, outcomes))

    async def fetch_offsets(self, request: pb.FetchOffsetsRequest, _: str) -> pb.FetchOffsetsResponse:
        if request.member_id:
            self._coordinator.refresh(request.group, request.member_id)
        asked = [TopicPartition(place.topic, place.partition) for place in request.partitions]
        committed = self._coordinator.fetch_offsets(request.group, asked or None)
        response = pb.FetchOffsetsResponse()
        pace = Pace(LOOKED_UP_TOGETHER)
        for place in asked or sorted(committed):
            await pace.took()
            found = committed.get(place)
            if found is None:
                response.offsets.add(topic=place.topic, partition=place.partition)
            else:
                response.offsets.add(
                    topic=place.topic,
                    partition=place.partition,
                    next_offset=found.next_offset,
                    metadata=found.metadata,
                    commit_time_ms=found.commit_time_ms,
                    leader_epoch=found.leader_epoch,
                    truncated_from=found.truncated_from,
                )
        return response

    async def list_groups(self, _request: pb.ListGroupsRequest, _: str) -> pb.ListGroupsResponse:
        return pb.ListGroupsResponse(groups=[_summary(one) for one in self._coordinator.list_groups()])

    async def describe_group(self, request: pb.DescribeGroupRequest, _: str) -> pb.DescribeGroupResponse:
        described = self._coordinator.describe(request.group)
        return pb.DescribeGroupResponse(
            summary=_summary(described.summary),
            members=[_member(member) for member in described.members],
            partitions=[await self._partition(place, view) for place, view in described.offsets.items()],
            rebalanced_ms=described.rebalanced_ms or 0,
        )

    async def delete_group(self, request: pb.DeleteGroupRequest, _: str) -> pb.DeleteGroupResponse:
        await self._coordinator.delete_group(request.group)
        return pb.DeleteGroupResponse()

    async def reset_offsets(self, request: pb.ResetOffsetsRequest, _: str) -> pb.ResetOffsetsResponse:
        targets: dict[TopicPartition, int] = {}
        pace = Pace(LOOKED_UP_TOGETHER)
        for reset in request.resets:
            topic = self._catalog.topic(reset.topic)
            place = place_from_proto(reset.to)
            for number in [reset.partition] if reset.HasField("partition") else range(len(topic.partitions)):
                key = TopicPartition(reset.topic, number)
                if key in targets:
                    raise InvalidRequest(f"{key} is to be reset twice")
                targets[key] = (await resolve(topic.partition(number), place)).offset
                await pace.took()
        if not targets:
            raise InvalidRequest("name at least one topic to reset")
        changes = await self._coordinator.reset_offsets(request.group, targets, dry_run=request.dry_run)
        response = pb.ResetOffsetsResponse()
        for key, change in sorted(changes.items()):
            response.changes.add(topic=key.topic, partition=key.partition, before=change.before, after=change.after)
        return response

    async def _partition(self, place: TopicPartition, view: OffsetView) -> pb.GroupPartition:
        message = pb.GroupPartition(
            topic=place.topic,
            partition=place.partition,
            member_id=view.owner,
            earliest_offset=view.earliest_offset,
            next_offset=view.log_next_offset,
            lag_records=view.lag_records,
        )
        if view.committed is not None:
            message.committed_offset = view.committed.next_offset
            message.metadata = view.committed.metadata
            if view.committed.truncated_from is not None:
                message.truncated_from = view.committed.truncated_from
        if view.lag_records:
            message.lag_seconds = await self._lag_seconds(place, view)
        return message

    async def _lag_seconds(self, place: TopicPartition, view: OffsetView) -> float:
        unread = Offset(max(view.committed.next_offset if view.committed else 0, view.earliest_offset))
        try:
            time_ms = await self._catalog.topic(place.topic).partition(place.partition).append_time_at(unread)
        except CursusError:
            return 0.0
        return 0.0 if time_ms is None else max(0.0, time.time() - time_ms / 1000)


def join_request(
    *,
    group: str,
    topics: Sequence[str],
    pattern: str,
    member_id: str,
    instance_id: str,
    client_id: str,
    strategy: int,
    session_timeout_ms: int,
    rebalance_timeout_ms: int,
    at_once: bool,
    peer: str,
) -> JoinRequest:
    """A join as the coordinator takes it; zeros become defaults. Raises InvalidRequest for an unknown strategy."""
    if strategy not in _STRATEGIES:
        raise InvalidRequest(f"assignment strategy {strategy} is unknown")
    return JoinRequest(
        group=group,
        subscription=Subscription(frozenset(topics), pattern),
        member_id=member_id,
        instance_id=instance_id,
        strategy=_STRATEGIES[strategy],  # type: ignore[index]  # checked above; the stubs tell enums from numbers
        session_timeout_ms=session_timeout_ms or DEFAULT_SESSION_TIMEOUT_MS,
        rebalance_timeout_ms=rebalance_timeout_ms or DEFAULT_REBALANCE_TIMEOUT_MS,
        at_once=at_once,
        client_id=client_id,
        host=peer,
    )


def commits_from_proto(offsets: Sequence[pb.CommitOffset]) -> dict[TopicPartition, OffsetCommit]:
    """Raises InvalidRequest if a partition is there twice."""
    commits = {
        TopicPartition(one.topic, one.partition): OffsetCommit(
            one.next_offset, one.metadata, one.leader_epoch if one.HasField("leader_epoch") else None
        )
        for one in offsets
    }
    if len(commits) != len(offsets):
        raise InvalidRequest("a commit names each partition once")
    return commits


def results_to_proto(
    offsets: Sequence[pb.CommitOffset], outcomes: Mapping[TopicPartition, CursusError | None]
) -> list[pb.CommitResult]:
    """One result an offset, in request order."""
    results: list[pb.CommitResult] = []
    for one in offsets:
        refusal = outcomes[TopicPartition(one.topic, one.partition)]
        error = None if refusal is None else to_status(refusal)
        results.append(pb.CommitResult(topic=one.topic, partition=one.partition, error=error))
    return results


def _summary(summary: GroupSummary) -> pb.GroupSummary:
    return pb.GroupSummary(
        group=summary.name,
        state=_STATES[summary.state],
        member_count=summary.members,
        generation=summary.generation,
        strategy=_STRATEGIES_TO_PROTO[summary.strategy],
    )


def _member(member: MemberView) -> pb.GroupMember:
    return pb.GroupMember(
        member_id=member.id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        peer=member.host,
        topics=sorted(member.subscription.topics),
        topic_pattern=member.subscription.pattern,
        partitions=partitions_to_proto(member.granted),
        session_timeout_ms=member.session_timeout_ms,
        synced=member.synced,
        joined_ms=member.joined_ms,
        last_heartbeat_ms=member.heard_ms,
    )
