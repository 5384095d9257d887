"""The rows of the Spark measures: ten thousand of them, repeated as often as a measure wants. The same in every process
and every run, as Arrow batches and as the record sets that they are stored as."""

from __future__ import annotations

import random
from collections.abc import Sequence
from enum import StrEnum
from functools import lru_cache
from typing import Final

import pyarrow as pa

from bench.batches import RECORDS_PER_BATCH, VALUE_BYTES
from cursus_proto.records import encode_record

POOL: Final = 10_000
"""Rows of a batch: as many as our source puts into one, and as Spark hands to a writer."""

_FIRST_MS: Final = 1_700_000_000_000


class Kind(StrEnum):
    """What rows look like."""

    UNIFORM = "uniform"
    """Values of one size, no keys."""
    MIXED = "mixed"
    """Values of all sizes from half to one and a half times as much, and keys of 8 to 24 bytes."""


@lru_cache
def values(kind: Kind) -> Sequence[bytes]:
    chance = random.Random(1)
    if kind is Kind.UNIFORM:
        return [chance.randbytes(VALUE_BYTES) for _ in range(POOL)]
    return [chance.randbytes(chance.randint(VALUE_BYTES // 2, VALUE_BYTES * 3 // 2)) for _ in range(POOL)]


@lru_cache
def keys(kind: Kind) -> Sequence[bytes | None]:
    chance = random.Random(2)
    if kind is Kind.UNIFORM:
        return [None] * POOL
    return [chance.randbytes(chance.randint(8, 24)) for _ in range(POOL)]


def value_bytes(kind: Kind, rows: int) -> int:
    """The sum of the values' lengths in `rows` rows, a multiple of the pool."""
    return rows // POOL * sum(map(len, values(kind)))


@lru_cache
def packed_sets(kind: Kind) -> Sequence[bytes]:
    """The pool as record sets."""
    records = [encode_record(value, key=key) for value, key in zip(values(kind), keys(kind), strict=True)]
    return [b"".join(records[at : at + RECORDS_PER_BATCH]) for at in range(0, POOL, RECORDS_PER_BATCH)]


@lru_cache
def batch(kind: Kind, columns: tuple[str, ...]) -> pa.RecordBatch:
    """The pool with these columns, of those that the sources have."""
    arrays = {
        "key": lambda: pa.array(keys(kind), pa.binary()),
        "value": lambda: pa.array(values(kind), pa.binary()),
        "topic": lambda: pa.array(["bench"] * POOL, pa.string()),
        "partition": lambda: pa.array([0] * POOL, pa.int32()),
        "offset": lambda: pa.array(range(POOL), pa.int64()),
        "timestamp": lambda: pa.array(range(_FIRST_MS, _FIRST_MS + POOL), pa.timestamp("ms", tz="UTC")).cast(
            pa.timestamp("us", tz="UTC")
        ),
        "timestampType": lambda: pa.array([0] * POOL, pa.int32()),
    }
    return pa.RecordBatch.from_arrays([arrays[name]() for name in columns], list(columns))
