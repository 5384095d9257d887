"""The record encoder of producers against protobuf's own: the same bytes for any record."""

from __future__ import annotations

from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from cursus_proto import records as record_sets
from cursus_proto.v1.records_pb2 import Header, Record

values = st.one_of(st.binary(max_size=300), st.integers(2_000, 20_000).map(bytes))
numbers = st.integers(-(2**63), 2**63 - 1)


@given(value=values)
def test_a_head_and_its_value_are_a_set_of_one_record(value: bytes) -> None:
    assert record_sets.value_head(len(value)) + value == record_sets.pack([Record(value=value)])


@given(key=values, value=values)
def test_a_head_with_a_key_likewise(key: bytes, value: bytes) -> None:
    assert record_sets.keyed_head(key, len(value)) + value == record_sets.pack([Record(key=key, value=value)])


rows = st.lists(st.tuples(st.none() | values, st.none() | values), max_size=30)
alike = st.tuples(st.integers(0, 3_000).map(bytes), st.sampled_from([b"a", b"b"]), st.integers(0, 20)).map(
    lambda one: [(one[0], one[1] if number % 3 else b"c") for number in range(one[2])]
)


@given(records=rows | alike, keyed=st.booleans(), data=st.data())
def test_many_records_are_what_each_of_them_is(
    records: list[tuple[bytes | None, bytes | None]], keyed: bool, data: st.DataObject
) -> None:
    """All of them, a part of them, and some of them in any order."""
    one_by_one = [record_sets.encode_record(value, key=key if keyed else None) for value, key in records]
    encoded = record_sets.encode_many([value for value, _ in records], [key for _, key in records] if keyed else None)
    count = len(records)
    assert b"".join(encoded.pieces(0, count)) == b"".join(one_by_one)
    assert encoded.sizes == list(map(len, one_by_one))
    assert list(encoded.ends()) == list(accumulate(encoded.sizes))
    start = data.draw(st.integers(0, count))
    stop = data.draw(st.integers(start, count))
    assert b"".join(encoded.pieces(start, stop)) == b"".join(one_by_one[start:stop])
    assert b"".join(encoded.part(start, stop).pieces(0, stop - start)) == b"".join(one_by_one[start:stop])
    chosen = data.draw(st.lists(st.integers(0, count - 1), max_size=10)) if count else []
    only = encoded.only(chosen)
    assert b"".join(only.pieces(0, len(chosen))) == b"".join(one_by_one[row] for row in chosen)
    assert list(only.ends()) == list(accumulate(only.sizes))


@given(
    key=st.one_of(st.none(), values),
    value=st.one_of(st.none(), values),
    timestamp_ms=numbers,
    headers=st.lists(st.tuples(st.text(max_size=20), st.none() | st.binary(max_size=200)), max_size=4),
    event_type=st.binary(max_size=200),
    schema_version=st.integers(0, 2**32 - 1),
    aggregate_version=st.integers(0, 2**64 - 1),
    metadata=st.binary(max_size=200),
)
def test_a_record_with_everything_likewise(
    key: bytes | None,
    value: bytes | None,
    timestamp_ms: int,
    headers: list[tuple[str, bytes | None]],
    event_type: bytes,
    schema_version: int,
    aggregate_version: int,
    metadata: bytes,
) -> None:
    encoded = record_sets.encode_record(
        value,
        key=key,
        timestamp_ms=timestamp_ms,
        headers=headers,
        event_type=event_type,
        schema_version=schema_version,
        aggregate_version=aggregate_version,
        metadata=metadata,
    )
    message = Record(
        key=key,
        value=value,
        timestamp_ms=timestamp_ms,
        headers=[Header(key=name, value=content) for name, content in headers],
        event_type=event_type,
        schema_version=schema_version,
        aggregate_version=aggregate_version,
        metadata=metadata,
    )
    assert encoded == record_sets.pack([message])


@given(contents=st.lists(st.none() | st.just(b"") | values, min_size=1, max_size=20))
def test_encoded_records_joined_are_a_set(contents: list[bytes | None]) -> None:
    joined = b"".join(record_sets.encode_record(value) for value in contents)
    found = record_sets.unpack(joined)
    assert [record.value if record.HasField("value") else None for record in found] == contents
