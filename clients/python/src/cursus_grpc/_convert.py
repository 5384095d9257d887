"""Between plain values and the contract's messages, for everything but records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from cursus_grpc.types import (
    BrokerAddress,
    BrokerInfo,
    ClusterInfo,
    CommittedOffset,
    Edge,
    GroupDescription,
    GroupMember,
    GroupPartition,
    GroupSummary,
    ListedOffset,
    OffsetAndMetadata,
    OffsetChange,
    PartitionInfo,
    PartitionLeader,
    Place,
    ProducerState,
    RecoveryCut,
    Strategy,
    Timestamp,
    TopicConfig,
    TopicDescription,
    TopicInfo,
    TopicLeaders,
    TopicPartition,
)
from cursus_proto.bounds import portions
from cursus_proto.v1 import cluster_service_pb2 as cluster_pb
from cursus_proto.v1 import group_service_pb2 as group_pb
from cursus_proto.v1 import publish_service_pb2 as publish_pb
from cursus_proto.v1 import topic_service_pb2 as topic_pb
from cursus_proto.v1.records_pb2 import OFFSET_EDGE_EARLIEST, OFFSET_EDGE_LATEST, OffsetSpec
from cursus_proto.v1.records_pb2 import TopicPartition as PartitionName

STRATEGIES: Final[dict[Strategy, group_pb.AssignmentStrategy.ValueType]] = {
    "modulo": group_pb.ASSIGNMENT_STRATEGY_MODULO,
    "range": group_pb.ASSIGNMENT_STRATEGY_RANGE,
    "sticky": group_pb.ASSIGNMENT_STRATEGY_STICKY,
}
_STRATEGY_NAMES: Final = {number: name for name, number in STRATEGIES.items()}
_STATES: Final = {
    group_pb.GROUP_STATE_EMPTY: "empty",
    group_pb.GROUP_STATE_STABLE: "stable",
    group_pb.GROUP_STATE_REBALANCING: "rebalancing",
}
_CONFIG_FIELDS: Final = (
    "retention_ms",
    "retention_bytes",
    "segment_bytes",
    "segment_ms",
    "content_deduplication",
    "min_value_bytes",
    "max_value_bytes",
)


def require_text(name: str, value: object) -> None:
    """Raises ValueError for what a message does not take as text."""
    if not isinstance(value, str):
        raise ValueError(f"{name} must be text, not {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{name} is not valid text: {value!r}") from error


def place_to_proto(place: Place) -> OffsetSpec:
    """Raises TypeError for what is no place."""
    match place:
        case Edge.BEGINNING:
            return OffsetSpec(edge=OFFSET_EDGE_EARLIEST)
        case Edge.END:
            return OffsetSpec(edge=OFFSET_EDGE_LATEST)
        case Timestamp(ms):
            return OffsetSpec(timestamp_ms=ms)
        case int() as offset if not isinstance(offset, bool):
            return OffsetSpec(offset=offset)
        case _:
            raise TypeError(f"a place is an offset, BEGINNING, END or a Timestamp, not {place!r}")


def config_to_proto(config: TopicConfig) -> topic_pb.TopicConfig:
    message = topic_pb.TopicConfig(labels=config.labels)
    for name in _CONFIG_FIELDS:
        if (value := getattr(config, name)) is not None:
            setattr(message, name, value)
    return message


def topic_from_proto(topic: topic_pb.Topic) -> TopicInfo:
    config = config_from_proto(topic.config)
    return TopicInfo(topic.name, topic.partition_count, config, topic.created_ms, topic.topic_id)


def config_from_proto(config: topic_pb.TopicConfig) -> TopicConfig:
    stated = {name: getattr(config, name) for name in _CONFIG_FIELDS if config.HasField(name)}
    return TopicConfig(**stated, labels=dict(config.labels))


def description_from_proto(response: topic_pb.DescribeTopicResponse) -> TopicDescription:
    effective = config_from_proto(response.effective_config) if response.HasField("effective_config") else None
    partitions = tuple(map(partition_from_proto, response.partitions))
    return TopicDescription(topic_from_proto(response.topic), partitions, effective)


def partition_from_proto(part: topic_pb.PartitionDescription) -> PartitionInfo:
    cut = part.recovery_cut
    return PartitionInfo(
        part.partition,
        part.earliest_offset,
        part.next_offset,
        part.synced_offset,
        part.size_bytes,
        part.segment_count,
        part.damage,
        part.refusal,
        RecoveryCut(cut.offset, cut.record_count, cut.bytes, cut.cause) if part.HasField("recovery_cut") else None,
    )


def listed_from_proto(one: topic_pb.ListedOffset) -> ListedOffset:
    time_ms = one.append_time_ms if one.HasField("append_time_ms") else None
    return ListedOffset(
        one.partition,
        one.offset,
        time_ms,
        one.earliest_offset,
        one.next_offset,
        one.leader_epoch,
        one.synced_offset,
    )


def producers_from_proto(response: publish_pb.DescribeProducersResponse) -> dict[bytes, ProducerState]:
    """Those that are known, by id."""
    return {
        one.id: ProducerState(
            one.epoch,
            one.next_sequence,
            one.checksum if one.HasField("checksum") else None,
            one.last_append_time_ms,
            one.incomplete,
        )
        for one in response.producers
        if one.known
    }


def summary_from_proto(summary: group_pb.GroupSummary) -> GroupSummary:
    return GroupSummary(
        summary.group,
        _STATES.get(summary.state, "unknown"),
        summary.member_count,
        summary.generation,
        _STRATEGY_NAMES.get(summary.strategy),
    )


def group_from_proto(response: group_pb.DescribeGroupResponse) -> GroupDescription:
    members = tuple(
        GroupMember(
            member.member_id,
            member.instance_id,
            member.client_id,
            member.peer,
            tuple(member.topics),
            member.topic_pattern,
            tuple(TopicPartition(place.topic, place.partition) for place in member.partitions),
            member.session_timeout_ms,
            member.synced,
            member.joined_ms,
            member.last_heartbeat_ms,
        )
        for member in response.members
    )
    partitions = tuple(
        GroupPartition(
            TopicPartition(part.topic, part.partition),
            part.member_id,
            part.committed_offset if part.HasField("committed_offset") else None,
            part.earliest_offset,
            part.next_offset,
            part.lag_records,
            part.lag_seconds,
            part.metadata,
            part.truncated_from if part.HasField("truncated_from") else None,
        )
        for part in response.partitions
    )
    return GroupDescription(summary_from_proto(response.summary), members, partitions, response.rebalanced_ms or None)


def committed_from_proto(response: group_pb.FetchOffsetsResponse) -> dict[TopicPartition, CommittedOffset]:
    return {
        TopicPartition(one.topic, one.partition): CommittedOffset(
            one.next_offset if one.HasField("next_offset") else None,
            one.metadata,
            one.commit_time_ms,
            one.leader_epoch if one.HasField("leader_epoch") else None,
            one.truncated_from if one.HasField("truncated_from") else None,
        )
        for one in response.offsets
    }


def offset_questions(group: str, partitions: Iterable[TopicPartition]) -> Iterator[group_pb.FetchOffsetsRequest]:
    """What a group has committed for these, or for all it has if there are none."""
    for part in portions([PartitionName(topic=topic, partition=partition) for topic, partition in partitions]):
        yield group_pb.FetchOffsetsRequest(group=group, partitions=part)


def commits_to_proto(
    request: group_pb.CommitOffsetsRequest, offsets: Mapping[TopicPartition, OffsetAndMetadata]
) -> Iterator[group_pb.CommitOffsetsRequest]:
    """The request with these offsets, as often as it takes."""
    commits = [
        group_pb.CommitOffset(
            topic=place.topic,
            partition=place.partition,
            next_offset=one.offset,
            metadata=one.metadata,
            leader_epoch=one.leader_epoch,
        )
        for place, one in offsets.items()
    ]
    for part in portions(commits, size_of=group_pb.CommitOffset.ByteSize):
        del request.offsets[:]
        request.offsets.extend(part)
        yield request


def resets_to_proto(group: str, to: Mapping[str | TopicPartition, Place]) -> list[group_pb.ResetOffsetsRequest]:
    """Whole topics by their names, single partitions otherwise."""
    resets = [
        group_pb.OffsetReset(topic=target, to=place_to_proto(place))
        if isinstance(target, str)
        else group_pb.OffsetReset(topic=target[0], partition=target[1], to=place_to_proto(place))
        for target, place in to.items()
    ]
    return [group_pb.ResetOffsetsRequest(group=group, resets=part) for part in portions(resets)]


def change_from_proto(change: group_pb.OffsetChange) -> OffsetChange:
    before = change.before if change.HasField("before") else None
    return OffsetChange(TopicPartition(change.topic, change.partition), before, change.after)


def cluster_from_proto(response: cluster_pb.GetMetadataResponse) -> ClusterInfo:
    return ClusterInfo(
        response.cluster_id,
        tuple(BrokerAddress(broker.broker_id, broker.host, broker.port) for broker in response.brokers),
        tuple(
            TopicLeaders(
                topic.name,
                topic.topic_id,
                tuple(PartitionLeader(part.partition, part.leader_id, part.leader_epoch) for part in topic.partitions),
            )
            for topic in response.topics
        ),
    )


def broker_from_proto(info: cluster_pb.GetBrokerInfoResponse) -> BrokerInfo:
    return BrokerInfo(
        info.version,
        info.broker_id,
        info.cluster_id,
        info.started_ms,
        info.now_ms,
        info.max_batch_bytes,
        info.topic_count,
        info.partition_count,
        info.disk_free_bytes,
        info.disk_total_bytes,
        info.log_bytes,
        info.disk_full,
    )
