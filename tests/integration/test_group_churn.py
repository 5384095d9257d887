"""Members of every kind join, leave, die and return at random for a minute, under load."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cursus_proto.v1 import group_service_pb2 as pb
from cursus_proto.v1 import topic_service_pb2 as topic_pb
from tests.harness.clients import Client
from tests.harness.processes import BrokerProcess
from tests.harness.waiting import eventually
from tests.integration.churn_members import GROUP, TOPIC, CallMember, ChurnMember, Recorder, StreamMember

CHURN_S = 60.0
PARTITIONS = 6
MAX_MEMBERS = 7
SEED = 206


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[BrokerProcess]:
    async with BrokerProcess.start(tmp_path / "data") as process:
        yield process


class Churn:
    """Starts and ends members at random. A member that fails ends the test with its failure."""

    def __init__(self, address: str, recorder: Recorder) -> None:
        self.rng = random.Random(SEED)
        self._address = address
        self._recorder = recorder
        self._running: dict[ChurnMember, asyncio.Task[None]] = {}
        self._dead: list[ChurnMember] = []
        self._started = 0

    async def step(self) -> None:
        """One random event, then a short random pause."""
        self._raise_failures()
        living = len(self._running)
        if living < 2 or (living < MAX_MEMBERS and self.rng.random() < 0.5):
            if self._dead and self.rng.random() < 0.5:
                self._return(self._dead.pop(self.rng.randrange(len(self._dead))))
            else:
                self.start()
        else:
            await self._end(self.rng.choice(list(self._running)))
        await asyncio.sleep(self.rng.uniform(0.02, 0.4))

    def start(self) -> None:
        """A member of any kind, static or not."""
        self._started += 1
        instance_id = f"instance-{self._started}" if self.rng.random() < 0.4 else ""
        kind: type[StreamMember] | type[CallMember] = self.rng.choice((StreamMember, CallMember))
        self._run(kind(self._address, self._recorder, self.rng, f"member-{self._started}", instance_id), "joined")

    async def end_all(self) -> None:
        for member in list(self._running):
            await self._end(member, leave=True)
        self._raise_failures()

    def _return(self, dead: ChurnMember) -> None:
        """A static member comes back as a new process, a dynamic one resumes under its id, on a stream or on calls."""
        self._started += 1
        kind: type[StreamMember] | type[CallMember] = self.rng.choice((StreamMember, CallMember))
        member_id = "" if dead.instance_id else dead.member_id
        name = f"{dead.name}+{self._started}"
        self._run(kind(self._address, self._recorder, self.rng, name, dead.instance_id, member_id), "returned")

    def _run(self, member: ChurnMember, event: str) -> None:
        self._recorder.events[event] += 1
        self._running[member] = asyncio.create_task(member.run(), name=member.name)

    async def _end(self, member: ChurnMember, *, leave: bool = False) -> None:
        if leave or self.rng.random() < 0.4:
            await member.leave()
            self._recorder.events["left"] += 1
        else:
            await member.die()
            self._recorder.events["died"] += 1
            if member.member_id:
                self._dead.append(member)
        await self._running.pop(member)

    def abandon(self) -> None:
        """Stop everything, for a test that has failed."""
        for task in self._running.values():
            task.cancel()

    def _raise_failures(self) -> None:
        for member, task in self._running.items():
            if task.done():
                task.result()
                raise AssertionError(f"{member.name} ended by itself")


async def publish(client: Client, partition: int, published: dict[int, int], stop: asyncio.Event) -> None:
    """Small batches of values that say where they belong, until told to stop."""
    rng = random.Random(partition)
    while not stop.is_set():
        first = published[partition]
        values = [b"%d/%d" % (partition, first + index) for index in range(rng.randint(1, 5))]
        appended = await client.publish(TOPIC, values, partition)
        assert appended.base_offset == first
        published[partition] += len(values)
        await asyncio.sleep(rng.uniform(0.01, 0.05))


async def watch(client: Client, recorder: Recorder, stop: asyncio.Event) -> None:
    """Look at the group from outside, again and again: one owner a partition, and no offset that goes back."""
    seen: dict[int, int] = {}
    generation = 0
    while not stop.is_set():
        acknowledged = dict(recorder.acknowledged)
        found = await client.groups.FetchOffsets(pb.FetchOffsetsRequest(group=GROUP))
        offsets = {one.partition: one.next_offset for one in found.offsets}
        for partition, floor in [*seen.items(), *acknowledged.items()]:
            assert offsets.get(partition, 0) >= floor, f"the committed offset of {partition} went back"
        seen = offsets
        for partition, offset in offsets.items():
            assert offset <= recorder.delivered[partition], "a committed offset passes records nobody has seen"
        described = await client.groups.DescribeGroup(pb.DescribeGroupRequest(group=GROUP))
        held = [place.partition for member in described.members for place in member.partitions]
        assert len(held) == len(set(held)), "a partition has two holders"
        assert described.summary.generation >= generation
        generation = described.summary.generation
        recorder.events["looks"] += 1
        await asyncio.sleep(0.01)
    recorder.events["generations"] = generation


@pytest.mark.slow
async def test_under_churn_a_partition_has_one_owner_and_no_record_is_skipped(broker: BrokerProcess) -> None:
    recorder = Recorder(PARTITIONS)
    churn = Churn(broker.grpc, recorder)
    published = dict.fromkeys(range(PARTITIONS), 0)
    no_more_records, no_more_looks = asyncio.Event(), asyncio.Event()
    async with Client.connect(broker.grpc) as client:
        await client.create_topic(TOPIC, PARTITIONS, topic_pb.TopicConfig(content_deduplication=False))
        await client.groups.CommitOffsets(
            pb.CommitOffsetsRequest(group=GROUP, offsets=[pb.CommitOffset(topic=TOPIC, partition=0, next_offset=0)])
        )
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(watch(client, recorder, no_more_looks), name="watch")
            for partition in range(PARTITIONS):
                tasks.create_task(publish(client, partition, published, no_more_records), name=f"publish-{partition}")
            try:
                ends_at = time.monotonic() + CHURN_S
                while time.monotonic() < ends_at:
                    await churn.step()
                no_more_records.set()
                # Somebody has to be there to read the rest.
                churn.start()
                caught_up: bool = await eventually(lambda: recorder.acknowledged == published)
                assert caught_up
                await churn.end_all()
                no_more_looks.set()
            finally:
                churn.abandon()
    assert recorder.delivered == published
    events = recorder.events
    assert not recorder.owners
    # Far below what a slow machine manages: it only shows that things did happen.
    assert min(events["joined"], events["left"], events["died"], events["returned"]) >= 5, events
    assert events["generations"] >= 20, events
    assert "Traceback" not in broker.log
