"""The methods of the contract that the clients call, with their message types."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from google.protobuf.message import Message

from cursus_proto.internal.v1 import opaque_pb2 as opaque
from cursus_proto.v1 import cluster_service_pb2 as cluster
from cursus_proto.v1 import consume_service_pb2 as consume
from cursus_proto.v1 import group_service_pb2 as group
from cursus_proto.v1 import publish_service_pb2 as publish
from cursus_proto.v1 import topic_service_pb2 as topic
from cursus_transport import Channel, StreamCall, UnaryMethod

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)


@dataclass(frozen=True, slots=True)
class Unary(Generic[Request, Response]):
    """A method with one request and one answer."""

    path: str
    request: type[Request]
    response: type[Response]

    def on(self, channel: Channel) -> UnaryMethod[Request, Response]:
        return channel.unary_unary(self.path, self.request.SerializeToString, self.response.FromString)


@dataclass(frozen=True, slots=True)
class Stream(Generic[Response]):
    """A bidirectional method. Requests are handed over encoded: their record sets are joined, not built."""

    path: str
    response: type[Response]

    def call(self, channel: Channel) -> StreamCall[bytes, Response]:
        return channel.stream_stream(self.path, None, self.response.FromString)()


_TOPICS = "/cursus.v1.TopicService/"
_GROUPS = "/cursus.v1.GroupService/"
_PUBLISHING = "/cursus.v1.PublishService/"
_CLUSTER = "/cursus.v1.ClusterService/"

CREATE_TOPIC: Final = Unary(_TOPICS + "CreateTopic", topic.CreateTopicRequest, topic.CreateTopicResponse)
DELETE_TOPIC: Final = Unary(_TOPICS + "DeleteTopic", topic.DeleteTopicRequest, topic.DeleteTopicResponse)
LIST_TOPICS: Final = Unary(_TOPICS + "ListTopics", topic.ListTopicsRequest, topic.ListTopicsResponse)
DESCRIBE_TOPIC: Final = Unary(_TOPICS + "DescribeTopic", topic.DescribeTopicRequest, topic.DescribeTopicResponse)
UPDATE_TOPIC: Final = Unary(_TOPICS + "UpdateTopic", topic.UpdateTopicRequest, topic.UpdateTopicResponse)
ADD_PARTITIONS: Final = Unary(_TOPICS + "AddPartitions", topic.AddPartitionsRequest, topic.AddPartitionsResponse)
LIST_OFFSETS: Final = Unary(_TOPICS + "ListOffsets", topic.ListOffsetsRequest, topic.ListOffsetsResponse)
DELETE_RECORDS: Final = Unary(_TOPICS + "DeleteRecords", topic.DeleteRecordsRequest, topic.DeleteRecordsResponse)
REOPEN_PARTITION: Final = Unary(
    _TOPICS + "ReopenPartition", topic.ReopenPartitionRequest, topic.ReopenPartitionResponse
)

LEAVE_GROUP: Final = Unary(_GROUPS + "LeaveGroup", group.LeaveGroupRequest, group.LeaveGroupResponse)
COMMIT_OFFSETS: Final = Unary(_GROUPS + "CommitOffsets", group.CommitOffsetsRequest, group.CommitOffsetsResponse)
FETCH_OFFSETS: Final = Unary(_GROUPS + "FetchOffsets", group.FetchOffsetsRequest, group.FetchOffsetsResponse)
LIST_GROUPS: Final = Unary(_GROUPS + "ListGroups", group.ListGroupsRequest, group.ListGroupsResponse)
DESCRIBE_GROUP: Final = Unary(_GROUPS + "DescribeGroup", group.DescribeGroupRequest, group.DescribeGroupResponse)
DELETE_GROUP: Final = Unary(_GROUPS + "DeleteGroup", group.DeleteGroupRequest, group.DeleteGroupResponse)
RESET_OFFSETS: Final = Unary(_GROUPS + "ResetOffsets", group.ResetOffsetsRequest, group.ResetOffsetsResponse)

GET_METADATA: Final = Unary(_CLUSTER + "GetMetadata", cluster.GetMetadataRequest, cluster.GetMetadataResponse)
GET_BROKER_INFO: Final = Unary(_CLUSTER + "GetBrokerInfo", cluster.GetBrokerInfoRequest, cluster.GetBrokerInfoResponse)

DESCRIBE_PRODUCERS: Final = Unary(
    _PUBLISHING + "DescribeProducers", publish.DescribeProducersRequest, publish.DescribeProducersResponse
)
RELEASE_PRODUCERS: Final = Unary(
    _PUBLISHING + "ReleaseProducers", publish.ReleaseProducersRequest, publish.ReleaseProducersResponse
)

PUBLISH_STREAM: Final = Stream(_PUBLISHING + "PublishStream", publish.PublishStreamResponse)
FETCH: Final = Unary("/cursus.v1.ConsumeService/Fetch", consume.FetchRequest, opaque.FetchResponse)
# Parsed with sets as bytes: a set is checked against its checksum before it is unpacked.
CONSUME: Final = Stream("/cursus.v1.ConsumeService/Consume", opaque.ConsumeResponse)
SUBSCRIBE: Final = Stream("/cursus.v1.ConsumeService/Subscribe", opaque.SubscribeResponse)
