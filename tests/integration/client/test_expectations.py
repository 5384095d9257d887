"""What people who come from other clients expect, and what they met instead: a test for each defect they found."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from typing import Any

import pytest

from cursus_grpc import Admin, AsyncProducer, errors
from cursus_grpc.testing import Broker
from tests.integration.client.faces import Face

NOBODY = "127.0.0.1:1"


async def read_all(face: Face, broker: Broker, topic: str, partition: int) -> list[Any]:
    async with face.consumer(broker.address) as consumer:
        return list(await consumer.range(topic, partition))


async def test_headers_are_a_mapping_or_pairs(face: Face, broker: Broker, topic: str) -> None:
    """`{"ab": b"1"}` was stored as the header `a` with the value `b`."""
    async with face.producer(broker.address) as producer:
        await producer.send(topic, b"x", headers={"ab": b"1", "text": "2", "null": None}, partition=0)
        await producer.send(topic, b"x", headers=[("ab", b"1"), ["ab", "2"]], partition=0)
        for wrong in ("ab", b"ab", ["ab", "cd"], [b"ab"], [("a", b"1", 2)], [(b"a", b"1")], {"a": 1}, {b"a": b"1"}, 7):
            with pytest.raises(TypeError, match="header"):
                await producer.send(topic, b"x", headers=wrong, partition=0)
    found = await read_all(face, broker, topic, 0)
    assert [record.headers for record in found] == [
        (("ab", b"1"), ("text", b"2"), ("null", None)),
        (("ab", b"1"), ("ab", b"2")),
    ]


async def test_producers_of_one_record_do_not_all_choose_the_same_partition(
    face: Face, broker: Broker, admin: Admin, name: str
) -> None:
    """All of them began with partition 1. By chance that happens to 40 of them in 8 partitions once in 10^35 runs."""
    await asyncio.to_thread(admin.create_topic, name, 8)
    used: Counter[int] = Counter()
    for _ in range(40):
        async with face.producer(broker.address) as producer:
            used[(await face.result(await producer.send(name, b"x"))).partition] += 1
    assert len(used) > 1


async def test_records_without_a_key_stay_together_for_a_batch(face: Face, broker: Broker, topic: str) -> None:
    async with face.producer(broker.address, linger_ms=600_000, batch_records=10) as producer:
        deliveries = [await producer.send(topic, b"x") for _ in range(40)]
        await producer.flush()
        partitions = [(await face.result(delivery)).partition for delivery in deliveries]
    batches = [set(partitions[begin : begin + 10]) for begin in range(0, 40, 10)]
    assert [len(batch) for batch in batches] == [1, 1, 1, 1]
    assert batches[0] == batches[2] != batches[1] == batches[3]


async def test_poll_says_at_once_that_there_is_no_broker(face: Face) -> None:
    """It returned None for 30 s."""
    async with face.consumer(NOBODY, group="g", topics=["t"]) as consumer:
        for _ in range(2):
            with pytest.raises(errors.BrokerUnreachable, match="refused"):
                await consumer.poll(timeout_s=600.0)
    async with face.consumer(NOBODY) as consumer:
        await consumer.assign([("t", 0), ("t", 1)])
        with pytest.raises(errors.BrokerUnreachable, match="refused"):
            await consumer.poll(timeout_s=600.0)


async def test_a_consumer_that_was_told_nothing_says_so(face: Face, broker: Broker, topic: str) -> None:
    """It returned None for ever."""
    async with face.consumer(broker.address, group=topic) as consumer:
        for ask in (consumer.poll, consumer.poll_batch, lambda: consumer.take(1)):
            with pytest.raises(ValueError, match="nothing to read: subscribe to topics, or assign partitions"):
                await ask()
        await consumer.subscribe([topic])
        assert await consumer.poll(timeout_s=0.1) is None


async def test_a_member_that_came_too_late_is_told_that_it_lost_its_partitions(
    face: Face, broker: Broker, topic: str
) -> None:
    """`on_revoked` was called, as if it could still commit, though another member owned them."""
    told: list[tuple[str, set[int]]] = []

    def note(what: str) -> Any:
        return lambda partitions: told.append((what, {partition for _, partition in partitions}))

    options = {"group": topic, "topics": [topic], "rebalance_timeout_ms": 1_000}
    async with face.producer(broker.address) as producer:
        for partition in range(2):
            await producer.send(topic, b"x", partition=partition)
    async with face.consumer(broker.address, on_revoked=note("revoked"), on_lost=note("lost"), **options) as slow:
        await slow.take(2)
        async with face.consumer(broker.address, **options) as other:
            # Meanwhile `slow` does not come for more, so that its time passes and the other one gets the partition.
            while not await other.assignment():
                await other.poll(timeout_s=0.1)
            (gone,) = {partition for _, partition in await other.assignment()}

            while not told:
                await slow.poll(timeout_s=0.1)
            assert told == [("lost", {gone})]


async def test_a_member_that_comes_in_time_is_asked_to_let_go(face: Face, broker: Broker, topic: str) -> None:
    told: list[str] = []
    options = {"group": topic, "topics": [topic], "rebalance_timeout_ms": 300_000}
    async with face.consumer(
        broker.address,
        on_revoked=lambda _: told.append("revoked"),
        on_lost=lambda _: told.append("lost"),
        **options,
    ) as first:
        while len(await first.assignment()) < 2:
            await first.poll(timeout_s=0.1)
        async with face.consumer(broker.address, **options) as second:
            while not await second.assignment():
                await first.poll(timeout_s=0.1)
                await second.poll(timeout_s=0.1)
    assert told == ["revoked"]


NEVER_CLOSED = """
import asyncio, gc, sys
from cursus_grpc import AsyncConsumer, AsyncProducer, Consumer, Producer

address, topic = sys.argv[1:]

async def drop():
    producer = AsyncProducer(address)
    await (await producer.send(topic, b"x"))
    consumer = AsyncConsumer(address, group=topic, topics=[topic])
    assert await consumer.poll() is not None

async def main():
    await drop()
    gc.collect()
    while len(asyncio.all_tasks()) > 1:
        await asyncio.sleep(0)

asyncio.run(main())
producer = Producer(address)
producer.send(topic, b"x").result()
consumer = Consumer(address, group=topic + "-2", topics=[topic])
assert consumer.poll() is not None
"""


def test_clients_that_were_never_closed_end_quietly_but_for_a_warning(broker: Broker, topic: str) -> None:
    """Python complained for each of them: "Task was destroyed but it is pending!"."""
    ended = subprocess.run(
        [sys.executable, "-W", "default::ResourceWarning", "-c", NEVER_CLOSED, broker.address, topic],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "destroyed" not in ended.stderr
    assert ended.stderr.count("ResourceWarning: a producer was not closed") == 2
    assert ended.stderr.count("ResourceWarning: a consumer was not closed") == 2


async def test_a_dropped_producer_tells_what_became_of_its_records(broker: Broker, topic: str) -> None:
    told: list[Any] = []
    producer = AsyncProducer(broker.address, linger_ms=600_000, on_delivery=lambda _, error: told.append(error))
    delivery = await producer.send(topic, b"x", partition=0)
    with pytest.warns(ResourceWarning, match="not closed"):
        del producer
    with pytest.raises(errors.ClientClosed):
        await delivery
    assert [type(error) for error in told] == [errors.ClientClosed]
