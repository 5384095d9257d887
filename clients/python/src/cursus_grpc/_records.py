"""Received records: unpacked a batch at a time, each a light view of its message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from cursus_grpc.errors import CorruptBatch
from cursus_grpc.types import TopicPartition
from cursus_proto import codecs
from cursus_proto import records as record_sets
from cursus_proto.internal.v1.opaque_pb2 import RecordBatch
from cursus_proto.v1 import records_pb2


class BatchInfo:
    """What the records of a batch have in common."""

    __slots__ = ("append_time_ms", "partition", "topic")

    def __init__(self, place: TopicPartition, append_time_ms: int) -> None:
        self.topic, self.partition = place
        self.append_time_ms = append_time_ms


class Record:
    """A record as a consumer meets it. Fields besides value and offset are read from its message when asked for."""

    __slots__ = ("_batch", "_message", "offset", "value")

    def __init__(self, message: records_pb2.Record, batch: BatchInfo, offset: int) -> None:
        self._message = message
        self._batch = batch
        self.offset = offset
        self.value: bytes = message.value

    @property
    def topic(self) -> str:
        return self._batch.topic

    @property
    def partition(self) -> int:
        return self._batch.partition

    @property
    def key(self) -> bytes | None:
        """None: no key. An empty key is a key."""
        message = self._message
        return message.key if message.HasField("key") else None

    @property
    def timestamp_ms(self) -> int:
        """When the event happened, as the producer stated it; else when the broker stored it."""
        return self._message.timestamp_ms or self._batch.append_time_ms

    @property
    def append_time_ms(self) -> int:
        """When the broker stored the record."""
        return self._batch.append_time_ms

    @property
    def headers(self) -> tuple[tuple[str, bytes], ...]:
        return tuple((header.key, header.value) for header in self._message.headers)

    @property
    def event_type(self) -> bytes:
        return self._message.event_type

    @property
    def schema_version(self) -> int:
        return self._message.schema_version

    @property
    def aggregate_version(self) -> int:
        return self._message.aggregate_version

    @property
    def metadata(self) -> bytes:
        return self._message.metadata

    def __repr__(self) -> str:
        return (
            f"Record(topic={self.topic!r}, partition={self.partition}, offset={self.offset},"
            f" key={self.key!r}, value={self.value!r})"
        )


def next_offset(batch: RecordBatch) -> int:
    """Where the batch after this one begins."""
    return batch.base_offset + batch.record_count


def payload_bytes(batch: RecordBatch) -> int:
    """Size of the set, as credit counts it."""
    return len(batch.compressed_records) or len(batch.records)


class Unpacked(NamedTuple):
    """The messages of a batch from some offset on. `Record(message, info, offset)` makes a record of one, which is
    done one at a time where records are handed out one at a time: they are then as short-lived as they can be, and
    that halves their cost."""

    messages: Sequence[records_pb2.Record]
    info: BatchInfo
    first_offset: int

    def records(self) -> list[Record]:
        return [Record(message, self.info, offset) for offset, message in enumerate(self.messages, self.first_offset)]


def unpack(batch: RecordBatch, place: TopicPartition, first_offset: int) -> Unpacked:
    """The messages of a batch from `first_offset` on. Raises CorruptBatch."""
    plain = codecs.is_plain(batch.codec)
    packed = batch.records if plain else batch.compressed_records
    if record_sets.checksum(packed) != batch.records_crc32c:
        raise _corrupt(place, batch, "its checksum does not fit")
    try:
        messages = record_sets.unpack(packed, batch.codec)
    except record_sets.MalformedRecordSet as error:
        raise _corrupt(place, batch, str(error)) from error
    if len(messages) != batch.record_count:
        raise _corrupt(place, batch, f"it holds {len(messages)} records and claims {batch.record_count}")
    base, info = batch.base_offset, BatchInfo(place, batch.append_time_ms)
    if first_offset > base:
        messages = messages[first_offset - base :]
        base = first_offset
    return Unpacked(messages, info, base)


def _corrupt(place: TopicPartition, batch: RecordBatch, what: str) -> CorruptBatch:
    return CorruptBatch(
        f"the batch at offset {batch.base_offset} of {place.topic}[{place.partition}] is damaged: {what}",
        {"topic": place.topic, "partition": str(place.partition), "offset": str(batch.base_offset)},
    )
