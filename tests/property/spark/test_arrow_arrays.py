"""Values taken out of a buffer by their places are the values that lie there, whatever their sizes."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from cursus_spark.arrow_arrays import binary_array, constant_text

sizes = st.one_of(
    st.lists(st.integers(0, 40), max_size=60),
    st.lists(st.integers(60, 140), max_size=20),
    st.integers(0, 30).flatmap(lambda size: st.lists(st.just(size), max_size=30)),
)


@given(sizes, st.integers(0, 7), st.randoms(use_true_random=False), st.booleans())
def test_values_are_found_where_they_lie(lengths, gap, random, some_missing) -> None:  # type: ignore[no-untyped-def]
    present = [not some_missing or random.random() < 0.7 for _ in lengths]
    lengths = [length if there else 0 for length, there in zip(lengths, present, strict=True)]
    data = bytearray(random.randbytes(3))
    starts, values = [], []
    for length, there in zip(lengths, present, strict=True):
        value = random.randbytes(length)
        starts.append(len(data))
        values.append(value if there else None)
        data += value + random.randbytes(gap)
    array = binary_array(
        np.frombuffer(bytes(data), np.uint8),
        np.array(starts, np.int64),
        np.array(lengths, np.int64),
        np.array(present, np.bool_) if some_missing else None,
    )
    array.validate(full=True)
    assert array.type == pa.binary()
    assert array.to_pylist() == values


@given(st.text(max_size=20), st.integers(0, 50))
def test_a_constant_stands_in_every_row(text: str, count: int) -> None:
    array = constant_text(text, count)
    array.validate(full=True)
    assert array.to_pylist() == [text] * count
