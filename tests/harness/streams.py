"""Readers on streams: a Consume stream, and a group member on a Subscribe stream. Both read only when asked to, so a
test decides what has arrived when it looks.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, Self, TypeVar

import grpc

from cursus_proto.v1 import consume_service_pb2 as pb
from cursus_proto.v1 import group_service_pb2 as group_pb
from cursus_proto.v1.records_pb2 import OFFSET_EDGE_EARLIEST, FlowGrant, OffsetSpec
from tests.harness.clients import Client, StoredRecord, stored_records
from tests.harness.waiting import DEADLINE_S

if TYPE_CHECKING:
    ConsumeCall = grpc.aio.StreamStreamCall[pb.ConsumeRequest, pb.ConsumeResponse]
    SubscribeCall = grpc.aio.StreamStreamCall[pb.SubscribeRequest, pb.SubscribeResponse]

Message = TypeVar("Message")
Place = tuple[str, int]

EARLIEST: Final = OffsetSpec(edge=OFFSET_EDGE_EARLIEST)


async def within_deadline(work: Awaitable[Message]) -> Message:
    """The result, or a failure instead of a test that hangs."""
    async with asyncio.timeout(DEADLINE_S):
        return await work


async def is_silent(work: Awaitable[object], patience_s: float = 0.3) -> bool:
    """Whether nothing comes for a little while. A slow machine can only make this miss a fault, never invent one.

    The work is given up then; shield what is to go on.
    """
    task = asyncio.ensure_future(work)
    done, _ = await asyncio.wait({task}, timeout=patience_s)
    task.cancel()
    return not done


class ConsumeStream:
    """A Consume stream. `started` is the broker's first answer."""

    def __init__(self, call: ConsumeCall, started: pb.ConsumeStarted) -> None:
        self._call = call
        self.started = started

    @classmethod
    @asynccontextmanager
    async def open(cls, client: Client, topic: str, partition: int = 0, **fields: object) -> AsyncIterator[Self]:
        """`fields` are further fields of ConsumeStart. Leaving cancels the call."""
        fields.setdefault("start_at", EARLIEST)
        start = pb.ConsumeStart(topic=topic, partition=partition, **fields)  # type: ignore[arg-type]  # by the test
        call = client.consuming.Consume()
        try:
            await call.write(pb.ConsumeRequest(start=start))
            first = await within_deadline(call.read())
            assert isinstance(first, pb.ConsumeResponse), "the stream ended at once"
            assert first.WhichOneof("response") == "started"
            yield cls(call, first.started)
        finally:
            call.cancel()

    async def grant(self, records: int = 0, size_bytes: int = 0) -> None:
        await self._call.write(pb.ConsumeRequest(grant=FlowGrant(records=records, bytes=size_bytes)))

    async def send(self, request: pb.ConsumeRequest) -> None:
        await self._call.write(request)

    async def next(self) -> list[StoredRecord] | None:
        """The records of the next response; None at the end of the stream."""
        response = await within_deadline(self._call.read())
        if not isinstance(response, pb.ConsumeResponse):
            return None
        return [one for batch in response.batches.batches for one in stored_records(batch)]

    async def take(self, count: int) -> list[StoredRecord]:
        """Records until there are at least `count`, or the stream ends."""
        taken: list[StoredRecord] = []
        while len(taken) < count and (found := await self.next()) is not None:
            taken += found
        return taken

    async def rest(self) -> list[StoredRecord]:
        """All records until the stream ends."""
        taken: list[StoredRecord] = []
        while (found := await self.next()) is not None:
            taken += found
        return taken


