"""What a consumer does on a healthy broker, whichever face it has."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from cursus_grpc import BEGINNING, END, Admin, Consumer, Producer, Timestamp, TopicPartition, errors
from cursus_grpc.testing import Broker
from tests.harness.waiting import eventually
from tests.integration.client.faces import Face

TIMEOUT_S = 60.0
SOON_S = 0.2


@pytest.fixture
def filled(broker: Broker, topic: str) -> str:
    """A topic whose two partitions hold ten records each, 0 to 9."""
    with Producer(broker.address, batch_records=4) as producer:
        for number in range(10):
            for partition in range(2):
                producer.send(topic, b"%d" % number, partition=partition)
    return topic


def p(topic: str, partition: int) -> TopicPartition:
    return TopicPartition(topic, partition)


def values(records: list[Any], partition: int | None = None) -> list[int]:
    return [int(record.value) for record in records if partition in (None, record.partition)]


async def test_a_group_member_reads_all_partitions_in_order(face: Face, broker: Broker, filled: str) -> None:
    async with face.consumer(broker.address, group=filled, topics=[filled]) as consumer:
        found = await consumer.take(20)
        assert values(found, 0) == values(found, 1) == list(range(10))
        assert await consumer.assignment() == {p(filled, 0), p(filled, 1)}
        assert await consumer.lag(p(filled, 0)) == 0
        assert await consumer.poll(SOON_S) is None


async def test_a_second_life_goes_on_where_the_first_ended(face: Face, broker: Broker, filled: str) -> None:
    async with face.consumer(broker.address, group=filled, topics=[filled]) as consumer:
        first = await consumer.take(7)
    async with face.consumer(broker.address, group=filled, topics=[filled]) as consumer:
        second = await consumer.take(13)
        assert await consumer.poll(SOON_S) is None
    for partition in range(2):
        assert values(first + second, partition) == list(range(10))


async def test_a_record_whose_processing_failed_comes_again(face: Face, broker: Broker, filled: str) -> None:
    async def fail() -> None:
        async with face.consumer(broker.address, group=filled, topics=[filled]) as consumer:
            in_hand.extend((await consumer.take(3))[-1:])
            raise ZeroDivisionError

    in_hand: list[Any] = []
    with pytest.raises(ZeroDivisionError):
        await fail()
    (failed,) = in_hand
    async with face.consumer(broker.address, group=filled, topics=[filled]) as consumer:
        again = await consumer.take(18)
    assert (failed.partition, failed.offset) in [(record.partition, record.offset) for record in again]


async def test_polls_one_and_many(face: Face, broker: Broker, filled: str) -> None:
    async with face.consumer(broker.address) as consumer:
        await consumer.assign([p(filled, 0)])
        assert (await consumer.poll(TIMEOUT_S)).offset == 0
        assert [record.offset for record in await consumer.poll_batch(3, TIMEOUT_S)] == [1, 2, 3]
        assert (await consumer.poll(TIMEOUT_S)).offset == 4
        rest = await consumer.poll_batch(100, TIMEOUT_S)
        while len(rest) < 5:
            rest += await consumer.poll_batch(100, TIMEOUT_S)
        assert [record.offset for record in rest] == [5, 6, 7, 8, 9]
        assert await consumer.poll_batch(100, SOON_S) == []


async def test_live_records_arrive(face: Face, broker: Broker, topic: str) -> None:
    async with (
        face.consumer(broker.address, group=topic, topics=[topic]) as consumer,
        face.producer(broker.address) as producer,
    ):
        for number in range(20):
            await producer.send(topic, b"%d" % number, partition=0)
            assert int((await consumer.poll(TIMEOUT_S)).value) == number


@pytest.mark.parametrize("mode", ["group", "assigned"])
async def test_seeks_to_an_offset_the_edges_and_a_time(face: Face, broker: Broker, filled: str, mode: str) -> None:
    place = p(filled, 0)
    async with face.consumer(broker.address, group=filled if mode == "group" else None) as consumer:
        if mode == "group":
            await consumer.subscribe([filled])
            await consumer.take(20)
        else:
            await consumer.assign([place])
            await consumer.take(10)
        await consumer.seek(place, 7)
        assert await consumer.position(place) == 7
        assert values(await consumer.take(3)) == [7, 8, 9]
        await consumer.seek(place, BEGINNING)
        third = (await consumer.take(3))[-1]
        assert third.offset == 2
        await consumer.seek(place, Timestamp(0))
        assert (await consumer.poll(TIMEOUT_S)).offset == 0
        await consumer.seek(place, Timestamp(2**60))
        assert await consumer.position(place) == 10
        await consumer.seek(place, END)
        assert await consumer.poll(SOON_S) is None
        assert await consumer.lag(place) == 0


async def test_a_seek_in_the_middle_of_a_batch_takes_effect_with_the_next_record(
    face: Face, broker: Broker, filled: str
) -> None:
    async with face.consumer(broker.address, group=filled, topics=[filled]) as consumer:
        first = (await consumer.take(1))[0]
        await consumer.seek(p(filled, first.partition), 8)
        rest = await consumer.take(12)
        assert values(rest, first.partition) == [8, 9]


async def test_a_paused_partition_waits_and_the_others_do_not(face: Face, broker: Broker, filled: str) -> None:
    async with face.consumer(broker.address, group=filled, topics=[filled]) as consumer:
        first = await consumer.poll(TIMEOUT_S)
        paused = p(filled, first.partition)
        await consumer.pause(paused)
        assert {record.partition for record in await consumer.take(10)} == {1 - first.partition}
        assert await consumer.poll(SOON_S) is None
        await consumer.resume(paused)
        assert values(await consumer.take(9)) == list(range(1, 10))


async def test_commits_are_what_another_member_starts_from(face: Face, broker: Broker, filled: str) -> None:
    place = p(filled, 0)
    async with face.consumer(broker.address, group=filled, auto_commit=False) as consumer:
        await consumer.assign([place])
        await consumer.take(4)
        await consumer.commit()
        assert (await consumer.committed([place]))[place].offset == 4
        told: list[Any] = []
        await consumer.commit_async({place: 6}, lambda offsets, error: told.append((dict(offsets), error)))
        await eventually(lambda: told)
        assert told[0][1] is None
        with pytest.raises(errors.CommitFailed) as refused:
            await consumer.commit({place: 5})
        assert isinstance(refused.value.errors[place], errors.OffsetRegression)
    async with face.consumer(broker.address, group=filled) as consumer:
        await consumer.assign([place])
        assert (await consumer.poll(TIMEOUT_S)).offset == 6


async def test_without_automatic_commits_nothing_is_committed(face: Face, broker: Broker, filled: str) -> None:
    async with face.consumer(broker.address, group=filled, topics=[filled], auto_commit=False) as consumer:
        await consumer.take(20)
        assert (await consumer.committed([p(filled, 0)]))[p(filled, 0)].offset is None


async def test_automatic_commits_happen_while_it_reads(face: Face, broker: Broker, filled: str) -> None:
    async with face.consumer(broker.address, group=filled, auto_commit_interval_ms=20) as consumer:
        await consumer.assign([p(filled, 0)])
        await consumer.take(5)

        async def committed() -> bool:
            # The fifth is still in hand.
            return bool((await consumer.committed([p(filled, 0)]))[p(filled, 0)].offset == 4)

        held: bool = await eventually(committed)
        assert held


@pytest.mark.parametrize(("reset", "first"), [("earliest", 0), ("latest", 10)])
async def test_without_a_commit_the_reset_policy_decides(
    face: Face, broker: Broker, filled: str, reset: str, first: int
) -> None:
    async with face.consumer(broker.address, group=filled, topics=[filled], reset=reset) as consumer:
        seen: list[Any] = []

        async def owns_both() -> bool:
            seen.extend(await consumer.poll_batch(1, 0.01))
            return len(await consumer.assignment()) == 2

        held: bool = await eventually(owns_both)
        assert held
        with Producer(broker.address) as producer:
            for partition in range(2):
                producer.send(filled, b"10", partition=partition)
        while len(seen) < 2 * (11 - first):
            seen += await consumer.poll_batch(100, TIMEOUT_S)
        assert values(seen, 0) == values(seen, 1) == list(range(first, 11))


async def test_without_a_commit_an_application_may_insist_on_one(face: Face, broker: Broker, filled: str) -> None:
    async with face.consumer(broker.address, group=filled, reset="error") as consumer:
        with pytest.raises(errors.NoCommittedOffset):
            await consumer.assign([p(filled, 0)])
        await consumer.assign({p(filled, 0): 5})
        assert (await consumer.poll(TIMEOUT_S)).offset == 5
        await consumer.seek(p(filled, 0), 1_000)
        with pytest.raises(errors.OffsetOutOfRange) as refused:
            await consumer.poll(TIMEOUT_S)
        assert (refused.value.earliest, refused.value.latest) == (0, 10)
    async with face.consumer(broker.address, group=filled + "-2", topics=[filled], reset="error") as consumer:
        with pytest.raises(errors.NoCommittedOffset):
            await consumer.poll(TIMEOUT_S)


async def test_an_offset_beyond_the_log_is_reset_by_policy(face: Face, broker: Broker, filled: str) -> None:
    async with face.consumer(broker.address) as consumer:
        await consumer.assign({p(filled, 0): 1_000})
        assert (await consumer.poll(TIMEOUT_S)).offset == 0


async def test_a_range_is_read_exactly(face: Face, broker: Broker, filled: str) -> None:
    async with face.consumer(broker.address) as consumer:
        assert values(await consumer.range(filled, 0, 3, 7)) == [3, 4, 5, 6]
        assert values(await consumer.range(filled, 1)) == list(range(10))
        assert await consumer.range(filled, 0, 10, 10) == []
        with pytest.raises(errors.OffsetOutOfRange):
            await consumer.range(filled, 0, 11, 12)
        with pytest.raises(errors.PartitionNotFound):
            await consumer.range(filled, 5)


async def test_topics_by_pattern_also_those_that_come_later(
    face: Face, broker: Broker, admin: Admin, name: str
) -> None:
    await asyncio.to_thread(admin.create_topic, f"{name}-one", 1)
    async with (
        face.consumer(broker.address, group=name, pattern=f"{name}-.*") as consumer,
        face.producer(broker.address) as producer,
    ):
        await producer.send(f"{name}-one", b"1")
        assert (await consumer.poll(TIMEOUT_S)).topic == f"{name}-one"
        await asyncio.to_thread(admin.create_topic, f"{name}-two", 1)
        await producer.send(f"{name}-two", b"2")
        assert (await consumer.poll(TIMEOUT_S)).topic == f"{name}-two"


async def test_a_member_that_joins_takes_its_share_and_nothing_is_lost(face: Face, broker: Broker, filled: str) -> None:
    events: list[tuple[str, list[TopicPartition]]] = []

    def note(kind: str) -> Any:
        return lambda partitions: events.append((kind, list(partitions)))

    async with face.consumer(
        broker.address, group=filled, topics=[filled], on_assigned=note("assigned"), on_revoked=note("revoked")
    ) as first:
        seen = await first.take(20)
        async with face.consumer(broker.address, group=filled, topics=[filled]) as second:

            async def shared() -> bool:
                for consumer in (first, second):
                    assert await consumer.poll(0.01) is None
                return len(await first.assignment()) == len(await second.assignment()) == 1

            held: bool = await eventually(shared)
            assert held
            with Producer(broker.address) as producer:
                for number in range(10, 15):
                    for partition in range(2):
                        producer.send(filled, b"%d" % number, partition=partition)
            seen += await first.take(5)
            seen += await second.take(5)
    for partition in range(2):
        assert values(seen, partition) == list(range(15))
    assert [kind for kind, _ in events] == ["assigned", "revoked"]
    assert len(events[1][1]) == 1


async def test_positions_kept_outside_are_found_again_by_seeking(face: Face, broker: Broker, filled: str) -> None:
    """Transactions of the application's own: it stores results and offset together, and seeks when it is assigned."""
    stored = {p(filled, 0): 4, p(filled, 1): 9}
    if type(face).__name__ == "SyncFace":
        holder: list[Any] = []

        def seek(partitions: Sequence[TopicPartition]) -> None:
            for partition in partitions:
                holder[0]._client.seek(partition, stored[partition])

        async with face.consumer(broker.address, group=filled, auto_commit=False) as consumer:
            holder.append(consumer)
            await consumer.subscribe([filled], on_assigned=seek)
            found = await consumer.take(7)
    else:

        async def seek_async(partitions: Sequence[TopicPartition]) -> None:
            for partition in partitions:
                await consumer.seek(partition, stored[partition])

        async with face.consumer(broker.address, group=filled, auto_commit=False) as consumer:
            await consumer.subscribe([filled], on_assigned=seek_async)
            found = await consumer.take(7)
    assert values(found, 0) == [4, 5, 6, 7, 8, 9]
    assert values(found, 1) == [9]


