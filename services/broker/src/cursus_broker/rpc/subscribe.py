"""ConsumeService.Subscribe on the wire. What a member may do is in consume/subscription.py."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from cursus_broker.consume.credit import Credit
from cursus_broker.consume.fetch import Edge
from cursus_broker.consume.subscription import Reading, Registry, Subscription
from cursus_broker.errors import CursusError, InvalidRequest, MemberNotFound
from cursus_broker.groups.coordinator import GroupCoordinator
from cursus_broker.groups.members import JoinRequest
from cursus_broker.groups.state import Assignment
from cursus_broker.log.api import Entry
from cursus_broker.metadata.model import TopicPartition
from cursus_broker.rpc.convert import partitions_to_proto, place_from_proto
from cursus_broker.rpc.groups import commits_from_proto, join_request, results_to_proto
from cursus_broker.rpc.guard import Stream
from cursus_broker.rpc.shared import SharedResponses
from cursus_broker.rpc.status import to_status
from cursus_broker.rpc.streams import Stopping, read_first, read_next
from cursus_broker.rpc.wire import subscribe_response
from cursus_broker.topics.catalog import Catalog
from cursus_broker.topics.partition import Partition
from cursus_proto.v1 import consume_service_pb2 as pb
from cursus_proto.v1.consume_service_pb2 import SubscribeRequest, SubscribeStart

# Commits and acknowledgements that wait for their turn, so that grants behind them need not wait for the disk. When
# there are more, or a large one, the stream is not read.
_MAX_ORDERS: Final = 16
_LARGE_ORDER_BYTES: Final = 64 * 1024


class _StreamOutbox:
    """Puts a member's messages on its stream, one at a time: gRPC does not take two writes at once."""

    def __init__(self, stream: Stream, responses: SharedResponses) -> None:
        self._stream = stream
        self._responses = responses
        self._turn = asyncio.Lock()

    async def assignment(
        self, assignment: Assignment, readings: Mapping[TopicPartition, Reading], revoked: Sequence[TopicPartition]
    ) -> None:
        message = pb.SubscribeAssignment(
            generation=assignment.generation,
            partitions=[
                pb.AssignedPartition(
                    topic=place.topic,
                    partition=place.partition,
                    start_offset=readings[place].offset,
                    leader_epoch=readings[place].partition.leader_epoch,
                    truncated_from=readings[place].truncated_from,
                )
                for place in sorted(readings)
            ],
            revoked=partitions_to_proto(revoked),
            complete=assignment.complete,
        )
        await self.write(pb.SubscribeResponse(assignment=message))

    async def batches(self, partition: Partition, entries: Sequence[Entry]) -> None:
        await self._write(self._responses.of(partition, entries))

    async def failed(self, place: TopicPartition, error: CursusError) -> None:
        message = pb.SubscribedBatches(topic=place.topic, partition=place.partition, error=to_status(error))
        await self.write(pb.SubscribeResponse(batches=message))

    async def write(self, message: pb.SubscribeResponse) -> None:
        await self._write(message.SerializeToString())

    async def _write(self, encoded: bytes) -> None:
        async with self._turn:
            await self._stream.write(encoded)


