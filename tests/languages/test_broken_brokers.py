"""Brokers that are killed, refuse for a while or lose their power: everything once, nothing lost or in silence."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Literal

import pytest

from cursus_grpc import Admin, Producer
from cursus_grpc.testing import Broker
from cursus_proto.v1 import group_service_pb2 as group_pb
from tests.harness.clients import Client
from tests.harness.languages import ExampleProcess, Language, running
from tests.languages.stored import Line, acknowledged, covered, printed, stored

PARTITIONS = 3
KEYS = 7


async def kill_and_restart(broker: Broker) -> None:
    await asyncio.to_thread(broker.kill)
    await asyncio.to_thread(broker.restart)


def create(broker: Broker, topic: str, partitions: int = PARTITIONS) -> None:
    with Admin(broker.address) as admin:
        admin.create_topic(topic, partitions)


async def test_a_broker_killed_while_publishing_stores_every_record_once(
    language: Language, own_broker: Broker
) -> None:
    create(own_broker, "orders")
    lines = [f"key-{number % KEYS}\t{number}" for number in range(4000)]
    arguments = ("publish", "--broker", own_broker.address, "--topic", "orders", "--batch", "5")
    async with running(language, *arguments) as example:
        for start in range(0, len(lines), 1000):
            told = len(example.stdout)
            writing = asyncio.create_task(example.write(lines[start : start + 1000]), name="write-lines")
            await example.prints(told + 10)
            await kill_and_restart(own_broker)
            await writing
        example.end_input()
        assert await example.wait() == 0, example.tail()
        assert example.stderr[-1] == f"published {len(lines)} records"
    found = await stored(own_broker.address, "orders", PARTITIONS)
    assert covered(acknowledged(example.stdout)) == [(line.partition, line.offset) for line in found]
    for key in range(KEYS):
        in_order = [line.value for line in found if line.key == f"key-{key}"]
        assert in_order == [str(number) for number in range(4000) if number % KEYS == key]


async def test_a_broker_killed_while_following_shows_every_record_once(language: Language, own_broker: Broker) -> None:
    create(own_broker, "orders")
    arguments = ("follow", "--broker", own_broker.address, "--topic", "orders", "--count", "900")
    async with running(language, *arguments) as example:
        await example.shows(lambda it: it.stderr != [])
        for start in (0, 300, 600):
            with Producer(own_broker.address) as producer:
                for number in range(start, start + 300):
                    producer.send("orders", str(number), partition=number % PARTITIONS)
                producer.flush()
            await example.prints(start + 10)
            await kill_and_restart(own_broker)
        assert await example.wait() == 0, example.tail()
    found = await stored(own_broker.address, "orders", PARTITIONS)
    assert len(found) == 900
    shown = printed(example.stdout)
    assert sorted(shown) == found
    for partition in range(PARTITIONS):
        offsets = [line.offset for line in shown if line.partition == partition]
        assert offsets == list(range(300))


@pytest.fixture
def faulty_broker() -> Iterator[Broker]:
    """One that syncs only what it is asked to, and refuses or loses its power as the test wants."""
    flags = ("--log-linger-ms", "60s", "--log-flush-records", "1000000")
    with Broker(*flags, in_process=True, can_lose_power=True) as running_broker:
        yield running_broker


@pytest.mark.parametrize("reason", ["WRITE_TIMEOUT", "STORAGE_FAILED"])
async def test_a_refusal_that_passes_is_tried_again_in_order(
    language: Language, faulty_broker: Broker, reason: str
) -> None:
    create(faulty_broker, "orders", 1)
    arguments = ("publish", "--broker", faulty_broker.address, "--topic", "orders", "--batch", "2")
    async with running(language, *arguments) as example:
        await example.write(str(number) for number in range(50))
        await example.prints(20)
        faulty_broker.refuse(reason, times=3)
        await example.write(str(number) for number in range(50, 100))
        example.end_input()
        assert await example.wait() == 0, example.tail()
    found = await stored(faulty_broker.address, "orders", 1)
    assert [line.value for line in found] == [str(number) for number in range(100)]


async def test_refusals_without_end_are_given_up_when_time_is_up(language: Language, faulty_broker: Broker) -> None:
    create(faulty_broker, "orders", 1)
    faulty_broker.refuse("WRITE_TIMEOUT", times=1_000_000)
    arguments = ("publish", "--broker", faulty_broker.address, "--topic", "orders", "--timeout", "1")
    async with running(language, *arguments) as example:
        await example.write(["tea"])
        example.end_input()
        assert await example.wait() == 1, example.tail()
    assert example.stderr[-1].startswith("error: WRITE_TIMEOUT: ")
    assert example.stdout == []


async def test_a_follower_goes_on_where_power_loss_has_cut_the_log(language: Language, faulty_broker: Broker) -> None:
    create(faulty_broker, "orders", 1)
    arguments = ("follow", "--broker", faulty_broker.address, "--topic", "orders")

    def send(prefix: str, count: int, acks: Literal[1, "all"]) -> None:
        with Producer(faulty_broker.address, acks=acks) as producer:
            for number in range(count):
                producer.send("orders", f"{prefix} {number}").result()

    async with running(language, *arguments) as example:
        await asyncio.to_thread(send, "safe", 5, "all")
        await asyncio.to_thread(send, "unsafe", 5, 1)
        await example.prints(10)
        await asyncio.to_thread(faulty_broker.power_loss, 1)
        await asyncio.to_thread(send, "later", 5, "all")
        await example.shows(lambda it: it.stdout[-1].endswith('"later 4"}'))
        example.terminate()
        assert await example.wait() == 0, example.tail()
    found = await stored(faulty_broker.address, "orders", 1)
    shown = printed(example.stdout)
    assert [line.value for line in shown[:10]] == [f"safe {n}" for n in range(5)] + [f"unsafe {n}" for n in range(5)]
    # What is read twice is told: the log was cut, and the records of these offsets are others now.
    cut = len(found) - 5
    assert cut < 10, "the power loss took nothing: another seed"
    assert shown[10:] == found[cut:]
    assert any("cut" in line for line in example.stderr), example.tail()


def owned(example: ExampleProcess) -> set[int]:
    """What a member said last that it owns."""
    told = [line for line in example.stderr if line.startswith("assigned ")]
    return {int(part) for part in told[-1][len("assigned [") : -1].split(",") if part} if told else set()


async def publish_to_all(broker: Broker, topic: str, name: str, partitions: int, count: int) -> list[str]:
    """Publishes this many records to each partition; answers their values."""
    values = [f"{name} {number}" for number in range(partitions * count)]

    def send() -> None:
        with Producer(broker.address) as producer:
            for number, value in enumerate(values):
                producer.send(topic, value, partition=number % partitions)
            producer.flush()

    await asyncio.to_thread(send)
    return values


def values_of(*examples: ExampleProcess) -> Counter[str | None]:
    return Counter(line.value for example in examples for line in printed(example.stdout))


def committed(broker: Broker, group: str) -> list[int | None]:
    with Admin(broker.address) as admin:
        return [one.committed_offset for one in admin.describe_group(group).partitions]


async def test_members_share_a_topic_and_take_over_from_each_other(language: Language, own_broker: Broker) -> None:
    everything = set(range(4))
    create(own_broker, "orders", 4)
    arguments = ("member", "--broker", own_broker.address, "--topic", "orders", "--group", "kitchen")
    async with running(language, *arguments) as first:
        await first.shows(lambda it: owned(it) == everything)
        alone = await publish_to_all(own_broker, "orders", "alone", 4, 10)
        await first.prints(len(alone))
        async with running(language, *arguments) as second:
            await second.shows(lambda it: len(owned(it)) == 2)
            assert any(line.startswith("revoked ") for line in first.stderr), first.tail()
            assert owned(first) | owned(second) == everything
            both = await publish_to_all(own_broker, "orders", "both", 4, 10)
            await second.shows(lambda it: len(it.stdout) + len(first.stdout) >= len(alone + both))

            first.terminate()
            assert await first.wait() == 0, first.tail()
            await second.shows(lambda it: owned(it) == everything)
            taken = await publish_to_all(own_broker, "orders", "taken over", 4, 10)
            expected = Counter(alone + both + taken)
            await second.shows(lambda it: values_of(first, it).total() >= expected.total())
            # Handed over in good order: each record once.
            assert values_of(first, second) == expected

            assignments = len(second.stderr)
            await kill_and_restart(own_broker)
            await second.shows(lambda it: len(it.stderr) > assignments and owned(it) == everything)
            after = await publish_to_all(own_broker, "orders", "after the kill", 4, 10)
            await second.shows(lambda it: all(values_of(it)[value] for value in after))
            second.terminate()
            assert await second.wait() == 0, second.tail()
        assert values_of(first, second).keys() == Counter(alone + both + taken + after).keys()
    assert committed(own_broker, "kitchen") == [40] * 4
    with Admin(own_broker.address) as admin:
        assert list(admin.describe_group("kitchen").members) == [], "both have left"


async def end_session(broker: Broker, group: str, partitions: set[int]) -> None:
    """Ends the session of the member that owns these partitions, as its timeout would in half a minute."""
    async with Client.connect(broker.address) as client:
        described = await client.groups.DescribeGroup(group_pb.DescribeGroupRequest(group=group))
        for member in described.members:
            if {one.partition for one in member.partitions} == partitions:
                await client.groups.LeaveGroup(group_pb.LeaveGroupRequest(group=group, member_id=member.member_id))


async def test_a_killed_member_is_replaced_and_nothing_is_lost(language: Language, own_broker: Broker) -> None:
    create(own_broker, "orders", 2)
    arguments = ("member", "--broker", own_broker.address, "--topic", "orders", "--group", "kitchen")
    async with running(language, *arguments) as first, running(language, *arguments) as second:
        await first.shows(lambda it: owned(it) | owned(second) == {0, 1} and len(owned(it)) == len(owned(second)) == 1)
        before = await publish_to_all(own_broker, "orders", "before", 2, 20)
        await first.prints(1)
        first.kill()
        await first.wait()
        await end_session(own_broker, "kitchen", owned(first))
        await second.shows(lambda it: owned(it) == {0, 1})
        after = await publish_to_all(own_broker, "orders", "after", 2, 20)
        await second.shows(lambda it: values_of(first, it).keys() >= Counter(before + after).keys())
        second.terminate()
        assert await second.wait() == 0, second.tail()
    assert committed(own_broker, "kitchen") == [40, 40]


async def test_a_member_ends_after_its_count_and_the_next_one_goes_on_behind(
    language: Language, own_broker: Broker
) -> None:
    create(own_broker, "orders", 1)
    values = [f"order {number}" for number in range(10)]
    async with Client.connect(own_broker.address) as client:
        # One batch, which is delivered whole also to whoever begins in the middle of it.
        await client.publish("orders", [value.encode() for value in values])
    arguments = ("member", "--broker", own_broker.address, "--topic", "orders", "--group", "kitchen", "--count")
    shown: list[Line] = []
    for count in (3, 7):
        async with running(language, *arguments, str(count)) as example:
            assert await example.wait() == 0, example.tail()
        shown += printed(example.stdout)
    assert shown == [Line(0, offset, None, value) for offset, value in enumerate(values)]
