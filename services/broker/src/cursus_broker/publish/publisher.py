"""Publishing: check a set, route it, recognise repetitions, append it.

The common case, a plain or compressed set for a named partition, is never parsed beyond counting its records. Between
judging a batch and appending it there is no await, so concurrent publishers cannot slip in between.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final, Protocol

from cursus_broker.errors import (
    CorruptRecordSet,
    InvalidRequest,
    PartitionRequired,
    RecordTooLarge,
    RecordTooSmall,
    SequenceConflict,
    TopicNotFound,
    UnknownCodec,
    WriteTimeout,
)
from cursus_broker.log.api import NO_SEQUENCE, Batch, EntryHeader, Log, Offset
from cursus_broker.publish.acks import Acks, Placed, Receipt, start_sync
from cursus_broker.publish.dedup import Fingerprint
from cursus_broker.publish.producers import (
    EXPLICIT_SEQUENCES,
    WINDOWED,
    PartlyRepeated,
    Repeated,
    StoredBatch,
    show_producer,
)
from cursus_broker.topics.config import TopicConfig
from cursus_broker.topics.partition import Partition
from cursus_broker.topics.routing import route
from cursus_broker.topics.topic import Topic
from cursus_proto import codecs
from cursus_proto import records as record_sets
from cursus_proto.v1 import records_pb2
from cursus_proto.v1.records_pb2 import Record

# A producer id has a 16-bit length on disk and on the legacy wire.
MAX_PRODUCER_ID_BYTES: Final = 65_535

# The contract counts records in 32 bits, but no set of at most 64 MiB holds more than this many.
MAX_BATCH_RECORDS: Final = 10_000_000

_NO_PRODUCER: Final = b""


class Deduplication(IntEnum):
    """What repetitions are recognised by; the numbers are the contract's."""

    BEST = 0
    NONE = 1
    CONTENT = 2


@dataclass(frozen=True, slots=True)
class Submission:
    """A set as a producer sent it."""

    topic: str
    payload: bytes
    partition: int | None = None
    acks: Acks = Acks.WRITTEN
    codec: int = records_pb2.CODEC_NONE
    record_count: int = 0
    payload_crc: int | None = None
    producer_id: bytes = _NO_PRODUCER
    producer_epoch: int = 0
    first_sequence: int = NO_SEQUENCE
    windowed: bool = False
    sequences: Sequence[int] = ()
    deduplication: Deduplication = Deduplication.BEST


@dataclass(frozen=True, slots=True)
class PublishSettings:
    """What the publisher needs to know of the configuration."""

    max_batch_bytes: int
    write_timeout_ms: int
    max_unsynced_bytes: int
    auto_create_topics: bool


class Catalog(Protocol):
    """Where topics come from."""

    def topic(self, name: str) -> Topic:
        """Raises TopicNotFound."""

    async def create_missing(self, name: str) -> Topic:
        """The topic, created with the defaults if it does not exist."""


class Tally(Protocol):
    """Who counts what happens here."""

    def duplicate(self, topic: str, kind: str, records: int) -> None: ...


