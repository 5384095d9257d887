"""Latency at a fixed rate. Requests leave on schedule whether or not earlier ones were answered, so a slow answer
delays nobody and hides nothing; the time counts from the moment a request is handed to gRPC."""

from __future__ import annotations

import asyncio
import os
import struct
import time
from dataclasses import dataclass
from typing import Final

import grpc

from bench import batches
from bench.floor import ECHO
from bench.jobs import channel
from bench.jobs.consume import CONSUME
from bench.jobs.publish import PUBLISH_STREAM
from bench.schedule import schedule
from cursus_proto.v1.consume_service_pb2 import ConsumeResponse
from cursus_proto.v1.publish_service_pb2 import PublishStreamResponse

_Producer = grpc.aio.StreamStreamCall[bytes, PublishStreamResponse]
_Consumer = grpc.aio.StreamStreamCall[bytes, ConsumeResponse]

_SENT_AT: Final = struct.Struct("!q")
DRAIN_DEADLINE_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Echo:
    """Bare unary round trips at `rate` a second, with requests as large as a single record's."""

    address: str
    count: int
    rate: int


@dataclass(frozen=True, slots=True)
class Follow:
    """Single records published at `rate` a second to partition 0 of an empty topic, and the consumer that follows."""

    address: str
    topic: str
    count: int
    rate: int


@dataclass(frozen=True, slots=True)
class Latencies:
    """Of the requests in the order they came back, in microseconds."""

    microseconds: list[float]
    client_cpu_seconds: float


async def echo(job: Echo) -> Latencies:
    request = batches.single_record_request("bench", bytes(16), job.count, bytes(batches.VALUE_BYTES))
    taken: list[float] = []
    cpu_started = time.process_time()
    async with channel.connect(job.address) as connection, asyncio.timeout(job.count / job.rate + DRAIN_DEADLINE_S):
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = connection.unary_unary(ECHO)

        async def round_trip() -> None:
            sent = time.perf_counter_ns()
            await call(request)
            taken.append((time.perf_counter_ns() - sent) / 1000)

        async with asyncio.TaskGroup() as tasks:
            async for _ in schedule(job.count, job.rate):
                tasks.create_task(round_trip())
    return Latencies(taken, time.process_time() - cpu_started)


async def follow(job: Follow) -> Latencies:
    cpu_started = time.process_time()
    # Publisher and consumer have a connection each, as two programs would.
    async with (
        channel.connect(job.address) as publishing,
        channel.connect(job.address) as consuming,
        asyncio.timeout(job.count / job.rate + DRAIN_DEADLINE_S),
    ):
        consumer: _Consumer = consuming.stream_stream(CONSUME, response_deserializer=ConsumeResponse.FromString)()
        await consumer.write(batches.consume_request(job.topic, None, 0))
        await consumer.read()
        producer: _Producer = publishing.stream_stream(
            PUBLISH_STREAM, response_deserializer=PublishStreamResponse.FromString
        )()
        await producer.write(batches.open_request())
        await producer.read()
        async with asyncio.TaskGroup() as tasks:
            deliveries = tasks.create_task(_deliveries(consumer, job.count))
            tasks.create_task(_take_answers(producer, job.count))
            await _publish_singles(producer, job)
        consumer.cancel()
    return Latencies(deliveries.result(), time.process_time() - cpu_started)


async def _publish_singles(producer: _Producer, job: Follow) -> None:
    producer_id = os.urandom(16)
    filling = os.urandom(batches.VALUE_BYTES - _SENT_AT.size)
    async for tick in schedule(job.count, job.rate):
        value = _SENT_AT.pack(time.perf_counter_ns()) + filling
        await producer.write(batches.single_record_request(job.topic, producer_id, tick.number, value))


async def _deliveries(consumer: _Consumer, count: int) -> list[float]:
    taken: list[float] = []
    while len(taken) < count:
        response = await consumer.read()
        if not isinstance(response, ConsumeResponse):
            raise RuntimeError(f"the consumer's stream ended after {len(taken)} records")
        now = time.perf_counter_ns()
        for batch in response.batches.batches:
            for record in batch.records.records:
                (sent,) = _SENT_AT.unpack_from(record.value)
                taken.append((now - sent) / 1000)
    return taken


async def _take_answers(producer: _Producer, count: int) -> None:
    answered = 0
    while answered < count:
        response = await producer.read()
        if not isinstance(response, PublishStreamResponse):
            raise RuntimeError(f"the publish stream ended after {answered} answers")
        answered += len(response.outcomes.outcomes)
