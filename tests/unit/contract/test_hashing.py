"""The hashes of many keys are those of each of them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cursus_proto.columns.hashing import key_hashes
from cursus_proto.partitioner import key_hash


@given(st.lists(st.binary(max_size=12) | st.binary(min_size=126, max_size=131)))
def test_keys_are_hashed_as_one_by_one(keys: list[bytes]) -> None:
    lengths = np.array([len(key) for key in keys], np.int64)
    starts = np.cumsum(lengths) - lengths
    found = key_hashes(np.frombuffer(b"".join(keys), np.uint8), starts, lengths)
    assert found.tolist() == [key_hash(key) for key in keys]
