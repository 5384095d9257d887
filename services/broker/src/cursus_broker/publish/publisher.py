"""Publishing: check a set, route it, recognise repetitions, append it.

The common case, a plain or compressed set for a named partition, is never parsed beyond counting its records. Between
judging a batch and appending it there is no await, so concurrent publishers cannot slip in between.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from cursus_broker.errors import SequenceConflict, TopicNotFound, WriteTimeout
from cursus_broker.log.api import Batch, EntryHeader, Log, Offset
from cursus_broker.publish.acks import Acks, Placed, Receipt, start_sync
from cursus_broker.publish.dedup import Fingerprint
from cursus_broker.publish.producers import BY_CONTENT, PartlyRepeated, Repeated, show_producer
from cursus_broker.publish.recall import Recall
from cursus_broker.publish.remembered import StoredBatch
from cursus_broker.publish.submission import (
    Deduplication,
    Submission,
    check,
    check_values,
    repack,
    takes_long_to_count,
)
from cursus_broker.publish.unpacking import MANY_RECORDS, InThread, Unpacker
from cursus_broker.topics.partition import Partition
from cursus_broker.topics.routing import route
from cursus_broker.topics.topic import Topic
from cursus_proto import codecs
from cursus_proto.bounds import MIB, Bounds
from cursus_proto.v1.records_pb2 import Record
from cursus_service.budget import Budget

Landed = tuple[Placed, Offset]
"""Where a part lies, and the offset up to which the log must be synced to keep it."""


@dataclass(frozen=True, slots=True)
class PublisherSettings:
    """What the publisher needs to know of the configuration."""

    max_batch_bytes: int
    write_timeout_ms: int
    max_unsynced_bytes: int
    auto_create_topics: bool
    max_batch_records: int = 1_000_000
    max_unpacked_bytes: int = 128 * MIB
    unpacking_bytes: int = 512 * MIB


class Catalog(Protocol):
    """Where topics come from."""

    def topic(self, name: str) -> Topic:
        """Raises TopicNotFound."""

    async def create_missing(self, name: str) -> Topic:
        """The topic, created with the defaults if it does not exist."""


class Tally(Protocol):
    """Who counts what happens here."""

    def duplicate(self, topic: str, kind: str, records: int) -> None: ...


Admit = Callable[[Submission], None]
"""Asked about every set before anything is done with it; refuses one by raising a CursusError."""


class Publisher:
    """Takes sets from every kind of producer."""

    def __init__(
        self,
        catalog: Catalog,
        settings: PublisherSettings,
        tally: Tally,
        in_thread: InThread,
        admit: Admit | None = None,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._catalog = catalog
        self._settings = settings
        self._tally = tally
        self._in_thread = in_thread
        within = Bounds(settings.max_unpacked_bytes, settings.max_batch_records)
        self._unpacker = Unpacker(within, Budget(settings.unpacking_bytes), in_thread)
        self._admit = admit
        self._now_ms = now_ms

    async def publish(self, submission: Submission) -> Receipt:
        """Append and wait for what `acks` asks. Raises what `append` raises, and StorageFailed from the sync."""
        receipt = await self.append(submission)
        if receipt.synced is not None:
            await receipt.synced
        return receipt

    async def append(self, submission: Submission) -> Receipt:
        """Append, and begin to wait for the disk if `acks` asks for it. Suspends only to create a topic, to count or
        unpack a large set, to compare a repeated batch with the stored one, while the contents a topic remembers are
        read back after a restart, or while the unpacked sets of all publishers or the partition's unsynced bytes are at
        their bound.
        """
        if self._admit is not None:
            self._admit(submission)
        topic = await self._find_topic(submission.topic)
        batch = await self._check(submission)
        if submission.partition is None or self._must_look(topic, submission, batch):
            return await self._append_looking(topic, submission, batch)
        partition = topic.partition(submission.partition)
        if partition.log.unsynced_bytes > self._settings.max_unsynced_bytes:
            await self._wait_for_room(partition)
        placed, upto = await self._append_to(partition, submission, batch)
        return _receipt(submission.acks, [placed], [(partition.log, upto)])

    async def _check(self, submission: Submission) -> Batch:
        max_bytes, max_records = self._settings.max_batch_bytes, self._settings.max_batch_records
        if takes_long_to_count(submission, max_records):
            return await self._in_thread(lambda: check(submission, max_bytes, max_records))
        return check(submission, max_bytes, max_records)

    async def _find_topic(self, name: str) -> Topic:
        try:
            return self._catalog.topic(name)
        except TopicNotFound:
            if not self._settings.auto_create_topics:
                raise
        return await self._catalog.create_missing(name)

    def _must_look(self, topic: Topic, submission: Submission, batch: Batch) -> bool:
        config = topic.config
        return (
            config.min_value_bytes is not None
            or config.max_value_bytes is not None
            # The numbers in its records are what counts after a restart, so they have to be there.
            or (bool(submission.sequences) and not codecs.is_plain(submission.codec))
            or _dedups_content(topic, submission, batch)
        )

    async def _wait_for_room(self, partition: Partition) -> None:
        """Hold a publisher back while the disk lags: what power loss could take stays bounded. Raises WriteTimeout."""
        try:
            async with asyncio.timeout(self._settings.write_timeout_ms / 1000):
                await partition.log.sync(partition.log.next_offset)
        except TimeoutError:
            raise WriteTimeout(
                f"the disk is behind: {partition.log.unsynced_bytes} bytes of partition {partition.id} of"
                f" {partition.topic!r} wait for it, and did for {self._settings.write_timeout_ms} ms",
                topic=partition.topic,
                partition=partition.id,
            ) from None

    async def _wait_for_recall(self, topic: str, recall: Recall) -> None:
        """Hold a message back until its topic knows again what it stored before the restart. Raises WriteTimeout."""
        try:
            async with asyncio.timeout(self._settings.write_timeout_ms / 1000):
                await recall.finish(self._now_ms(), self._unpack_one)
        except TimeoutError:
            raise WriteTimeout(
                f"the contents that topic {topic!r} remembers are still being read back after the restart, and were for"
                f" {self._settings.write_timeout_ms} ms",
                topic=topic,
            ) from None

    async def _append_to(self, partition: Partition, submission: Submission, batch: Batch) -> Landed:
        """Append to a partition unless it is there already."""
        if not submission.is_numbered:
            return _placed(partition, partition.append(batch, self._now_ms()))
        if submission.windowed:
            return await self._append_windowed(partition, submission, batch)
        verdict = partition.producers.judge_strict(batch)
        if isinstance(verdict, Repeated):
            stored = verdict.stored
            assert stored is not None, "strict repetitions are always found or refused"
            await _compare(partition, batch, stored)
            return self._repeated(partition, batch, stored)
        header = partition.append(batch, self._now_ms())
        partition.producers.record(header, windowed=False)
        return _placed(partition, header)

    async def _append_windowed(self, partition: Partition, submission: Submission, batch: Batch) -> Landed:
        verdict = partition.producers.judge_windowed(batch, submission.sequences)
        if isinstance(verdict, PartlyRepeated):
            # Unpacking may suspend, so the verdict is taken again on the other side: a second copy of the batch may
            # have been appended meanwhile.
            opened = await self._unpacker.open(batch)
            try:
                verdict = partition.producers.judge_windowed(batch, submission.sequences)
                if isinstance(verdict, PartlyRepeated):
                    return self._append_fresh_part(partition, submission, batch, opened.records, verdict.fresh_indexes)
            finally:
                opened.close()
        if isinstance(verdict, Repeated):
            return self._repeated(partition, batch, verdict.stored)
        header = partition.append(batch, self._now_ms())
        partition.producers.record(header, windowed=True, sequences=submission.sequences)
        return _placed(partition, header)

    def _append_fresh_part(
        self,
        partition: Partition,
        submission: Submission,
        batch: Batch,
        records: Sequence[Record],
        fresh_indexes: Sequence[int],
    ) -> Landed:
        numbers = submission.sequences or range(batch.first_sequence, batch.first_sequence + batch.record_count)
        kept = [records[index] for index in fresh_indexes]
        sequences = [numbers[index] for index in fresh_indexes]
        for record, sequence in zip(kept, sequences, strict=True):
            record.sequence = sequence
        header = partition.append(repack(batch, kept, sequences), self._now_ms())
        partition.producers.record(header, windowed=True, sequences=sequences)
        self._tally.duplicate(partition.topic, "sequence", batch.record_count - len(kept))
        placed = Placed(
            partition.id, header.base_offset, batch.record_count, False, header.append_time_ms, header.record_count
        )
        return placed, header.next_offset

    def _repeated(self, partition: Partition, batch: Batch, stored: StoredBatch | None) -> Landed:
        """The answer to a repetition. It promises what the original would; an unknown place is synced to the end."""
        self._tally.duplicate(partition.topic, "sequence", batch.record_count)
        if stored is None:
            return Placed(partition.id, -1, batch.record_count, True, 0, 0), partition.next_offset
        placed = Placed(partition.id, stored.base_offset, batch.record_count, True, stored.append_time_ms, 0)
        return placed, stored.next_offset

    async def _append_looking(self, topic: Topic, submission: Submission, batch: Batch) -> Receipt:
        """The slow path: the set has to be parsed to route, check or recognise it."""
        by_content = _dedups_content(topic, submission, batch)
        if by_content:
            batch = batch._replace(flags=batch.flags | BY_CONTENT)
            if topic.recall is not None and not topic.recall.is_over:
                # Before anything is unpacked: what is read back has to be unpacked too, and might wait for it.
                await self._wait_for_recall(topic.name, topic.recall)
        opened = await self._unpacker.open(batch)
        try:
            return await self._append_opened(topic, submission, batch, opened.records, by_content=by_content)
        finally:
            opened.close()

    async def _append_opened(
        self, topic: Topic, submission: Submission, batch: Batch, records: Sequence[Record], *, by_content: bool
    ) -> Receipt:
        def divide() -> dict[int, Batch]:
            return _divide(topic, submission, batch, records)

        parts = await self._in_thread(divide) if batch.record_count > MANY_RECORDS else divide()
        partitions = {partition_id: topic.partition(partition_id) for partition_id in parts}
        for partition in partitions.values():
            if partition.log.unsynced_bytes > self._settings.max_unsynced_bytes:
                await self._wait_for_room(partition)

        fingerprint = None
        if by_content:
            fingerprint = Fingerprint.of(records[0])
            first = topic.content.find(fingerprint, self._now_ms())
            if first is not None:
                self._tally.duplicate(topic.name, "content", 1)
                placed = Placed(first.partition, first.offset, 1, True, first.time_ms, 0)
                log = topic.partition(first.partition).log
                return _receipt(submission.acks, [placed], [(log, Offset(first.offset + 1))])

        placed_parts: list[Placed] = []
        to_sync: list[tuple[Log, Offset]] = []
        for partition_id, part in parts.items():
            placed, upto = await self._append_to(partitions[partition_id], submission, part)
            placed_parts.append(placed)
            to_sync.append((partitions[partition_id].log, upto))
        if fingerprint is not None:
            stored = placed_parts[0]
            topic.content.remember(fingerprint, stored.partition, Offset(stored.base_offset), stored.append_time_ms)
        return _receipt(submission.acks, placed_parts, to_sync)

    async def _unpack_one(self, payload: bytes, codec: int) -> Sequence[Record]:
        """The record of a stored set that was looked into before. Raises CorruptRecordSet."""
        opened = await self._unpacker.open(Batch(payload, 1, 0, codec))
        records = opened.records
        opened.close()
        return records


def _divide(topic: Topic, submission: Submission, batch: Batch, records: Sequence[Record]) -> dict[int, Batch]:
    """What goes to which partition. Raises RecordTooSmall, RecordTooLarge."""
    check_values(topic.config, records)
    if submission.partition is not None:
        return {submission.partition: batch}
    routed = route(topic, records)
    if len(routed) == 1:
        return dict.fromkeys(routed, batch)
    return {
        partition_id: repack(batch, [records[index] for index in indexes]) for partition_id, indexes in routed.items()
    }


def _dedups_content(topic: Topic, submission: Submission, batch: Batch) -> bool:
    if submission.deduplication is Deduplication.CONTENT:
        return True
    return (
        batch.record_count == 1
        and not batch.producer_id
        and submission.deduplication is Deduplication.BEST
        and topic.config.content_deduplication is not False
    )


async def _compare(partition: Partition, batch: Batch, stored: StoredBatch) -> None:
    """Refuse other bytes under a used sequence. Equal CRC and length leave one chance in four billion; the stored
    bytes, where they are still retained, leave none.
    """
    if stored.base_offset < partition.earliest_offset:
        return
    entry = (await partition.read(stored.base_offset, 1))[0]
    if entry.payload != batch.payload:
        raise SequenceConflict(
            show_producer(batch.producer_id), batch.first_sequence, "the bytes differ from the stored batch"
        )


def _placed(partition: Partition, header: EntryHeader) -> Landed:
    count = header.record_count
    placed = Placed(partition.id, header.base_offset, count, False, header.append_time_ms, count)
    return placed, header.next_offset


def _receipt(acks: Acks, placed: Sequence[Placed], places: Sequence[tuple[Log, Offset]]) -> Receipt:
    return Receipt(placed, start_sync(places) if acks is Acks.ALL else None)
