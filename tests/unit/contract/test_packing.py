"""Columns become the bytes that the records would have become one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cursus_proto.columns.hashing import key_hashes
from cursus_proto.columns.packing import Binary, Details, Header, pack
from cursus_proto.partitioner import key_hash
from cursus_proto.records import encode_record

Row = tuple[bytes | None, bytes | None, int, list[Header]]

octets = st.one_of(st.binary(max_size=8), st.binary(min_size=120, max_size=140), st.just(b"x" * 20_000))
times = st.one_of(st.just(0), st.integers(1, 2**62), st.integers(-5, 5), st.integers(2**40, 2**40 + 9))
header = st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3))


def one_by_one(rows: list[Row]) -> bytes:
    return b"".join(
        encode_record(value, key=key, timestamp_ms=time, headers=headers) for key, value, time, headers in rows
    )


def packed(rows: list[Row]) -> bytes:
    keys, values, stamps, headers = zip(*rows, strict=True)
    return pack(Binary.of(values), keys=Binary.of(keys), timestamps_ms=np.array(stamps, np.int64), headers=headers)


@given(st.lists(st.tuples(st.none() | octets, st.none() | octets, times, st.just([])), min_size=1, max_size=12))
def test_rows_of_any_shape(rows: list[Row]) -> None:
    assert packed(rows) == one_by_one(rows)


@given(st.lists(st.tuples(st.none() | octets, st.none() | octets, times, st.lists(header, max_size=2)), min_size=1))
def test_rows_with_headers(rows: list[Row]) -> None:
    assert packed(rows) == one_by_one(rows)


def test_rows_with_details() -> None:
    details: list[Details] = [
        (b"placed", 0, 0, b""),
        (b"", 2**32 - 1, 0, b""),
        (b"", 0, 2**64 - 1, b""),
        (b"", 0, 0, b"{}"),
    ]
    expected = b"".join(
        encode_record(b"v", event_type=one, schema_version=two, aggregate_version=three, metadata=four)
        for one, two, three, four in details
    )
    assert pack(Binary.of([b"v"] * 4), details=details) == expected


@pytest.mark.parametrize("value_bytes", [0, 1, 100, 127, 128, 20_000])
@pytest.mark.parametrize("key_bytes", [None, 0, 16, 200])
@pytest.mark.parametrize("time", [0, 1, -1, 1_767_323_045_678, 2**63 - 1])
def test_rows_of_one_shape(value_bytes: int, key_bytes: int | None, time: int) -> None:
    rows: list[Row] = [
        (None if key_bytes is None else bytes([n]) * key_bytes, bytes([n]) * value_bytes, time, []) for n in range(5)
    ]
    assert packed(rows) == one_by_one(rows)


@given(st.lists(st.binary(max_size=12) | st.binary(min_size=126, max_size=131)))
def test_keys_are_hashed_as_one_by_one(keys: list[bytes]) -> None:
    column = Binary.of(keys)
    assert key_hashes(column.data, column.starts, column.lengths).tolist() == [key_hash(key) for key in keys]
