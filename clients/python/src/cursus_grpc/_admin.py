"""Topics, groups and the cluster, with plain values: the asyncio face. `sync.py` has the blocking one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Self

from cursus_grpc import _convert, _rpcs
from cursus_grpc._channel import Connections, ConnectionSettings, parse_bootstrap
from cursus_grpc._status import from_status
from cursus_grpc.errors import ClientClosed, CommitFailed, CursusError
from cursus_grpc.types import (
    TLS,
    BrokerInfo,
    ClusterInfo,
    CommittedOffset,
    GroupDescription,
    GroupSummary,
    ListedOffset,
    OffsetAndMetadata,
    OffsetChange,
    Place,
    TopicConfig,
    TopicDescription,
    TopicInfo,
    TopicPartition,
)
from cursus_proto.v1 import cluster_service_pb2 as cluster_pb
from cursus_proto.v1 import group_service_pb2 as group_pb
from cursus_proto.v1 import topic_service_pb2 as topic_pb


class AsyncAdmin:
    """Creates, looks up, changes and deletes topics and groups.

    Every call ends within `request_timeout_s`, raising BrokerUnreachable, TlsFailed or DeadlineExceeded if there is no
    answer, and the broker's refusal if that is the answer. Calls that may be repeated without harm are, while the
    broker is away; creating and deleting are not once they may have reached it.

    >>> async def main() -> None:
    ...     async with AsyncAdmin(broker.address) as admin:
    ...         topic = await admin.create_topic("invoices", partitions=2)
    ...         print(topic.name, topic.partition_count)
    >>> asyncio.run(main())
    invoices 2
    """

    def __init__(
        self,
        bootstrap: str | Iterable[str],
        *,
        tls: TLS | None = None,
        request_timeout_s: float = 30.0,
        client_id: str = "cursus-python",
    ) -> None:
        self._settings = ConnectionSettings(parse_bootstrap(bootstrap), tls, client_id, request_timeout_s)
        self._connections: Connections | None = None
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        self._closed = True
        if self._connections is not None:
            await self._connections.close()

    async def _call(
        self,
        method: _rpcs.Unary[_rpcs.Request, _rpcs.Response],
        request: _rpcs.Request,
        *,
        idempotent: bool = True,
    ) -> _rpcs.Response:
        if self._closed:
            raise ClientClosed("the admin client is closed")
        if self._connections is None:
            self._connections = Connections(self._settings)
        return await self._connections.call(method, request, idempotent=idempotent)

    # Topics

    async def create_topic(
        self, name: str, partitions: int | None = None, config: TopicConfig | None = None
    ) -> TopicInfo:
        """Raises TopicExists, InvalidTopicName, InvalidPartitionCount, InvalidTopicConfig, ResourceLimit."""
        request = topic_pb.CreateTopicRequest(
            name=name,
            partition_count=partitions or 0,
            config=_convert.config_to_proto(config) if config is not None else None,
        )
        return _convert.topic_from_proto((await self._call(_rpcs.CREATE_TOPIC, request, idempotent=False)).topic)

    async def delete_topic(self, name: str) -> None:
        """Deletes the topic, its data and the offsets committed for it. Raises TopicNotFound."""
        await self._call(_rpcs.DELETE_TOPIC, topic_pb.DeleteTopicRequest(name=name), idempotent=False)

    async def list_topics(self) -> list[TopicInfo]:
        """All topics, sorted by name."""
        response = await self._call(_rpcs.LIST_TOPICS, topic_pb.ListTopicsRequest())
        return [_convert.topic_from_proto(topic) for topic in response.topics]

    async def describe_topic(self, name: str) -> TopicDescription:
        """Raises TopicNotFound."""
        request = topic_pb.DescribeTopicRequest(name=name)
        return _convert.description_from_proto(await self._call(_rpcs.DESCRIBE_TOPIC, request))

    async def update_topic(
        self, name: str, config: TopicConfig | None = None, reset_fields: Sequence[str] = ()
    ) -> TopicInfo:
        """Change what `config` states; bring `reset_fields` back to the broker's default. Labels are merged, an empty
        value removes one. Raises TopicNotFound, InvalidTopicConfig."""
        request = topic_pb.UpdateTopicRequest(
            name=name,
            config=_convert.config_to_proto(config) if config is not None else None,
            reset_fields=reset_fields,
        )
        return _convert.topic_from_proto((await self._call(_rpcs.UPDATE_TOPIC, request)).topic)

    async def add_partitions(self, name: str, partitions: int) -> TopicInfo:
        """Raise the number of partitions to this. Raises TopicNotFound, InvalidPartitionCount, ResourceLimit."""
        request = topic_pb.AddPartitionsRequest(name=name, partition_count=partitions)
        return _convert.topic_from_proto((await self._call(_rpcs.ADD_PARTITIONS, request)).topic)

    async def list_offsets(self, topic: str, at: Place, partitions: Collection[int] = ()) -> dict[int, ListedOffset]:
        """Look a place up in these partitions, or in all. Raises TopicNotFound, PartitionNotFound, OffsetOutOfRange."""
        request = topic_pb.ListOffsetsRequest(topic=topic, partitions=partitions, at=_convert.place_to_proto(at))
        response = await self._call(_rpcs.LIST_OFFSETS, request)
        return {one.partition: _convert.listed_from_proto(one) for one in response.offsets}

    async def delete_records(self, topic: str, before: Mapping[int, int]) -> dict[int, int]:
        """Delete the records below an offset, for each partition, for good; answers the first offset that is left.
        Raises TopicNotFound, PartitionNotFound, OffsetOutOfRange."""
        request = topic_pb.DeleteRecordsRequest(
            topic=topic,
            partitions=[
                topic_pb.DeleteRecordsPartition(partition=partition, before_offset=offset)
                for partition, offset in before.items()
            ],
        )
        response = await self._call(_rpcs.DELETE_RECORDS, request)
        return {one.partition: one.earliest_offset for one in response.partitions}

    # Groups

    async def list_groups(self) -> list[GroupSummary]:
        """All groups, also those without members that have committed offsets, sorted by name."""
        response = await self._call(_rpcs.LIST_GROUPS, group_pb.ListGroupsRequest())
        return [_convert.summary_from_proto(group) for group in response.groups]

    async def describe_group(self, group: str) -> GroupDescription:
        """Raises GroupNotFound."""
        request = group_pb.DescribeGroupRequest(group=group)
        return _convert.group_from_proto(await self._call(_rpcs.DESCRIBE_GROUP, request))

    async def delete_group(self, group: str) -> None:
        """Deletes the group and its offsets. Raises GroupNotFound, GroupNotEmpty."""
        await self._call(_rpcs.DELETE_GROUP, group_pb.DeleteGroupRequest(group=group), idempotent=False)

    async def fetch_offsets(
        self, group: str, partitions: Iterable[TopicPartition] = ()
    ) -> dict[TopicPartition, CommittedOffset]:
        """What the group has committed for these partitions, or for all it has. Empty for an unknown group."""
        request = group_pb.FetchOffsetsRequest(group=group)
        for topic, partition in partitions:
            request.partitions.add(topic=topic, partition=partition)
        return _convert.committed_from_proto(await self._call(_rpcs.FETCH_OFFSETS, request))

    async def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, int | OffsetAndMetadata]) -> None:
        """Commit for partitions that no live member owns, forwards only. Raises CommitFailed."""
        commits = {
            TopicPartition(*place): one if isinstance(one, OffsetAndMetadata) else OffsetAndMetadata(one)
            for place, one in offsets.items()
        }
        request = group_pb.CommitOffsetsRequest(group=group, offsets=_convert.commits_to_proto(commits))
        raise_refused(await self._call(_rpcs.COMMIT_OFFSETS, request))

    async def reset_offsets(
        self, group: str, to: Mapping[str | TopicPartition, Place], *, dry_run: bool = False
    ) -> list[OffsetChange]:
        """Move committed offsets of whole topics or single partitions, also backwards; or only show what would happen.
        Raises GroupNotFound, GroupNotEmpty while a member owns one of them, TopicNotFound, OffsetOutOfRange."""
        request = group_pb.ResetOffsetsRequest(group=group, dry_run=dry_run)
        for target, place in to.items():
            if isinstance(target, str):
                request.resets.add(topic=target, to=_convert.place_to_proto(place))
            else:
                topic, partition = target
                request.resets.add(topic=topic, partition=partition, to=_convert.place_to_proto(place))
        response = await self._call(_rpcs.RESET_OFFSETS, request)
        return [_convert.change_from_proto(change) for change in response.changes]

    async def remove_member(self, group: str, *, member_id: str = "", instance_id: str = "") -> None:
        """Make a member leave, named by its id or as a static member by its instance id. Raises MemberNotFound."""
        request = group_pb.LeaveGroupRequest(group=group, member_id=member_id, instance_id=instance_id)
        await self._call(_rpcs.LEAVE_GROUP, request, idempotent=False)

    # Cluster

    async def describe_cluster(self, topics: Iterable[str] = ()) -> ClusterInfo:
        """The brokers, and the leaders of these topics, or of all. Topics that do not exist are missing."""
        request = cluster_pb.GetMetadataRequest(topics=topics)
        return _convert.cluster_from_proto(await self._call(_rpcs.GET_METADATA, request))

    async def broker_info(self) -> BrokerInfo:
        """What the answering broker says about itself."""
        response = await self._call(_rpcs.GET_BROKER_INFO, cluster_pb.GetBrokerInfoRequest())
        return _convert.broker_from_proto(response)


def raise_refused(response: group_pb.CommitOffsetsResponse) -> None:
    """Raises CommitFailed if one of the offsets was refused."""
    refused: dict[TopicPartition, CursusError] = {
        TopicPartition(result.topic, result.partition): from_status(result.error)
        for result in response.results
        if result.HasField("error")
    }
    if refused:
        raise CommitFailed(refused)
