"""Consume streams: one reader that takes messages as bytes, as fast as they come, or that stops taking them."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import grpc

from bench import batches
from bench.jobs import channel

CONSUME: Final = "/cursus.v1.ConsumeService/Consume"


@dataclass(frozen=True, slots=True)
class Consume:
    """Read this many batches of partition 0, from its beginning."""

    address: str
    topic: str
    batches: int
    method: str = CONSUME
    max_response_bytes: int = 0
    """0: as the service likes."""
    set_bytes: int = 0
    """Size of a record set in the topic; 0: those of bench.batches."""


@dataclass(frozen=True, slots=True)
class Consumed:
    seconds: float
    """From the request to the last message."""
    messages: int
    client_cpu_seconds: float


@dataclass(frozen=True, slots=True)
class Stall:
    """Begin to read partition 0 from its beginning, then stop reading until told to go on, then read the rest."""

    address: str
    topic: str
    batches: int


async def consume(job: Consume) -> Consumed:
    started, cpu_started = time.perf_counter(), time.process_time()
    async with channel.connect(job.address) as connection:
        call = await _start(connection, job.method, job.topic, job.batches, job.max_response_bytes)
        messages, size = await _read_all(call)
        seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
    _check_size(size, job.batches, job.set_bytes)
    return Consumed(seconds, messages, cpu_seconds)


async def stall(job: Stall, pause: Callable[[], Awaitable[None]]) -> Consumed:
    """`pause` returns when the reader may go on. The time counts from there."""
    async with channel.connect(job.address) as connection:
        call = await _start(connection, CONSUME, job.topic, job.batches, 0)
        first = await call.read()
        await pause()
        started, cpu_started = time.perf_counter(), time.process_time()
        messages, size = await _read_all(call)
        seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
    _check_size(size + len(first), job.batches)
    return Consumed(seconds, messages + 1, cpu_seconds)


async def _start(connection: grpc.aio.Channel, method: str, topic: str, count: int, max_response_bytes: int) -> Any:
    """The open call, whose type grpc's stubs do not name, past its first answer."""
    call: grpc.aio.StreamStreamCall[bytes, bytes] = connection.stream_stream(method)()
    await call.write(batches.consume_request(topic, count * batches.RECORDS_PER_BATCH, max_response_bytes))
    await call.read()
    return call


async def _read_all(call: Any) -> tuple[int, int]:
    """The number of messages up to the end of the stream, and their bytes."""
    messages = size = 0
    while (message := await call.read()) is not grpc.aio.EOF:
        messages += 1
        size += len(message)
    code = await call.code()
    if code is not grpc.StatusCode.OK:
        raise RuntimeError(f"the stream ended with {code}: {await call.details()}")
    return messages, size


def _check_size(size: int, count: int, set_bytes: int = 0) -> None:
    """Nobody parses the messages, so their size has to prove that the data was in them: envelopes are below 1 %."""
    expected = count * (set_bytes or len(batches.record_set()))
    if not expected <= size <= expected * 1.01:
        raise RuntimeError(f"{size} bytes were received, {count} batches have {expected}")
