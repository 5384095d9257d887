"""What a client knows of the cluster: how many partitions a topic has, and who leads them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from cursus_grpc import _tasks
from cursus_grpc._channel import Connections
from cursus_grpc._rpcs import GET_BROKER_INFO, GET_METADATA
from cursus_grpc.errors import PartitionNotFound, TopicNotFound
from cursus_grpc.types import BrokerAddress
from cursus_proto.bounds import portions
from cursus_proto.v1 import cluster_service_pb2 as pb

_UNSPECIFIED: Final = frozenset({"0.0.0.0", "::", ""})


@dataclass(frozen=True, slots=True)
class TopicView:
    """A topic as it was when last asked for. `leaders` holds an address for each partition."""

    name: str
    topic_id: str
    leaders: tuple[str, ...]
    asked_at: float

    @property
    def partition_count(self) -> int:
        return len(self.leaders)


class ClusterView:
    """A cache of topics. Lives on one event loop; concurrent questions about a topic share one call."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._topics: dict[str, TopicView] = {}
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._max_batch_bytes: int | None = None

    def known(self, topic: str) -> TopicView | None:
        return self._topics.get(topic)

    async def topic(self, name: str, timeout_s: float | None = None, *, patient: bool = True) -> TopicView:
        """The topic, asked for if it is not known. Raises TopicNotFound, and what calls raise."""
        if name not in self._topics:
            await self.refresh([name], timeout_s, patient=patient)
        return self._known(name)

    async def leader(self, topic: str, partition: int, timeout_s: float | None = None, *, patient: bool = True) -> str:
        """The address of the partition's leader. Raises TopicNotFound, PartitionNotFound."""
        view = await self.topic(topic, timeout_s, patient=patient)
        if partition >= view.partition_count:
            await self.refresh([topic], timeout_s, patient=patient)
            view = self._known(topic)
        if not 0 <= partition < view.partition_count:
            raise no_partition(topic, partition, view.partition_count)
        return view.leaders[partition]

    async def refresh(self, names: Iterable[str], timeout_s: float | None = None, *, patient: bool = True) -> None:
        """Ask for these topics again, `patient` as in `Connections.call_any`. Those that are gone are forgotten."""
        wanted = list(dict.fromkeys(names))
        fresh = [name for name in wanted if name not in self._asking]
        if fresh:
            task = _tasks.start(self._ask(fresh, timeout_s, patient), "cursus-metadata")
            for name in fresh:
                self._asking[name] = task
            task.add_done_callback(lambda done: self._answered(done, fresh))
        # Shielded: whoever else waits for the same answer still wants it when this caller is cancelled.
        for task in {self._asking[name] for name in wanted if name in self._asking}:
            await asyncio.shield(task)

    def _answered(self, task: asyncio.Task[None], names: list[str]) -> None:
        for name in names:
            self._asking.pop(name, None)
        if not task.cancelled():
            task.exception()  # known to whoever still waits; nobody need be left

    async def close(self) -> None:
        """Stop asking."""
        asking = set(self._asking.values())
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)

    async def max_batch_bytes(self, *, patient: bool = True) -> int:
        """The largest record set the brokers take, asked for once."""
        if self._max_batch_bytes is None:
            request = pb.GetBrokerInfoRequest()
            info, _ = await self._connections.call_any(GET_BROKER_INFO, request, patient=patient)
            self._max_batch_bytes = info.max_batch_bytes
        return self._max_batch_bytes

    async def _ask(self, names: list[str], timeout_s: float | None, patient: bool) -> None:
        for part in portions(names):
            await self._ask_for(part, timeout_s, patient)

    async def _ask_for(self, names: Sequence[str], timeout_s: float | None, patient: bool) -> None:
        request = pb.GetMetadataRequest(topics=names)
        response, answered_by = await self._connections.call_any(
            GET_METADATA, request, timeout_s=timeout_s, patient=patient
        )
        addresses = broker_targets(response, answered_by)
        now = time.monotonic()
        found: dict[str, TopicView] = {}
        for topic in response.topics:
            leaders = tuple(addresses.get(part.leader_id, answered_by) for part in topic.partitions)
            found[topic.name] = TopicView(topic.name, topic.topic_id, leaders, now)
        for name in names:
            if name in found:
                self._topics[name] = found[name]
            else:
                self._topics.pop(name, None)

    def _known(self, name: str) -> TopicView:
        found = self._topics.get(name)
        if found is None:
            raise no_topic(name)
        return found


def no_topic(name: str) -> TopicNotFound:
    return TopicNotFound(f"topic {name!r} does not exist", {"topic": name})


def no_partition(topic: str, partition: int, count: int) -> PartitionNotFound:
    return PartitionNotFound(
        f"topic {topic!r} has no partition {partition}: it has {count}, numbered from 0",
        {"topic": topic, "partition": str(partition), "partitions": str(count)},
    )


def no_such_partition(topic: str, partition: int) -> PartitionNotFound:
    return PartitionNotFound(
        f"topic {topic!r} has no partition {partition}: they are numbered from 0",
        {"topic": topic, "partition": str(partition)},
    )


def broker_targets(response: pb.GetMetadataResponse, answered_by: str) -> dict[int, str]:
    """Where to dial each broker.

    The only broker of a cluster is dialled where it answered: that works through port forwarding and where it
    advertises an address only it can use. So is one that advertises the wildcard address.
    """
    if len(response.brokers) == 1:
        return {response.brokers[0].broker_id: answered_by}
    return {
        broker.broker_id: answered_by
        if broker.host in _UNSPECIFIED
        else BrokerAddress(broker.broker_id, broker.host, broker.port).target
        for broker in response.brokers
    }
