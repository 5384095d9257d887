"""Retries over a transport that loses, repeats, delays and reorders: each record is stored once, in order.

The faults are made in the client, message by message, from a seeded generator: a request is delivered zero to three
times, at once or in a later exchange, in any order, over a stream or as calls of their own, and its answer may get
lost. The broker is real and is killed in between.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc
import pytest

from cursus_proto.v1 import publish_service_pb2 as pb
from cursus_proto.v1.records_pb2 import Record
from cursus_proto.v1.topic_service_pb2 import DeleteTopicRequest
from tests.harness.clients import Client, publish_request, reason
from tests.harness.processes import BrokerProcess

TOPIC: Final = "orders"
WINDOW: Final = 5
OVERTAKEN: Final = ("SEQUENCE_GAP", "PRODUCER_FORGOTTEN")
"""The second before anything of the producer is stored."""


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[BrokerProcess]:
    async with BrokerProcess.start(tmp_path / "data") as process:
        async with Client.connect(process.grpc) as client:
            await client.create_topic(TOPIC)
        yield process


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back for a request: where its batch lies, or why it was refused."""

    offset: int = -1
    duplicate: bool = False
    refused: str = ""


async def ask(client: Client, request: pb.PublishRequest) -> Answer:
    """Publish over a call of its own."""
    try:
        place = (await client.publishing.Publish(request)).appended[0]
    except grpc.aio.AioRpcError as error:
        return Answer(refused=reason(error))
    return Answer(place.base_offset, place.duplicate)


