"""A group member that follows one partition and commits what it has read."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import grpc

from bench import batches
from bench.jobs import channel
from cursus_proto.internal.v1.opaque_pb2 import SubscribeResponse
from cursus_proto.v1 import consume_service_pb2 as pb
from cursus_proto.v1 import group_service_pb2, records_pb2

SUBSCRIBE: Final = "/cursus.v1.ConsumeService/Subscribe"

TIMED: Final = "timed"
AWAITED: Final = "awaited"
PIPELINED: Final = "pipelined"
INTERVAL_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Commit:
    """Join, stop until told to go on, then read this many batches of partition 0 and commit what was read: once a
    second, or after each batch, waiting for the answer before the next batch is looked at or not."""

    address: str
    topic: str
    group: str
    batches: int
    commits: str


@dataclass(frozen=True, slots=True)
class Committed:
    seconds: float
    """From the signal to go on until everything is read."""
    client_cpu_seconds: float
    commits: int
    waited_ms: list[float]
    """How long each commit took to be answered."""


async def commit(job: Commit, pause: Callable[[], Awaitable[None]]) -> Committed:
    async with channel.connect(job.address) as connection:
        call: grpc.aio.StreamStreamCall[bytes, SubscribeResponse] = connection.stream_stream(
            SUBSCRIBE, response_deserializer=SubscribeResponse.FromString
        )()
        member = _Member(call, job)
        await member.join()
        await pause()
        started, cpu_started = time.perf_counter(), time.process_time()
        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(member.receive())
            await member.work()
            seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
            await member.finish()
            reading.cancel()
        await call.done_writing()
        await call.code()
    return Committed(seconds, cpu_seconds, len(member.waited_ms), member.waited_ms)


class _Member:
    def __init__(self, call: Any, job: Commit) -> None:
        self._call = call
        self._job = job
        self._end = job.batches * batches.RECORDS_PER_BATCH
        self._read: deque[int] = deque()
        self._news = asyncio.Event()
        self._sent: deque[tuple[int, float]] = deque()
        self._number = 0
        self._size = 0
        self.waited_ms: list[float] = []

    async def join(self) -> None:
        earliest = records_pb2.OffsetSpec(edge=records_pb2.OFFSET_EDGE_EARLIEST)
        start = pb.SubscribeStart(group=self._job.group, topics=[self._job.topic], start_without_commit=earliest)
        await self._write(pb.SubscribeRequest(start=start))
        while not (await self._receive_one()).HasField("assignment"):
            pass

    async def receive(self) -> None:
        while True:
            await self._receive_one()

    async def work(self) -> None:
        committed_at = time.perf_counter()
        done = 0
        while done < self._end:
            while not self._read:
                await self._next_news()
            done = self._read.popleft()
            if self._job.commits == TIMED:
                if time.perf_counter() - committed_at >= INTERVAL_S:
                    committed_at = time.perf_counter()
                    await self._commit(done)
                continue
            await self._commit(done)
            if self._job.commits == AWAITED:
                await self._answered()

    async def finish(self) -> None:
        """Commit what is not committed yet, and wait for the answers."""
        if self._job.commits == TIMED:
            await self._commit(self._end)
        await self._answered()
        expected = self._job.batches * len(batches.record_set())
        if self._size != expected:
            raise RuntimeError(f"{self._size} bytes of record sets were received, not {expected}")

    async def _receive_one(self) -> SubscribeResponse:
        response = await self._call.read()
        if not isinstance(response, SubscribeResponse):
            raise RuntimeError(f"the stream ended: {await self._call.code()} {await self._call.details()}")
        match response.WhichOneof("response"):
            case "assignment":
                ack = pb.AssignmentAck(generation=response.assignment.generation)
                await self._write(pb.SubscribeRequest(assignment_ack=ack))
            case "batches":
                for batch in response.batches.batches:
                    self._size += len(batch.records)
                    self._read.append(batch.base_offset + batch.record_count)
            case "committed":
                self._note_answer(response.committed)
        self._news.set()
        return response

    def _note_answer(self, committed: pb.SubscribeCommitted) -> None:
        number, sent_at = self._sent.popleft()
        if committed.commit_id != number or committed.results[0].HasField("error"):
            raise RuntimeError(f"commit {number} was answered with {committed}")
        self.waited_ms.append((time.perf_counter() - sent_at) * 1000)

    async def _commit(self, next_offset: int) -> None:
        self._number += 1
        offset = group_service_pb2.CommitOffset(topic=self._job.topic, partition=0, next_offset=next_offset)
        self._sent.append((self._number, time.perf_counter()))
        await self._write(pb.SubscribeRequest(commit=pb.SubscribeCommit(commit_id=self._number, offsets=[offset])))

    async def _answered(self) -> None:
        while self._sent:
            await self._next_news()

    async def _next_news(self) -> None:
        self._news.clear()
        await self._news.wait()

    async def _write(self, request: pb.SubscribeRequest) -> None:
        await self._call.write(request.SerializeToString())
