"""Commands to calls and their results to answers: all commands but those that push or end the connection."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Protocol

from cursus_gateway.consuming import Consuming
from cursus_gateway.dialect import commands as c
from cursus_gateway.dialect import replies
from cursus_gateway.dialect.commands import Dialect, Request
from cursus_gateway.epochs import ReadEpochs
from cursus_gateway.framing import Parts, frame
from cursus_gateway.idempotence import IdempotentTopics
from cursus_gateway.membership import Membership
from cursus_gateway.peers import Peers
from cursus_gateway.publishing import Publishing
from cursus_gateway.refusals import Refused, fenced_epoch, spell
from cursus_gateway.settings import ReplyProfile
from cursus_gateway.topics import policies_of, require_policies, wanted_config
from cursus_gateway.upstream import (
    ADD_PARTITIONS,
    CREATE_TOPIC,
    DELETE_TOPIC,
    DESCRIBE_GROUP,
    DESCRIBE_TOPIC,
    GET_METADATA,
    JOIN_GROUP,
    LEAVE_GROUP,
    LIST_GROUPS,
    LIST_TOPICS,
    Upstream,
)
from cursus_proto.v1 import cluster_service_pb2, group_service_pb2, topic_service_pb2

# How Go writes a time that is not set: that of the last rebalance, if that was before the broker started.
_NO_TIME: Final = "0001-01-01T00:00:00Z"


class Context(Protocol):
    """The connection as a command sees it."""

    group: str
    structured_errors: bool

    @property
    def lane(self) -> int: ...

    @property
    def peer(self) -> str: ...

    @property
    def profile(self) -> ReplyProfile: ...

    @property
    def third_generation(self) -> bool: ...

    @property
    def epochs(self) -> ReadEpochs: ...

    @property
    def advertised(self) -> str:
        """HOST:PORT the client is told to use."""


@dataclass(frozen=True, slots=True)
class Reply:
    """Whole frames to write."""

    parts: Parts
    close: bool = False
    refused: bool = False
    """It tells the client no."""


def text_reply(text: str, *, close: bool = False) -> Reply:
    return Reply([frame(text.encode())], close, replies.is_error(text))


class Translator:
    def __init__(
        self,
        upstream: Upstream,
        publishing: Publishing,
        idempotent_topics: IdempotentTopics,
        membership: Membership,
        consuming: Consuming,
        peers: Peers,
    ) -> None:
        self._upstream = upstream
        self._publishing = publishing
        self._idempotent_topics = idempotent_topics
        self._membership = membership
        self._consuming = consuming
        self._peers = peers

    async def serve(self, request: Request, context: Context, *, raw: bool) -> Reply:
        """The answer to a command. Raises Refused where the answer is the refusal, spelt by `refusal_text`."""
        match request.command:
            case c.ConsumeBatch() as command:
                self._peers.moved_on(context.peer, command.group, command.topic, command.partition)
                third_generation = request.third_generation or context.third_generation
                found = await self._consuming.consume_batch(
                    command, context.lane, context.epochs, third_generation=third_generation
                )
                return text_reply(found) if isinstance(found, str) else Reply(found)
            case c.Exit():
                return text_reply(replies.OK, close=True)
            case c.NotServed(name):
                if name == "READ_STREAM":
                    return text_reply(replies.not_served_json(name), close=True)
                return text_reply(replies.not_served(name))
            case c.FindCoordinator() as command:
                return text_reply(self._find_coordinator(command, context, raw))
            case _:
                return text_reply(await self._answer(request, context))

    async def _answer(self, request: Request, context: Context) -> str:
        positional = request.dialect is Dialect.POSITIONAL
        match request.command:
            case c.CreateTopic() as command:
                return await self._create(command, positional)
            case c.DeleteTopic(topic):
                await self._upstream.call(DELETE_TOPIC, topic_service_pb2.DeleteTopicRequest(name=topic))
                self._idempotent_topics.forget(topic)
                return f"{replies.BIN}Topic '{topic}' deleted" if positional else f"OK topic={topic} deleted=true"
            case c.ListTopics():
                return await self._list_topics(context)
            case c.CountPartitions(topic):
                return f"OK topic={topic} partitions={len((await self._topic_metadata(topic)).partitions)}"
            case c.Help():
                return replies.help_third_generation() if context.third_generation else replies.help_text()
            case c.SetGroup(group):
                context.group = group
                return f"{replies.CHECK}Consumer group set to '{group}'"
            case c.Publish() as command:
                return await self._publish(command, context, positional)
            case c.JoinGroup() as command:
                await self._topic_metadata(command.topic)
                self._peers.joined(context.peer, command.group, time.monotonic())
                return await self._membership.join(command)
            case c.SyncGroup() as command:
                return await self._membership.sync(command)
            case c.LeaveGroup() as command:
                return await self._membership.leave(command)
            case c.Heartbeat() as command:
                return await self._membership.heartbeat(command)
            case c.CommitOffset() as command:
                return await self._commit(command, context)
            case c.BatchCommit() as command:
                return await self._batch_commit(command, context)
            case c.FetchOffset() as command:
                return await self._fetch_offset(command, context)
            case c.ListOffsets() as command:
                return await self._list_offsets(command)
            case c.Metadata(topic):
                found = await self._topic_metadata(topic)
                epochs = [place.leader_epoch for place in found.partitions]
                return replies.metadata(topic, len(epochs), context.advertised, epochs)
            case c.DescribeTopic(topic):
                return await self._describe_topic(topic)
            case c.GroupStatus(group):
                return await self._group_status(group)
            case c.RegisterGroup() as command:
                return await self._register_group(command, positional)
            case c.ListGroups():
                groups = await self._upstream.call(LIST_GROUPS, group_service_pb2.ListGroupsRequest())
                names = [summary.group for summary in groups.groups]
                return f"OK count={len(names)} groups={','.join(names)}"
            case c.ProtocolInfo():
                return replies.protocol_info()
            case c.Negotiate() as command:
                return self._negotiate(command, context)
            case other:
                raise AssertionError(f"the session serves {type(other).__name__} itself")

    async def _create(self, command: c.CreateTopic, positional: bool) -> str:
        """RULE 15: an existing topic grows if it is smaller, and is otherwise answered as it is. It is not changed, so
        that a policy it does not have is refused."""
        request = topic_service_pb2.CreateTopicRequest(
            name=command.topic, partition_count=command.partitions or 4, config=wanted_config(command)
        )
        try:
            topic = (await self._upstream.call(CREATE_TOPIC, request)).topic
            self._idempotent_topics.forget(command.topic)
        except Refused as refused:
            if refused.reason != "TOPIC_EXISTS":
                raise
            describe = topic_service_pb2.DescribeTopicRequest(name=command.topic)
            topic = (await self._upstream.call(DESCRIBE_TOPIC, describe)).topic
            require_policies(command, topic)
            if command.partitions is not None and command.partitions > topic.partition_count:
                grow = topic_service_pb2.AddPartitionsRequest(name=command.topic, partition_count=command.partitions)
                topic = (await self._upstream.call(ADD_PARTITIONS, grow)).topic
        if positional:
            return replies.created_first_generation(command.topic, topic.partition_count)
        return replies.created(command.topic, topic.partition_count, policies_of(topic.config))

    async def _list_topics(self, context: Context) -> str:
        topics = await self._upstream.call(LIST_TOPICS, topic_service_pb2.ListTopicsRequest())
        names = [topic.name for topic in topics.topics if not topic.name.startswith("__")]
        return replies.topic_list_third_generation(names) if context.third_generation else replies.topic_list(names)

    async def _topic_metadata(self, topic: str) -> cluster_service_pb2.TopicMetadata:
        """Raises Refused if there is no such topic."""
        request = cluster_service_pb2.GetMetadataRequest(topics=[topic])
        answer: cluster_service_pb2.GetMetadataResponse = await self._upstream.call(GET_METADATA, request)
        if not answer.topics:
            raise Refused("TOPIC_NOT_FOUND", f"topic {topic!r} does not exist", {"topic": topic})
        return answer.topics[0]

    async def require_topic(self, topic: str) -> None:
        """Raises Refused if there is no such topic."""
        await self._topic_metadata(topic)

    async def _publish(self, command: c.Publish, context: Context, positional: bool) -> str:
        try:
            appended = await self._publishing.publish(command, context.lane)
        except Refused as refused:
            if positional:
                raise
            if refused.reason == "PRODUCER_FENCED":
                sequence = command.sequence
                return replies.acknowledgement(
                    0, command.epoch, command.producer_id, sequence, sequence, fenced_epoch(refused)
                )
            return spell(refused, classified=True)
        if positional:
            return f"{replies.OUTBOX}Published to '{command.topic}'"
        if command.acks == "0":
            return replies.OK
        last_offset = max(0, appended.base_offset)
        return replies.acknowledgement(
            last_offset, command.epoch, command.producer_id, command.sequence, command.sequence
        )

    async def _commit(self, command: c.CommitOffset, context: Context) -> str:
        """RULE 23."""
        group = command.group or context.group
        self._peers.moved_on(context.peer, group, command.topic, command.partition)
        processed = context.epochs.processed(command.topic, command.partition, command.offset)
        outcomes = await self._membership.commit(
            command.topic, group, {command.partition: processed}, command.member, command.generation or 0
        )
        refused = outcomes[command.partition]
        if refused is None or (refused.reason == "OFFSET_REGRESSION" and command.generation is None):
            return replies.OK
        if refused.reason == "NOT_OWNER":
            return replies.not_owner(command.partition, command.member, group, command.generation or 0)
        raise refused

    async def _batch_commit(self, command: c.BatchCommit, context: Context) -> str:
        """RULE 24. A repeated or older offset counts as done: Java repeats its pairs every five seconds."""
        for partition in command.offsets:
            self._peers.moved_on(context.peer, command.group, command.topic, partition)
        processed = {
            partition: context.epochs.processed(command.topic, partition, offset)
            for partition, offset in command.offsets.items()
        }
        outcomes = await self._membership.commit(
            command.topic, command.group, processed, command.member, command.generation
        )
        refusals: Mapping[int, Refused] = {
            partition: refused
            for partition, refused in outcomes.items()
            if refused is not None and refused.reason != "OFFSET_REGRESSION"
        }
        if len(refusals) < len(outcomes):
            return f"OK batched={len(outcomes) - len(refusals)}"
        partition, refused = next(iter(refusals.items()))
        if refused.reason != "NOT_OWNER":
            raise refused
        return replies.not_owner(partition, command.member, command.group, command.generation)

    async def _fetch_offset(self, command: c.FetchOffset, context: Context) -> str:
        """RULE 22."""
        committed = await self._membership.committed(command.group, command.topic, command.partition, command.member)
        bare = self._peers.answers_bare(
            context.profile, context.peer, command.group, command.topic, command.partition, time.monotonic()
        )
        if context.third_generation and context.profile is ReplyProfile.AUTO:
            bare = False
        return str(committed or 0) if bare else f"OK offset={committed or 0}"

    async def _list_offsets(self, command: c.ListOffsets) -> str:
        request = topic_service_pb2.DescribeTopicRequest(name=command.topic)
        described = await self._upstream.call(DESCRIBE_TOPIC, request)
        entries = [
            (place.partition, place.earliest_offset, place.next_offset)
            for place in described.partitions
            if command.partition in (None, place.partition)
        ]
        if not entries:
            wanted = str(command.partition)
            raise Refused("PARTITION_NOT_FOUND", f"no partition {wanted}", {"partition": wanted})
        return replies.offsets(command.topic, entries)

    @staticmethod
    def _find_coordinator(command: c.FindCoordinator, context: Context, raw: bool) -> str:
        """RULE 25: a Java consumer that is told its coordinator listens on one connection and streams on another."""
        if command.transactional:
            return replies.not_served("FIND_COORDINATOR")
        if raw:
            return replies.NO_COORDINATOR
        host, _, port = context.advertised.rpartition(":")
        return f"OK coordinator_id=gateway coordinator_type=group host={host} port={port}"

    async def _describe_topic(self, topic: str) -> str:
        request = topic_service_pb2.DescribeTopicRequest(name=topic)
        described = await self._upstream.call(DESCRIBE_TOPIC, request)
        return replies.described(
            {
                "status": "OK",
                "topic": topic,
                "partitions": [
                    {
                        "id": place.partition,
                        "leader": "",
                        "replicas": None,
                        "isr": None,
                        "leo": place.next_offset,
                        "hwm": place.next_offset,
                    }
                    for place in described.partitions
                ],
                "policy": policies_of(described.topic.config),
            }
        )

    async def _group_status(self, group: str) -> str:
        request = group_service_pb2.DescribeGroupRequest(group=group)
        try:
            described = await self._upstream.call(DESCRIBE_GROUP, request)
        except Refused as refused:
            if refused.reason != "GROUP_NOT_FOUND":
                raise
            return replies.error("group_status_failed", reason=str(refused))
        topics = sorted({place.topic for place in described.partitions})
        return replies.described(
            {
                "status": "OK",
                "group_name": group,
                "topic_name": topics[0] if topics else "",
                "state": "Stable" if described.members else "Dead",
                "generation": described.summary.generation,
                "member_count": len(described.members),
                "partition_count": len(described.partitions),
                "members": [
                    {
                        "member_id": member.member_id,
                        "last_heartbeat": _rfc3339(member.last_heartbeat_ms),
                        "joined": _rfc3339(member.joined_ms),
                        "assignments": [place.partition for place in member.partitions],
                    }
                    for member in described.members
                ],
                "last_rebalance": _rfc3339(described.rebalanced_ms),
            }
        )

    async def _register_group(self, command: c.RegisterGroup, positional: bool) -> str:
        """A group exists from its first member or commit on, so one that does not is made by a member that leaves."""
        await self._topic_metadata(command.topic)
        try:
            await self._upstream.call(DESCRIBE_GROUP, group_service_pb2.DescribeGroupRequest(group=command.group))
        except Refused as refused:
            if refused.reason != "GROUP_NOT_FOUND":
                raise
            join = group_service_pb2.JoinGroupRequest(group=command.group, topics=[command.topic], at_once=True)
            member = (await self._upstream.call(JOIN_GROUP, join)).member_id
            leave = group_service_pb2.LeaveGroupRequest(group=command.group, member_id=member)
            await self._upstream.call(LEAVE_GROUP, leave)
        if positional:
            return f"{replies.CHECK}Group '{command.group}' registered for topic '{command.topic}'"
        return f"OK group={command.group} topic={command.topic} registered=true"

    @staticmethod
    def _negotiate(command: c.Negotiate, context: Context) -> str:
        if command.version != 1:
            return replies.refusal(
                "UNSUPPORTED_PROTOCOL_VERSION", retryable=False, requested=command.version, min=1, max=1
            )
        wanted = replies.FEATURES if command.every_feature else command.features
        enabled = [name for name in wanted if name in replies.FEATURES]
        unsupported = [name for name in wanted if name not in replies.FEATURES]
        if unsupported and command.required:
            return replies.refusal("UNSUPPORTED_FEATURE", retryable=False, features=",".join(unsupported))
        context.structured_errors = "structured_errors_v1" in enabled
        return replies.negotiated(command.version, enabled, unsupported)


def _rfc3339(time_ms: int) -> str:
    """Milliseconds since 1970 as a date, in UTC. 0: not set."""
    if not time_ms:
        return _NO_TIME
    moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def refusal_text(request: Request, refused: Refused, *, classified: bool) -> str:
    """A refusal in the words of the request's generation."""
    if request.dialect is Dialect.POSITIONAL and refused.reason == "TOPIC_NOT_FOUND":
        topic = refused.metadata.get("topic", "")
        verb = "not found" if isinstance(request.command, c.DeleteTopic) else "does not exist"
        return f"ERROR: topic '{topic}' {verb}"
    return spell(refused, classified=classified)