class FaultyTransport:
    """Carries requests to the broker as a bad network would."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._delayed: list[tuple[int, pb.PublishRequest]] = []

    async def exchange(
        self, client: Client, requests: Sequence[tuple[int, pb.PublishRequest]]
    ) -> list[tuple[int, Answer]]:
        """Deliver numbered requests, and some that were held back earlier; answers come by number, in any order."""
        arriving = [packet for packet in requests for _ in range(self._rng.choice((0, 1, 1, 2, 3)))]
        held = [packet for packet in arriving if self._rng.random() < 0.15]
        arriving = [packet for packet in arriving if packet not in held]
        released = [packet for packet in self._delayed if self._rng.random() < 0.4]
        self._delayed = [packet for packet in self._delayed if packet not in released] + held
        arriving += released
        self._rng.shuffle(arriving)
        carry = self._over_stream if self._rng.random() < 0.5 else self._over_calls
        answers = await carry(client, [request for _, request in arriving])
        numbered = [(number, answer) for (number, _), answer in zip(arriving, answers, strict=True)]
        return [one for one in numbered if self._rng.random() < 0.7]

    @staticmethod
    async def _over_calls(client: Client, requests: Sequence[pb.PublishRequest]) -> list[Answer]:
        return await asyncio.gather(*(ask(client, request) for request in requests))

    @staticmethod
    async def _over_stream(client: Client, requests: Sequence[pb.PublishRequest]) -> list[Answer]:
        answers: list[Answer] = []
        async with client.publish_stream() as stream:
            for sent in [await stream.send(request) for request in requests]:
                outcome = await sent
                assert outcome is not None
                if outcome.HasField("refused"):
                    answers.append(Answer(refused=reason(outcome.refused)))
                else:
                    place = outcome.published.appended[0]
                    answers.append(Answer(place.base_offset, place.duplicate))
        return answers


class RetryingProducer:
    """Keeps a window of batches in flight and repeats each until it is acknowledged."""

    def __init__(self, name: str, seed: int, first_sequence: int, sequencing: pb.Sequencing.ValueType) -> None:
        rng = random.Random(f"{name} {seed}")
        self.values: list[list[bytes]] = []
        self._requests: list[pb.PublishRequest] = []
        self._offsets: dict[int, int] = {}
        self._transport = FaultyTransport(seed)
        for number in range(40):
            values = [b"%s-%d-%d" % (name.encode(), number, index) for index in range(rng.randint(1, 4))]
            producer = pb.ProducerIdentity(
                id=name.encode(), epoch=1, first_sequence=first_sequence, sequencing=sequencing
            )
            acks = rng.choice((pb.ACKS_WRITTEN, pb.ACKS_ALL))
            self._requests.append(publish_request(TOPIC, values, acks=acks, producer=producer))
            self.values.append(values)
            first_sequence += len(values)

    @property
    def acknowledged(self) -> int:
        return len(self._offsets)

    async def run(self, client: Client, upto: int) -> None:
        """Go on until so many batches are acknowledged."""
        while self.acknowledged < min(upto, len(self._requests)):
            missing = [number for number in range(len(self._requests)) if number not in self._offsets][:WINDOW]
            packets = [(number, self._requests[number]) for number in missing]
            for number, answer in await self._transport.exchange(client, packets):
                if answer.refused:
                    # Overtaken, or a copy so late that the broker cannot compare it any more. Neither is stored.
                    assert answer.refused in OVERTAKEN or number in self._offsets, answer
                else:
                    assert self._offsets.setdefault(number, answer.offset) == answer.offset

    def records(self) -> list[bytes]:
        return [value for values in self.values for value in values]

    def check_offsets(self, stored: list[bytes]) -> None:
        for number, offset in self._offsets.items():
            assert stored[offset : offset + len(self.values[number])] == self.values[number]


@pytest.mark.parametrize("seed", range(5))
async def test_each_record_is_stored_once_in_order_whatever_the_transport_does(
    broker: BrokerProcess, seed: int
) -> None:
    producers = [RetryingProducer(name, seed, 0, pb.SEQUENCING_STRICT) for name in ("ann", "bob", "cho")]
    for upto in (13, 27, 40):
        async with Client.connect(broker.grpc) as client:
            await asyncio.gather(*(producer.run(client, upto) for producer in producers))
        await broker.restart(kill=True)
    async with Client.connect(broker.grpc) as client:
        stored = await client.read_values(TOPIC)
    for producer, name in zip(producers, (b"ann", b"bob", b"cho"), strict=True):
        assert [value for value in stored if value.startswith(name)] == producer.records()
        producer.check_offsets(stored)


@pytest.mark.parametrize("seed", range(2))
async def test_a_windowed_producer_stores_each_record_once_whatever_overtakes(broker: BrokerProcess, seed: int) -> None:
    producer = RetryingProducer("legacy", seed, 1, pb.SEQUENCING_WINDOWED)
    for upto in (20, 40):
        async with Client.connect(broker.grpc) as client:
            await producer.run(client, upto)
        await broker.restart(kill=True)
    async with Client.connect(broker.grpc) as client:
        stored = await client.read_values(TOPIC)
    assert sorted(stored) == sorted(producer.records())
    producer.check_offsets(stored)


class Session:
    """One producer id on a client that is connected anew after each kill."""

    def __init__(self, broker: BrokerProcess, sequencing: pb.Sequencing.ValueType) -> None:
        self._broker = broker
        self._sequencing = sequencing

    async def send(self, first: int, *values: bytes, epoch: int = 1, sequences: Sequence[int] = ()) -> Answer:
        producer = pb.ProducerIdentity(
            id=b"p", epoch=epoch, first_sequence=first, sequencing=self._sequencing, sequences=sequences
        )
        records = [
            Record(value=value, sequence=number)
            for value, number in zip(values, sequences or range(first, first + len(values)), strict=True)
        ]
        async with Client.connect(self._broker.grpc) as client:
            return await ask(client, publish_request(TOPIC, records if sequences else values, producer=producer))

    async def stored(self) -> list[bytes]:
        async with Client.connect(self._broker.grpc) as client:
            return await client.read_values(TOPIC)


@pytest.fixture(params=["running", "killed", "stopped"])
def between(request: pytest.FixtureRequest, broker: BrokerProcess) -> Between:
    return Between(broker, request.param)


class Between:
    """What happens to the broker between a batch and its repetition."""

    def __init__(self, broker: BrokerProcess, what: str) -> None:
        self._broker = broker
        self._what = what

    async def happens(self) -> None:
        if self._what != "running":
            await self._broker.restart(kill=self._what == "killed")


async def test_strict_sequences_are_judged_alike_before_and_after_a_restart(
    broker: BrokerProcess, between: Between
) -> None:
    session = Session(broker, pb.SEQUENCING_STRICT)
    assert await session.send(0, b"a", b"b") == Answer(0)
    assert await session.send(2, b"c") == Answer(2)
    await between.happens()

    assert await session.send(0, b"a", b"b") == Answer(0, duplicate=True)
    assert await session.send(2, b"c") == Answer(2, duplicate=True)
    assert (await session.send(2, b"C")).refused == "SEQUENCE_CONFLICT", "other bytes"
    assert (await session.send(0, b"a")).refused == "SEQUENCE_CONFLICT", "a part of a stored batch"
    assert (await session.send(2, b"c", b"d")).refused == "SEQUENCE_CONFLICT", "more than the stored batch"
    assert (await session.send(4, b"e")).refused == "SEQUENCE_GAP"
    assert (await session.send(3, b"d", epoch=0)).refused == "PRODUCER_FENCED"
    assert await session.send(3, b"d") == Answer(3)
    assert await session.stored() == [b"a", b"b", b"c", b"d"]


async def test_a_new_epoch_starts_at_zero_and_fences_the_old_one(broker: BrokerProcess, between: Between) -> None:
    session = Session(broker, pb.SEQUENCING_STRICT)
    assert await session.send(0, b"a") == Answer(0)
    assert (await session.send(1, b"b", epoch=2)).refused == "SEQUENCE_GAP"
    assert await session.send(0, b"a2", epoch=2) == Answer(1)
    await between.happens()

    assert (await session.send(1, b"b", epoch=1)).refused == "PRODUCER_FENCED"
    assert (await session.send(0, b"a", epoch=1)).refused == "PRODUCER_FENCED", "also a repetition"
    assert await session.send(0, b"a2", epoch=2) == Answer(1, duplicate=True)
    assert await session.send(1, b"b2", epoch=2) == Answer(2)
    assert await session.stored() == [b"a", b"a2", b"b2"]


async def test_a_deleted_topic_takes_the_sequences_with_it(broker: BrokerProcess, between: Between) -> None:
    session = Session(broker, pb.SEQUENCING_STRICT)
    assert await session.send(0, b"a", b"b") == Answer(0)
    await broker.restart()  # remembers the producers apart from the log
    async with Client.connect(broker.grpc) as client:
        await client.topics.DeleteTopic(DeleteTopicRequest(name=TOPIC))
        await client.create_topic(TOPIC)
    await between.happens()
    assert await session.send(0, b"x") == Answer(0)
    assert await session.stored() == [b"x"]


async def test_windowed_batches_may_overtake_and_fill_the_gap_later(broker: BrokerProcess, between: Between) -> None:
    session = Session(broker, pb.SEQUENCING_WINDOWED)
    assert await session.send(1, b"1", b"2") == Answer(0)
    assert await session.send(6, b"6", b"7") == Answer(2)
    await between.happens()

    assert await session.send(6, b"6", b"7") == Answer(2, duplicate=True)
    assert await session.send(3, b"3", b"4", b"5") == Answer(4)
    assert await session.send(3, b"3", b"4", b"5") == Answer(4, duplicate=True)
    assert (await session.send(2, b"2", b"3", b"4")).duplicate, "other boundaries, all stored"
    assert await session.stored() == [b"1", b"2", b"6", b"7", b"3", b"4", b"5"]


async def test_of_a_windowed_batch_only_the_new_records_are_stored(broker: BrokerProcess, between: Between) -> None:
    session = Session(broker, pb.SEQUENCING_WINDOWED)
    assert await session.send(1, b"1", b"2", b"3") == Answer(0)
    assert await session.send(2, b"2", b"3", b"4", b"5") == Answer(3)
    await between.happens()

    assert (await session.send(4, b"4", b"5")).duplicate
    assert await session.send(5, b"5", b"6") == Answer(5)
    await between.happens()
    assert (await session.send(6, b"6")).duplicate
    assert await session.stored() == [b"1", b"2", b"3", b"4", b"5", b"6"]


async def test_windowed_sequences_may_stand_in_the_records(broker: BrokerProcess, between: Between) -> None:
    session = Session(broker, pb.SEQUENCING_WINDOWED)
    assert await session.send(2, b"2", b"1", b"9", sequences=(2, 1, 9)) == Answer(0)
    await between.happens()
    assert (await session.send(2, b"2", b"1", b"9", sequences=(2, 1, 9))).duplicate
    assert await session.send(9, b"9", b"8", b"3", sequences=(9, 8, 3)) == Answer(3)
    await between.happens()
    assert (await session.send(8, b"8")).duplicate
    assert await session.stored() == [b"2", b"1", b"9", b"8", b"3"]


async def test_a_windowed_epoch_may_rise_within_a_sequence_or_begin_a_new_one(
    broker: BrokerProcess, between: Between
) -> None:
    session = Session(broker, pb.SEQUENCING_WINDOWED)
    assert await session.send(1, b"1", epoch=100) == Answer(0)
    assert await session.send(2, b"2", epoch=101) == Answer(1)
    await between.happens()

    assert await session.send(3, b"3", epoch=101) == Answer(2)
    assert await session.send(1, b"1", epoch=100) == Answer(0, duplicate=True), "seen, whatever its epoch"
    assert (await session.send(4, b"4", epoch=100)).refused == "PRODUCER_FENCED"
    assert await session.send(1, b"new 1", epoch=102) == Answer(3), "a new session"
    await between.happens()
    assert (await session.send(3, b"3", epoch=101)).refused == "PRODUCER_FENCED", "not seen in this session"
    assert await session.send(1, b"new 1", epoch=102) == Answer(3, duplicate=True)
    assert await session.send(2, b"new 2", epoch=102) == Answer(4)
    assert await session.stored() == [b"1", b"2", b"3", b"new 1", b"new 2"]
