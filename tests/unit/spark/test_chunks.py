"""Chunks end where the rows say, however the rows arrive."""

from __future__ import annotations

import itertools

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from cursus_spark.chunks import cut, row_bytes

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def batches(values: list[bytes | None], cuts: list[int]) -> list[pa.RecordBatch]:
    whole = pa.record_batch([pa.array(values, pa.binary())], names=["value"])
    ends = sorted({min(one, len(values)) for one in cuts} | {len(values)})
    return [whole.slice(begin, end - begin) for begin, end in zip([0, *ends], ends, strict=False)]


@given(
    st.lists(st.none() | st.binary(max_size=30), max_size=40),
    st.lists(st.integers(0, 40), max_size=6),
    st.integers(1, 10),
    st.integers(1, 60),
)
def test_chunks_depend_on_rows_alone(values: list[bytes | None], cuts: list[int], rows: int, size: int) -> None:
    chunks = [chunk.column("value").to_pylist() for chunk in cut(batches(values, cuts), rows, size)]
    assert chunks == [chunk.column("value").to_pylist() for chunk in cut(batches(values, []), rows, size)]
    assert [value for chunk in chunks for value in chunk] == values
    for chunk in chunks:
        assert 0 < len(chunk) <= rows
        assert len(chunk) == 1 or sum(len(value or b"") for value in chunk) <= size
    for chunk, after in itertools.pairwise(chunks):  # none ends early
        assert len(chunk) == rows or sum(len(value or b"") for value in [*chunk, after[0]]) > size


def test_the_bytes_of_a_row_are_its_key_value_and_headers() -> None:
    headers = pa.array([[("ab", b"c"), ("d", None)], None, [], [("", b"xyz")]], HEADERS)
    keys, values = pa.array([b"k", None, b"", b"kk"]), pa.array(["ü", "v", None, ""])
    batch = pa.record_batch([keys, values, headers], names=["key", "value", "headers"])
    assert row_bytes(batch).tolist() == [7, 1, 0, 5]
    assert row_bytes(batch.slice(2)).tolist() == [0, 5]
