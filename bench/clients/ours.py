"""cursus_grpc, the blocking producer and consumer with their default settings."""

from __future__ import annotations

import itertools
import time
import uuid

from bench.batches import VALUE_BYTES
from bench.clients import Age, Pause, age, check, stamped, values
from bench.schedule import ticks
from cursus_grpc import END, Admin, Consumer, Producer


async def prepare(address: str, topic: str) -> None:
    with Admin(address) as admin:
        admin.create_topic(topic, partitions=1)


async def remove(address: str, topic: str) -> None:
    with Admin(address) as admin:
        admin.delete_topic(topic)


async def send(address: str, topic: str, count: int) -> float:
    with Producer(address) as producer:
        producer.send(topic, bytes(VALUE_BYTES)).result()
        started = time.perf_counter()
        for value in values(count - 1):
            producer.send(topic, value)
        producer.flush()
        seconds = time.perf_counter() - started
    with Admin(address) as admin:
        check(admin.list_offsets(topic, END)[0].offset, count)
    return seconds


async def read(address: str, topic: str, count: int) -> float:
    size = 0
    started = time.perf_counter()
    with Consumer(address, group=uuid.uuid4().hex, topics=[topic]) as consumer:
        for record in itertools.islice(consumer, count):
            size += len(record.value or b"")
        seconds = time.perf_counter() - started
    check(size // VALUE_BYTES, count)
    return seconds


async def send_on_schedule(address: str, topic: str, count: int, rate: int, pause: Pause) -> None:
    with Producer(address) as producer:
        producer.send(topic, bytes(VALUE_BYTES)).result()
        await pause()
        for tick in ticks(count, rate):
            producer.send(topic, stamped(tick))


async def receive(address: str, topic: str, count: int, pause: Pause) -> list[Age]:
    with Consumer(address, group=uuid.uuid4().hex, topics=[topic]) as consumer:
        records = iter(consumer)
        next(records)
        await pause()
        return [age(record.value or b"") for record in itertools.islice(records, count)]
