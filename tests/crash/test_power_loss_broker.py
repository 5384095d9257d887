"""Power loss under the whole broker: what acks all acknowledged is there, what acks 1 acknowledged may be missing from
the end only.

The broker is the real one, put together by `cursus_broker.app`; only its log files go through a layer that forgets what
was not synced, names in directories included. The metadata lies in SQLite, which syncs for itself outside that layer:
its own durability is trusted here, not tested.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from cursus_broker.app import Broker, serve
from cursus_broker.consume.fetch import Fetched, Fetcher, FetchPart
from cursus_broker.errors import LogTruncated, OffsetOutOfRange, StorageFailed, TopicNotFound
from cursus_broker.log.api import Offset
from cursus_broker.log.epochs import Epochs
from cursus_broker.log.forgetful import ForgetfulFiles
from cursus_broker.log.settings import LogSettings
from cursus_broker.metadata.model import TopicPartition
from cursus_broker.metadata.store import MetadataStore
from cursus_broker.publish.acks import Acks
from cursus_broker.publish.submission import Submission
from cursus_broker.settings import BrokerSettings
from cursus_broker.topics.config import TopicConfig
from cursus_broker.topics.partition import Partition
from cursus_proto import chain
from cursus_proto import records as record_sets
from cursus_proto.v1 import publish_service_pb2 as pb
from cursus_proto.v1.records_pb2 import Record
from tests.harness.clients import Client
from tests.harness.waiting import eventually

PARTITIONS: Final = 2
LOSES_ALL: Final = 0
"""Draws a disk that has nothing of what was not synced, which the tests that use it check."""


def settings_for(tmp_path: Path) -> BrokerSettings:
    # Segments of a few batches, so that a life rolls often; a linger that never ends, so that only acks all, rolls and
    # trims sync anything.
    log = LogSettings(segment_bytes=2048, index_interval_bytes=300, linger_ms=3_600_000, flush_records=1_000_000)
    return BrokerSettings(data_dir=tmp_path / "data", grpc_port=0, health_port=0, metrics_port=0, log=log)


@asynccontextmanager
async def until_power_fails(settings: BrokerSettings, files: ForgetfulFiles) -> AsyncIterator[Broker]:
    """A broker whose power goes off when the block is left, or within it: closing it then saves nothing more."""
    try:
        async with Broker.open(settings, files) as broker:
            try:
                yield broker
            finally:
                files.cut_power_after(0)
    except* StorageFailed:
        pass


def forgetful(settings: BrokerSettings) -> ForgetfulFiles:
    settings.segment_dir.mkdir(parents=True)
    return ForgetfulFiles(settings.segment_dir)


@dataclass(slots=True)
class Promise:
    """What one partition owes: values by offset, as far as they were sent, and the bounds it may have."""

    values: list[bytes] = field(default_factory=list)
    durable_offset: int = 0
    trimmed_for_sure: int = 0
    trim_asked: int = 0
    leader_epoch: int = 0  # that a reader at the end of `values` was in


class Life:
    """A broker that loses power again and again, and what it has promised so far."""

    def __init__(self, tmp_path: Path, seed: int) -> None:
        self._settings = settings_for(tmp_path)
        self._rng = random.Random(seed)
        self._files = forgetful(self._settings)
        self._promises: dict[tuple[str, int], Promise] = {}
        self.lost_records = 0

    async def run(self, steps: int) -> None:
        """One life: start, check, make a topic, work, lose power."""
        async with until_power_fails(self._settings, self._files) as broker:
            await self._check(broker)
            topic = f"topic-{len(self._promises)}"
            await broker.catalog.create(topic, PARTITIONS, TopicConfig())
            for made in broker.catalog.topic(topic).healthy():
                self._promises[topic, made.id] = Promise(leader_epoch=made.leader_epoch)
            # Some lives end in the middle of a write, a roll or a trim.
            self._files.cut_power_after(self._rng.choice((None, self._rng.randint(1, 40), self._rng.randint(1, 200))))
            try:
                for _ in range(self._rng.randint(1, steps)):
                    await self._step(broker)
            except StorageFailed:
                pass  # the power failed
        self._files.power_loss(self._rng)

    async def _step(self, broker: Broker) -> None:
        if self._rng.random() < 0.1:
            await self._trim(broker)
            return
        # One batch for each of some partitions, at once.
        chosen = self._rng.sample(sorted(self._promises), self._rng.randint(1, min(4, len(self._promises))))
        results = await asyncio.gather(*(self._publish(broker, *place) for place in chosen), return_exceptions=True)
        for result in results:
            if result is not None:
                raise result

    async def _publish(self, broker: Broker, topic: str, partition: int) -> None:
        promise = self._promises[topic, partition]
        values = [self._rng.randbytes(self._rng.randint(0, 250)) for _ in range(self._rng.randint(1, 4))]
        acks = self._rng.choice((Acks.WRITTEN, Acks.ALL))
        # Noted before it is sent: a batch that was refused because the power failed may be on disk all the same.
        base_offset = len(promise.values)
        promise.values.extend(values)
        receipt = await broker.publisher.publish(submission(topic, partition, values, acks))
        (placed,) = receipt.placed
        assert placed.base_offset == base_offset
        if acks is Acks.ALL:
            promise.durable_offset = base_offset + len(values)

    async def _trim(self, broker: Broker) -> None:
        topic, partition = self._rng.choice(sorted(self._promises))
        promise = self._promises[topic, partition]
        log = broker.catalog.topic(topic).partition(partition).log
        before = self._rng.randint(log.earliest_offset, log.next_offset)
        promise.trim_asked = max(promise.trim_asked, before)
        promise.trimmed_for_sure = await log.trim(Offset(before))

    async def _check(self, broker: Broker) -> None:
        for (topic, partition_id), promise in self._promises.items():
            partition = broker.catalog.topic(topic).partition(partition_id)
            assert promise.trimmed_for_sure <= partition.earliest_offset <= promise.trim_asked
            assert partition.next_offset >= max(promise.durable_offset, partition.earliest_offset)
            found = await read_values(partition)
            # No hole and nothing strange: what is there is what was sent, up to some point in the unsynced tail.
            assert found == promise.values[partition.earliest_offset : partition.next_offset]
            self._check_epoch(partition, promise)
            self.lost_records += len(promise.values) - partition.next_offset
            del promise.values[partition.next_offset :]
            promise.durable_offset = partition.next_offset
            promise.trimmed_for_sure = promise.trim_asked = partition.earliest_offset

    def _check_epoch(self, partition: Partition, promise: Promise) -> None:
        """Somebody at the end of all that was sent is told what is missing, and somebody at the end now, nothing."""
        assert partition.leader_epoch > promise.leader_epoch
        expected = partition.next_offset if partition.next_offset < len(promise.values) else None
        assert partition.log.truncated(len(promise.values), promise.leader_epoch) == expected
        assert partition.log.truncated(partition.next_offset, promise.leader_epoch) is None
        promise.leader_epoch = partition.leader_epoch


def submission(topic: str, partition: int, values: list[bytes], acks: Acks) -> Submission:
    # A producer without numbers: single records are then not compared by content.
    packed = record_sets.pack(Record(value=value) for value in values)
    return Submission(topic, packed, partition, acks, producer_id=b"test")


async def read_values(partition: Partition) -> list[bytes]:
    """The retained values of a partition, in order."""
    values: list[bytes] = []
    offset = partition.earliest_offset
    while entries := await partition.read(offset, 1024 * 1024):
        for header, payload in entries:
            records = record_sets.unpack(payload)
            values.extend(record.value for record in records[max(0, offset - header.base_offset) :])
            offset = header.next_offset
    return values


@pytest.mark.parametrize("seed", range(8))
async def test_acks_all_survives_power_loss_across_rolls_new_topics_and_trims(tmp_path: Path, seed: int) -> None:
    life = Life(tmp_path, seed)
    for _ in range(6):
        await life.run(steps=40)


async def test_these_lives_do_lose_unsynced_records(tmp_path: Path) -> None:
    """Guards the test above: a disk that forgets nothing would prove nothing."""
    life = Life(tmp_path, 99)
    for _ in range(6):
        await life.run(steps=40)
    assert life.lost_records > 0


async def fetch(broker: Broker, topic: str, offset: int, leader_epoch: int | None) -> Fetched:
    part = FetchPart(topic, 0, offset, 0, leader_epoch)
    fetcher = Fetcher(broker.catalog, 1024 * 1024)
    return (await fetcher.fetch([part], max_wait_ms=0, min_bytes=0, max_bytes=0, max_records=0))[0]


def goes_on_from(fetched: Fetched) -> int:
    assert isinstance(fetched.error, LogTruncated), fetched
    return int(fetched.error.metadata["offset"])


async def test_a_reader_of_lost_records_is_sent_to_where_the_log_was_cut_also_when_it_has_grown_again(
    tmp_path: Path,
) -> None:
    settings = settings_for(tmp_path)
    files = forgetful(settings)
    async with until_power_fails(settings, files) as broker:
        topic = await broker.catalog.create("orders", 1, TopicConfig())
        for count, acks in ((5, Acks.ALL), (20, Acks.WRITTEN)):
            await broker.publisher.publish(submission("orders", 0, [b"x"] * count, acks))
        epoch = topic.partition(0).leader_epoch
        assert len((await fetch(broker, "orders", 3, epoch)).entries) == 2
    files.power_loss(random.Random(LOSES_ALL))

    async with Broker.open(settings, files) as broker:
        partition = broker.catalog.topic("orders").partition(0)
        assert partition.next_offset == 5
        assert goes_on_from(await fetch(broker, "orders", 25, epoch)) == 5
        # Without an epoch nobody can tell.
        assert isinstance((await fetch(broker, "orders", 25, None)).error, OffsetOutOfRange)
        for begin in (5, 25):
            await broker.publisher.publish(submission("orders", 0, [b"y"] * 20, Acks.ALL))
            assert partition.next_offset == begin + 20
            assert goes_on_from(await fetch(broker, "orders", 25, epoch)) == 5
        assert (await fetch(broker, "orders", 25, partition.leader_epoch)).error is None
        assert (await fetch(broker, "orders", 3, epoch)).entries
        assert (await fetch(broker, "orders", 5, epoch)).entries
        later = partition.leader_epoch

    # A clean stop and start keeps all that.
    async with Broker.open(settings, files) as broker:
        assert broker.catalog.topic("orders").partition(0).leader_epoch == later
        assert goes_on_from(await fetch(broker, "orders", 25, epoch)) == 5
        await broker.catalog.delete("orders")
        await broker.catalog.create("orders", 1, TopicConfig())
        await broker.publisher.publish(submission("orders", 0, [b"z"] * 50, Acks.ALL))
        for old in (epoch, later):
            assert goes_on_from(await fetch(broker, "orders", 25, old)) == 0


async def test_epochs_of_all_partitions_of_a_start_are_stored_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_for(tmp_path)
    files = forgetful(settings)
    async with until_power_fails(settings, files) as broker:
        for number in range(20):
            await broker.catalog.create(f"topic-{number}", 10, TopicConfig())
    files.power_loss(random.Random(1))
    stored: list[int] = []
    put_epochs = MetadataStore.put_epochs

    def counted(self: MetadataStore, epochs: Mapping[TopicPartition, Epochs]) -> Awaitable[None]:
        stored.append(len(epochs))
        return put_epochs(self, epochs)

    monkeypatch.setattr(MetadataStore, "put_epochs", counted)
    async with Broker.open(settings, files) as broker:
        epochs = {one.leader_epoch for topic in broker.catalog.topics() for one in topic.healthy()}
        assert len(epochs) == 1
    assert stored == [200]
    async with Broker.open(settings, files):
        pass
    assert stored == [200], "nothing to store after a clean close"


async def test_a_start_that_could_not_remember_its_epochs_is_no_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closing the logs in good order must not make the next start believe that nothing was lost."""
    settings = settings_for(tmp_path)
    files = forgetful(settings)
    async with until_power_fails(settings, files) as broker:
        topic = await broker.catalog.create("orders", 1, TopicConfig())
        await broker.publisher.publish(submission("orders", 0, [b"x"], Acks.WRITTEN))
        epoch = topic.partition(0).leader_epoch
    files.power_loss(random.Random(LOSES_ALL))

    def refuse(self: MetadataStore, epochs: Mapping[TopicPartition, Epochs]) -> Awaitable[None]:
        raise StorageFailed("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(MetadataStore, "put_epochs", refuse)
        with pytest.raises(StorageFailed, match="full"):
            async with Broker.open(settings, files):
                pass
    async with Broker.open(settings, files) as broker:
        assert goes_on_from(await fetch(broker, "orders", 1, epoch)) == 0


async def test_power_may_fail_at_any_step_of_creating_a_topic(tmp_path: Path) -> None:
    for operations in range(1, 20):
        settings = settings_for(tmp_path / str(operations))
        files = forgetful(settings)
        created = False
        async with until_power_fails(settings, files) as broker:
            files.cut_power_after(operations)
            await broker.catalog.create("orders", PARTITIONS, TopicConfig())
            created = True
        files.power_loss(random.Random(operations))

        async with Broker.open(settings, files) as broker:
            if not created:
                with pytest.raises(TopicNotFound):
                    broker.catalog.topic("orders")
                await broker.catalog.create("orders", PARTITIONS, TopicConfig())
            receipt = await broker.publisher.publish(submission("orders", 1, [b"first"], Acks.ALL))
            assert receipt.placed[0].base_offset == 0
    assert created, "the power always failed before the topic was there"


@pytest.mark.parametrize("seed", range(8))
async def test_what_power_loss_took_is_not_taken_for_stored_before(tmp_path: Path, seed: int) -> None:
    settings = settings_for(tmp_path)
    files = forgetful(settings)
    values = [b"%d" % number for number in range(40)]
    async with until_power_fails(settings, files) as broker:
        await broker.catalog.create("orders", 1, TopicConfig())
        for number, value in enumerate(values):
            acks = Acks.ALL if number == 5 else Acks.WRITTEN
            await broker.publisher.publish(submission("orders", 0, [value], acks)._replace(producer_id=b""))
    files.power_loss(random.Random(seed))
    async with Broker.open(settings, files) as broker:
        partition = broker.catalog.topic("orders").partition(0)
        left = partition.next_offset
        assert left > 5
        for number, value in enumerate(values):
            receipt = await broker.publisher.publish(
                submission("orders", 0, [value], Acks.WRITTEN)._replace(producer_id=b"")
            )
            assert (receipt.placed[0].duplicate, receipt.placed[0].base_offset) == (number < left, number)
        assert await read_values(partition) == values


NUMBERED: Final = (b"p", b"q", b"r")


async def numbered_life(broker: Broker, rng: random.Random) -> int:
    """Publishes of numbered producers, their ledger saved now and then. Answers where the log ends."""
    partition = broker.catalog.partition("orders", 0)
    for _ in range(40):
        name = rng.choice(NUMBERED)
        known = partition.producers.get(name)
        one = submission("orders", 0, [b"%d" % rng.randrange(10)], rng.choice([Acks.WRITTEN] * 9 + [Acks.ALL]))
        first = 0 if known is None else known.next_sequence
        await broker.publisher.publish(one._replace(producer_id=name, first_sequence=first))
        if rng.random() < 0.1:
            await broker.catalog.save_ledgers(min_appended_bytes=0, min_forgotten=0)
    return partition.next_offset


async def numbered_lives(tmp_path: Path, seed: int) -> int:
    """Five lives, each ended by power loss; answers how many records were lost."""
    settings, rng = settings_for(tmp_path), random.Random(seed)
    files = forgetful(settings)
    lost = 0
    for life in range(5):
        async with until_power_fails(settings, files) as broker:
            if life == 0:
                await broker.catalog.create("orders", 1, TopicConfig())
            written = await numbered_life(broker, rng)
        files.power_loss(rng)
        async with Broker.open(settings, files) as broker:
            partition = broker.catalog.partition("orders", 0)
            lost += written - partition.next_offset
            assert await counted(partition) == {
                name: (producer.next_sequence, producer.checksum)
                for name in NUMBERED
                if (producer := partition.producers.get(name)) is not None
            }
    return lost


@pytest.mark.parametrize("seed", range(8))
async def test_what_is_known_of_producers_after_power_loss_is_what_the_log_holds(tmp_path: Path, seed: int) -> None:
    """However much of it was saved before. Nothing that was lost is taken for stored."""
    await numbered_lives(tmp_path, seed)


async def test_these_lives_do_lose_batches_of_numbered_producers(tmp_path: Path) -> None:
    """Guards the test above."""
    assert sum([await numbered_lives(tmp_path / str(seed), seed) for seed in (90, 91, 92)]) > 0


async def counted(partition: Partition) -> dict[bytes, tuple[int, int]]:
    """Next sequence and checksum of every producer, from the headers of the log alone."""
    found: dict[bytes, tuple[int, int]] = {}
    async for header in partition.log.headers(Offset(0)):
        sequence, checksum = found.get(header.producer_id, (0, chain.EMPTY))
        assert header.first_sequence == sequence
        extended = chain.extend(checksum, sequence, header.record_count, header.payload_crc)
        found[header.producer_id] = (sequence + header.record_count, extended)
    return found


async def test_power_may_fail_at_any_step_of_adding_partitions(tmp_path: Path) -> None:
    for operations in range(1, 20):
        settings = settings_for(tmp_path / str(operations))
        files = forgetful(settings)
        added = False
        async with until_power_fails(settings, files) as broker:
            await broker.catalog.create("orders", 1, TopicConfig())
            files.cut_power_after(operations)
            await broker.catalog.add_partitions("orders", 3)
            added = True
        files.power_loss(random.Random(operations))

        async with Broker.open(settings, files) as broker:
            topic = broker.catalog.topic("orders")
            assert len(topic.partitions) == len(topic.healthy()) == (3 if added else 1)
            await broker.catalog.add_partitions("orders", 3)
            receipt = await broker.publisher.publish(submission("orders", 2, [b"first"], Acks.ALL))
            assert receipt.placed[0].base_offset == 0
    assert added, "the power always failed before the partitions were there"


async def test_a_deleted_topic_does_not_come_back_with_its_old_records(tmp_path: Path) -> None:
    settings = settings_for(tmp_path)
    files = forgetful(settings)
    async with until_power_fails(settings, files) as broker:
        await broker.catalog.create("orders", 1, TopicConfig())
        await broker.publisher.publish(submission("orders", 0, [b"old"], Acks.ALL))
        await broker.catalog.delete("orders")
    files.power_loss(random.Random(3))

    async with Broker.open(settings, files) as broker:
        with pytest.raises(TopicNotFound):
            broker.catalog.topic("orders")
        topic = await broker.catalog.create("orders", 1, TopicConfig())
        assert topic.partition(0).next_offset == 0


async def test_an_answer_over_grpc_with_acks_all_means_synced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = settings_for(tmp_path)
    files = forgetful(settings)
    printed = ""

    def ready_line() -> str | None:
        nonlocal printed
        printed += capsys.readouterr().out
        return next((line for line in printed.splitlines() if line.startswith("ready ")), None)

    async def life(stop: asyncio.Event) -> None:
        try:
            await serve(settings, stop, files)
        except* StorageFailed:
            pass  # the power was off when it closed its logs

    sent = [[b"%d-%d" % (batch, record) for record in range(20)] for batch in range(40)]
    stop = asyncio.Event()
    broker = asyncio.create_task(life(stop))
    line = await eventually(ready_line)
    assert line is not None
    address = dict(part.split("=") for part in line.split()[1:])["grpc"]
    async with Client.connect(address) as client:
        await client.create_topic("orders")
        for values in sent:
            acks = pb.ACKS_ALL if values is sent[-10] else pb.ACKS_WRITTEN
            await client.publish("orders", values, acks=acks)
    files.cut_power_after(0)
    stop.set()
    await broker
    files.power_loss(random.Random(5))

    async with Broker.open(settings, files) as reopened:
        found = await read_values(reopened.catalog.topic("orders").partition(0))
    expected = [value for values in sent for value in values]
    assert len(found) >= len(expected) - 9 * 20
    assert found == expected[: len(found)]
