"""A set that unpacks to more than it may is found out before anything is made of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cursus_proto import bounds, codecs
from cursus_proto import records as record_sets
from cursus_proto.bounds import Bounds
from cursus_proto.v1.records_pb2 import CODEC_ZSTD, Codec, Header, Record
from tests.harness.memory import MIB, growth

COMPRESSED = [number for number in Codec.values() if not codecs.is_plain(number)]

record = st.builds(
    Record,
    key=st.none() | st.binary(max_size=40),
    value=st.binary(max_size=200) | st.sampled_from([b'{"a": "b"}' * 30, b"a\nb\n" * 40]),
    timestamp_ms=st.integers(0, 2**40),
    headers=st.lists(st.builds(Header, key=st.text(max_size=5), value=st.binary(max_size=5)), max_size=4),
    sequence=st.none() | st.integers(0, 2**40),
)


@given(st.lists(record, max_size=30))
def test_walking_through_a_set_counts_what_the_parser_makes(records: list[Record]) -> None:
    plain = record_sets.pack(records)
    headers = sum(len(one.headers) for one in records)
    most = len(records) + headers
    assert bounds.walk(plain, most, with_headers=True) == most
    assert bounds.walk(plain, len(records), with_headers=False) == len(records)
    if records:
        with pytest.raises(bounds.TooManyRecords):
            bounds.walk(plain, most - 1, with_headers=True)
        with pytest.raises(bounds.TooManyRecords):
            bounds.walk(plain, len(records) - 1, with_headers=False)


@given(st.lists(record, max_size=30), st.integers(0, 60), st.booleans())
def test_what_is_said_to_be_within_a_bound_is(records: list[Record], limit: int, with_headers: bool) -> None:
    found = len(records) + (sum(len(one.headers) for one in records) if with_headers else 0)
    if bounds.surely_within(record_sets.pack(records), limit, with_headers=with_headers):
        assert found <= limit


@given(st.binary(max_size=300), st.integers(0, 20))
def test_walking_through_garbage_never_fails_otherwise_and_never_misses_a_record(data: bytes, limit: int) -> None:
    try:
        bounds.walk(data, limit, with_headers=True)
    except bounds.TooManyRecords:
        return
    try:
        records = record_sets.parse(data)
    except record_sets.MalformedRecordSet:
        return
    assert len(records) + sum(len(one.headers) for one in records) <= limit


@pytest.mark.parametrize("junk", [b"\x18\0", b"\x12\0", b"\xf8\x01\0"], ids=["numbers", "values", "unknown"])
def test_a_record_of_nothing_but_repeated_fields_is_not_walked_to_its_end(junk: bytes) -> None:
    body = b"\x22\0" + junk * 1_000
    plain = b"\n" + record_sets.varint(len(body)) + body
    with pytest.raises(bounds.TooManyRecords):
        bounds.walk(plain, 100, with_headers=True)
    with pytest.raises(bounds.TooManyRecords):
        bounds.walk(junk * 1_000, 100, with_headers=True)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_a_set_is_unpacked_up_to_its_bounds_and_not_beyond(codec: int) -> None:
    packed = record_sets.pack([Record(value=b"a", headers=[Header(key="h")])] * 1_000, codec)
    size = len(record_sets.decompress(packed, codec))
    assert len(record_sets.unpack(packed, codec, Bounds(size, 2_000))) == 1_000
    with pytest.raises(record_sets.RecordSetTooLarge, match=f"more than {size - 1} bytes"):
        record_sets.unpack(packed, codec, Bounds(size - 1, 2_000))
    with pytest.raises(record_sets.RecordSetTooLarge, match="more than 1999 records"):
        record_sets.unpack(packed, codec, Bounds(size, 1_999))


def test_counting_stops_at_its_bound() -> None:
    plain = record_sets.pack([Record(value=b"a\n" * 50)] * 1_000)
    assert record_sets.count(plain, 1_000) == 1_000
    with pytest.raises(record_sets.RecordSetTooLarge):
        record_sets.count(plain, 999)


@pytest.mark.parametrize(
    "plain",
    ["b'\\n\\0' * 20_000_000", "b'\\n' + record_sets.varint(40_000_000) + b'\\x22\\0' * 20_000_000"],
    ids=["records", "headers"],
)
def test_twenty_million_in_a_few_kilobytes_take_no_more_than_their_plain_bytes_twice(plain: str) -> None:
    """They took gigabytes: a parsed record takes 140 bytes, a header 40."""
    taken = growth(
        f"""
        from cursus_proto import codecs
        from cursus_proto import records as record_sets
        packed = codecs.compress({CODEC_ZSTD}, {plain})
        assert len(packed) < 10_000
        """,
        f"""
        try:
            record_sets.unpack(packed, {CODEC_ZSTD})
        except record_sets.MalformedRecordSet:
            pass
        """,
    )
    assert taken < 2 * 40 * MIB + 120 * MIB


def test_counting_twenty_million_plain_records_takes_next_to_nothing() -> None:
    taken = growth(
        """
        from cursus_proto import records as record_sets
        plain = b'\\n\\0' * 20_000_000
        """,
        """
        try:
            record_sets.count(plain)
        except record_sets.MalformedRecordSet:
            pass
        """,
    )
    assert taken < 16 * MIB


@given(st.lists(st.integers(0, 5 * MIB), max_size=60), st.integers(1, 20))
def test_portions_are_everything_in_order_and_fit_a_request_each(sizes: list[int], most: int) -> None:
    parts = list(bounds.portions(sizes, most=most, size_of=lambda size: size))
    assert [size for part in parts for size in part] == sizes
    assert all(part for part in parts) or parts == [[]]
    for part in parts:
        assert len(part) <= most
        assert len(part) == 1 or sum(part) <= bounds.MAX_REQUEST_BYTES // 2
