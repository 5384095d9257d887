"""A member of a consumer group over one Subscribe stream after another.

The stream tells assignments and, by default, brings the batches. A consumer that seeks, pauses or comes back after a
broken stream reads its partitions over streams of their own instead, because a subscription has one credit and one
order for all of them and begins where the group has committed; the subscription is then kept without further credit,
for the assignments alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from cursus_grpc import _tasks
from cursus_grpc._channel import Connections, exchange, read, write
from cursus_grpc._convert import STRATEGIES, place_to_proto
from cursus_grpc._partition_stream import Credit, skipped, tell_truncation
from cursus_grpc._reading import Chunk, Failure, Inbox, Reading, Rebalance, Truncated
from cursus_grpc._records import next_offset, payload_bytes
from cursus_grpc._retry import Backoff
from cursus_grpc._rpcs import GET_BROKER_INFO, SUBSCRIBE
from cursus_grpc._status import from_status
from cursus_grpc.errors import BrokerUnreachable, CursusError, MemberNotFound, NotFound
from cursus_grpc.types import BEGINNING, END, Reset, Strategy, TopicPartition
from cursus_proto.internal.v1.opaque_pb2 import SubscribedBatches, SubscribeResponse
from cursus_proto.v1 import consume_service_pb2 as pb
from cursus_proto.v1.cluster_service_pb2 import GetBrokerInfoRequest
from cursus_proto.v1.group_service_pb2 import ASSIGNMENT_STRATEGY_UNSPECIFIED
from cursus_proto.v1.records_pb2 import FlowGrant
from cursus_transport import StreamCall

_log = logging.getLogger("cursus_grpc")

# The least credit there is: it lets one response through, and then nothing.
_NO_CREDIT: Final = FlowGrant(bytes=1)

SubscribeCall = StreamCall[bytes, SubscribeResponse]


@dataclass(frozen=True, slots=True)
class MembershipSettings:
    group: str
    topics: Sequence[str]
    pattern: str
    instance_id: str
    client_id: str
    strategy: Strategy | None
    session_timeout_ms: int
    rebalance_timeout_ms: int
    reset: Reset
    prefetch_bytes: int


class Membership:
    """Keeps the consumer in its group until it leaves. Lives on one event loop."""

    def __init__(
        self,
        settings: MembershipSettings,
        inbox: Inbox,
        connections: Connections,
        committed: Callable[[TopicPartition], Awaitable[int | None]],
        take_over: Callable[[], None],
    ) -> None:
        """`committed` looks up what the group has committed; `take_over` is called where a resumed subscription does
        not begin where we were, or another log has taken the place of ours, and is to read the partitions over streams
        of their own."""
        self.member_id = ""
        self.generation = 0
        self.detached = False
        """Whether the partitions are read over streams of their own."""
        self._settings = settings
        self._inbox = inbox
        self._connections = connections
        self._committed = committed
        self._take_over = take_over
        self._owned: dict[TopicPartition, Reading] = {}
        self._to_let_go: set[Reading] = set()
        """Revoked, and the application has not taken note yet."""
        self._credit = Credit(settings.prefetch_bytes)
        self._outgoing: deque[pb.SubscribeRequest] = deque()
        self._has_outgoing = asyncio.Event()
        self._stream = 0
        self._stands = False
        self._leaving = False
        self._task = _tasks.start(self._run(), f"cursus-member-{settings.group}")

    def detach(self) -> None:
        """Take no more batches from the subscription. The caller reads the partitions itself from now on."""
        self.detached = True

    def give_back(self, size: int) -> None:
        if not self.detached:
            self._credit.give_back(size)

    def acknowledge(self, rebalance: Rebalance) -> None:
        """The application has taken note of a rebalance and let go of what it lost."""
        for reading in rebalance.gone:
            self._to_let_go.discard(reading)
        if rebalance.stream == self._stream:
            ack = pb.AssignmentAck(generation=rebalance.generation)
            self._outgoing.append(pb.SubscribeRequest(assignment_ack=ack))
            self._has_outgoing.set()

    async def leave(self, timeout_s: float) -> None:
        """Leave the group, or with an instance id only stop. Waits for the broker to confirm, within the timeout; after
        it the session timeout does the rest."""
        # Not by cancelling the task, which cancels the stream: only one that is closed in order is a leaving.
        self._leaving = True
        self._has_outgoing.set()
        if self._stands:
            await asyncio.wait([self._task], timeout=timeout_s)
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        backoff = Backoff()
        while not self._leaving:
            try:
                await self._session(backoff)
            except MemberNotFound:
                self.member_id = ""  # the session ended; the next one begins as somebody new
            except CursusError as error:
                if self._leaving:
                    return  # a broker with batches on their way cuts them off, and that is what was asked for
                if not error.retriable:
                    self._inbox.put_event(Failure(error))
                    return
                _log.warning("group %s: %s; trying again", self._settings.group, error)
            await asyncio.sleep(backoff.next_s())

    async def _session(self, backoff: Backoff) -> None:
        timeout_s = self._connections.settings.request_timeout_s
        address = await self._find_broker()
        call = SUBSCRIBE.call(self._connections.channel(address))
        sending: asyncio.Task[None] | None = None
        try:
            response = await exchange(call, pb.SubscribeRequest(start=self._start()), timeout_s)
            if response.WhichOneof("response") != "started":
                raise BrokerUnreachable(f"{address} does not begin with `started`")
            self.member_id, self.generation = response.started.member_id, response.started.generation
            self._stream += 1
            self._outgoing.clear()
            self._stands = True
            backoff.reset()
            sending = asyncio.create_task(self._send(call), name="cursus-member-send")
            resumed = True
            while (message := await read(call)) is not None:
                if message.WhichOneof("response") == "assignment":
                    await self._assign(message.assignment, resumed)
                    resumed = False
                elif message.WhichOneof("response") == "batches":
                    self._receive(message.batches)
            if not self._leaving:
                raise BrokerUnreachable(f"{address} ended the stream")
        finally:
            self._stands = False
            call.cancel()
            if sending is not None:
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)

    async def _find_broker(self) -> str:
        """By a call: it finds one that serves, or tells why there is none."""
        try:
            # Without patience as long as there was none: the address may be wrong, which is told at once. Later on the
            # broker is waited for.
            patient = self._connections.reached
            _, address = await self._connections.call_any(GET_BROKER_INFO, GetBrokerInfoRequest(), patient=patient)
        except CursusError as error:
            if not self._connections.reached and error.retriable:
                self._inbox.tell_trouble(error)
            raise
        return address

    def _start(self) -> pb.SubscribeStart:
        settings = self._settings
        strategy = STRATEGIES[settings.strategy] if settings.strategy is not None else ASSIGNMENT_STRATEGY_UNSPECIFIED
        return pb.SubscribeStart(
            group=settings.group,
            topics=settings.topics,
            topic_pattern=settings.pattern,
            member_id=self.member_id,
            instance_id=settings.instance_id,
            client_id=settings.client_id,
            strategy=strategy,
            session_timeout_ms=settings.session_timeout_ms,
            rebalance_timeout_ms=settings.rebalance_timeout_ms,
            start_without_commit=place_to_proto(END if settings.reset == "latest" else BEGINNING),
            grant=_NO_CREDIT if self.detached else self._credit.initial(),
        )

    async def _send(self, call: SubscribeCall) -> None:
        granting = asyncio.create_task(self._grant(), name="cursus-member-grant")
        try:
            while True:
                while self._outgoing:
                    await write(call, self._outgoing.popleft())
                if self._leaving:
                    await call.done_writing()
                    return
                self._has_outgoing.clear()
                await self._has_outgoing.wait()
        except BrokerUnreachable:
            return  # whoever reads the stream learns why it ended
        finally:
            granting.cancel()

    async def _grant(self) -> None:
        while True:
            self._outgoing.append(pb.SubscribeRequest(grant=await self._credit.next_grant()))
            self._has_outgoing.set()

    async def _assign(self, assignment: pb.SubscribeAssignment, resumed: bool) -> None:
        """Put a change of ownership into the inbox. `resumed`: the first one on this stream."""
        self.generation = assignment.generation
        starts = {TopicPartition(one.topic, one.partition): one for one in assignment.partitions}
        gone = [reading for place, reading in self._owned.items() if place not in starts]
        for reading in gone:
            reading.gone = True
            del self._owned[reading.place]
            if resumed:
                # On a new stream nobody asked us to let go: what is missing was taken away in our absence.
                reading.lost = True
        # Until we let go the broker names it again, unless our time was over and another member has it.
        still_held = {TopicPartition(one.topic, one.partition) for one in assignment.revoked} | starts.keys()
        for reading in self._to_let_go:
            reading.lost = reading.lost or reading.place not in still_held
        self._to_let_go.update(gone)
        for place, reading in self._owned.items():
            # On the same stream only a topic that was deleted and made anew changes the epoch.
            if resumed or starts[place].leader_epoch != reading.epoch:
                await self._resume(reading, starts[place])
        assigned = [
            Reading(place, start.start_offset, start.leader_epoch)
            for place, start in starts.items()
            if place not in self._owned
        ]
        for reading in assigned:
            self._owned[reading.place] = reading
        self._inbox.put_event(Rebalance(assignment.generation, self._stream, gone, assigned))
        for reading in assigned:
            start = starts[reading.place]
            if start.HasField("truncated_from"):
                tell_truncation(self._inbox, Truncated(reading, start.truncated_from, start.start_offset))
        self._inbox.drop_void()

    async def _resume(self, reading: Reading, start: pb.AssignedPartition) -> None:
        """Go on after a broken stream. The subscription begins again at the committed offset or, without one, where the
        reset policy says. Unless the group has gone on without us, we want to go on where we were: behind that, lest
        we skip something; before that, lest we receive everything again after every break and, on a bad line, never
        come to an end. The partitions' own streams begin where we want. They also name the epoch we were in: if it has
        changed, they are told whether the log was cut below us, which the subscription's start does not tell.
        """
        if start.leader_epoch == reading.epoch and (self.detached or start.start_offset == reading.fetched):
            return
        if start.start_offset > reading.fetched and not self.detached:
            committed = await self._committed(reading.place)
            if committed is not None and committed >= start.start_offset:
                reading.jump(start.start_offset, start.leader_epoch)
                return
        self._take_over()

    def _receive(self, message: SubscribedBatches) -> None:
        reading = self._owned.get(TopicPartition(message.topic, message.partition))
        if message.HasField("error"):
            self._fail(from_status(message.error))
            return
        size = sum(map(payload_bytes, message.batches))
        if reading is None or self.detached:
            self.give_back(size)
            return
        batches = deque(batch for batch in message.batches if next_offset(batch) > reading.fetched)
        if not batches:
            self.give_back(size)
            return
        if self._settings.reset == "error" and batches[0].base_offset > reading.fetched:
            self._fail(skipped(reading.fetched, batches[0].base_offset, message.next_offset))
        reading.fetched = next_offset(batches[-1])
        reading.end_offset = message.next_offset
        self._inbox.put(Chunk(reading, batches, size, self))

    def _fail(self, error: CursusError) -> None:
        # A topic that is gone, or a broker that stops, shows in the next assignment or stream.
        if not error.retriable and not isinstance(error, NotFound):
            self._inbox.put_event(Failure(error))
