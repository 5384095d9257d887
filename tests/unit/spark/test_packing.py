"""Columns become the bytes that the records would have become one by one."""

from __future__ import annotations

import doctest
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cursus_proto.records import encode_record
from cursus_spark import packing
from cursus_spark.packing import pack

Header = tuple[str, bytes | None]
Row = tuple[bytes | None, bytes | None, int, list[Header]]

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

octets = st.one_of(st.binary(max_size=8), st.binary(min_size=120, max_size=140), st.just(b"x" * 20_000))
times = st.one_of(st.just(0), st.integers(1, 2**62), st.integers(-5, 5), st.integers(2**40, 2**40 + 9))
header = st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3))


def one_by_one(rows: list[Row]) -> bytes:
    return b"".join(
        encode_record(value, key=key, timestamp_ms=time, headers=headers) for key, value, time, headers in rows
    )


def columns(rows: list[Row]) -> dict[str, Any]:
    keys, values, stamps, headers = zip(*rows, strict=True)
    attached = [[{"key": name, "value": value} for name, value in row] or None for row in headers]
    return {
        "values": pa.array(values, pa.binary()),
        "keys": pa.array(keys, pa.binary()),
        "timestamps_ms": np.array(stamps, np.int64),
        "headers": pa.array(attached, HEADERS),
    }


def packed(rows: list[Row]) -> bytes:
    records = pack(**columns(rows))
    records.validate(full=True)
    assert len(records) == len(rows)
    return b"".join(records.to_pylist())


@given(st.lists(st.tuples(st.none() | octets, st.none() | octets, times, st.just([])), min_size=1, max_size=12))
def test_rows_of_any_shape(rows: list[Row]) -> None:
    assert packed(rows) == one_by_one(rows)


def test_what_few_records_have() -> None:
    stated = [(b"placed", 0, 0, b""), (b"", 2**32 - 1, 2**64 - 1, b""), (b"", 0, 5, b"{}"), (b"", 0, 0, b"")]
    types, schemas, aggregates, metadata = zip(*stated, strict=True)
    records = pack(
        pa.array([b"v"] * 4, pa.binary()),
        event_types=pa.array([one or None for one in types], pa.binary()),
        schema_versions=np.array(schemas, np.int64),
        aggregate_versions=np.array(aggregates, np.uint64).view(np.int64),
        metadata=pa.array(metadata, pa.binary()),
    )
    assert records.to_pylist() == [
        encode_record(b"v", event_type=one, schema_version=two, aggregate_version=three, metadata=four)
        for one, two, three, four in stated
    ]


@given(st.lists(st.tuples(st.none() | octets, st.none() | octets, times, st.lists(header, max_size=2)), min_size=1))
def test_rows_with_headers(rows: list[Row]) -> None:
    assert packed(rows) == one_by_one(rows)


@pytest.mark.parametrize("value_bytes", [0, 1, 100, 127, 128, 20_000])
@pytest.mark.parametrize("key_bytes", [None, 0, 16, 200])
@pytest.mark.parametrize("time", [0, 1, -1, 1_767_323_045_678, 2**63 - 1])
def test_rows_of_one_shape(value_bytes: int, key_bytes: int | None, time: int) -> None:
    rows: list[Row] = [
        (None if key_bytes is None else bytes([n]) * key_bytes, bytes([n]) * value_bytes, time, []) for n in range(5)
    ]
    assert packed(rows) == one_by_one(rows)


@given(
    st.lists(st.tuples(st.none() | octets, st.none() | octets, times, st.lists(header, max_size=2)), min_size=1),
    st.integers(0, 5),
)
def test_a_slice_is_packed_as_its_own_rows(rows: list[Row], begin: int) -> None:
    """Arrow's slices share the buffers of the whole: what lies before and behind must not come along."""
    sliced = {name: column[begin : begin + 3] for name, column in columns(rows).items()}
    assert b"".join(pack(**sliced).to_pylist()) == one_by_one(rows[begin : begin + 3])


def test_what_a_null_hides_is_not_written() -> None:
    validity, ends = pa.py_buffer(b"\x05"), pa.py_buffer(np.array([0, 1, 3, 4], np.int32))
    hiding = pa.Array.from_buffers(pa.binary(), 3, [validity, ends, pa.py_buffer(b"abbc")])
    assert hiding.to_pylist() == [b"a", None, b"c"]
    records = pack(hiding, keys=hiding)
    assert b"".join(records.to_pylist()) == one_by_one([(v, v, 0, []) for v in (b"a", None, b"c")])


def test_text_is_written_as_utf_8() -> None:
    records = pack(pa.array(["ä", None]), keys=pa.array([None, "ü"]))
    assert b"".join(records.to_pylist()) == one_by_one([(None, "ä".encode(), 0, []), ("ü".encode(), None, 0, [])])


def test_the_example_is_true() -> None:
    assert doctest.testmod(packing) == (0, 3)
