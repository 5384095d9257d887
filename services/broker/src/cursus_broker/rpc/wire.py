"""Encoding the responses that carry record sets.

Protobuf's own encoder would copy every set into a message, again into the message around it, and once more into the
result: some 300 µs for a batch of 54 KB in a response of 1 MiB. Here the small fields are encoded by protobuf, and the
sets are joined to them as they are: one copy. Fields may come in any order on the wire, so a set is simply added
behind the other fields of its batch. A test compares the results with protobuf's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from cursus_broker.log.api import Entry
from cursus_proto.internal.v1.opaque_pb2 import (
    ConsumedBatches,
    ConsumeResponse,
    FetchedPartition,
    FetchResponse,
    RecordBatch,
    SubscribedBatches,
    SubscribeResponse,
)
from cursus_proto.records import varint
from cursus_proto.v1.records_pb2 import CODEC_NONE


def _tag(message: type[object], field: str) -> bytes:
    """The bytes before the length of a length-delimited field."""
    number: int = message.DESCRIPTOR.fields_by_name[field].number  # type: ignore[attr-defined]  # every message has one
    return varint(number << 3 | 2)


_PLAIN_SET: Final = _tag(RecordBatch, "records")
_COMPRESSED_SET: Final = _tag(RecordBatch, "compressed_records")
_CONSUMED_BATCH: Final = _tag(ConsumedBatches, "batches")
_CONSUME_BATCHES: Final = _tag(ConsumeResponse, "batches")
_SUBSCRIBED_BATCH: Final = _tag(SubscribedBatches, "batches")
_SUBSCRIBE_BATCHES: Final = _tag(SubscribeResponse, "batches")
_FETCHED_BATCH: Final = _tag(FetchedPartition, "batches")
_FETCHED_PARTITION: Final = _tag(FetchResponse, "partitions")


class _Chunks:
    """Bytes to be joined, with their sum."""

    __slots__ = ("parts", "size")

    def __init__(self, *parts: bytes) -> None:
        self.parts = list(parts)
        self.size = sum(map(len, parts))

    def add_batches(self, tag: bytes, entries: Iterable[Entry]) -> _Chunks:
        parts, size = self.parts, self.size
        for entry in entries:
            fields = _fields(entry)
            payload = entry.payload
            set_head = (_PLAIN_SET if entry.header.codec == CODEC_NONE else _COMPRESSED_SET) + varint(len(payload))
            head = tag + varint(len(fields) + len(set_head) + len(payload)) + fields + set_head
            parts.append(head)
            parts.append(payload)
            size += len(head) + len(payload)
        self.size = size
        return self

    def embedded(self, tag: bytes) -> _Chunks:
        """These chunks as a field of a message around them."""
        head = tag + varint(self.size)
        self.parts.insert(0, head)
        self.size += len(head)
        return self

    def joined(self) -> bytes:
        return b"".join(self.parts)


def consume_response(entries: Sequence[Entry], next_offset: int) -> bytes:
    """ConsumeResponse.batches."""
    chunks = _Chunks(ConsumedBatches(next_offset=next_offset).SerializeToString())
    return chunks.add_batches(_CONSUMED_BATCH, entries).embedded(_CONSUME_BATCHES).joined()


def subscribe_response(topic: str, partition: int, entries: Sequence[Entry], next_offset: int) -> bytes:
    """SubscribeResponse.batches."""
    fields = SubscribedBatches(topic=topic, partition=partition, next_offset=next_offset)
    chunks = _Chunks(fields.SerializeToString())
    return chunks.add_batches(_SUBSCRIBED_BATCH, entries).embedded(_SUBSCRIBE_BATCHES).joined()


def fetched_partition(fields: FetchedPartition, entries: Sequence[Entry]) -> list[bytes]:
    """One of FetchResponse.partitions, given as its other fields and its entries: to be joined with the others."""
    chunks = _Chunks(fields.SerializeToString()).add_batches(_FETCHED_BATCH, entries)
    return chunks.embedded(_FETCHED_PARTITION).parts


def _fields(entry: Entry) -> bytes:
    """All of a RecordBatch but its set."""
    header = entry.header
    fields = RecordBatch(
        base_offset=header.base_offset,
        record_count=header.record_count,
        append_time_ms=header.append_time_ms,
        codec=header.codec,  # type: ignore[arg-type]  # stored numbers were checked when they came in
        first_sequence=header.first_sequence,
        records_crc32c=header.payload_crc,
    )
    if header.producer_id:
        fields.producer_id = header.producer_id
        fields.producer_epoch = header.producer_epoch
    return fields.SerializeToString()
