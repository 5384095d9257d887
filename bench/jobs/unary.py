"""Single publishes by unary calls: many callers at once, or on schedule."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Final

import grpc

from bench import batches
from bench.jobs import channel
from bench.jobs.latency import DRAIN_DEADLINE_S, Latencies
from bench.jobs.publish import Published
from bench.schedule import schedule

PUBLISH: Final = "/cursus.v1.PublishService/Publish"


@dataclass(frozen=True, slots=True)
class Calls:
    """Publish single records; each caller makes its next call when it has the answer to the one before."""

    address: str
    topic: str
    count: int
    callers: int


@dataclass(frozen=True, slots=True)
class CallLatency:
    """Publish single records at `rate` a second."""

    address: str
    topic: str
    count: int
    rate: int


async def calls(job: Calls) -> Published:
    request = batches.unary_request(job.topic)
    async with channel.connect(job.address) as connection:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = connection.unary_unary(PUBLISH)

        async def caller() -> None:
            for _ in range(job.count // job.callers):
                await call(request)

        await connection.channel_ready()
        started, cpu_started = time.perf_counter(), time.process_time()
        async with asyncio.TaskGroup() as callers:
            for _ in range(job.callers):
                callers.create_task(caller())
        return Published(time.perf_counter() - started, time.process_time() - cpu_started)


async def call_latency(job: CallLatency) -> Latencies:
    request = batches.unary_request(job.topic)
    taken: list[float] = []
    async with channel.connect(job.address) as connection:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = connection.unary_unary(PUBLISH)

        async def publish() -> None:
            sent = time.perf_counter_ns()
            await call(request)
            taken.append((time.perf_counter_ns() - sent) / 1000)

        await connection.channel_ready()
        cpu_started = time.process_time()
        async with asyncio.timeout(job.count / job.rate + DRAIN_DEADLINE_S), asyncio.TaskGroup() as tasks:
            async for _ in schedule(job.count, job.rate):
                tasks.create_task(publish())
        return Latencies(taken, time.process_time() - cpu_started)
