"""Group members for the churn test, and the recorder that watches them.

A member *claims* a partition when the broker gives it, and drops the claim before it tells the broker that it let go,
or at the moment it dies. So at no moment may a partition be claimed twice, however slow anything is: live members on
calls have sessions no machine is slow enough to lose, members on streams live as long as their stream, and only one
that is about to fall silent asks for a short session first.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from typing import Final, Protocol

import grpc

from cursus_proto.v1 import consume_service_pb2 as consume_pb
from cursus_proto.v1 import group_service_pb2 as pb
from cursus_proto.v1.records_pb2 import RecordBatch, TopicPartition
from tests.harness.clients import Client, reason, stored_records

GROUP: Final = "churning"
TOPIC: Final = "events"
LONG_SESSION_MS: Final = 300_000
SHORT_SESSION_MS: Final = 1_000
REBALANCE_MS: Final = 300_000


class Recorder:
    """What all members together did, checked as they do it."""

    def __init__(self, partitions: int) -> None:
        self.owners: dict[int, str] = {}
        self.delivered = dict.fromkeys(range(partitions), 0)
        """Everything below was delivered to some member."""
        self.acknowledged: dict[int, int] = {}
        """The highest offset whose commit was answered."""
        self.events: Counter[str] = Counter()

    def claim(self, name: str, partition: int) -> None:
        owner = self.owners.setdefault(partition, name)
        assert owner == name, f"partition {partition} was given to {name} while {owner} had it"

    def drop(self, name: str, partitions: Iterable[int]) -> None:
        for partition in list(partitions):
            assert self.owners.pop(partition) == name

    def deliver(self, name: str, partition: int, batch: RecordBatch) -> int:
        """Note a batch; answers the offset after it."""
        assert self.owners.get(partition) == name, f"{name} received partition {partition} without owning it"
        known = self.delivered[partition]
        assert batch.base_offset <= known, f"records {known} to {batch.base_offset} of {partition} were skipped"
        for one in stored_records(batch):
            assert one.value == b"%d/%d" % (partition, one.offset)
        after = batch.base_offset + batch.record_count
        self.delivered[partition] = max(known, after)
        self.events["delivered"] += batch.record_count
        return after

    def committing(self, name: str, partition: int, next_offset: int) -> None:
        assert self.owners.get(partition) == name
        assert next_offset <= self.delivered[partition], "a commit passes records nobody has seen"

    def committed(self, partition: int, next_offset: int) -> None:
        self.acknowledged[partition] = max(self.acknowledged.get(partition, 0), next_offset)
        self.events["committed"] += 1


class ChurnMember(Protocol):
    name: str
    instance_id: str
    member_id: str

    async def run(self) -> None:
        """Live until `leave` or `die`."""

    async def leave(self) -> None:
        """Say goodbye."""

    async def die(self) -> None:
        """Fall silent."""


class StreamMember:
    """A member on a Subscribe stream, with a connection of its own."""

    def __init__(
        self,
        address: str,
        recorder: Recorder,
        rng: random.Random,
        name: str,
        instance_id: str = "",
        member_id: str = "",
    ) -> None:
        self.name = name
        self.instance_id = instance_id
        self.member_id = member_id
        self._address = address
        self._recorder = recorder
        self._rng = rng
        self._owned: set[int] = set()
        self._positions: dict[int, int] = {}
        self._sent: dict[int, dict[int, int]] = {}
        self._client = Client.connect(address)
        self._call: grpc.aio.StreamStreamCall[consume_pb.SubscribeRequest, consume_pb.SubscribeResponse] | None = None
        self._gone = False

    async def run(self) -> None:
        async with self._client as client:
            self._call = client.consuming.Subscribe()
            start = consume_pb.SubscribeStart(
                group=GROUP,
                topics=[TOPIC],
                member_id=self.member_id,
                instance_id=self.instance_id,
                session_timeout_ms=SHORT_SESSION_MS,
                rebalance_timeout_ms=REBALANCE_MS,
            )
            with suppress(asyncio.CancelledError):
                await self._call.write(consume_pb.SubscribeRequest(start=start))
                while isinstance(message := await self._call.read(), consume_pb.SubscribeResponse):
                    # One that leaves reads on until the broker has ended the stream, and works no more.
                    if not self._gone:
                        await self._handle(message)
            assert self._gone, f"the broker ended the stream of {self.name}"

    async def leave(self) -> None:
        self._let_go()
        assert self._call is not None
        await self._call.done_writing()

    async def die(self) -> None:
        self._let_go()
        if self._call is not None:
            self._call.cancel()

    def _let_go(self) -> None:
        self._gone = True
        self._recorder.drop(self.name, self._owned)
        self._owned.clear()

    async def _handle(self, message: consume_pb.SubscribeResponse) -> None:
        match message.WhichOneof("response"):
            case "started":
                self.member_id = message.started.member_id
            case "assignment":
                await self._take(message.assignment)
            case "batches":
                assert not message.batches.HasField("error"), message.batches.error
                await self._process(message.batches)
            case "committed":
                for partition, next_offset in self._sent.pop(message.committed.commit_id).items():
                    self._recorder.committed(partition, next_offset)
                for result in message.committed.results:
                    assert not result.HasField("error"), f"{self.name} may commit what it holds: {result.error}"

    async def _take(self, assignment: consume_pb.SubscribeAssignment) -> None:
        given = {one.partition: one.start_offset for one in assignment.partitions}
        lost = self._owned - given.keys()
        # The stream keeps the order: what is committed here counts before the acknowledgement gives it away.
        await self._commit({partition: self._positions[partition] for partition in lost & self._positions.keys()})
        if self._gone:
            return
        self._recorder.drop(self.name, lost)
        for partition in given.keys() - self._owned:
            self._recorder.claim(self.name, partition)
            self._positions.pop(partition, None)
            assert given[partition] <= self._recorder.delivered[partition], "the start skips records"
        self._owned = set(given)
        ack = consume_pb.AssignmentAck(generation=assignment.generation)
        await self._write(consume_pb.SubscribeRequest(assignment_ack=ack))

    async def _process(self, batches: consume_pb.SubscribedBatches) -> None:
        for batch in batches.batches:
            self._positions[batches.partition] = self._recorder.deliver(self.name, batches.partition, batch)
        position = self._positions[batches.partition]
        if position == batches.next_offset or self._rng.random() < 0.3:
            await self._commit({batches.partition: position})

    async def _commit(self, positions: dict[int, int]) -> None:
        if not positions:
            return
        number = len(self._sent) and max(self._sent) + 1
        self._sent[number] = positions
        for partition, position in positions.items():
            self._recorder.committing(self.name, partition, position)
        request = consume_pb.SubscribeCommit(commit_id=number, offsets=_offsets(positions))
        await self._write(consume_pb.SubscribeRequest(commit=request))

    async def _write(self, request: consume_pb.SubscribeRequest) -> None:
        assert self._call is not None
        if not self._gone:
            await self._call.write(request)


class CallMember:
    """A member on JoinGroup, SyncGroup, Heartbeat, Fetch and CommitOffsets.

    An eager one lets go of everything before it syncs; the other first asks what it may keep.
    """

    def __init__(
        self,
        address: str,
        recorder: Recorder,
        rng: random.Random,
        name: str,
        instance_id: str = "",
        member_id: str = "",
    ) -> None:
        self.name = name
        self.instance_id = instance_id
        self.member_id = member_id
        self._client = Client.connect(address)
        self._recorder = recorder
        self._rng = rng
        self._eager = rng.random() < 0.5
        self._generation = 0
        self._owned: set[int] = set()
        self._positions: dict[int, int] = {}
        self._ending = ""
        self._ended = asyncio.Event()

    async def run(self) -> None:
        try:
            async with self._client as client:
                await self._join(client)
                await self._sync(client)
                while not self._ending:
                    beat = pb.HeartbeatRequest(group=GROUP, member_id=self.member_id, generation=self._generation)
                    if (await client.groups.Heartbeat(beat)).must_sync:
                        if not self._eager:
                            await self._join(client)
                        await self._sync(client)
                    await self._read(client)
                self._let_go(set(self._owned))
                if self._ending == "leave":
                    await client.groups.LeaveGroup(pb.LeaveGroupRequest(group=GROUP, member_id=self.member_id))
                else:
                    await self._join(client, SHORT_SESSION_MS, claim=False)
        finally:
            self._ended.set()

    async def leave(self) -> None:
        await self._end("leave")

    async def die(self) -> None:
        await self._end("die")

    async def _end(self, how: str) -> None:
        self._ending = how
        await self._ended.wait()

    async def _join(self, client: Client, session_ms: int = LONG_SESSION_MS, *, claim: bool = True) -> None:
        """Join, or ask what is left of the present assignment without acknowledging it."""
        request = pb.JoinGroupRequest(
            group=GROUP,
            topics=[TOPIC],
            member_id=self.member_id,
            instance_id=self.instance_id,
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=REBALANCE_MS,
        )
        joined = await client.groups.JoinGroup(request)
        self.member_id, self._generation = joined.member_id, joined.generation
        if claim:
            await self._keep(client, joined.partitions)

    async def _sync(self, client: Client) -> None:
        """Acknowledge the present generation, having let go of what it took."""
        while True:
            if self._eager:
                self._let_go(set(self._owned))
                beat = pb.HeartbeatRequest(group=GROUP, member_id=self.member_id, generation=self._generation)
                self._generation = (await client.groups.Heartbeat(beat)).generation
            request = pb.SyncGroupRequest(
                group=GROUP, member_id=self.member_id, generation=self._generation, max_wait_ms=50
            )
            try:
                synced = await client.groups.SyncGroup(request)
            except grpc.aio.AioRpcError as error:
                if reason(error) != "GENERATION_MISMATCH":
                    raise
                if not self._eager:
                    await self._join(client)
                continue
            await self._keep(client, synced.partitions)
            return

    async def _keep(self, client: Client, partitions: Iterable[TopicPartition]) -> None:
        given = {place.partition for place in partitions}
        self._let_go(self._owned - given)
        fresh = given - self._owned
        for partition in fresh:
            self._recorder.claim(self.name, partition)
        self._owned = given
        if fresh:
            asked = [TopicPartition(topic=TOPIC, partition=partition) for partition in sorted(fresh)]
            request = pb.FetchOffsetsRequest(group=GROUP, partitions=asked, member_id=self.member_id)
            for one in (await client.groups.FetchOffsets(request)).offsets:
                self._positions[one.partition] = one.next_offset

    def _let_go(self, partitions: set[int]) -> None:
        self._recorder.drop(self.name, partitions)
        self._owned -= partitions

    async def _read(self, client: Client) -> None:
        if not self._owned:
            return
        parts = [
            consume_pb.FetchPartition(topic=TOPIC, partition=partition, offset=self._positions[partition])
            for partition in sorted(self._owned)
        ]
        fetched = await client.consuming.Fetch(consume_pb.FetchRequest(partitions=parts, max_wait_ms=50))
        positions: dict[int, int] = {}
        for one in fetched.partitions:
            assert not one.HasField("error"), one.error
            for batch in one.batches:
                positions[one.partition] = self._recorder.deliver(self.name, one.partition, batch)
        self._positions |= positions
        if positions:
            await self._commit(client, positions)

    async def _commit(self, client: Client, positions: dict[int, int]) -> None:
        for partition, position in positions.items():
            self._recorder.committing(self.name, partition, position)
        request = pb.CommitOffsetsRequest(
            group=GROUP, member_id=self.member_id, generation=self._generation, offsets=_offsets(positions)
        )
        for result in (await client.groups.CommitOffsets(request)).results:
            assert not result.HasField("error"), f"{self.name} may commit what it holds: {result.error}"
            self._recorder.committed(result.partition, positions[result.partition])


def _offsets(positions: dict[int, int]) -> list[pb.CommitOffset]:
    return [
        pb.CommitOffset(topic=TOPIC, partition=partition, next_offset=position)
        for partition, position in positions.items()
    ]
