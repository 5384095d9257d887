"""Records that wait until the partitions of their topic are known: their order, their bound and their end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from cursus_grpc._accumulator import Accumulator, AccumulatorSettings
from cursus_grpc._batch import AsyncDelivery
from cursus_grpc._lane import Verdict
from cursus_grpc._metadata import ClusterView, TopicView
from cursus_grpc._router import Router
from cursus_grpc.errors import (
    BrokerUnreachable,
    BufferFull,
    ClientClosed,
    CursusError,
    DeliveryTimeout,
    PartitionNotFound,
    RecordTooLarge,
    TlsFailed,
    TopicNotFound,
)
from cursus_grpc.types import RecordMetadata
from cursus_proto import records as record_sets
from cursus_proto.partitioner import partition_for_key
from tests.harness.waiting import eventually

Answer = dict[str, int] | CursusError | OSError
"""How many partitions topics have, or why there is no answer."""


class Brokers:
    """Answers questions about topics when the test lets them be answered."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.limit = 1_000_000
        self._answers: asyncio.Queue[Answer] = asyncio.Queue()
        self._known: dict[str, TopicView] = {}

    def answer(self, answer: Answer) -> None:
        self._answers.put_nowait(answer)

    async def refresh(self, names: list[str], *, patient: bool) -> None:
        assert not patient
        self.asked.append(names)
        answer = await self._answers.get()
        if isinstance(answer, Exception):
            raise answer
        self._known = {name: TopicView(name, "", ("broker",) * count, 0.0) for name, count in answer.items()}

    async def max_batch_bytes(self, *, patient: bool) -> int:
        assert not patient
        return self.limit

    def known(self, topic: str) -> TopicView | None:
        return self._known.get(topic)


class Fixture:
    def __init__(self, **settings: float) -> None:
        chosen = {
            "batch_bytes": 10_000,
            "batch_records": 100,
            "buffer_bytes": 1_000_000,
            "delivery_timeout_s": 60.0,
            "max_in_flight": 4,
        } | settings
        self.brokers = Brokers()
        self.woken = 0
        self.reported: list[tuple[RecordMetadata | None, CursusError | None]] = []
        self.router = Router(cast("ClusterView", self.brokers), 600.0, asyncio.get_running_loop())
        self.accumulator = Accumulator(
            AccumulatorSettings(**chosen),  # type: ignore[arg-type]  # integers where integers belong
            AsyncDelivery,
            self.wake,
            self.router.ask,
            lambda metadata, error: self.reported.append((metadata, error)),
        )
        self.router.start(self.accumulator, self.wake)

    def wake(self) -> None:
        self.woken += 1

    def send(
        self, value: bytes = b"x", key: bytes | None = None, partition: int | None = None, topic: str = "t"
    ) -> AsyncDelivery:
        return self.accumulator.append(topic, value, key, partition, None)

    def values(self, partition: int) -> list[bytes]:
        """What the batches of a partition hold, in order."""
        found: list[bytes] = []
        for lane in self.accumulator.lanes():
            if lane.place == ("t", partition):
                for batch in [*lane.sealed, *([lane.open] if lane.open else [])]:
                    found += [record.value for record in record_sets.unpack(b"".join(batch.parts))]
        return found

    async def asked(self, times: int) -> None:
        await eventually(lambda: len(self.brokers.asked) == times)

    async def no_longer(self, topic: str = "t") -> None:
        """Nothing waits for the topic any more."""
        await eventually(lambda: topic not in self.accumulator.waiting_topics())


@asynccontextmanager
async def running(**settings: float) -> AsyncIterator[Fixture]:
    fixture = Fixture(**settings)
    task = asyncio.create_task(fixture.router.run())
    try:
        yield fixture
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


# Waiting


async def test_any_number_of_records_is_one_question() -> None:
    async with running() as fixture:
        for number in range(1000):
            fixture.send(topic=f"t{number % 3}")
        await fixture.asked(1)
        assert sorted(fixture.brokers.asked[0]) == ["t0", "t1", "t2"]
        for _ in range(1000):
            fixture.send(topic="t0")
        fixture.brokers.answer({"t0": 1, "t1": 1, "t2": 1})
        for topic in ("t0", "t1", "t2"):
            await fixture.no_longer(topic)
        assert len(fixture.brokers.asked) == 1


