"""Kafka with confluent-kafka, acks 1 and otherwise its defaults."""

from __future__ import annotations

import importlib
import time
import uuid
from typing import Any, Final

from bench.batches import VALUE_BYTES
from bench.clients import PIPELINED, Age, Incomplete, Pause, age, check, stamped, values
from bench.schedule import ticks

kafka = importlib.import_module("confluent_kafka")
kafka_admin = importlib.import_module("confluent_kafka.admin")

_TIMEOUT_S: Final = 60.0
_NOTHING_S: Final = 30.0


async def prepare(address: str, topic: str) -> None:
    admin = _admin(address)
    wanted = kafka_admin.NewTopic(topic, num_partitions=1, replication_factor=1)
    admin.create_topics([wanted])[topic].result(_TIMEOUT_S)


async def remove(address: str, topic: str) -> None:
    admin = _admin(address)
    admin.delete_topics([topic])[topic].result(_TIMEOUT_S)


async def send(address: str, topic: str, count: int) -> float:
    producer = _producer(address)
    producer.produce(topic, bytes(VALUE_BYTES))
    producer.flush()
    started = time.perf_counter()
    for value in values(count - 1):
        while True:
            try:
                producer.produce(topic, value)
                break
            except BufferError:
                producer.poll(0.01)
    producer.flush()
    seconds = time.perf_counter() - started
    consumer = _consumer(address)
    _, end = consumer.get_watermark_offsets(kafka.TopicPartition(topic, 0), timeout=_TIMEOUT_S)
    consumer.close()
    check(end, count)
    return seconds


async def read(address: str, topic: str, count: int) -> float:
    size, left = 0, count
    started = time.perf_counter()
    consumer = _consumer(address)
    consumer.subscribe([topic])
    while left:
        for message in _some(consumer, min(PIPELINED, left)):
            size += len(message.value())
            left -= 1
    seconds = time.perf_counter() - started
    consumer.close()
    check(size // VALUE_BYTES, count)
    return seconds


async def send_on_schedule(address: str, topic: str, count: int, rate: int, pause: Pause) -> None:
    # Its default of 5 ms would be most of what is measured.
    producer = _producer(address, linger_ms=0)
    producer.produce(topic, bytes(VALUE_BYTES))
    producer.flush()
    await pause()
    for tick in ticks(count, rate):
        producer.produce(topic, stamped(tick))
        producer.poll(0)
    producer.flush()


async def receive(address: str, topic: str, count: int, pause: Pause) -> list[Age]:
    consumer = _consumer(address)
    consumer.subscribe([topic])
    _some(consumer, 1)
    await pause()
    taken: list[Age] = []
    while len(taken) < count:
        # One at a time: `consume` waits until it has as many as it was asked for.
        taken += [age(message.value()) for message in _some(consumer, 1)]
    consumer.close()
    return taken


def _some(consumer: Any, at_most: int) -> list[Any]:
    """At least one message. Raises Incomplete if none comes or one is an error."""
    messages: list[Any] = consumer.consume(at_most, timeout=_NOTHING_S)
    errors = [message.error() for message in messages if message.error() is not None]
    if errors or not messages:
        raise Incomplete(f"no message within {_NOTHING_S:g} s: {errors}")
    return messages


def _admin(address: str) -> Any:
    """To be kept by the caller: what it has begun fails when it is collected."""
    return kafka_admin.AdminClient({"bootstrap.servers": address})


def _producer(address: str, **settings: Any) -> Any:
    more = {name.replace("_", "."): value for name, value in settings.items()}
    return kafka.Producer({"bootstrap.servers": address, "acks": 1, **more})


def _consumer(address: str) -> Any:
    return kafka.Consumer({"bootstrap.servers": address, "group.id": uuid.uuid4().hex, "auto.offset.reset": "earliest"})
