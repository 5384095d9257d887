"""rpc/wire.py against protobuf's own encoder: the same messages, whoever wrote the bytes."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from cursus_broker.log.api import Entry, EntryHeader, Offset
from cursus_broker.rpc.wire import consume_response, fetched_partition, subscribe_response
from cursus_proto.internal.v1 import opaque_pb2
from cursus_proto.v1 import consume_service_pb2, records_pb2

INT64 = st.integers(0, 2**63 - 1)


@st.composite
def entries(draw: st.DrawFn) -> Entry:
    payload = draw(st.one_of(st.binary(max_size=300), st.binary(min_size=127, max_size=129)))
    header = EntryHeader(
        base_offset=Offset(draw(INT64)),
        record_count=draw(st.integers(1, 2**31 - 1)),
        append_time_ms=draw(INT64),
        payload_bytes=len(payload),
        payload_crc=draw(st.integers(0, 2**32 - 1)),
        codec=draw(st.integers(1, 5)),
        flags=0,
        producer_id=draw(st.binary(max_size=20)),
        producer_epoch=draw(st.integers(-(2**63), 2**63 - 1)),
        first_sequence=draw(st.integers(-1, 2**63 - 1)),
    )
    return Entry(header, payload)


def expected(entry: Entry) -> opaque_pb2.RecordBatch:
    header = entry.header
    batch = opaque_pb2.RecordBatch(
        base_offset=header.base_offset,
        record_count=header.record_count,
        append_time_ms=header.append_time_ms,
        codec=records_pb2.Codec.ValueType(header.codec),
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch if header.producer_id else 0,
        first_sequence=header.first_sequence,
        records_crc32c=header.payload_crc,
    )
    if header.codec == records_pb2.CODEC_NONE:
        batch.records = entry.payload
    else:
        batch.compressed_records = entry.payload
    return batch


@given(st.lists(entries(), max_size=4), INT64)
def test_a_consume_response_is_what_protobuf_would_write(batch: list[Entry], next_offset: int) -> None:
    message = opaque_pb2.ConsumeResponse.FromString(consume_response(batch, next_offset))
    assert message.batches.next_offset == next_offset
    assert list(message.batches.batches) == [expected(entry) for entry in batch]


@given(st.lists(entries(), max_size=4), INT64)
def test_a_subscribe_response_is_what_protobuf_would_write(batch: list[Entry], next_offset: int) -> None:
    message = opaque_pb2.SubscribeResponse.FromString(subscribe_response("orders", 7, batch, next_offset))
    assert (message.batches.topic, message.batches.partition) == ("orders", 7)
    assert message.batches.next_offset == next_offset
    assert list(message.batches.batches) == [expected(entry) for entry in batch]


@given(st.lists(st.lists(entries(), max_size=3), max_size=3))
def test_a_fetch_response_is_what_protobuf_would_write(partitions: list[list[Entry]]) -> None:
    fields = [
        opaque_pb2.FetchedPartition(topic="orders", partition=number, earliest_offset=3, next_offset=9, leader_epoch=7)
        for number in range(len(partitions))
    ]
    parts = [fetched_partition(*one) for one in zip(fields, partitions, strict=True)]
    message = opaque_pb2.FetchResponse.FromString(b"".join(itertools.chain.from_iterable(parts)))
    for number, (fetched, batch) in enumerate(zip(message.partitions, partitions, strict=True)):
        assert (fetched.topic, fetched.partition, fetched.next_offset) == ("orders", number, 9)
        assert fetched.leader_epoch == 7
        assert list(fetched.batches) == [expected(entry) for entry in batch]


def test_a_typed_reader_finds_its_records_in_the_joined_bytes() -> None:
    records = [records_pb2.Record(key=b"", value=b"first"), records_pb2.Record(value=b"")]
    packed = records_pb2.RecordSet(records=records).SerializeToString()
    header = EntryHeader(Offset(5), 2, 1, len(packed), 0, records_pb2.CODEC_NONE, 0, b"", 0, -1)
    message = consume_service_pb2.ConsumeResponse.FromString(consume_response([Entry(header, packed)], 7))
    (batch,) = message.batches.batches
    assert list(batch.records.records) == records
    assert batch.base_offset == 5
