"""What a broker tells of producers, and how it forgets them. How it recognises their repetitions is in
tests/integration/test_producer_retries.py."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Final

import grpc
import pytest

from cursus_proto import chain, codecs
from cursus_proto import records as record_sets
from cursus_proto.v1 import publish_service_pb2 as pb
from cursus_proto.v1.records_pb2 import CODEC_ZSTD, Record
from cursus_proto.v1.topic_service_pb2 import DeleteRecordsPartition, DeleteRecordsRequest
from tests.harness.clients import Client, error_info, publish_request
from tests.harness.http import get, samples
from tests.harness.processes import BrokerProcess
from tests.harness.refusals import invalid, not_found, refusal

TOPIC: Final = "orders"
REMEMBERED: Final = 64


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[BrokerProcess]:
    async with BrokerProcess.start(tmp_path / "data") as process:
        async with Client.connect(process.grpc) as client:
            await client.create_topic(TOPIC)
        yield process


@pytest.fixture(params=["running", "killed", "stopped"])
def between(request: pytest.FixtureRequest) -> str:
    """What happens to the broker before it is asked."""
    value: str = request.param
    return value


async def pass_on(broker: BrokerProcess, between: str) -> None:
    if between != "running":
        await broker.restart(kill=between == "killed")


class Producer:
    """Sends batches of one record, and knows the checksum of what it has sent."""

    def __init__(self, client: Client, name: bytes = b"p", epoch: int = 0) -> None:
        self._client = client
        self.name = name
        self.epoch = epoch
        self.sent: list[tuple[int, bytes]] = []

    async def send(self, value: bytes, first: int | None = None) -> pb.AppendedBatch:
        sequence = len(self.sent) if first is None else first
        identity = pb.ProducerIdentity(id=self.name, epoch=self.epoch, first_sequence=sequence)
        appended = await self._client.publish(TOPIC, [value], producer=identity)
        if first is None:
            self.sent.append((sequence, record_sets.pack([Record(value=value)])))
        return appended

    def checksum(self) -> int:
        checksum = chain.EMPTY
        for first, packed in self.sent:
            checksum = chain.extend(checksum, first, 1, record_sets.checksum(packed))
        return checksum


async def describe(broker: BrokerProcess, *names: bytes) -> Sequence[pb.DescribedProducer]:
    async with Client.connect(broker.grpc) as client:
        request = pb.DescribeProducersRequest(topic=TOPIC, partition=0, producer_ids=names)
        return (await client.publishing.DescribeProducers(request)).producers


async def release(broker: BrokerProcess, **epochs: int) -> int:
    async with Client.connect(broker.grpc) as client:
        request = pb.ReleaseProducersRequest(topic=TOPIC, partition=0)
        for name, epoch in epochs.items():
            request.producers.add(id=name.encode(), epoch=epoch)
        return (await client.publishing.ReleaseProducers(request)).released_count


async def test_a_producer_is_described_alike_before_and_after_a_restart(broker: BrokerProcess, between: str) -> None:
    async with Client.connect(broker.grpc) as client:
        first, second = Producer(client, b"first"), Producer(client, b"second", epoch=7)
        for number in range(REMEMBERED + 20):
            placed = await first.send(b"%d" % number)
        await second.send(b"one")
    await pass_on(broker, between)
    found = await describe(broker, b"second", b"unknown", b"first")
    assert [one.id for one in found] == [b"second", b"unknown", b"first"]
    assert (found[0].known, found[0].epoch, found[0].next_sequence) == (True, 7, 1)
    assert found[0].checksum == second.checksum()
    assert found[1] == pb.DescribedProducer(id=b"unknown")
    assert (found[2].epoch, found[2].next_sequence, found[2].checksum) == (0, REMEMBERED + 20, first.checksum())
    assert found[2].last_append_time_ms == placed.append_time_ms


async def test_a_producer_that_is_far_ahead_of_its_repetition_can_be_joined(
    broker: BrokerProcess, between: str
) -> None:
    """A task that is run again sends what it sent before. Behind the remembered batches it asks what is stored, finds
    that it is the same, and goes on."""
    async with Client.connect(broker.grpc) as client:
        task = Producer(client)
        for number in range(REMEMBERED + 10):
            await task.send(b"%d" % number)
    await pass_on(broker, between)
    async with Client.connect(broker.grpc) as client:
        again = Producer(client)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await again.send(b"0", first=0)
        info = error_info(refused.value)
        assert info.reason == "SEQUENCE_TOO_OLD"
        assert (info.metadata["sequence"], info.metadata["next_sequence"]) == ("0", str(REMEMBERED + 10))
        (stored,) = await describe(broker, b"p")
        again.sent = task.sent[: stored.next_sequence]
        assert stored.checksum == again.checksum()
        await again.send(b"next")
        assert await client.read_values(TOPIC) == [b"%d" % number for number in range(REMEMBERED + 10)] + [b"next"]


async def test_the_checksum_of_compressed_sets_is_over_the_bytes_as_sent(broker: BrokerProcess, between: str) -> None:
    packed = codecs.compress(CODEC_ZSTD, record_sets.pack([Record(value=b"a" * 100), Record(value=b"b")]))
    request = publish_request(TOPIC, [], producer=pb.ProducerIdentity(id=b"p", first_sequence=0))
    request.ClearField("records")
    request.codec, request.record_count, request.compressed_records = CODEC_ZSTD, 2, packed
    async with Client.connect(broker.grpc) as client:
        await client.publishing.Publish(request)
    await pass_on(broker, between)
    (stored,) = await describe(broker, b"p")
    assert stored.checksum == chain.extend(chain.EMPTY, 0, 2, record_sets.checksum(packed))


async def test_windowed_producers_have_no_checksum(broker: BrokerProcess, between: str) -> None:
    identity = pb.ProducerIdentity(id=b"p", epoch=3, first_sequence=1, sequencing=pb.SEQUENCING_WINDOWED)
    async with Client.connect(broker.grpc) as client:
        await client.publish(TOPIC, [b"a"], producer=identity)
    await pass_on(broker, between)
    (stored,) = await describe(broker, b"p")
    assert (stored.known, stored.epoch, stored.next_sequence) == (True, 3, 0)
    assert not stored.HasField("checksum")


async def test_deleting_records_costs_no_checksum(broker: BrokerProcess, between: str) -> None:
    """The headers went with the records, and a broker that was killed then had nothing to learn from."""
    async with Client.connect(broker.grpc) as client:
        producer = Producer(client)
        for number in range(5):
            await producer.send(b"%d" % number)
        everything = DeleteRecordsPartition(partition=0, before_offset=5)
        await client.topics.DeleteRecords(DeleteRecordsRequest(topic=TOPIC, partitions=[everything]))
    await pass_on(broker, between)
    (stored,) = await describe(broker, b"p")
    assert (stored.next_sequence, stored.checksum) == (5, producer.checksum())


async def test_a_released_producer_is_forgotten_and_begins_anew_in_a_higher_epoch(broker: BrokerProcess) -> None:
    async with Client.connect(broker.grpc) as client:
        done, living = Producer(client, b"done", epoch=2), Producer(client, b"living", epoch=2)
        for producer in (done, living):
            await producer.send(b"0")
            await producer.send(b"1")
        assert await release(broker, done=2, living=1, unknown=0) == 1
        assert [one.known for one in await describe(broker, b"done", b"living")] == [False, True]
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await done.send(b"2")
        info = error_info(refused.value)
        assert (info.reason, info.metadata["sequence"]) == ("PRODUCER_FORGOTTEN", "2")
        assert (await living.send(b"2")).base_offset == 4
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await done.send(b"0", first=0)
        assert error_info(refused.value).reason == "PRODUCER_FENCED"
        done.epoch += 1
        assert not (await done.send(b"0", first=0)).duplicate
    scraped = samples((await get(broker.metrics, "/metrics"))[1])
    assert scraped['cursus_producers_forgotten_total{cause="released",topic="orders"}'] == 1
    assert scraped['cursus_producers{topic="orders"}'] == 2


async def test_a_release_is_remembered_over_a_clean_restart(broker: BrokerProcess) -> None:
    async with Client.connect(broker.grpc) as client:
        await Producer(client).send(b"0")
    assert await release(broker, p=0) == 1
    await broker.restart()
    assert [one.known for one in await describe(broker, b"p")] == [False]
    async with Client.connect(broker.grpc) as client:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await Producer(client).send(b"0")
        assert error_info(refused.value).reason == "PRODUCER_FENCED", "a copy of it that still lives stores nothing"


async def test_a_release_that_a_crash_takes_back_leaves_the_producer_whole(broker: BrokerProcess) -> None:
    async with Client.connect(broker.grpc) as client:
        producer = Producer(client)
        await producer.send(b"0")
        await producer.send(b"1")
    assert await release(broker, p=0) == 1
    await broker.restart(kill=True)
    (stored,) = await describe(broker, b"p")
    assert (stored.next_sequence, stored.checksum) == (2, producer.checksum())
    async with Client.connect(broker.grpc) as client:
        assert (await Producer(client).send(b"0")).duplicate, "no harm: what was stored is recognised"


async def test_one_that_began_anew_after_its_release_is_known_by_its_new_batches(
    broker: BrokerProcess, between: str
) -> None:
    async with Client.connect(broker.grpc) as client:
        before, after = Producer(client), Producer(client, epoch=1)
        for number in range(3):
            await before.send(b"%d" % number)
        await release(broker, p=0)
        await after.send(b"other")
    await pass_on(broker, between)
    (stored,) = await describe(broker, b"p")
    assert (stored.next_sequence, stored.checksum) == (1, after.checksum())


async def test_bad_questions_are_refused(broker: BrokerProcess) -> None:
    async with Client.connect(broker.grpc) as client:
        ask, let_go = client.publishing.DescribeProducers, client.publishing.ReleaseProducers
        many = [b"%d" % number for number in range(1_001)]
        named = [pb.ProducerRelease(id=name) for name in many]
        assert len((await ask(pb.DescribeProducersRequest(topic=TOPIC, producer_ids=many[:-1]))).producers) == 1_000
        assert await refusal(ask(pb.DescribeProducersRequest(topic=TOPIC, producer_ids=many))) == invalid(
            "TOO_MANY_ITEMS"
        )
        assert await refusal(let_go(pb.ReleaseProducersRequest(topic=TOPIC, producers=named))) == invalid(
            "TOO_MANY_ITEMS"
        )
        assert await refusal(ask(pb.DescribeProducersRequest(topic="nope"))) == not_found("TOPIC_NOT_FOUND")
        assert await refusal(let_go(pb.ReleaseProducersRequest(topic=TOPIC, partition=7))) == not_found(
            "PARTITION_NOT_FOUND"
        )
