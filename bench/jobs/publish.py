"""Publish streams: producers of one process that send prebuilt batches as fast as the window lets them."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import grpc

from bench import batches
from bench.jobs import channel
from bench.schedule import Pace
from cursus_proto.v1 import publish_service_pb2
from cursus_proto.v1.publish_service_pb2 import PublishStreamResponse

MIB: Final = 1024 * 1024
PUBLISH_STREAM: Final = "/cursus.v1.PublishService/PublishStream"


@dataclass(frozen=True, slots=True)
class Publish:
    """Publish `batches`, shared evenly by `producers`, which have a connection each."""

    address: str
    topic: str
    batches: int
    method: str = PUBLISH_STREAM
    partitions: int = 1
    producers: int = 1
    acks: int = publish_service_pb2.ACKS_WRITTEN
    window_bytes: int = 4 * MIB
    """Unanswered bytes a producer may have; below the broker's own window, which would stop the stream for us."""
    answered: bool = True
    """Whether the service answers batches. Without answers the transport alone holds the producer back."""
    numbered: bool = False
    """Whether batches carry a producer's identity and sequence."""
    rate: int = 0
    """Batches a second of each producer, as far as the window lets it; 0: as fast as it can."""


@dataclass(frozen=True, slots=True)
class Published:
    seconds: float
    """From the first batch sent to the last answer."""
    client_cpu_seconds: float


async def publish(job: Publish) -> Published:
    producers = [_Producer(job, index) for index in range(job.producers)]
    async with asyncio.TaskGroup() as opening:
        for producer in producers:
            opening.create_task(producer.open())
    started, cpu_started = time.perf_counter(), time.process_time()
    async with asyncio.TaskGroup() as running:
        for producer in producers:
            running.create_task(producer.run())
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
    for producer in producers:
        await producer.close()
    return Published(seconds, cpu_seconds)


class _Producer:
    """One publish stream."""

    def __init__(self, job: Publish, index: int) -> None:
        self._batches = job.batches // job.producers
        self._answered = job.answered
        self._rate = job.rate
        self._requests, size = _requests(job, index)
        self._window = max(1, job.window_bytes // size) if job.answered else self._batches
        self._unanswered = 0
        self._room = asyncio.Event()
        self._channel = channel.connect(job.address)
        self._call: grpc.aio.StreamStreamCall[bytes, PublishStreamResponse] = self._channel.stream_stream(
            job.method, response_deserializer=PublishStreamResponse.FromString
        )()

    async def open(self) -> None:
        await self._call.write(batches.open_request())
        await self._call.read()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            if self._answered:
                tasks.create_task(self._take_answers())
            await self._send()
        if not self._answered:
            # The service ends the stream when it has received everything.
            await self._call.done_writing()
            await self._call.code()

    async def close(self) -> None:
        await self._call.done_writing()
        await self._channel.close()

    async def _send(self) -> None:
        write = self._call.write
        pace = Pace(self._rate) if self._rate else None
        for number, request in enumerate(itertools.islice(self._requests, self._batches)):
            if pace is not None and (wait_s := pace.wait_s(number)) > 0:
                await asyncio.sleep(wait_s)
            while self._unanswered >= self._window:
                self._room.clear()
                await self._room.wait()
            self._unanswered += 1
            await write(request)

    async def _take_answers(self) -> None:
        answered = 0
        while answered < self._batches:
            response = await self._call.read()
            if not isinstance(response, PublishStreamResponse):
                raise RuntimeError(f"the stream ended after {answered} of {self._batches} answers: {self._call}")
            outcomes = response.outcomes.outcomes
            for outcome in outcomes:
                if outcome.HasField("refused"):
                    raise RuntimeError(f"a batch was refused: {outcome.refused}")
            answered += len(outcomes)
            self._unanswered -= len(outcomes)
            self._room.set()


def _requests(job: Publish, index: int) -> tuple[Iterator[bytes], int]:
    """An endless supply of requests, and the size of one. Producers start at different partitions."""
    partitions = [(index + turn) % job.partitions for turn in range(job.partitions)]
    if job.numbered:
        producer_id = os.urandom(16)
        size = len(next(batches.numbered_requests(job.topic, partitions, job.acks, producer_id)))
        return batches.numbered_requests(job.topic, partitions, job.acks, producer_id), size
    prebuilt = batches.publish_requests(job.topic, partitions, job.acks)
    return itertools.cycle(prebuilt), len(prebuilt[0])
