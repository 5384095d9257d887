"""Saving what partitions know of their producers. What a start makes of it, after saves that failed half way, is held
against a model in tests/property/test_producers.py."""

from __future__ import annotations

import asyncio
import shutil
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

import pytest

from cursus_broker.app import Broker
from cursus_broker.errors import ProducerForgotten, StorageFailed
from cursus_broker.log.api import Batch, EntryHeader, Offset
from cursus_broker.log.settings import LogSettings
from cursus_broker.metadata.model import LedgerChange, TopicPartition
from cursus_broker.metadata.store import MetadataStore
from cursus_broker.pace import Pace
from cursus_broker.publish.acks import Acks
from cursus_broker.publish.producers import ProducerLedger
from cursus_broker.publish.submission import Submission
from cursus_broker.settings import BrokerSettings
from cursus_broker.topics import ledgers
from cursus_broker.topics.config import TopicConfig
from cursus_broker.topics.partition import Partition
from cursus_proto import chain
from cursus_proto import records as record_sets
from cursus_proto.v1.records_pb2 import Record
from tests.harness.waiting import eventually

PAYLOAD = record_sets.pack([Record(value=b"v")])


def settings_for(data_dir: Path) -> BrokerSettings:
    log = LogSettings(segment_bytes=4096, linger_ms=3_600_000, flush_records=1_000_000)
    return BrokerSettings(data_dir=data_dir, log=log)


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    async with Broker.open(settings_for(tmp_path / "data")) as broker:
        await broker.catalog.create("orders", 1, TopicConfig())
        yield broker


@asynccontextmanager
async def after_kill(broker: Broker, tmp_path: Path) -> AsyncIterator[Partition]:
    """The partition as a broker finds it that is started on what a killed one would leave now."""
    copied = tmp_path / "copied"
    shutil.copytree(broker.settings.data_dir, copied)
    async with Broker.open(settings_for(copied)) as restarted:
        yield restarted.catalog.partition("orders", 0)


async def publish(broker: Broker, producer: bytes, first: int, *, epoch: int = 0, partition: int = 0) -> None:
    numbers = Submission("orders", PAYLOAD, partition, Acks.WRITTEN)
    await broker.publisher.publish(numbers._replace(producer_id=producer, producer_epoch=epoch, first_sequence=first))


async def save(broker: Broker) -> None:
    await broker.catalog.save_ledgers(min_appended_bytes=0, min_forgotten=0)


@dataclass(slots=True)
class Writes:
    """Notes what is written, and may let it wait or fail."""

    put: Callable[..., Awaitable[None]]
    changes: list[LedgerChange] = field(default_factory=list)
    fails_from: int | None = None
    gate: asyncio.Event | None = None
    waiting: int = 0
    most_waiting: int = 0

    async def put_ledger(
        self, store: MetadataStore, place: TopicPartition, topic_id: UUID, change: LedgerChange
    ) -> None:
        if self.fails_from is not None and len(self.changes) >= self.fails_from:
            raise StorageFailed("the disk is full")
        self.changes.append(change)
        self.waiting += 1
        self.most_waiting = max(self.most_waiting, self.waiting)
        if self.gate is not None:
            await self.gate.wait()
        await self.put(store, place, topic_id, change)
        self.waiting -= 1

    def saved(self) -> list[list[bytes]]:
        return [sorted(row.id for row in change.producers) for change in self.changes]


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> Writes:
    writes = Writes(MetadataStore.put_ledger)
    monkeypatch.setattr(MetadataStore, "put_ledger", lambda *args: writes.put_ledger(*args))
    return writes


async def test_only_producers_that_have_changed_are_saved_again(broker: Broker, writes: Writes) -> None:
    for name in (b"p", b"q", b"r"):
        await publish(broker, name, 0)
    await save(broker)
    await publish(broker, b"q", 1)
    broker.catalog.partition("orders", 0).producers.release(b"r", 0)
    await save(broker)
    assert writes.saved() == [[b"p", b"q", b"r"], [b"q", b"r"]]
    assert [row.id for row in writes.changes[1].producers if row.released] == [b"r"]
    broker.catalog.partition("orders", 0).producers.forget_idle(2**62, 10)
    await save(broker)
    assert sorted(writes.changes[2].forgotten) == [b"p", b"q", b"r"]


async def test_what_was_saved_is_not_read_from_the_log_again(broker: Broker, tmp_path: Path) -> None:
    for first in range(5):
        await publish(broker, b"p", first)
    await save(broker)
    await publish(broker, b"p", 5)
    async with after_kill(broker, tmp_path) as partition:
        assert partition.ledger_upto == 5
        assert partition.producers.take_changes() == {b"p"}
        producer = partition.producers.get(b"p")
        assert producer is not None
        assert (producer.next_sequence, producer.checksum) == (6, expected_checksum(6))


