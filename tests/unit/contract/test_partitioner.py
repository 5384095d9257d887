"""Keys go where every client of every generation expects them: FNV-1a 64 modulo the partition count."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cursus_proto.partitioner import key_hash, partition_for_key

VECTORS = Path(__file__).parents[3] / "proto" / "testdata" / "routing.json"


def fnv_1a(key: bytes) -> int:
    hashed = 14695981039346656037
    for byte in key:
        hashed = (hashed ^ byte) * 1099511628211 % 2**64
    return hashed


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
    assert key_hash(key) == fnv_1a(key)


@given(st.binary(max_size=50), st.integers(1, 10_000))
def test_the_partition_exists(key: bytes, count: int) -> None:
    assert 0 <= partition_for_key(key, count) < count


def test_the_vectors_that_other_languages_check_are_right() -> None:
    vectors = json.loads(VECTORS.read_text(encoding="utf-8"))["vectors"]
    assert vectors
    for vector in vectors:
        key, count = bytes.fromhex(vector["key"]), vector["partition_count"]
        assert int(vector["hash"], 16) == key_hash(key) == fnv_1a(key), vector
        assert vector["partition"] == partition_for_key(key, count) == fnv_1a(key) % count, vector


def test_the_vectors_show_every_mistake_that_is_easily_made() -> None:
    """Otherwise a client that makes it passes."""
    vectors = json.loads(VECTORS.read_text(encoding="utf-8"))["vectors"]
    keys = {bytes.fromhex(vector["key"]) for vector in vectors}
    assert b"" in keys
    assert any(byte > 127 for key in keys for byte in key), "bytes taken as signed"
    assert any(int(vector["hash"], 16) >= 2**63 and vector["partition_count"] % 2 for vector in vectors), (
        "a signed hash"
    )
    assert {vector["partition_count"] for vector in vectors} >= {1, 3, 4}