async def test_records_that_wait_fill_the_buffer() -> None:
    fixture = Fixture(buffer_bytes=1_000)
    for _ in range(10):
        fixture.send(b"x" * 96)  # 100 bytes encoded
    with pytest.raises(BufferFull):
        fixture.send(b"")
    assert fixture.accumulator.buffered_bytes == 1_000


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((5, b"x", None, None, None), ValueError),
        (("\ud800", b"x", None, None, None), ValueError),
        (("t", 5, None, None, None), TypeError),
        (("t", b"x", None, "1", None), TypeError),
        (("t", b"x", None, -1, None), PartitionNotFound),
    ],
)
async def test_what_is_no_record_is_refused_at_once_without_a_broker(
    arguments: tuple[Any, ...], error: type[Exception]
) -> None:
    fixture = Fixture()
    with pytest.raises(error):
        fixture.accumulator.append(*arguments)
    assert fixture.accumulator.buffered_bytes == 0
    assert fixture.accumulator.waiting_topics() == []


async def test_a_closed_producer_takes_nothing_for_an_unknown_topic() -> None:
    fixture = Fixture()
    fixture.accumulator.close()
    with pytest.raises(ClientClosed):
        fixture.send()


# Going


async def test_partitions_and_keys_keep_the_order_of_send() -> None:
    async with running() as fixture:
        for number in range(2_000):
            fixture.send(b"k%d" % number, key=b"key-%d" % (number % 7))
            fixture.send(b"p%d" % number, partition=number % 3)
        await fixture.asked(1)
        fixture.brokers.answer({"t": 3})
        # Sent while the others are let go, and after: they come behind.
        number = 2_000
        while fixture.accumulator.waiting_topics():
            fixture.send(b"k%d" % number, key=b"key-%d" % (number % 7))
            fixture.send(b"p%d" % number, partition=number % 3)
            number += 1
            await asyncio.sleep(0)
        fixture.send(b"k%d" % number, key=b"key-%d" % (number % 7))
        fixture.send(b"p%d" % number, partition=number % 3)
        assert number > 2_000
        total = 0
        for partition in range(3):
            found = fixture.values(partition)
            total += len(found)
            direct = [int(value[1:]) for value in found if value[:1] == b"p"]
            assert direct == [one for one in range(number + 1) if one % 3 == partition]
            keyed = [int(value[1:]) for value in found if value[:1] == b"k"]
            mine = [one for one in range(number + 1) if partition_for_key(b"key-%d" % (one % 7), 3) == partition]
            assert keyed == mine
        assert total == 2 * (number + 1)


async def test_others_have_their_turn_while_many_records_are_let_go() -> None:
    async with running(buffer_bytes=10_000_000) as fixture:
        for _ in range(10_000):
            fixture.send()
        await fixture.asked(1)
        fixture.brokers.answer({"t": 1})
        turns = 0
        while fixture.accumulator.waiting_topics():
            turns += 1
            await asyncio.sleep(0)
        assert turns >= 10


async def test_whoever_sends_without_a_pause_is_asked_for_one_while_records_are_let_go() -> None:
    async with running(batch_records=1_000_000, batch_bytes=1_000_000) as fixture:
        for _ in range(5_000):
            fixture.send()
        assert not fixture.accumulator.behind
        await fixture.asked(1)
        fixture.brokers.answer({"t": 1})
        await eventually(lambda: fixture.accumulator.behind or not fixture.accumulator.waiting_topics())
        assert fixture.accumulator.behind
        await fixture.no_longer()
        assert not fixture.accumulator.behind


async def test_a_delivery_that_is_awaited_early_learns_where_the_record_is() -> None:
    async with running() as fixture:
        deliveries = [fixture.send() for _ in range(3)]
        told: list[int] = []
        deliveries[1].add_done_callback(lambda delivery: told.append(delivery.result().offset))
        waiting = [asyncio.ensure_future(_place(delivery)) for delivery in deliveries]
        fixture.brokers.answer({"t": 1})
        await fixture.no_longer()
        (batch,) = fixture.accumulator.seal_all()
        fixture.accumulator.lanes()[0].sealed.clear()
        assert not any(delivery.done() for delivery in deliveries)
        fixture.accumulator.settle([Verdict(batch, None, 7, 99)])
        assert [(await one).offset for one in waiting] == [7, 8, 9]
        assert told == [8]
        assert fixture.accumulator.buffered_bytes == 0


async def _place(delivery: AsyncDelivery) -> RecordMetadata:
    return await delivery


async def test_time_spent_waiting_counts() -> None:
    async with running(delivery_timeout_s=50.0) as fixture:
        fixture.send()
        (record,) = fixture.accumulator.backlog.youngest()
        fixture.brokers.answer({"t": 1})
        await fixture.no_longer()
        (batch,) = fixture.accumulator.seal_all()
        assert batch.created_at == record.sent_at
        assert batch.deadline == record.sent_at + 50.0


# Failing


async def _error(delivery: AsyncDelivery) -> CursusError | None:
    await eventually(delivery.done)
    return delivery.exception()