class Member:
    """A group member on a Subscribe stream. It acknowledges assignments only when a test says so."""

    def __init__(self, call: SubscribeCall, started: pb.SubscribeStarted) -> None:
        self._call = call
        self.id = started.member_id
        self.generation = started.generation
        self.owned: set[Place] = set()
        self.starts: dict[Place, int] = {}
        self.epochs: dict[Place, int] = {}
        self.received: dict[Place, list[StoredRecord]] = {}
        self.errors: dict[Place, pb.SubscribedBatches] = {}
        self._pending: asyncio.Task[object] | None = None
        self._commits = 0
        self._writing = asyncio.Lock()

    @classmethod
    @asynccontextmanager
    async def join(cls, client: Client, group: str, *topics: str, **fields: object) -> AsyncIterator[Self]:
        """`fields` are further fields of SubscribeStart. Leaving breaks the stream without leaving the group."""
        member = await cls.subscribe(client, group, *topics, **fields)
        try:
            yield member
        finally:
            member.break_off()

    @classmethod
    async def subscribe(cls, client: Client, group: str, *topics: str, **fields: object) -> Self:
        start = pb.SubscribeStart(group=group, topics=topics, **fields)  # type: ignore[arg-type]  # by the test
        call = client.consuming.Subscribe()
        await call.write(pb.SubscribeRequest(start=start))
        first = await within_deadline(call.read())
        assert isinstance(first, pb.SubscribeResponse), "the stream ended at once"
        return cls(call, first.started)

    def break_off(self) -> None:
        """As if the process had died: the stream breaks, and nobody says goodbye."""
        if self._pending is not None:
            self._pending.cancel()
        self._call.cancel()

    async def leave(self) -> None:
        """Close the sending side, and wait for the broker to end the stream."""
        await self.close_sending()
        while await self.read() is not None:
            pass

    async def close_sending(self) -> None:
        await self._call.done_writing()

    async def _write(self, request: pb.SubscribeRequest) -> None:
        # grpcio takes one message at a time, and a test may commit and grant at once.
        async with self._writing:
            await self._call.write(request)

    async def grant(self, records: int = 0, size_bytes: int = 0) -> None:
        await self._write(pb.SubscribeRequest(grant=FlowGrant(records=records, bytes=size_bytes)))

    async def acknowledge(self) -> None:
        ack = pb.AssignmentAck(generation=self.generation)
        await self._write(pb.SubscribeRequest(assignment_ack=ack))

    async def read(self) -> pb.SubscribeResponse | None:
        """The next message, after taking note of it; None at the end of the stream."""
        if self._pending is None:
            self._pending = asyncio.ensure_future(self._call.read())
        # A read that is given up would lose its message; the next caller gets it instead.
        message = await within_deadline(asyncio.shield(self._pending))
        self._pending = None
        if not isinstance(message, pb.SubscribeResponse):
            return None
        self._note(message)
        return message

    async def until(self, condition: Callable[[], bool], *, acknowledge: bool = True) -> None:
        """Read, and acknowledge assignments unless told otherwise, until the condition holds."""
        async with asyncio.timeout(DEADLINE_S):
            while not condition():
                message = await self.read()
                assert message is not None, "the stream ended while the test waited"
                if acknowledge and message.HasField("assignment"):
                    await self.acknowledge()

    async def until_owner_of(self, *places: Place) -> None:
        """Read and acknowledge until exactly these partitions are owned."""
        await self.until(lambda: self.owned == set(places))

    async def commit(self, next_offset: int, topic: str, partition: int = 0) -> group_pb.CommitResult:
        """Commit one offset and wait for its result; whatever arrives before it is noted."""
        self._commits += 1
        offset = group_pb.CommitOffset(topic=topic, partition=partition, next_offset=next_offset)
        request = pb.SubscribeCommit(commit_id=self._commits, offsets=[offset])
        await self._write(pb.SubscribeRequest(commit=request))
        while (message := await self.read()) is not None:
            if message.HasField("committed"):
                assert message.committed.commit_id == self._commits
                return message.committed.results[0]
        raise AssertionError("the stream ended before the commit was answered")

    def values(self, topic: str, partition: int = 0) -> list[bytes]:
        return [one.value for one in self.received.get((topic, partition), [])]

    def _note(self, message: pb.SubscribeResponse) -> None:
        if message.HasField("assignment"):
            self.generation = message.assignment.generation
            self.starts = {(one.topic, one.partition): one.start_offset for one in message.assignment.partitions}
            self.epochs = {(one.topic, one.partition): one.leader_epoch for one in message.assignment.partitions}
            self.owned = set(self.starts)
        elif message.HasField("batches"):
            place = (message.batches.topic, message.batches.partition)
            if message.batches.HasField("error"):
                self.errors[place] = message.batches
            for batch in message.batches.batches:
                self.received.setdefault(place, []).extend(stored_records(batch))
