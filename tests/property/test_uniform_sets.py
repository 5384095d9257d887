"""Cutting values out of a set against protobuf's own parser: the same values, or left to the parser."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from cursus_grpc._records import unpack
from cursus_grpc.errors import CorruptBatch
from cursus_grpc.types import TopicPartition
from cursus_proto import records as record_sets
from cursus_proto.internal.v1.opaque_pb2 import RecordBatch
from cursus_proto.records import MalformedRecordSet
from cursus_proto.uniform import cut_values
from cursus_proto.v1 import records_pb2
from cursus_proto.v1.records_pb2 import Header, Record

PLACE = TopicPartition("t", 3)
COUNTS = st.integers(64, 200)
CODECS = st.sampled_from(records_pb2.Codec.values())


@st.composite
def shapes(draw: st.DrawFn) -> list[Record]:
    """Records of which each has the same fields, of mostly the same sizes."""
    chance = random.Random(draw(st.integers(0, 2**32)))
    key_bytes = draw(st.sampled_from([None, 0, 1, 8, 200]))
    value_bytes = draw(st.sampled_from([0, 1, 100, 127, 128, 300]))
    numbers = draw(st.sampled_from([(0, 0), (1, 100), (1_700_000_000_000, 1_700_000_100_000), (-5, 5), (0, 2**40)]))
    headers = [Header(key="source", value=b"shop")] if draw(st.booleans()) else []
    metadata_bytes = draw(st.sampled_from([0, 0, 5]))
    odd_one = draw(st.none() | st.integers(0, 63))
    records = [
        Record(
            key=None if key_bytes is None else chance.randbytes(key_bytes),
            value=chance.randbytes(value_bytes),
            timestamp_ms=chance.randint(*numbers),
            headers=headers,
            metadata=chance.randbytes(metadata_bytes),
        )
        for _ in range(draw(COUNTS))
    ]
    if odd_one is not None:
        make_odd(records[odd_one], draw(st.integers(0, 4)))
    return records


def make_odd(record: Record, way: int) -> None:
    match way:
        case 0:
            record.ClearField("key")
        case 1:
            record.value += b"x"
        case 2:
            record.metadata = b"m" * 5
        case 3:
            record.schema_version = 3
        case _:
            record.headers.add(key="other")


def parsed(packed: bytes) -> list[bytes] | None:
    try:
        return [record.value for record in record_sets.unpack(packed)]
    except MalformedRecordSet:
        return None


@given(shapes())
def test_what_is_cut_out_of_a_set_is_what_the_parser_finds(records: list[Record]) -> None:
    found = cut_values(record_sets.pack(records), len(records))
    assert found is None or found == [record.value for record in records]


@given(COUNTS, st.none() | st.integers(0, 40), st.integers(0, 300))
def test_records_of_one_size_are_cut_and_not_parsed(count: int, key_bytes: int | None, value_bytes: int) -> None:
    records = [
        Record(key=None if key_bytes is None else bytes([n % 256]) * key_bytes, value=bytes([n % 251]) * value_bytes)
        for n in range(count)
    ]
    assert cut_values(record_sets.pack(records), count) == [record.value for record in records]


@given(shapes(), st.lists(st.tuples(st.integers(0, 2**20), st.integers(0, 255)), max_size=4), st.integers(-2, 2))
def test_a_damaged_set_is_never_cut_into_something_else(
    records: list[Record], damage: list[tuple[int, int]], miscounted: int
) -> None:
    packed = bytearray(record_sets.pack(records))
    for place, byte in damage:
        packed[place % len(packed)] = byte
    found = cut_values(bytes(packed), len(records) + miscounted)
    assert found is None or found == parsed(bytes(packed))


# Pieces that a parser takes or refuses for reasons of its own: twice the same field, tags and lengths that are longer
# than they need be, groups, unknown fields, headers that are not text, numbers that are too long.
PIECES = st.sampled_from(
    [
        b"\x12\x01a",
        b"\x12\x01b",
        b"\x12\x81\x00c",
        b"\x92\x00\x01d",
        b"\x12\x00",
        b"\x0a\x01k",
        b"\x0a\x00",
        b"\x18\x01",
        b"\x18\x81\x80\x00",
        b"\x18" + b"\xff" * 9 + b"\x01",
        b"\x18" + b"\xff" * 9 + b"\x7f",
        b"\x18" + b"\xff" * 10 + b"\x01",
        b"\x1a\x01z",
        b"\x13\x14",
        b"\x22\x03\x0a\x01\xff",
        b"\x22\x03\x0a\x01h",
        b"\x22\x00",
        b"\x5a\x01u",
        b"\x00\x00",
        b"\x48\x05",
        b"\x50\x05",
        b"\x12",
        b"\x18",
    ]
)


@st.composite
def contrived(draw: st.DrawFn) -> tuple[bytes, int]:
    """A set of contrived records, all alike or of two kinds of the same size."""
    count = draw(COUNTS)
    bodies = [b"".join(draw(st.lists(PIECES, max_size=4))) for _ in range(draw(st.integers(1, 2)))]
    if len(bodies) == 2 and len(bodies[0]) != len(bodies[1]):
        bodies[1] = bytes(reversed(bodies[0]))
    return b"".join(b"\x0a" + bytes([len(body)]) + body for body in (bodies * count)[:count]), count


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
    found = unpack(batch, PLACE, 1_000 + skipped).records()
    assert [
        (one.topic, one.partition, one.offset, one.key, one.value, one.timestamp_ms, one.headers, one.metadata)
        for one in found
    ] == [
        (
            *PLACE,
            offset,
            message.key if message.HasField("key") else None,
            message.value,
            message.timestamp_ms or 7,
            tuple((header.key, header.value) for header in message.headers),
            message.metadata,
        )
        for offset, message in enumerate(records, 1_000)
        if offset >= 1_000 + skipped
    ]


@given(st.binary(max_size=400), st.integers(0, 100))
def test_bytes_that_are_no_set_are_refused_or_unpacked_but_never_worse(packed: bytes, count: int) -> None:
    batch = RecordBatch(record_count=count, records=packed, records_crc32c=record_sets.checksum(packed))
    try:
        found = unpack(batch, PLACE, 0).records()
    except CorruptBatch:
        return
    assert [record.value for record in found] == parsed(packed)
