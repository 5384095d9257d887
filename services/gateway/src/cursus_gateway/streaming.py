"""Pushing: STREAM, batches of one partition as they are stored, and SUBSCRIBE, payloads as a group's member.

A push ends with its connection. While the broker is away it waits for it, keepalives go on, and nothing is lost: it
reads on where it stood. A client that does not read stops only its own push, since credit is granted only for what its
connection has taken.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar

import grpc
import structlog

from cursus_gateway import batch
from cursus_gateway.consuming import Consuming
from cursus_gateway.dialect import replies
from cursus_gateway.dialect.commands import Stream, Subscribe
from cursus_gateway.epochs import ReadEpochs, ReadUpTo
from cursus_gateway.framing import KEEPALIVE, MAX_ANSWER_BYTES, MIB, Parts, frame
from cursus_gateway.membership import Membership, is_java
from cursus_gateway.metrics import GatewayMetrics
from cursus_gateway.refusals import NOT_THERE, Refused, spell, where_to_go_on
from cursus_gateway.settings import GroupSettings
from cursus_gateway.statuses import is_transient, refused_by_call
from cursus_gateway.unpacking import UNREADABLE, Unpacking
from cursus_gateway.upstream import Upstream
from cursus_proto.cutting import StoredBatch, stored
from cursus_proto.internal.v1 import opaque_pb2
from cursus_proto.v1 import consume_service_pb2 as pb
from cursus_proto.v1 import records_pb2

log = structlog.get_logger(__name__)

T = TypeVar("T")

# How often an open stream says that its member lives and asks whether it still owns the partition.
OWNERSHIP_S: Final = 1.0
CREDIT_BYTES: Final = 2 * MIB
# Payloads that are pushed together, as far as they fit into an answer.
_MANY: Final = 8_192
_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 1.0


class Outlet(Protocol):
    """The connection as a push sees it."""

    @property
    def lane(self) -> int: ...

    @property
    def third_generation(self) -> bool: ...

    @property
    def epochs(self) -> ReadEpochs: ...

    def send(self, parts: Parts) -> None:
        """Writes whole frames."""

    async def writable(self) -> None:
        """Returns once the connection has taken enough of what was sent."""


class Streaming:
    def __init__(
        self,
        upstream: Upstream,
        membership: Membership,
        consuming: Consuming,
        unpacking: Unpacking,
        settings: GroupSettings,
        metrics: GatewayMetrics,
    ) -> None:
        self._upstream = upstream
        self._membership = membership
        self._consuming = consuming
        self.unpacking = unpacking
        self._settings = settings
        self._metrics = metrics

    async def stream(self, command: Stream, outlet: Outlet, *, raw: bool) -> bool:
        """Pushes until something ends it. True if the connection is to be closed then. Raises Refused."""
        text = await self._obstacle(command)
        if text is not None:
            outlet.send([frame(text.encode())])
            return False
        push = _Push(self, command, outlet, java=raw or is_java(command.member))
        push.offset = await self._start(command, outlet.epochs)
        push.epoch = outlet.epochs.reading_on(command.topic, command.partition, push.offset)
        with self._metrics.streaming():
            try:
                return await push.run()
            finally:
                log.info("stream.completed", topic=command.topic, partition=command.partition, messages=push.sent)

    async def _start(self, command: Stream, epochs: ReadEpochs) -> int:
        if command.offset is None:
            return await self._consuming.position(
                command.topic, command.partition, command.group, command.latest_without_commit
            )
        if self._settings.stream_autocommit and command.member and command.offset:
            offsets = {command.partition: epochs.processed(command.topic, command.partition, command.offset)}
            await self._membership.commit(command.topic, command.group, offsets, command.member, command.generation)
        return command.offset

    async def _obstacle(self, command: Stream) -> str | None:
        return await self._membership.obstacle(
            command.topic, command.partition, command.group, command.member, command.generation
        )

    async def subscribe(self, command: Subscribe, outlet: Outlet, joined: Callable[[], None]) -> None:
        """Pushes payloads of the topic, a frame each, as a member of the group, from now on or from where the group
        stands. What was handed to the connection is committed. Calls `joined` once the member is known and its
        start committed. Runs until cancelled; raises Refused."""
        pause_s = _FIRST_PAUSE_S
        with self._metrics.streaming():
            while True:
                try:
                    await self._subscribed(command, outlet, joined)
                except grpc.aio.AioRpcError as error:
                    refused = refused_by_call(error)
                    if not is_transient(refused):
                        raise refused from None
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _subscribed(self, command: Subscribe, outlet: Outlet, joined: Callable[[], None]) -> None:
        call = self._upstream.home().subscribe(outlet.lane)
        try:
            latest = records_pb2.OffsetSpec(edge=records_pb2.OFFSET_EDGE_LATEST)
            start = pb.SubscribeStart(
                group=command.group,
                topics=[command.topic],
                client_id="cursus-gateway",
                session_timeout_ms=self._settings.session_timeout_ms,
                start_without_commit=latest,
                grant=records_pb2.FlowGrant(bytes=CREDIT_BYTES),
            )
            await call.write(pb.SubscribeRequest(start=start))
            positions: dict[int, ReadUpTo] = {}
            commits = 0
            waiting: deque[opaque_pb2.SubscribeResponse] = deque()
            while (response := waiting.popleft() if waiting else await call.read()) is not grpc.aio.EOF:
                kind = response.WhichOneof("response")
                if kind == "assignment":
                    assignment = response.assignment
                    positions = _positions(assignment.partitions, positions)
                    ack = pb.AssignmentAck(generation=assignment.generation)
                    await call.write(pb.SubscribeRequest(assignment_ack=ack))
                    if not assignment.complete:
                        continue
                    if positions:
                        # A group that has committed nothing begins at the end, and again after its broker died: what
                        # came in between would be skipped. So the client hears that it has subscribed, and then its
                        # first messages, when its start is kept.
                        commits += 1
                        commit = pb.SubscribeCommit(commit_id=commits)
                        for partition, position in positions.items():
                            _add(commit, command.topic, partition, position)
                        await call.write(pb.SubscribeRequest(commit=commit))
                        if (before := await _before_commit(call, commits)) is None:
                            return
                        waiting += before
                    joined()
                elif kind == "batches":
                    found = response.batches
                    batches = stored(found.batches)
                    position = positions.get(found.partition, ReadUpTo(0))
                    next_offset = position.next_offset
                    while batches and next_offset < batches[-1].next_offset:
                        payloads, next_offset = await self.unpacking.payloads(
                            batches, next_offset, (found.topic, found.partition), _MANY
                        )
                        outlet.send([frame(payload) for payload in payloads])
                        await outlet.writable()
                        if not payloads:
                            break
                    positions[found.partition] = ReadUpTo(next_offset, position.epoch)
                    commits += 1
                    commit = pb.SubscribeCommit(commit_id=commits)
                    _add(commit, found.topic, found.partition, positions[found.partition])
                    await call.write(pb.SubscribeRequest(commit=commit))
                    size = sum(one.payload_bytes for one in batches)
                    await call.write(pb.SubscribeRequest(grant=records_pb2.FlowGrant(bytes=size)))
        finally:
            call.cancel()


async def _before_commit(call: Any, commit_id: int) -> list[opaque_pb2.SubscribeResponse] | None:
    """Waits for the answer to a commit. Answers what came before it, which credit bounds; None if the stream ends."""
    before: list[opaque_pb2.SubscribeResponse] = []
    while (response := await call.read()) is not grpc.aio.EOF:
        if response.WhichOneof("response") == "committed" and response.committed.commit_id == commit_id:
            return before
        before.append(response)
    return None


def _add(commit: pb.SubscribeCommit, topic: str, partition: int, position: ReadUpTo) -> None:
    commit.offsets.add(topic=topic, partition=partition, next_offset=position.next_offset, leader_epoch=position.epoch)


def _positions(assigned: Iterable[pb.AssignedPartition], before: Mapping[int, ReadUpTo]) -> dict[int, ReadUpTo]:
    """Where the member is in what it owns now: where it was, in a log that is still the same, else at the start."""
    positions: dict[int, ReadUpTo] = {}
    for place in assigned:
        was = before.get(place.partition)
        start = ReadUpTo(place.start_offset, place.leader_epoch)
        positions[place.partition] = was if was is not None and was.epoch == start.epoch else start
    return positions


class _Push:
    """One STREAM."""

    def __init__(self, streaming: Streaming, command: Stream, outlet: Outlet, *, java: bool) -> None:
        self._streaming = streaming
        self._command = command
        self._outlet = outlet
        self._java = java
        self._keepalive = batch.empty_answer(command.topic, command.partition) if java else KEEPALIVE
        self._keepalive_s = streaming._settings.stream_keepalive_ms / 1000
        self._last_frame = asyncio.get_running_loop().time()
        self.offset = 0
        self.epoch: int | None = None
        """The epoch that the offset is from, as far as it is known."""
        self.sent = 0

    async def run(self) -> bool:
        pause_s = _FIRST_PAUSE_S
        try:
            while True:
                before = self.sent
                try:
                    end = await self._follow()
                except Refused as refused:
                    end = await self._after(refused)
                if end is not None:
                    return end
                pause_s = _FIRST_PAUSE_S if self.sent > before else min(2 * pause_s, _LONGEST_PAUSE_S)
                await self._meanwhile(asyncio.sleep(pause_s))
        except asyncio.CancelledError:
            self._say_goodbye("stopped")
            raise

    async def _after(self, refused: Refused) -> bool | None:
        """What a failure means for the stream: None to go on, else whether to close the connection."""
        if is_transient(refused):
            return None
        if refused.reason in NOT_THERE:
            self.epoch = None
            self._outlet.epochs.forget(self._command.topic, self._command.partition)
            earliest, latest = int(refused.metadata["earliest"]), int(refused.metadata["latest"])
            if refused.reason == "OFFSET_OUT_OF_RANGE" and self.offset > latest:
                self.offset = latest
                return None
            go_on = where_to_go_on(refused)
            log.warning("stream.moved", topic=self._command.topic, offset=self.offset, to=go_on, reason=refused.reason)
            if self._outlet.third_generation and not self._java:
                extra = f" requested={self.offset} earliest={earliest} latest={latest}"
                self._text(replies.stream_ends("offset_out_of_range", go_on, extra))
                return True
            self.offset = go_on
            return None
        if refused.reason in UNREADABLE:
            # Said as it is: a client that only hears of an end would begin again at the same batch.
            log.warning("stream.unreadable", **refused.metadata)
            self._text(spell(refused))
            return True
        if self.sent:
            self._say_goodbye("error")
            return True
        self._text(spell(refused))
        return False

    async def _follow(self) -> bool | None:
        """Reads one Consume stream to its end. None to open another, else whether to close the connection."""
        command, outlet = self._command, self._outlet
        call = self._streaming._upstream.link_for(command.topic, command.partition).consume(outlet.lane)
        try:
            start = pb.ConsumeStart(
                topic=command.topic,
                partition=command.partition,
                start_at=records_pb2.OffsetSpec(offset=self.offset),
                grant=records_pb2.FlowGrant(bytes=CREDIT_BYTES),
                leader_epoch=self.epoch,
            )
            await call.write(pb.ConsumeRequest(start=start))
            while True:
                consumed, text = await self._meanwhile(call.read())
                if text is not None:
                    self._text(text)
                    return True
                if consumed is grpc.aio.EOF:
                    return None
                assert isinstance(consumed, tuple), "what the call deserializes to"
                response, batches = consumed
                if response.HasField("started"):
                    self.epoch = response.started.leader_epoch
                if batches:
                    await self._deliver(batches)
                    size = sum(one.payload_bytes for one in batches)
                    await call.write(pb.ConsumeRequest(grant=records_pb2.FlowGrant(bytes=size)))
        except grpc.aio.AioRpcError as error:
            refused = refused_by_call(error)
            if refused.reason == "NOT_LEADER":
                await self._streaming._upstream.find_leader(command.topic, command.partition)
                return None
            raise refused from None
        finally:
            call.cancel()

    async def _deliver(self, batches: Sequence[StoredBatch]) -> None:
        topic, partition = self._command.topic, self._command.partition
        while True:
            written = await self._streaming.unpacking.write(
                batches,
                self.offset,
                (topic, partition),
                max_count=self._command.limit,
                max_bytes=MAX_ANSWER_BYTES - batch.head_bytes(topic),
            )
            if not written.count:
                return
            self._outlet.send(batch.encode_answer(topic, partition, written))
            self._last_frame = asyncio.get_running_loop().time()
            self.offset = written.next_offset
            self.sent += written.count
            if self.epoch is not None:
                self._outlet.epochs.note(topic, partition, written.next_offset, self.epoch)
            await self._outlet.writable()

    async def _meanwhile(self, waited_for: Awaitable[T]) -> tuple[T | None, str | None]:
        """Waits, and keeps the stream and its member alive meanwhile. Answers the result, or a text that ends it."""
        loop = asyncio.get_running_loop()
        waiting = asyncio.ensure_future(waited_for)
        checked = loop.time()
        try:
            while True:
                due = min(self._last_frame + self._keepalive_s, checked + OWNERSHIP_S)
                done, _ = await asyncio.wait((waiting,), timeout=max(0.0, due - loop.time()))
                if done:
                    return waiting.result(), None
                if loop.time() >= checked + OWNERSHIP_S:
                    checked = loop.time()
                    text = await self._lost_ownership()
                    if text is not None:
                        return None, text
                if loop.time() >= self._last_frame + self._keepalive_s:
                    self._last_frame = loop.time()
                    self._outlet.send([self._keepalive])
                    await self._outlet.writable()
        finally:
            waiting.cancel()

    async def _lost_ownership(self) -> str | None:
        try:
            return await self._streaming._obstacle(self._command)
        except Refused:
            return None

    def _say_goodbye(self, reason: str) -> None:
        if self._java:
            self._text(replies.java_stream_ends(reason))
        elif self._outlet.third_generation:
            self._text(replies.stream_ends(reason, self.offset))

    def _text(self, text: str) -> None:
        self._outlet.send([frame(text.encode())])
