"""Keys go where every client of every generation expects them: FNV-1a 64 modulo the partition count."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cursus_proto.partitioner import key_hash, partition_for_key


@pytest.mark.parametrize(
    ("key", "expected_hash", "modulo_4", "modulo_12"),
    [
        (b"", 14695981039346656037, 1, 5),
        (b"a", 12638187200555641996, 0, 4),
        (b"user-123", 10997457010273760083, 3, 7),
        (b"user-456", 9064735470710262708, 0, 0),
        (b"order-1", 16061103592383113325, 1, 9),
    ],
)
def test_known_keys_have_their_known_partitions(key: bytes, expected_hash: int, modulo_4: int, modulo_12: int) -> None:
    assert key_hash(key) == expected_hash
    assert partition_for_key(key, 4) == modulo_4
    assert partition_for_key(key, 12) == modulo_12


@given(st.binary(max_size=300))
def test_the_hash_is_fnv_1a(key: bytes) -> None:
    expected = 14695981039346656037
    for byte in key:
        expected = (expected ^ byte) * 1099511628211 % 2**64
    assert key_hash(key) == expected


@given(st.binary(max_size=50), st.integers(1, 10_000))
def test_the_partition_exists(key: bytes, count: int) -> None:
    assert 0 <= partition_for_key(key, count) < count
