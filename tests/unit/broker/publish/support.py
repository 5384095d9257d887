"""What tests of publishing share: batches that can be told apart, a ledger that stores them, a topic on real logs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar
from uuid import UUID

from cursus_broker.consume.tail import Tail, TailBudget
from cursus_broker.errors import PartitionDamaged, TopicNotFound
from cursus_broker.log.api import Batch, EntryHeader, Offset
from cursus_broker.log.engine import SegmentEngine
from cursus_broker.log.files import Files
from cursus_broker.log.settings import LogSettings
from cursus_broker.publish.dedup import ContentLimits, ContentMemory
from cursus_broker.publish.producers import Fresh, ProducerLedger, Repeated, Verdict
from cursus_broker.publish.publisher import Publisher, PublisherSettings
from cursus_broker.publish.recall import Recall
from cursus_broker.topics.config import TopicConfig
from cursus_broker.topics.partition import Partition
from cursus_broker.topics.topic import Topic
from cursus_proto import records as record_sets
from cursus_proto.v1.records_pb2 import Record

WINDOW_MS = 30 * 60_000
LIMITS = ContentLimits(WINDOW_MS, topic_entries=1_000, total_entries=2_000)

T = TypeVar("T")


def batch(first: int, payload: bytes, *, count: int = 1, epoch: int = 1, producer: bytes = b"p") -> Batch:
    return Batch(
        payload,
        count,
        record_sets.checksum(payload),
        producer_id=producer,
        producer_epoch=epoch,
        first_sequence=first,
    )


@dataclass(slots=True)
class Numbered:
    """A ledger and the end of the log it belongs to."""

    windowed: bool = False
    ledger: ProducerLedger = field(default_factory=ProducerLedger)
    next_offset: int = 0

    def store(self, one: Batch, sequences: Sequence[int] = (), now_ms: int = 0) -> EntryHeader:
        """Note a batch as the publisher would after appending it."""
        header = EntryHeader(
            Offset(self.next_offset),
            one.record_count,
            now_ms,
            len(one.payload),
            one.payload_crc,
            one.codec,
            one.flags,
            one.producer_id,
            one.producer_epoch,
            one.first_sequence,
        )
        self.ledger.record(header, windowed=self.windowed, sequences=sequences)
        self.next_offset += one.record_count
        return header

    def judge_strict(self, one: Batch) -> Fresh | Repeated:
        return self.ledger.judge_strict(one)

    def judge_windowed(self, one: Batch, sequences: Sequence[int]) -> Verdict:
        return self.ledger.judge_windowed(one, sequences)


class OneTopic:
    """A catalog of one topic, which appears when it is asked to be created."""

    def __init__(self, topic: Topic, *, missing: bool = False) -> None:
        self._topic = topic
        self._missing = missing

    def topic(self, name: str) -> Topic:
        if self._missing or name != self._topic.name:
            raise TopicNotFound(name)
        return self._topic

    async def create_missing(self, name: str) -> Topic:
        self._missing = False
        return self.topic(name)


@dataclass(slots=True)
class Counted:
    """A tally that can be read."""

    duplicates: list[tuple[str, str, int]] = field(default_factory=list)

    def duplicate(self, topic: str, kind: str, records: int) -> None:
        self.duplicates.append((topic, kind, records))


@dataclass(slots=True)
class Clock:
    now_ms: int = 1_000_000

    def __call__(self) -> int:
        return self.now_ms


@dataclass(slots=True)
class Desk:
    """A publisher over a topic whose partitions lie in real files."""

    publisher: Publisher
    topic: Topic
    tally: Counted
    clock: Clock
    in_thread: list[object]
    """What was handed to a thread."""

    async def unpack(self, payload: bytes, codec: int) -> Sequence[Record]:
        return record_sets.unpack(payload, codec)

    async def values(self, partition: int) -> list[bytes | None]:
        """All values of a partition, in order; None is null."""
        return [one.value if one.HasField("value") else None for one in await self.records(partition)]

    async def records(self, partition: int) -> list[Record]:
        """All records of a partition, in order."""
        one = self.topic.partition(partition)
        records: list[Record] = []
        offset = one.earliest_offset
        while entries := await one.log.read(offset, 1 << 20):
            for header, payload in entries:
                records += record_sets.unpack(payload, header.codec)
                offset = header.next_offset
        return records


@asynccontextmanager
async def desk(
    tmp_path: Path,
    *,
    partitions: int = 1,
    config: TopicConfig | None = None,
    settings: PublisherSettings | None = None,
    files: Files | None = None,
    missing: bool = False,
    limits: ContentLimits = LIMITS,
    recall: bool = False,
) -> AsyncIterator[Desk]:
    """`recall`: what an earlier desk left in the files is read back, as after a restart."""
    log_settings = LogSettings(linger_ms=3_600_000, flush_records=1_000_000)
    async with SegmentEngine(tmp_path, log_settings, files=files) as engine:
        budget = TailBudget(1 << 20)
        made: list[Partition | PartitionDamaged] = []
        for number in range(partitions):
            log, _ = await engine.open("orders", number)
            made.append(Partition("orders", number, log, Tail(budget, 1_000, log.next_offset), ProducerLedger()))
        memory = ContentMemory(limits)
        topic = Topic("orders", UUID(int=1), config or TopicConfig(), 0, made, memory.open())
        if recall:
            topic.recall = Recall("orders", topic.content, [(one.id, one.log) for one in topic.healthy()])
        tally, clock = Counted(), Clock()
        in_thread: list[object] = []

        async def run(work: Callable[[], T]) -> T:
            in_thread.append(work)
            return await asyncio.to_thread(work)

        publisher = Publisher(
            OneTopic(topic, missing=missing),
            settings or PublisherSettings(1 << 20, 1_000, 1 << 30, auto_create_topics=False),
            tally,
            run,
            now_ms=clock,
        )
        yield Desk(publisher, topic, tally, clock, in_thread)