class SubscribeServicer:
    def __init__(
        self,
        coordinator: GroupCoordinator,
        catalog: Catalog,
        response_bytes: int,
        observe_delivery: Callable[[Sequence[Entry]], None],
        stopping: Stopping,
    ) -> None:
        self._stopping = stopping
        self._coordinator = coordinator
        self._catalog = catalog
        self._response_bytes = response_bytes
        self._observe_delivery = observe_delivery
        self._open = Registry()
        self._responses = SharedResponses(_subscribe_response)

    async def subscribe(self, stream: Stream) -> None:
        first = await read_first(stream, SubscribeRequest, "start")
        if first is None:
            return
        start = first.start
        credit = Credit()
        if start.HasField("grant"):
            credit.grant(start.grant.records, start.grant.bytes)
        place = (
            place_from_proto(start.start_without_commit) if start.HasField("start_without_commit") else Edge.EARLIEST
        )
        joined = await self._coordinator.join(_join_request(start, stream.peer()))
        group, member_id = start.group, joined.member_id
        outbox = _StreamOutbox(stream, self._responses)
        subscription = Subscription(
            self._coordinator,
            self._catalog,
            group,
            member_id,
            place,
            credit,
            self._response_bytes,
            outbox,
            self._observe_delivery,
        )
        self._open.enter(group, member_id, subscription)
        try:
            with self._coordinator.attached(group, member_id):
                started = pb.SubscribeStarted(member_id=member_id, generation=joined.generation)
                await outbox.write(pb.SubscribeResponse(started=started))
                await self._run(stream, subscription, credit, outbox)
                if not start.instance_id:
                    await self._leave(group, member_id)
        finally:
            self._open.leave(group, member_id, subscription)

    async def _run(self, stream: Stream, subscription: Subscription, credit: Credit, outbox: _StreamOutbox) -> None:
        """Until the member closes its side. A failure of any part ends them all."""
        async with asyncio.TaskGroup() as tasks:
            parts = [
                tasks.create_task(subscription.watch(), name="subscription-watch"),
                tasks.create_task(subscription.deliver(), name="subscription-deliver"),
                tasks.create_task(subscription.until_superseded(), name="subscription-superseded"),
                tasks.create_task(self._stopping.refuse(), name="subscription-stopping"),
            ]
            orders: asyncio.Queue[SubscribeRequest] = asyncio.Queue(_MAX_ORDERS)
            parts.append(tasks.create_task(_serve_in_order(orders, subscription, outbox), name="subscription-orders"))
            while (request := await read_next(stream, SubscribeRequest)) is not None:
                if request.WhichOneof("request") == "grant":
                    credit.grant(request.grant.records, request.grant.bytes)
                    continue
                await orders.put(request)
                if request.ByteSize() > _LARGE_ORDER_BYTES:
                    await orders.join()
            # Leaving must not overtake a commit either.
            await orders.join()
            for part in parts:
                part.cancel()

    async def _leave(self, group: str, member_id: str) -> None:
        try:
            await self._coordinator.leave(group, member_id)
        except MemberNotFound:
            return  # LeaveGroup, or the loss of its session, came first


def _subscribe_response(partition: Partition, entries: Sequence[Entry]) -> bytes:
    return subscribe_response(partition.topic, partition.id, entries, partition.next_offset)


async def _serve_in_order(
    orders: asyncio.Queue[SubscribeRequest], subscription: Subscription, outbox: _StreamOutbox
) -> None:
    """One after the other: an acknowledgement that overtook the commit before it would hand the partition over while
    the next owner still finds the older offset. Runs until cancelled."""
    while True:
        await _serve(await orders.get(), subscription, outbox)
        orders.task_done()


async def _serve(request: SubscribeRequest, subscription: Subscription, outbox: _StreamOutbox) -> None:
    match request.WhichOneof("request"):
        case "assignment_ack":
            await subscription.acknowledge(request.assignment_ack.generation)
        case "commit":
            commit = request.commit
            outcomes = await subscription.commit(commits_from_proto(commit.offsets))
            results = results_to_proto(commit.offsets, outcomes)
            committed = pb.SubscribeCommitted(commit_id=commit.commit_id, results=results)
            await outbox.write(pb.SubscribeResponse(committed=committed))
        case _:
            raise InvalidRequest("after start, a subscribe stream takes grants, acknowledgements and commits")


def _join_request(start: SubscribeStart, peer: str) -> JoinRequest:
    return join_request(
        group=start.group,
        topics=start.topics,
        pattern=start.topic_pattern,
        member_id=start.member_id,
        instance_id=start.instance_id,
        client_id=start.client_id,
        strategy=start.strategy,
        session_timeout_ms=start.session_timeout_ms,
        rebalance_timeout_ms=start.rebalance_timeout_ms,
        at_once=False,
        peer=peer,
    )
