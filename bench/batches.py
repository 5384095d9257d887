"""The bytes that travel: record sets, publish requests, and the messages a consumer receives. Built before the clock
runs, so that neither a client nor the floor pays for more than moving them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from typing import Final

from cursus_proto import records as record_sets
from cursus_proto.internal.v1 import opaque_pb2
from cursus_proto.v1 import consume_service_pb2, publish_service_pb2, records_pb2

RECORDS_PER_BATCH: Final = 500
VALUE_BYTES: Final = 100


def record_set(records: int = RECORDS_PER_BATCH, value_bytes: int = VALUE_BYTES) -> bytes:
    """A packed set of records without keys, with different values that do not compress, the same in every run."""
    chance = random.Random(records * 1_000_003 + value_bytes)
    return record_sets.pack(records_pb2.Record(value=chance.randbytes(value_bytes)) for _ in range(records))


def open_request() -> bytes:
    """The first message of a publish stream."""
    opening = publish_service_pb2.PublishStreamOpen(client_id="bench")
    return publish_service_pb2.PublishStreamRequest(open=opening).SerializeToString()


def publish_requests(topic: str, partitions: Sequence[int], acks: int) -> list[bytes]:
    """One request for each of `partitions`, all with the same record set, from an anonymous producer."""
    packed = record_set()
    return [_publish_request(topic, partition, acks, packed).SerializeToString() for partition in partitions]


def numbered_requests(topic: str, partitions: Sequence[int], acks: int, producer_id: bytes) -> Iterator[bytes]:
    """Requests as our own clients send them, with a producer's identity and sequence: each has to be encoded when it
    is sent. Takes the partitions in turn, without end."""
    packed = record_set()
    requests = [_publish_request(topic, partition, acks, packed) for partition in partitions]
    for sequence in itertools.count(0, RECORDS_PER_BATCH):
        for request in requests:
            request.publish.producer.id = producer_id
            request.publish.producer.first_sequence = sequence
            yield request.SerializeToString()


def single_record_request(topic: str, producer_id: bytes, sequence: int, value: bytes) -> bytes:
    """A numbered request of one record for partition 0, acknowledged when written."""
    packed = record_sets.pack([records_pb2.Record(value=value)])
    request = opaque_pb2.PublishStreamRequest(
        publish=opaque_pb2.PublishRequest(
            topic=topic,
            partition=0,
            acks=publish_service_pb2.ACKS_WRITTEN,
            producer=publish_service_pb2.ProducerIdentity(id=producer_id, first_sequence=sequence),
            record_count=1,
            records=packed,
        )
    )
    return request.SerializeToString()


def unary_request(topic: str) -> bytes:
    """A single record for whichever partition is next, stored whatever was stored before: in gRPC what a PUBLISH of the
    TCP protocol asks for."""
    value = random.Random(0).randbytes(VALUE_BYTES // 2).hex().encode()
    return opaque_pb2.PublishRequest(
        topic=topic,
        acks=publish_service_pb2.ACKS_WRITTEN,
        deduplication=publish_service_pb2.DEDUPLICATION_NONE,
        record_count=1,
        records=record_sets.pack([records_pb2.Record(value=value)]),
    ).SerializeToString()


def consume_response(batches: int) -> bytes:
    """A message of a consume stream with this many batches, as the broker would fill it."""
    packed = record_set()
    batch = opaque_pb2.RecordBatch(
        base_offset=1_000_000_000,
        record_count=RECORDS_PER_BATCH,
        append_time_ms=1_700_000_000_000,
        codec=records_pb2.CODEC_NONE,
        first_sequence=-1,
        records_crc32c=record_sets.checksum(packed),
        records=packed,
    )
    consumed = opaque_pb2.ConsumedBatches(batches=[batch] * batches, next_offset=2_000_000_000)
    return opaque_pb2.ConsumeResponse(batches=consumed).SerializeToString()


def consume_request(topic: str, end_offset: int | None, max_response_bytes: int) -> bytes:
    """Starts a consume stream of partition 0: from its beginning up to `end_offset`, or, if that is None, from its end
    on for ever."""
    edge = records_pb2.OFFSET_EDGE_LATEST if end_offset is None else records_pb2.OFFSET_EDGE_EARLIEST
    start = consume_service_pb2.ConsumeStart(
        topic=topic, start_at=records_pb2.OffsetSpec(edge=edge), max_response_bytes=max_response_bytes
    )
    if end_offset is not None:
        start.end_offset = end_offset
    return consume_service_pb2.ConsumeRequest(start=start).SerializeToString()


def _publish_request(topic: str, partition: int, acks: int, packed: bytes) -> opaque_pb2.PublishStreamRequest:
    return opaque_pb2.PublishStreamRequest(
        publish=opaque_pb2.PublishRequest(
            topic=topic,
            partition=partition,
            acks=publish_service_pb2.Acks.ValueType(acks),
            record_count=RECORDS_PER_BATCH,
            records_crc32c=record_sets.checksum(packed),
            records=packed,
        )
    )
