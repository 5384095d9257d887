"""Topics, groups and the cluster, with plain values: the asyncio face. `sync.py` has the blocking one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Self

from cursus_grpc import _convert, _lookups, _rpcs
from cursus_grpc._channel import Connections, ConnectionSettings, parse_bootstrap
from cursus_grpc._retry import Deadline
from cursus_grpc._status import from_status
from cursus_grpc.errors import ClientClosed, CommitFailed, CursusError, LogTruncated
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
    PartitionInfo,
    Place,
    ProducerState,
    TopicConfig,
    TopicDescription,
    TopicInfo,
    TopicPartition,
)
from cursus_proto.bounds import MAX_NAMED_PRODUCERS, portions
from cursus_proto.v1 import cluster_service_pb2 as cluster_pb
from cursus_proto.v1 import consume_service_pb2 as consume_pb
from cursus_proto.v1 import group_service_pb2 as group_pb
from cursus_proto.v1 import publish_service_pb2 as publish_pb
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
        """Let go of the connections."""
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
        return await self._connected().call(method, request, idempotent=idempotent)

    def _connected(self) -> Connections:
        if self._closed:
            raise ClientClosed("the admin client is closed")
        if self._connections is None:
            self._connections = Connections(self._settings)
        return self._connections

    async def connect(self, timeout_s: float = 2.0) -> None:
        """Connect now and not with the first call. Every address is tried once, so that a refused connection or an
        unknown name is told at once and not when `request_timeout_s` is over. Raises BrokerUnreachable, TlsFailed."""
        await self._connected().reach(Deadline(timeout_s), patient=False)

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

    async def list_offsets(
        self, topic: str, at: Place, partitions: Collection[int] = (), *, sync: bool = False
    ) -> dict[int, ListedOffset]:
        """Look a place up in these partitions, or in all. With `sync` the broker first syncs what is written, so that
        `synced_offset` tells of all of it. Raises TopicNotFound, PartitionNotFound, OffsetOutOfRange."""
        return await _lookups.list_offsets(self._connected(), topic, at, partitions, sync=sync)

    async def find_truncations(
        self, positions: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> dict[TopicPartition, int]:
        """Which of these bookmarks lie above a cut of their log that was made after they were taken, and where to go
        on there. Partitions that cannot be asked are left out: reading them tells why."""
        cut: dict[TopicPartition, int] = {}
        for part in portions(list(positions.items())):
            # As little as a fetch can bring: what matters is whether it is refused.
            request = consume_pb.FetchRequest(max_bytes=1, max_records=1)
            for (topic, partition), bookmark in part:
                request.partitions.add(
                    topic=topic, partition=partition, offset=bookmark.offset, leader_epoch=bookmark.leader_epoch
                )
            for found in (await self._call(_rpcs.FETCH, request)).partitions if part else ():
                error = from_status(found.error) if found.HasField("error") else None
                if isinstance(error, LogTruncated):
                    cut[TopicPartition(found.topic, found.partition)] = error.offset
        return cut

    async def delete_records(self, topic: str, before: Mapping[int, int]) -> dict[int, int]:
        """Delete the records below an offset, for each partition, for good; answers the first offset that is left.
        Raises TopicNotFound, PartitionNotFound, OffsetOutOfRange."""
        left: dict[int, int] = {}
        for part in portions(list(before.items())):
            request = topic_pb.DeleteRecordsRequest(topic=topic)
            for partition, offset in part:
                request.partitions.add(partition=partition, before_offset=offset)
            response = await self._call(_rpcs.DELETE_RECORDS, request)
            left.update((one.partition, one.earliest_offset) for one in response.partitions)
        return left

    async def reopen_partition(self, topic: str, partition: int) -> tuple[bool, PartitionInfo]:
        """Have the broker open a partition anew whose disk had refused a sync, or whose files were restored. Answers
        whether that was needed, and the state it is in. Raises TopicNotFound, PartitionNotFound, PartitionDamaged,
        StorageFailed."""
        request = topic_pb.ReopenPartitionRequest(topic=topic, partition=partition)
        response = await self._call(_rpcs.REOPEN_PARTITION, request)
        return response.reopened, _convert.partition_from_proto(response.partition)

    async def describe_producers(
        self, topic: str, partition: int, producer_ids: Collection[bytes]
    ) -> dict[bytes, ProducerState]:
        """What the partition has stored of producers, those that it knows, by id. It survives power loss. Raises
        TopicNotFound, PartitionNotFound."""
        found: dict[bytes, ProducerState] = {}
        for part in portions(list(producer_ids), most=MAX_NAMED_PRODUCERS, size_of=len):
            request = publish_pb.DescribeProducersRequest(topic=topic, partition=partition, producer_ids=part)
            found |= _convert.producers_from_proto(await self._call(_rpcs.DESCRIBE_PRODUCERS, request))
        return found

    async def release_producers(self, topic: str, partition: int, epochs: Mapping[bytes, int]) -> int:
        """Let the partition forget producers, by id, that are done with these epochs; those in higher ones stay known.
        Answers how many were forgotten. Whatever is sent under their ids afterwards is stored as if it were new. Raises
        TopicNotFound, PartitionNotFound."""
        released = 0
        for part in portions(list(epochs), most=MAX_NAMED_PRODUCERS, size_of=len):
            request = publish_pb.ReleaseProducersRequest(topic=topic, partition=partition)
            for producer_id in part:
                request.producers.add(id=producer_id, epoch=epochs[producer_id])
            released += (await self._call(_rpcs.RELEASE_PRODUCERS, request)).released_count
        return released

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
        found: dict[TopicPartition, CommittedOffset] = {}
        for request in _convert.offset_questions(group, partitions):
            found |= _convert.committed_from_proto(await self._call(_rpcs.FETCH_OFFSETS, request))
        return found

    async def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, int | OffsetAndMetadata]) -> None:
        """Commit for partitions that no live member owns, forwards only. Raises CommitFailed."""
        commits = {
            TopicPartition(*place): one if isinstance(one, OffsetAndMetadata) else OffsetAndMetadata(one)
            for place, one in offsets.items()
        }
        requests = _convert.commits_to_proto(group_pb.CommitOffsetsRequest(group=group), commits)
        raise_refused([await self._call(_rpcs.COMMIT_OFFSETS, request) for request in requests])

    async def reset_offsets(
        self, group: str, to: Mapping[str | TopicPartition, Place], *, dry_run: bool = False
    ) -> list[OffsetChange]:
        """Move committed offsets of whole topics or single partitions, also backwards; or only show what would happen.
        Raises GroupNotFound, GroupNotEmpty while a member owns one of them, TopicNotFound, OffsetOutOfRange."""
        requests = _convert.resets_to_proto(group, to)
        changes: list[OffsetChange] = []
        # One request is done as a whole or not at all. Where it takes several, all are tried before any is done.
        for preview in [True] if dry_run else [True, False] if len(requests) > 1 else [False]:
            changes.clear()
            for request in requests:
                request.dry_run = preview
                response = await self._call(_rpcs.RESET_OFFSETS, request)
                changes += map(_convert.change_from_proto, response.changes)
        return sorted(changes, key=lambda change: change.partition)

    async def remove_member(self, group: str, *, member_id: str = "", instance_id: str = "") -> None:
        """Make a member leave, named by its id or as a static member by its instance id. Raises MemberNotFound."""
        request = group_pb.LeaveGroupRequest(group=group, member_id=member_id, instance_id=instance_id)
        await self._call(_rpcs.LEAVE_GROUP, request, idempotent=False)

    # Cluster

    async def describe_cluster(self, topics: Iterable[str] = ()) -> ClusterInfo:
        """The brokers, and the leaders of these topics, or of all. Topics that do not exist are missing."""
        response = cluster_pb.GetMetadataResponse()
        for part in portions(list(topics)):
            found = await self._call(_rpcs.GET_METADATA, cluster_pb.GetMetadataRequest(topics=part))
            found.topics.extend(response.topics)
            response = found
        return _convert.cluster_from_proto(response)

    async def broker_info(self) -> BrokerInfo:
        """What the answering broker says about itself."""
        response = await self._call(_rpcs.GET_BROKER_INFO, cluster_pb.GetBrokerInfoRequest())
        return _convert.broker_from_proto(response)


def raise_refused(responses: Iterable[group_pb.CommitOffsetsResponse]) -> None:
    """Raises CommitFailed if one of the offsets was refused."""
    refused: dict[TopicPartition, CursusError] = {
        TopicPartition(result.topic, result.partition): from_status(result.error)
        for response in responses
        for result in response.results
        if result.HasField("error")
    }
    if refused:
        raise CommitFailed(refused)