def expected_checksum(batches: int) -> int:
    checksum = chain.EMPTY
    for first in range(batches):
        checksum = chain.extend(checksum, first, 1, record_sets.checksum(PAYLOAD))
    return checksum


async def test_nothing_is_saved_before_the_log_is_synced(
    broker: Broker, writes: Writes, monkeypatch: pytest.MonkeyPatch
) -> None:
    await publish(broker, b"p", 0)
    synced: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    asked: list[Offset] = []

    def sync_soon(_: Partition, upto: Offset) -> asyncio.Future[None]:
        asked.append(upto)
        return synced

    monkeypatch.setattr(Partition, "sync_soon", sync_soon)
    saving = asyncio.ensure_future(save(broker))
    await eventually(lambda: bool(asked))
    await asyncio.sleep(0)
    assert (asked, writes.changes) == ([1], [])
    synced.set_result(None)
    await saving
    assert writes.saved() == [[b"p"]]


async def test_a_batch_that_comes_while_producers_are_drafted_is_neither_lost_nor_counted_twice(
    broker: Broker, tmp_path: Path, writes: Writes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A producer is saved with it, and the headers behind what was covered have it too."""
    await publish(broker, b"p", 0)
    stored = Pace.took

    async def took(pace: Pace, steps: int = 1) -> None:
        if broker.catalog.partition("orders", 0).next_offset == 1:
            await publish(broker, b"p", 1)
            await publish(broker, b"q", 0)
        await stored(pace, steps)

    monkeypatch.setattr(Pace, "took", took)
    await save(broker)
    assert writes.changes[-1].reach.upto_offset == 1
    assert writes.changes[-1].reach.described_offset == 3
    async with after_kill(broker, tmp_path) as partition:
        for name, count in ((b"p", 2), (b"q", 1)):
            producer = partition.producers.get(name)
            assert producer is not None
            assert (producer.next_sequence, producer.checksum) == (count, expected_checksum(count))


async def test_what_could_not_be_saved_is_saved_the_next_time(broker: Broker, writes: Writes) -> None:
    await publish(broker, b"p", 0)
    writes.fails_from = 0
    await save(broker)
    writes.fails_from = None
    await publish(broker, b"q", 0)
    await save(broker)
    assert writes.saved() == [[b"p", b"q"]]


async def test_a_save_that_is_cancelled_is_done_the_next_time(broker: Broker, writes: Writes) -> None:
    await publish(broker, b"p", 0)
    writes.gate = asyncio.Event()
    saving = asyncio.ensure_future(save(broker))
    await eventually(lambda: bool(writes.changes))
    saving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await saving
    writes.gate.set()
    assert broker.catalog.partition("orders", 0).producers.has_changes
    await save(broker)
    assert writes.saved() == [[b"p"], [b"p"]]


async def test_half_of_a_save_leaves_every_producer_whole(
    broker: Broker, tmp_path: Path, writes: Writes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledgers, "_PRODUCERS_A_WRITE", 2)
    names = [b"%d" % number for number in range(5)]
    for name in names:
        await publish(broker, name, 0)
    await save(broker)
    for name in names:
        await publish(broker, name, 1)
    broker.catalog.partition("orders", 0).producers.release(b"4", 0)
    assert [len(saved) for saved in writes.saved()] == [2, 2, 1]
    writes.fails_from = 4
    await save(broker)
    async with after_kill(broker, tmp_path) as partition:
        assert partition.ledger_upto == 5, "what is covered moves with the last part"
        for name in names:
            producer = partition.producers.get(name)
            if producer is None:
                assert name == b"4"
                assert partition.producers.get_released(name) is not None, "it was saved as released, or is known whole"
                continue
            assert (producer.next_sequence, producer.checksum) == (2, expected_checksum(2))


async def test_others_have_their_turn_while_thousands_are_drafted(broker: Broker) -> None:
    partition = broker.catalog.partition("orders", 0)
    fill(partition.producers, producers=5_000)
    partition.ledger_drafted()
    turns = await turns_during(ledgers._draft_some(deque([(UUID(int=1), partition)]), []))
    assert turns >= 5


def fill(ledger: ProducerLedger, *, producers: int) -> None:
    for number in range(producers):
        header = EntryHeader(Offset(number), 1, 0, 1, 1, 0, 0, b"%d" % number, 0, 0)
        ledger.record(header, windowed=False)


async def turns_during(work: Awaitable[object]) -> int:
    """How often somebody else had a turn of the loop."""
    turns = 0
    task = asyncio.ensure_future(work)
    while not task.done():
        await asyncio.sleep(0)
        turns += 1
    await task
    return turns


async def test_partitions_are_saved_side_by_side_and_not_all_at_once(
    tmp_path: Path, writes: Writes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledgers, "_PARTITIONS_AT_ONCE", 10)
    async with Broker.open(settings_for(tmp_path / "data")) as broker:
        await broker.catalog.create("orders", 35, TopicConfig())
        for partition in range(35):
            await publish(broker, b"p", 0, partition=partition)
    assert len(writes.changes) == 35
    assert writes.most_waiting == 10


async def test_a_stop_without_changes_saves_nothing(tmp_path: Path, writes: Writes) -> None:
    settings = settings_for(tmp_path / "data")
    async with Broker.open(settings) as broker:
        await broker.catalog.create("orders", 2, TopicConfig())
        await publish(broker, b"p", 0)
    assert len(writes.changes) == 1
    async with Broker.open(settings):
        pass
    assert len(writes.changes) == 1


async def test_a_release_alone_is_saved_at_the_stop(tmp_path: Path) -> None:
    settings = settings_for(tmp_path / "data")
    async with Broker.open(settings) as broker:
        await broker.catalog.create("orders", 1, TopicConfig())
        await publish(broker, b"p", 0)
    async with Broker.open(settings) as broker:
        assert broker.catalog.partition("orders", 0).producers.release(b"p", 0)
    async with Broker.open(settings) as broker:
        ledger = broker.catalog.partition("orders", 0).producers
        assert ledger.get(b"p") is None
        assert ledger.get_released(b"p") is not None
        assert not ledger.is_whole


async def test_many_releases_are_a_reason_to_save(broker: Broker, writes: Writes) -> None:
    for name in (b"p", b"q"):
        await publish(broker, name, 0)
    ledger = broker.catalog.partition("orders", 0).producers
    ledger.release(b"p", 0)
    await broker.catalog.save_ledgers(min_appended_bytes=1_000_000, min_forgotten=2)
    assert writes.changes == []
    ledger.release(b"q", 0)
    await broker.catalog.save_ledgers(min_appended_bytes=1_000_000, min_forgotten=2)
    assert len(writes.changes) == 1


async def test_producers_are_saved_before_their_headers_are_deleted(broker: Broker, tmp_path: Path) -> None:
    """They were read from the headers alone, so that a crash after DeleteRecords made the partition forget them."""
    for first in range(3):
        await publish(broker, b"p", first)
    topic = broker.catalog.topic("orders")
    assert await broker.catalog.trim(topic, 0, Offset(3)) == 3
    async with after_kill(broker, tmp_path) as partition:
        producer = partition.producers.get(b"p")
        assert producer is not None
        assert (producer.next_sequence, producer.checksum, producer.incomplete) == (3, expected_checksum(3), False)


async def test_producers_are_saved_when_retention_has_removed_their_headers(broker: Broker, tmp_path: Path) -> None:
    topic = await broker.catalog.update("orders", TopicConfig(retention_bytes=1), ())
    first = 0
    while topic.partition(0).log.segment_count < 3:
        await publish(broker, b"p", first)
        first += 1
    await broker.catalog.retain()
    assert topic.partition(0).earliest_offset > 0
    async with after_kill(broker, tmp_path) as partition:
        producer = partition.producers.get(b"p")
        assert producer is not None
        assert (producer.next_sequence, producer.checksum) == (first, expected_checksum(first))


async def test_a_producer_whose_last_headers_went_uncounted_does_not_go_on(broker: Broker, tmp_path: Path) -> None:
    """What was saved of it is older than what it stored, and would have let a repetition in as new."""
    await publish(broker, b"p", 0)
    await save(broker)
    await publish(broker, b"p", 1)
    partition = broker.catalog.partition("orders", 0)
    await partition.log.trim(Offset(2))  # not by the catalog, which would save first
    async with after_kill(broker, tmp_path) as restarted:
        producer = restarted.producers.get(b"p")
        assert producer is not None
        assert producer.incomplete
        with pytest.raises(ProducerForgotten):
            restarted.producers.judge_strict(numbered(1))
        restarted.producers.judge_strict(numbered(0, epoch=1))


def numbered(first: int, epoch: int = 0) -> Batch:
    return Batch(
        PAYLOAD, 1, record_sets.checksum(PAYLOAD), producer_id=b"p", producer_epoch=epoch, first_sequence=first
    )