async def test_what_was_assigned_can_be_sought_although_it_is_about_to_be_taken_away(
    broker: Broker, filled: str
) -> None:
    """The change that takes it away waits behind the one that brought it. The application is told of both in turn."""
    events: list[tuple[str, int]] = []
    with (
        Consumer(broker.address, group=filled, auto_commit=False) as first,
        Consumer(broker.address, group=filled, auto_commit=False) as second,
    ):

        def seek(partitions: Sequence[TopicPartition]) -> None:
            events.append(("assigned", len(partitions)))
            for partition in partitions:
                first.seek(partition, 7)

        first.subscribe(
            [filled], on_assigned=seek, on_revoked=lambda partitions: events.append(("revoked", len(partitions)))
        )
        waiting = first._core.inbox._events
        await eventually(lambda: len(waiting) == 1)
        second.subscribe([filled])
        await eventually(lambda: len(waiting) == 2)
        record = await asyncio.to_thread(first.poll, TIMEOUT_S)
    assert record is not None
    assert record.offset == 7
    assert events == [("assigned", 2), ("revoked", 1)]


async def test_a_small_prefetch_bound_still_reads_everything(face: Face, broker: Broker, topic: str) -> None:
    async with face.producer(broker.address, batch_bytes=20_000) as producer:
        for number in range(300):
            await producer.send(topic, b"%d" % number * 500, partition=0)
    for options in ({"group": topic}, {}):
        async with face.consumer(broker.address, prefetch_bytes=1_000, **options) as consumer:
            if options:
                await consumer.subscribe([topic])
            else:
                await consumer.assign([p(topic, 0)])
            assert [record.offset for record in await consumer.take(300)] == list(range(300))