async def test_a_topic_that_is_not_there_fails_what_waited_for_it_and_nothing_else() -> None:
    async with running() as fixture:
        lost = [fixture.send(topic="nope") for _ in range(3)]
        kept = fixture.send()
        fixture.brokers.answer({"t": 1})
        for delivery in lost:
            assert isinstance(await _error(delivery), TopicNotFound)
        assert not kept.done()
        assert fixture.reported == [(None, lost[0].exception())] * 3
        assert fixture.accumulator.buffered_bytes == 5  # the one that was kept


async def test_an_answer_says_nothing_of_a_topic_that_may_have_been_created_since() -> None:
    async with running() as fixture:
        before = fixture.send()
        await fixture.asked(1)
        after = fixture.send()
        fixture.brokers.answer({})
        assert isinstance(await _error(before), TopicNotFound)
        await fixture.asked(2)
        fixture.brokers.answer({"t": 1})
        await fixture.no_longer()
        assert not after.done()
        assert fixture.values(0) == [b"x"]


async def test_a_partition_that_is_not_there_is_asked_for_again_and_then_refused() -> None:
    async with running() as fixture:
        fixture.send(b"0", partition=0)
        fixture.brokers.answer({"t": 1})
        await fixture.no_longer()
        # The topic has got another partition since.
        found = fixture.send(b"1", partition=1)
        missing = fixture.send(b"2", partition=2)
        fixture.send(b"3", partition=0)
        await fixture.asked(2)
        fixture.brokers.answer({"t": 2})
        assert isinstance(await _error(missing), PartitionNotFound)
        await fixture.no_longer()
        assert not found.done()
        assert (fixture.values(0), fixture.values(1)) == ([b"0", b"3"], [b"1"])


async def test_a_record_that_turns_out_too_large_fails_alone() -> None:
    async with running() as fixture:
        fixture.brokers.limit = 500
        small, large, last = fixture.send(b"a"), fixture.send(b"b" * 600), fixture.send(b"c")
        fixture.brokers.answer({"t": 1})
        assert isinstance(await _error(large), RecordTooLarge)
        await fixture.no_longer()
        assert not small.done()
        assert not last.done()
        assert fixture.values(0) == [b"a", b"c"]
        with pytest.raises(RecordTooLarge):
            fixture.send(b"b" * 600)


@pytest.mark.parametrize("failure", [TlsFailed("not trusted"), FileNotFoundError("ca.pem")])
async def test_what_no_waiting_cures_is_told_at_once(failure: TlsFailed | OSError) -> None:
    async with running() as fixture:
        delivery = fixture.send()
        fixture.brokers.answer(failure)
        assert isinstance(await _error(delivery), TlsFailed)


async def test_a_broker_that_is_away_is_asked_again_until_the_records_time_is_over() -> None:
    async with running(delivery_timeout_s=50.0) as fixture:
        early = fixture.send()
        for times in (1, 2, 3):
            fixture.brokers.answer(BrokerUnreachable("Connection refused"))
            await fixture.asked(times + 1)
        late = fixture.send()
        first, second = fixture.accumulator.backlog.queues["t"].records
        assert await fixture.router.expire(first.deadline - 1.0) == first.deadline
        assert not early.done()
        assert await fixture.router.expire(first.deadline) == second.deadline
        error = early.exception()
        assert isinstance(error, DeliveryTimeout)
        assert not error.maybe_stored
        assert "Connection refused" in str(error)
        assert isinstance(error.__cause__, BrokerUnreachable)
        assert not late.done()


# Flushing and closing


async def test_catching_up_waits_for_what_waits_now_and_for_no_more() -> None:
    async with running() as fixture:
        fixture.send()
        catching_up = asyncio.ensure_future(fixture.router.caught_up())
        await fixture.asked(1)
        assert not catching_up.done()
        fixture.send(topic="later")
        fixture.brokers.answer({"t": 1})
        await catching_up
        assert fixture.accumulator.waiting_topics() == ["later"]


@pytest.mark.parametrize("sends", [1, 2_000])
async def test_giving_up_fails_everything_that_waits(sends: int) -> None:
    fixture = Fixture()
    deliveries = [fixture.send() for _ in range(sends)]
    await fixture.router.abandon(ClientClosed("closed"))
    assert {type(delivery.exception()) for delivery in deliveries} == {ClientClosed}
    assert len(fixture.reported) == sends
    assert fixture.accumulator.buffered_bytes == 0


async def test_who_waits_for_room_and_is_cancelled_leaves_nothing_behind() -> None:
    fixture = Fixture()
    fixture.send()
    called: list[bool] = []
    callbacks: list[Callable[[], None]] = [lambda: called.append(True) for _ in range(3)]
    for callback in callbacks:
        fixture.accumulator.when_room(callback)
    fixture.accumulator.room_or_not(callbacks[1])
    await fixture.router.abandon(ClientClosed("closed"))
    assert called == [True, True]
