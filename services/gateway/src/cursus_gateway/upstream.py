"""The way to the brokers: few channels, unary calls with bounded retries, pipelined publishing, leaders and health.

One broker, the first of the configured ones that answers, is the *home*: everything goes there. Only a partition that
it refuses with NOT_LEADER goes elsewhere, to the address GetMetadata names. So a gateway behind address translation
works with the addresses it was given as long as it can.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import grpc
import structlog
from grpc_health.v1 import health_pb2

from cursus_gateway.framing import MAX_BODY_BYTES
from cursus_gateway.pipeline import PublishPipeline
from cursus_gateway.refusals import BROKER_UNAVAILABLE, Refused
from cursus_gateway.settings import UpstreamSettings
from cursus_gateway.statuses import is_transient, refused_by_call
from cursus_proto import cutting
from cursus_proto.internal.v1 import opaque_pb2
from cursus_proto.v1 import (
    cluster_service_pb2,
    consume_service_pb2,
    group_service_pb2,
    publish_service_pb2,
    topic_service_pb2,
)
from cursus_service.tls import load_authorities, load_identity
from cursus_transport import Channel, Limits, UnaryMethod

log = structlog.get_logger(__name__)

Req = TypeVar("Req")
Res = TypeVar("Res")

_FIRST_PAUSE_S: Final = 0.02
_LONGEST_PAUSE_S: Final = 0.4
_MAX_LEADERS: Final = 10_000
# A fetched batch is delivered whole, and may have been stored compressed by another client.
_LIMITS: Final = Limits(max_message_bytes=2 * MAX_BODY_BYTES + 1024 * 1024, keepalive_s=10.0, keepalive_timeout_s=5.0)


@dataclass(frozen=True, slots=True)
class Method(Generic[Req, Res]):
    """One unary call of the contract."""

    path: str
    serialize: Callable[[Req], bytes]
    deserialize: Callable[[bytes], Res]


def _unary(service: str, name: str, request: type[Any], response: type[Any]) -> Method[Any, Any]:
    return Method(f"/{service}/{name}", request.SerializeToString, response.FromString)


_TOPICS, _GROUPS = "cursus.v1.TopicService", "cursus.v1.GroupService"
_t, _g = topic_service_pb2, group_service_pb2

CREATE_TOPIC = _unary(_TOPICS, "CreateTopic", _t.CreateTopicRequest, _t.CreateTopicResponse)
DELETE_TOPIC = _unary(_TOPICS, "DeleteTopic", _t.DeleteTopicRequest, _t.DeleteTopicResponse)
LIST_TOPICS = _unary(_TOPICS, "ListTopics", _t.ListTopicsRequest, _t.ListTopicsResponse)
DESCRIBE_TOPIC = _unary(_TOPICS, "DescribeTopic", _t.DescribeTopicRequest, _t.DescribeTopicResponse)
ADD_PARTITIONS = _unary(_TOPICS, "AddPartitions", _t.AddPartitionsRequest, _t.AddPartitionsResponse)
LIST_OFFSETS = _unary(_TOPICS, "ListOffsets", _t.ListOffsetsRequest, _t.ListOffsetsResponse)
JOIN_GROUP = _unary(_GROUPS, "JoinGroup", _g.JoinGroupRequest, _g.JoinGroupResponse)
SYNC_GROUP = _unary(_GROUPS, "SyncGroup", _g.SyncGroupRequest, _g.SyncGroupResponse)
HEARTBEAT = _unary(_GROUPS, "Heartbeat", _g.HeartbeatRequest, _g.HeartbeatResponse)
LEAVE_GROUP = _unary(_GROUPS, "LeaveGroup", _g.LeaveGroupRequest, _g.LeaveGroupResponse)
COMMIT_OFFSETS = _unary(_GROUPS, "CommitOffsets", _g.CommitOffsetsRequest, _g.CommitOffsetsResponse)
FETCH_OFFSETS = _unary(_GROUPS, "FetchOffsets", _g.FetchOffsetsRequest, _g.FetchOffsetsResponse)
LIST_GROUPS = _unary(_GROUPS, "ListGroups", _g.ListGroupsRequest, _g.ListGroupsResponse)
DESCRIBE_GROUP = _unary(_GROUPS, "DescribeGroup", _g.DescribeGroupRequest, _g.DescribeGroupResponse)
GET_METADATA = _unary(
    "cursus.v1.ClusterService",
    "GetMetadata",
    cluster_service_pb2.GetMetadataRequest,
    cluster_service_pb2.GetMetadataResponse,
)
FETCH: Final = Method(
    "/cursus.v1.ConsumeService/Fetch", consume_service_pb2.FetchRequest.SerializeToString, cutting.read_fetched
)
_HEALTH = _unary("grpc.health.v1.Health", "Check", health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse)


class Link:
    """The channels to one broker. `lane` spreads connections over them; one connection always has the same lane."""

    def __init__(self, address: str, settings: UpstreamSettings) -> None:
        self.address = address
        tls = _context(settings)
        self._channels = [
            Channel(address, limits=_LIMITS, tls=tls, application="cursus-gateway") for _ in range(settings.channels)
        ]
        # Made once: the headers of a method's calls are the same each time.
        self._methods: dict[tuple[str, int], UnaryMethod[Any, Any]] = {}

    async def call(self, method: Method[Req, Res], request: Req, timeout_s: float, lane: int = 0) -> Res:
        lane %= len(self._channels)
        made = self._methods.get((method.path, lane))
        if made is None:
            made = self._methods[(method.path, lane)] = self._channels[lane].unary_unary(
                method.path, request_serializer=method.serialize, response_deserializer=method.deserialize
            )
        response: Res = await made(request, timeout=timeout_s)
        return response

    def publish_stream(self, lane: int) -> Any:
        """A PublishStream call in the opaque view; its requests need not be parsed again."""
        return self._channels[lane % len(self._channels)].stream_stream(
            "/cursus.v1.PublishService/PublishStream",
            request_serializer=opaque_pb2.PublishStreamRequest.SerializeToString,
            response_deserializer=publish_service_pb2.PublishStreamResponse.FromString,
        )()

    def consume(self, lane: int) -> Any:
        return self._channels[lane % len(self._channels)].stream_stream(
            "/cursus.v1.ConsumeService/Consume",
            request_serializer=consume_service_pb2.ConsumeRequest.SerializeToString,
            response_deserializer=cutting.read_consumed,
        )()

    def subscribe(self, lane: int) -> Any:
        return self._channels[lane % len(self._channels)].stream_stream(
            "/cursus.v1.ConsumeService/Subscribe",
            request_serializer=consume_service_pb2.SubscribeRequest.SerializeToString,
            response_deserializer=opaque_pb2.SubscribeResponse.FromString,
        )()

    async def close(self) -> None:
        for channel in self._channels:
            await channel.close()


class Upstream:
    def __init__(self, addresses: Sequence[str], settings: UpstreamSettings) -> None:
        self._settings = settings
        self._links = {address: Link(address, settings) for address in addresses}
        self._seeds = tuple(addresses)
        self._home = self._seeds[0]
        self._leaders: dict[tuple[str, int], str] = {}
        self._failure: str | None = "not asked yet"
        self._pipelines: dict[tuple[str, int], tuple[PublishPipeline, asyncio.Task[None]]] = {}
        self.timeout_s = settings.request_timeout_ms / 1000

    @property
    def failure(self) -> str | None:
        """Why no broker can be used; None while one answers."""
        return self._failure

    def home(self) -> Link:
        return self._links[self._home]

    def link_for(self, topic: str, partition: int) -> Link:
        """The broker that leads the partition, as far as is known."""
        address = self._leaders.get((topic, partition))
        return self.home() if address is None else self._link(address)

    def pipeline(self, topic: str, partition: int | None, lane: int) -> PublishPipeline:
        """The publish stream for a partition. All batches of one lane to one broker stay in order."""
        lane %= self._settings.channels
        address = "" if partition is None else self._leaders.get((topic, partition), "")
        found = self._pipelines.get((address, lane))
        if found is None:
            pipeline = PublishPipeline(
                lambda: (self._link(address) if address else self.home()).publish_stream(lane),
                timeout_s=self.timeout_s,
                max_pending_bytes=self._settings.pending_bytes,
            )
            task = asyncio.create_task(pipeline.run(), name=f"publish-{address or 'home'}-{lane}")
            found = self._pipelines[(address, lane)] = (pipeline, task)
        return found[0]

    async def call(
        self,
        method: Method[Req, Res],
        request: Req,
        *,
        timeout_s: float | None = None,
        lane: int = 0,
        place: tuple[str, int] | None = None,
    ) -> Res:
        """One unary call, repeated while no broker answers and there is time. All calls made this way may be repeated
        without harm. Raises Refused."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (timeout_s or self.timeout_s)
        pause_s = _FIRST_PAUSE_S
        while True:
            link = self.home() if place is None else self.link_for(*place)
            try:
                return await link.call(method, request, max(0.001, deadline - loop.time()), lane)
            except grpc.aio.AioRpcError as error:
                refused = refused_by_call(error)
            if refused.reason == "NOT_LEADER" and place is not None:
                await self.find_leader(*place)
            elif not is_transient(refused):
                raise refused
            if loop.time() + pause_s >= deadline:
                if is_transient(refused):
                    raise Refused(BROKER_UNAVAILABLE, f"no broker answers: {refused}") from None
                raise refused
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def find_leader(self, topic: str, partition: int) -> None:
        """Asks who leads the partition, and remembers it. A broker that does not know leaves things as they are."""
        request = cluster_service_pb2.GetMetadataRequest(topics=[topic])
        try:
            answer = await self.home().call(GET_METADATA, request, self.timeout_s)
        except grpc.aio.AioRpcError:
            return
        brokers = {broker.broker_id: f"{broker.host}:{broker.port}" for broker in answer.brokers}
        if len(self._leaders) > _MAX_LEADERS:
            self._leaders.clear()
        for found in answer.topics:
            for place in found.partitions:
                if place.leader_id in brokers:
                    self._leaders[(found.name, place.partition)] = brokers[place.leader_id]

    async def watch(self) -> None:
        """Asks the brokers whether they serve, and moves home to one that does. Runs until cancelled."""
        while True:
            await self._check()
            await asyncio.sleep(self._settings.health_interval_ms / 1000)

    async def _check(self) -> None:
        ordered = sorted(self._seeds, key=lambda address: address != self._home)
        failures: list[str] = []
        for address in ordered:
            try:
                answer = await self._links[address].call(_HEALTH, health_pb2.HealthCheckRequest(), 2.0)
            except grpc.aio.AioRpcError as error:
                failures.append(f"{address}: {error.details() or error.code().name}")
                continue
            if answer.status == health_pb2.HealthCheckResponse.SERVING:
                if address != self._home:
                    log.warning("upstream.home.moved", to=address)
                self._note(address, None)
                return
            failures.append(f"{address}: not serving")
        self._note(self._home, "no broker answers: " + "; ".join(failures))

    def _note(self, home: str, failure: str | None) -> None:
        if (failure is None) != (self._failure is None):
            if failure is None:
                log.info("upstream.broker.up", broker=home)
            else:
                log.warning("upstream.broker.down", reason=failure)
        self._home, self._failure = home, failure

    async def drain(self) -> None:
        """Waits until every batch that was submitted has its outcome."""
        await asyncio.gather(*(pipeline.drain() for pipeline, _ in self._pipelines.values()))

    async def close(self) -> None:
        tasks = [task for _, task in self._pipelines.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for link in self._links.values():
            await link.close()

    def _link(self, address: str) -> Link:
        if address not in self._links:
            self._links[address] = Link(address, self._settings)
        return self._links[address]


def _context(settings: UpstreamSettings) -> ssl.SSLContext | None:
    if settings.tls_ca is None:
        return None
    # On a context aside first, whose failure names the file.
    load_authorities(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), settings.tls_ca)
    context = ssl.create_default_context(cafile=settings.tls_ca)
    if settings.tls_cert is not None:
        load_identity(context, settings.tls_cert, settings.tls_key)
    return context