async def test_mistakes_are_told_as_such(face: Face, broker: Broker, filled: str) -> None:
    async with face.consumer(broker.address) as consumer:
        with pytest.raises(ValueError, match="needs a group"):
            await consumer.subscribe([filled])
        with pytest.raises(ValueError, match="not assigned"):
            await consumer.seek(p(filled, 0), 0)
        await consumer.assign([p(filled, 0)])
        with pytest.raises(ValueError, match="needs a group"):
            await consumer.commit()
    async with face.consumer(broker.address, group=filled, topics=[filled]) as consumer:
        with pytest.raises(ValueError, match="already"):
            await consumer.subscribe([filled])
        with pytest.raises(ValueError, match="assigned its partitions by the group"):
            await consumer.assign([p(filled, 0)])
    with pytest.raises(errors.ClientClosed):
        await consumer.poll(0.0)


NOT_TEXT = "\ud800"


async def test_a_name_that_is_not_text_is_refused_at_once(face: Face, broker: Broker, filled: str) -> None:
    """The message that names it could not be built, on the client's own loop, and the consumer waited for ever."""
    for options in ({"group": NOT_TEXT}, {"group": b"\xff"}, {"group": filled, "instance_id": NOT_TEXT}):
        with pytest.raises(ValueError, match="text"):
            async with face.consumer(broker.address, **options):
                pass
    async with face.consumer(broker.address, group=filled) as consumer:
        for topics, pattern in (([NOT_TEXT], ""), ([], NOT_TEXT)):
            with pytest.raises(ValueError, match="text"):
                await consumer.subscribe(topics, pattern)
        with pytest.raises(ValueError, match="text"):
            await consumer.assign([p(NOT_TEXT, 0)])
        with pytest.raises(ValueError, match="text"):
            await consumer.range(NOT_TEXT, 0, 0, 5)
