"""Record sets taken out of encoded responses, against protobuf's own parser: the same, however fields are laid out."""

from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st

from cursus_proto.cutting import StoredBatch, read_consumed, read_fetched
from cursus_proto.internal.v1.opaque_pb2 import (
    ConsumedBatches,
    ConsumeResponse,
    FetchedPartition,
    FetchResponse,
    RecordBatch,
)
from cursus_proto.records import varint

UNKNOWN = b"\xba\x01\x04more"
"""A field of a later version."""

# 0x4A is the tag before a set, so it stands where it may be taken for one.
BYTES = st.binary(max_size=300) | st.integers(0, 300).map(lambda size: b"\x4a" * size)
BATCHES = st.builds(
    RecordBatch,
    base_offset=st.integers(0, 2**62) | st.just(0x4A),
    record_count=st.integers(0, 10_000) | st.just(0x4A),
    append_time_ms=st.integers(0, 2**43),
    codec=st.integers(0, 5),
    producer_id=BYTES,
    producer_epoch=st.integers(0, 2**40),
    first_sequence=st.integers(-1, 2**62),
    records_crc32c=st.integers(0, 2**32 - 1) | st.just(0x4A4A4A4A),
    records=st.none() | BYTES,
    compressed_records=st.just(b"") | BYTES,
)


def enclose(number: int, message: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(message)) + message


@st.composite
def laid_out(draw: st.DrawFn, batch: RecordBatch) -> bytes:
    """A batch with its fields in any order, some of them twice."""
    alone = [RecordBatch() for _ in batch.ListFields()]
    for one, (field, value) in zip(alone, batch.ListFields(), strict=True):
        setattr(one, field.name, value)
    parts = [one.SerializeToString() for one in alone]
    if draw(st.booleans()):
        return b"".join(parts)
    parts += draw(st.lists(st.sampled_from([*parts, UNKNOWN]), max_size=3))
    return b"".join(draw(st.permutations(parts)))


@st.composite
def embedded(draw: st.DrawFn, container: FetchedPartition | ConsumedBatches) -> bytes:
    """A message with batches, wherever its other fields are."""
    number = type(container).DESCRIPTOR.fields_by_name["batches"].number
    # The same ones may come again, so that some lie equally far apart.
    encoded = draw(st.lists(BATCHES.flatmap(laid_out), min_size=1, max_size=3))
    parts = [enclose(number, batch) for batch in draw(st.lists(st.sampled_from(encoded), max_size=8))]
    parts.insert(draw(st.integers(0, len(parts))), container.SerializeToString())
    return b"".join(parts)


PARTITIONS = st.builds(
    FetchedPartition,
    topic=st.text(max_size=20),
    partition=st.integers(0, 1000),
    next_offset=st.integers(0, 2**62),
    leader_epoch=st.integers(0, 2**62) | st.just(0x4A),
)


def as_parsed(found: list[StoredBatch]) -> list[RecordBatch]:
    """The batches as the parser makes them."""
    batches = []
    for one in found:
        batch = RecordBatch.FromString(one.fields.SerializeToString())
        if plain := bytes(one.plain()):
            batch.records = plain
        batches.append(batch)
    return batches


def same(found: list[RecordBatch], expected: list[RecordBatch]) -> bool:
    """An empty plain set and none are the same to readers."""
    for batch in (*found, *expected):
        if not batch.records:
            batch.ClearField("records")
    return found == expected


@given(st.lists(PARTITIONS.flatmap(embedded), max_size=3))
def test_a_fetch_response_is_what_the_parser_makes_of_it(partitions: list[bytes]) -> None:
    encoded = b"".join(enclose(1, one) for one in partitions)
    parsed = FetchResponse.FromString(encoded)

    found = read_fetched(bytearray(encoded))

    assert len(found) == len(parsed.partitions)
    for (fields, batches), expected in zip(found, parsed.partitions, strict=True):
        assert same(as_parsed(batches), list(expected.batches))
        expected.ClearField("batches")
        assert fields == expected


@given(st.lists(st.builds(ConsumedBatches, next_offset=st.integers(0, 2**62)).flatmap(embedded), max_size=2))
def test_a_consume_response_is_what_the_parser_makes_of_it(responses: list[bytes]) -> None:
    encoded = b"".join(enclose(2, one) for one in responses)
    parsed = ConsumeResponse.FromString(encoded)

    response, batches = read_consumed(encoded)

    assert same(as_parsed(batches), list(parsed.batches.batches))
    assert response.WhichOneof("response") == parsed.WhichOneof("response")
    assert response.batches.next_offset == parsed.batches.next_offset


def test_a_response_without_batches_is_parsed() -> None:
    started = ConsumeResponse()
    started.started.start_offset = 7
    assert read_consumed(started.SerializeToString()) == (started, [])
    assert read_fetched(b"") == []


def test_a_set_that_is_not_the_last_field_is_found_behind_one_that_is() -> None:
    """Both begin alike, up to the set's length."""
    usual = RecordBatch(base_offset=1, record_count=2, records=b"s" * 40)
    batches = [usual.SerializeToString(), usual.SerializeToString() + UNKNOWN, usual.SerializeToString()]
    encoded = enclose(1, b"".join(enclose(5, batch) for batch in batches))

    ((_, found),) = read_fetched(encoded)

    assert [bytes(batch.plain()) for batch in found] == [b"s" * 40] * 3
    assert same(as_parsed(found), list(FetchResponse.FromString(encoded).partitions[0].batches))


@given(PARTITIONS.flatmap(embedded), st.integers(0, 2**16), st.integers(0, 255), st.integers(0, 2**16))
@example(b"\x2a\x03\x4a\x01x", 1, 4, 100)
def test_damage_is_refused_or_read_as_the_parser_reads_it(partition: bytes, at: int, value: int, length: int) -> None:
    damaged = bytearray(enclose(1, partition))
    damaged[at % len(damaged)] = value
    del damaged[max(1, length) :]
    try:
        found = read_fetched(damaged)
    except DecodeError:
        return
    parsed = FetchResponse.FromString(bytes(damaged))
    assert same(
        [batch for _, batches in found for batch in as_parsed(batches)],
        [batch for partition in parsed.partitions for batch in partition.batches],
    )


@pytest.mark.parametrize(
    "damaged", [b"\x0a", b"\x0a\x05abc", b"\x0a\x03\x2a\x05a", b"\x0b", b"\x0a" + b"\xff" * 11, b"\0\0"]
)
def test_what_is_no_message_is_refused(damaged: bytes) -> None:
    with pytest.raises(DecodeError):
        read_fetched(damaged)
