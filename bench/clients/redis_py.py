"""Redis Streams with redis-py: XADD in pipelines, XREAD with COUNT."""

from __future__ import annotations

import importlib
import itertools
import time
from collections.abc import Iterator
from typing import Any

from bench.batches import VALUE_BYTES
from bench.clients import PIPELINED, Age, Pause, age, check, host_and_port, stamped, values
from bench.schedule import ticks

redis = importlib.import_module("redis")

_FIELD = b"value"


async def prepare(address: str, topic: str) -> None:
    """Nothing: a stream begins with its first record."""


async def remove(address: str, topic: str) -> None:
    with _connect(address) as connection:
        connection.delete(topic)


async def send(address: str, topic: str, count: int) -> float:
    with _connect(address) as connection:
        connection.ping()
        pipeline = connection.pipeline(transaction=False)
        started = time.perf_counter()
        for number, value in enumerate(values(count), 1):
            pipeline.xadd(topic, {_FIELD: value})
            if number % PIPELINED == 0:
                pipeline.execute()
        pipeline.execute()
        seconds = time.perf_counter() - started
        check(connection.xlen(topic), count)
    return seconds


async def read(address: str, topic: str, count: int) -> float:
    size = 0
    started = time.perf_counter()
    with _connect(address) as connection:
        for value in itertools.islice(_values(connection, topic), count):
            size += len(value)
        seconds = time.perf_counter() - started
    check(size // VALUE_BYTES, count)
    return seconds


async def send_on_schedule(address: str, topic: str, count: int, rate: int, pause: Pause) -> None:
    with _connect(address) as connection:
        connection.xadd(topic, {_FIELD: bytes(VALUE_BYTES)})
        await pause()
        for tick in ticks(count, rate):
            connection.xadd(topic, {_FIELD: stamped(tick)})


async def receive(address: str, topic: str, count: int, pause: Pause) -> list[Age]:
    with _connect(address) as connection:
        found = _values(connection, topic)
        next(found)
        await pause()
        return [age(value) for value in itertools.islice(found, count)]


def _connect(address: str) -> Any:
    host, port = host_and_port(address)
    return redis.Redis(host, port)


def _values(connection: Any, topic: str) -> Iterator[bytes]:
    """Of the stream from its beginning on, without end."""
    last = b"0"
    while True:
        for _, entries in connection.xread({topic: last}, count=PIPELINED, block=0):
            for _, fields in entries:
                yield fields[_FIELD]
            last = entries[-1][0]