class Publisher:
    """Takes sets from every kind of producer."""

    def __init__(
        self,
        catalog: Catalog,
        settings: PublishSettings,
        tally: Tally,
        in_thread: Callable[[Callable[[], Sequence[Record]]], Awaitable[Sequence[Record]]],
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._catalog = catalog
        self._settings = settings
        self._tally = tally
        self._in_thread = in_thread
        self._now_ms = now_ms

    async def publish(self, submission: Submission) -> Receipt:
        """Append and wait for what `acks` asks. Raises what `append` raises, and StorageFailed from the sync."""
        receipt = await self.append(submission)
        if receipt.synced is not None:
            await receipt.synced
        return receipt

    async def append(self, submission: Submission) -> Receipt:
        """Append, and begin to wait for the disk if `acks` asks for it. Suspends only to create a topic, to unpack a
        large compressed set, to compare a repeated batch with the stored one, or while the partition's unsynced bytes
        are at their bound.
        """
        topic = await self._find_topic(submission.topic)
        submission = self._checked(submission)
        if submission.partition is None or self._must_look(topic, submission):
            return await self._append_looking(topic, submission)
        partition = topic.partition(submission.partition)
        await self._wait_for_room(partition)
        placed, upto = await self._append_to(partition, submission)
        return self._receipt(submission.acks, [placed], [(partition.log, upto)])

    async def _find_topic(self, name: str) -> Topic:
        try:
            return self._catalog.topic(name)
        except TopicNotFound:
            if not self._settings.auto_create_topics:
                raise
        return await self._catalog.create_missing(name)

    def _checked(self, submission: Submission) -> Submission:
        """The submission with its record count and checksum filled in. Raises what is wrong with it."""
        payload = submission.payload
        if len(payload) > self._settings.max_batch_bytes:
            raise RecordTooLarge(
                f"the record set has {len(payload)} bytes, this broker takes {self._settings.max_batch_bytes}",
                size=len(payload),
                limit=self._settings.max_batch_bytes,
            )
        if not codecs.is_known(submission.codec):
            raise UnknownCodec(f"codec {submission.codec} is unknown to this broker", codec=submission.codec)
        if submission.partition is not None and submission.partition < 0:
            raise InvalidRequest(f"partition {submission.partition} is negative", partition=submission.partition)
        _check_producer(submission)
        crc = record_sets.checksum(payload)
        if submission.payload_crc is not None and submission.payload_crc != crc:
            raise CorruptRecordSet(
                f"the record set has CRC32C {crc:#010x}, the request says {submission.payload_crc:#010x}"
            )
        count = _checked_count(submission)
        if submission.sequences and len(submission.sequences) != count:
            raise InvalidRequest(f"{len(submission.sequences)} sequences for {count} records")
        return replace(submission, payload_crc=crc, record_count=count)

    def _must_look(self, topic: Topic, submission: Submission) -> bool:
        config = topic.config
        return (
            self._dedups_content(topic, submission)
            or config.min_value_bytes is not None
            or config.max_value_bytes is not None
        )

    @staticmethod
    def _dedups_content(topic: Topic, submission: Submission) -> bool:
        if submission.deduplication is Deduplication.CONTENT:
            return True
        return (
            submission.deduplication is Deduplication.BEST
            and submission.record_count == 1
            and not submission.producer_id
            and topic.config.content_deduplication is not False
        )

    async def _wait_for_room(self, partition: Partition) -> None:
        """Hold a publisher back while the disk lags: what power loss could take stays bounded. Raises WriteTimeout."""
        if partition.log.unsynced_bytes <= self._settings.max_unsynced_bytes:
            return
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

    async def _append_to(self, partition: Partition, submission: Submission) -> tuple[Placed, Offset]:
        """Append to a partition unless it is there already. Answers the place and the offset to sync for it."""
        if submission.first_sequence == NO_SEQUENCE and not submission.sequences:
            return _placed(partition, partition.append(_batch(submission), self._now_ms()))
        if submission.windowed:
            return await self._append_windowed(partition, submission)
        batch = _batch(submission)
        verdict = partition.producers.judge_strict(batch)
        if isinstance(verdict, Repeated):
            stored = verdict.stored
            assert stored is not None, "strict repetitions are always found or refused"
            await self._compare(partition, batch, stored)
            self._tally.duplicate(partition.topic, "sequence", submission.record_count)
            return _repeated(partition, submission, stored)
        header = partition.append(batch, self._now_ms())
        partition.producers.record(header, windowed=False)
        return _placed(partition, header)

    async def _append_windowed(self, partition: Partition, submission: Submission) -> tuple[Placed, Offset]:
        batch = _batch(submission)
        verdict = partition.producers.judge_windowed(batch, submission.sequences)
        if isinstance(verdict, Repeated):
            self._tally.duplicate(partition.topic, "sequence", submission.record_count)
            return _repeated(partition, submission, verdict.stored)
        if isinstance(verdict, PartlyRepeated):
            # Unpacking may suspend, so the verdict is taken again on the other side: a second copy of the batch may
            # have been appended meanwhile.
            records = await self._unpack(submission)
            verdict = partition.producers.judge_windowed(batch, submission.sequences)
            if isinstance(verdict, Repeated):
                self._tally.duplicate(partition.topic, "sequence", submission.record_count)
                return _repeated(partition, submission, verdict.stored)
            if isinstance(verdict, PartlyRepeated):
                return self._append_fresh_part(partition, submission, records, verdict.fresh_indexes)
        header = partition.append(batch, self._now_ms())
        partition.producers.record(header, windowed=True, sequences=submission.sequences)
        return _placed(partition, header)

    def _append_fresh_part(
        self, partition: Partition, submission: Submission, records: Sequence[Record], fresh_indexes: Sequence[int]
    ) -> tuple[Placed, Offset]:
        numbers = submission.sequences or range(
            submission.first_sequence, submission.first_sequence + submission.record_count
        )
        kept = [records[index] for index in fresh_indexes]
        sequences = [numbers[index] for index in fresh_indexes]
        for record, sequence in zip(kept, sequences, strict=True):
            record.sequence = sequence
        part = _repacked(submission, kept, sequences)
        header = partition.append(_batch(part), self._now_ms())
        partition.producers.record(header, windowed=True, sequences=sequences)
        self._tally.duplicate(partition.topic, "sequence", submission.record_count - len(kept))
        return (
            Placed(partition.id, header.base_offset, submission.record_count, False, header.append_time_ms),
            header.next_offset,
        )

    @staticmethod
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

    async def _append_looking(self, topic: Topic, submission: Submission) -> Receipt:
        """The slow path: the set has to be parsed to route, check or recognise it."""
        records = await self._unpack(submission)
        _check_values(topic.config, records)
        routed = (
            route(topic, records)
            if submission.partition is None
            else {submission.partition: range(submission.record_count)}
        )
        partitions = {partition_id: topic.partition(partition_id) for partition_id in routed}
        for partition in partitions.values():
            await self._wait_for_room(partition)

        fingerprint = None
        if self._dedups_content(topic, submission):
            fingerprint = Fingerprint.of(records[0].value, records[0].SerializeToString(deterministic=True))
            first = topic.content.find(fingerprint, self._now_ms())
            if first is not None:
                self._tally.duplicate(topic.name, "content", 1)
                placed = Placed(first.partition, first.offset, 1, True, first.time_ms)
                log = topic.partition(first.partition).log
                return self._receipt(submission.acks, [placed], [(log, Offset(first.offset + 1))])

        placed_parts: list[Placed] = []
        to_sync: list[tuple[Log, Offset]] = []
        for partition_id, indexes in routed.items():
            part = submission
            if len(routed) > 1:
                part = _repacked(submission, [records[index] for index in indexes], ())
            placed, upto = await self._append_to(partitions[partition_id], part)
            placed_parts.append(placed)
            to_sync.append((partitions[partition_id].log, upto))
        if fingerprint is not None:
            first_part = placed_parts[0]
            topic.content.remember(
                fingerprint, first_part.partition, Offset(first_part.base_offset), first_part.append_time_ms
            )
        return self._receipt(submission.acks, placed_parts, to_sync)

    async def _unpack(self, submission: Submission) -> Sequence[Record]:
        """The records, unpacked in a thread where that takes long. Raises CorruptRecordSet."""

        def unpack() -> Sequence[Record]:
            return record_sets.unpack(submission.payload, submission.codec)

        try:
            large = len(submission.payload) > 256 * 1024 and not codecs.is_plain(submission.codec)
            records = await self._in_thread(unpack) if large else unpack()
        except record_sets.MalformedRecordSet as error:
            raise CorruptRecordSet(f"the record set cannot be unpacked: {error}") from error
        if len(records) != submission.record_count:
            raise CorruptRecordSet(
                f"the record set holds {len(records)} records, the request says {submission.record_count}"
            )
        return records

    @staticmethod
    def _receipt(acks: Acks, placed: Sequence[Placed], places: Sequence[tuple[Log, Offset]]) -> Receipt:
        return Receipt(placed, start_sync(places) if acks is Acks.ALL else None)


def _check_producer(submission: Submission) -> None:
    if not submission.producer_id:
        if submission.first_sequence != NO_SEQUENCE or submission.sequences:
            raise InvalidRequest("a sequence needs a producer id")
        return
    if len(submission.producer_id) > MAX_PRODUCER_ID_BYTES:
        raise InvalidRequest(
            f"the producer id has {len(submission.producer_id)} bytes, at most {MAX_PRODUCER_ID_BYTES} fit"
        )
    if submission.first_sequence == NO_SEQUENCE and not submission.sequences:
        return
    if submission.partition is None:
        raise PartitionRequired("sequences are counted per partition: name the partition")
    if submission.deduplication is not Deduplication.BEST:
        raise InvalidRequest("a producer sequence already decides what a repetition is; leave deduplication unset")
    if submission.first_sequence < NO_SEQUENCE or submission.first_sequence > 2**62:
        raise InvalidRequest(f"first sequence {submission.first_sequence} is out of range")
    if submission.sequences and not submission.windowed:
        raise InvalidRequest("explicit sequences need windowed sequencing")
    if submission.producer_epoch < 0 and not submission.windowed:
        raise InvalidRequest(f"epoch {submission.producer_epoch} is negative")


def _checked_count(submission: Submission) -> int:
    claimed = submission.record_count
    if claimed < 0 or claimed > MAX_BATCH_RECORDS:
        raise InvalidRequest(f"a record count of {claimed} is out of range", record_count=claimed)
    if not codecs.is_plain(submission.codec):
        if claimed == 0:
            raise InvalidRequest("a compressed set has to state its record count")
        if not submission.payload:
            raise CorruptRecordSet("the compressed set is empty")
        if submission.deduplication is Deduplication.CONTENT and claimed != 1:
            raise InvalidRequest("content deduplication is for single records")
        return claimed
    try:
        count = record_sets.count(submission.payload)
    except record_sets.MalformedRecordSet as error:
        raise CorruptRecordSet(str(error)) from error
    if count == 0:
        raise InvalidRequest("a batch needs at least one record")
    if claimed not in (0, count):
        raise CorruptRecordSet(f"the record set holds {count} records, the request says {claimed}")
    if submission.deduplication is Deduplication.CONTENT and count != 1:
        raise InvalidRequest("content deduplication is for single records")
    return count


def _check_values(config: TopicConfig, records: Sequence[Record]) -> None:
    low, high = config.min_value_bytes, config.max_value_bytes
    if low is None and high is None:
        return
    for index, record in enumerate(records):
        size = len(record.value)
        if low is not None and size < low:
            raise RecordTooSmall(
                f"the value of record {index} has {size} bytes, this topic asks for {low}", index=index
            )
        if high is not None and size > high:
            raise RecordTooLarge(f"the value of record {index} has {size} bytes, this topic takes {high}", index=index)


def _batch(submission: Submission) -> Batch:
    assert submission.payload_crc is not None, "filled in by _checked"
    flags = 0
    if submission.windowed:
        flags = WINDOWED | EXPLICIT_SEQUENCES if submission.sequences else WINDOWED
    return Batch(
        submission.payload,
        submission.record_count,
        submission.payload_crc,
        submission.codec,
        flags,
        submission.producer_id,
        submission.producer_epoch,
        submission.sequences[0] if submission.sequences else submission.first_sequence,
    )


def _repacked(submission: Submission, records: Sequence[Record], sequences: Sequence[int]) -> Submission:
    """The submission with only these records, packed the same way."""
    payload = record_sets.pack(records, submission.codec)
    return replace(
        submission,
        payload=payload,
        payload_crc=record_sets.checksum(payload),
        record_count=len(records),
        sequences=sequences,
    )


def _placed(partition: Partition, header: EntryHeader) -> tuple[Placed, Offset]:
    return (
        Placed(partition.id, header.base_offset, header.record_count, False, header.append_time_ms),
        header.next_offset,
    )


def _repeated(partition: Partition, submission: Submission, stored: StoredBatch | None) -> tuple[Placed, Offset]:
    """The answer to a repetition. It promises what the original would: an unknown place is synced to the very end."""
    if stored is None:
        return Placed(partition.id, -1, submission.record_count, True, 0), partition.next_offset
    return (
        Placed(partition.id, stored.base_offset, submission.record_count, True, stored.append_time_ms),
        stored.next_offset,
    )
