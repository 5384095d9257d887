"""Cutting values out of a set against protobuf's own parser: the same values, or left to the parser."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cursus_grpc._records import unpack
from cursus_grpc.errors import CorruptBatch
from cursus_grpc.types import TopicPartition
from cursus_proto import records as record_sets
from cursus_proto.bounds import Bounds
from cursus_proto.internal.v1.opaque_pb2 import RecordBatch
from cursus_proto.records import MalformedRecordSet
from cursus_proto.uniform import cut_values
from cursus_proto.v1 import records_pb2
from cursus_proto.v1.records_pb2 import Record
from tests.property.record_sets import COUNTS, contrived, shapes, value_of

PLACE = TopicPartition("t", 3)
CODECS = st.sampled_from(records_pb2.Codec.values())


def parsed(packed: bytes) -> list[bytes | None] | None:
    try:
        return [value_of(record) for record in record_sets.unpack(packed)]
    except MalformedRecordSet:
        return None


@given(shapes())
def test_what_is_cut_out_of_a_set_is_what_the_parser_finds(records: list[Record]) -> None:
    found = cut_values(record_sets.pack(records), len(records))
    assert found is None or found == [value_of(record) for record in records]


@given(COUNTS, st.none() | st.integers(0, 40), st.none() | st.integers(0, 300))
def test_records_of_one_size_are_cut_and_not_parsed(count: int, key_bytes: int | None, value_bytes: int | None) -> None:
    records = [
        Record(
            key=None if key_bytes is None else bytes([n % 256]) * key_bytes,
            value=None if value_bytes is None else bytes([n % 251]) * value_bytes,
        )
        for n in range(count)
    ]
    assert cut_values(record_sets.pack(records), count) == [value_of(record) for record in records]


@given(shapes(), st.lists(st.tuples(st.integers(0, 2**20), st.integers(0, 255)), max_size=4), st.integers(-2, 2))
def test_a_damaged_set_is_never_cut_into_something_else(
    records: list[Record], damage: list[tuple[int, int]], miscounted: int
) -> None:
    packed = bytearray(record_sets.pack(records))
    for place, byte in damage:
        packed[place % len(packed)] = byte
    found = cut_values(bytes(packed), len(records) + miscounted)
    assert found is None or found == parsed(bytes(packed))


@given(contrived())
def test_a_contrived_set_is_cut_as_it_is_parsed_or_not_at_all(found: tuple[bytes, int]) -> None:
    packed, count = found
    values = cut_values(packed, count)
    assert values is None or values == parsed(packed)


@given(shapes(), CODECS, st.integers(0, 250))
def test_records_show_the_same_whichever_way_they_were_unpacked(
    records: list[Record], codec: records_pb2.Codec.ValueType, skipped: int
) -> None:
    packed = record_sets.pack(records, codec)
    batch = RecordBatch(
        base_offset=1_000,
        record_count=len(records),
        append_time_ms=7,
        codec=codec,
        records_crc32c=record_sets.checksum(packed),
    )
    if codec in (records_pb2.CODEC_UNSPECIFIED, records_pb2.CODEC_NONE):
        batch.records = packed
    else:
        batch.compressed_records = packed
    found = unpack(batch, PLACE, 1_000 + skipped, Bounds()).records()
    assert [
        (one.topic, one.partition, one.offset, one.key, one.value, one.timestamp_ms, one.headers, one.metadata)
        for one in found
    ] == [
        (
            *PLACE,
            offset,
            message.key if message.HasField("key") else None,
            value_of(message),
            message.timestamp_ms or 7,
            tuple((header.key, value_of(header)) for header in message.headers),
            message.metadata,
        )
        for offset, message in enumerate(records, 1_000)
        if offset >= 1_000 + skipped
    ]


@given(st.binary(max_size=400), st.integers(0, 100))
def test_bytes_that_are_no_set_are_refused_or_unpacked_but_never_worse(packed: bytes, count: int) -> None:
    batch = RecordBatch(record_count=count, records=packed, records_crc32c=record_sets.checksum(packed))
    try:
        found = unpack(batch, PLACE, 0, Bounds()).records()
    except CorruptBatch:
        return
    assert [record.value for record in found] == parsed(packed)
