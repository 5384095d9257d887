"""NATS JetStream with nats-py: publish_async with its default number in flight, an ordered or a pull consumer."""

from __future__ import annotations

import importlib
import time
from typing import Any, Final

from bench.batches import VALUE_BYTES
from bench.clients import PIPELINED, Pause, check, microseconds_since, stamped, values
from bench.jobs.latency import schedule

nats = importlib.import_module("nats")
js_api = importlib.import_module("nats.js.api")

_FETCH_TIMEOUT_S: Final = 30.0


async def prepare(address: str, topic: str) -> None:
    async with await _connect(address) as connection:
        await connection.jetstream().add_stream(name=topic, subjects=[topic], storage=js_api.StorageType.FILE)


async def remove(address: str, topic: str) -> None:
    async with await _connect(address) as connection:
        await connection.jetstream().delete_stream(topic)


async def send(address: str, topic: str, count: int) -> float:
    async with await _connect(address) as connection:
        stream = connection.jetstream()
        started = time.perf_counter()
        for value in values(count):
            await stream.publish_async(topic, value)
        await stream.publish_async_completed()
        seconds = time.perf_counter() - started
        check((await stream.stream_info(topic)).state.messages, count)
    return seconds


async def read(address: str, topic: str, count: int) -> float:
    size = left = 0
    started = time.perf_counter()
    async with await _connect(address) as connection:
        config = js_api.ConsumerConfig(ack_policy=js_api.AckPolicy.NONE)
        consumer = await connection.jetstream().pull_subscribe(topic, stream=topic, config=config)
        left = count
        while left:
            messages = await consumer.fetch(min(PIPELINED, left), timeout=_FETCH_TIMEOUT_S)
            for message in messages:
                size += len(message.data)
            left -= len(messages)
        seconds = time.perf_counter() - started
    check(size // VALUE_BYTES, count)
    return seconds


async def send_on_schedule(address: str, topic: str, count: int, rate: int) -> None:
    async with await _connect(address) as connection:
        stream = connection.jetstream()
        async for _ in schedule(count, rate):
            await stream.publish_async(topic, stamped())
        await stream.publish_async_completed()


async def receive(address: str, topic: str, count: int, pause: Pause) -> list[float]:
    async with await _connect(address) as connection:
        consumer = await connection.jetstream().subscribe(topic, stream=topic, ordered_consumer=True)
        messages = consumer.messages
        await anext(messages)
        await pause()
        return [microseconds_since((await anext(messages)).data) for _ in range(count)]


async def _connect(address: str) -> Any:
    return await nats.connect(f"nats://{address}")
