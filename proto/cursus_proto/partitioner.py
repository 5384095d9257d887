"""Which partition a key belongs to. Broker and clients route with this one function, so that a client may route by
itself and name the partition: the fast path of publishing.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import fnv_c


def key_hash(key: bytes) -> int:
    """FNV-1a 64 of the key, unsigned."""
    return int(fnv_c.fnv1a_64(key))


def partition_for_key(key: bytes, partition_count: int) -> int:
    """The partition of a record with this key.

    >>> partition_for_key(b"user-123", 4)
    3
    >>> partition_for_key(b"", 4)
    1
    """
    # Not through key_hash: producers come by here with every record, and a call costs as much as the hash.
    hashed: int = fnv_c.fnv1a_64(key)
    return hashed % partition_count


# Keys come back. Besides, the hash lets other threads run, and each time it does, a producer's sender takes a batch
# that is not full yet.
partition_for_recurring_key = lru_cache(maxsize=16_384)(partition_for_key)


def partitions_for_keys(keys: Sequence[bytes], partition_count: int) -> list[int]:
    """The partition of each of many keys.

    >>> partitions_for_keys([b"user-123", b""], 4)
    [3, 1]
    """
    different = set(keys)
    # Keys that come back are looked up, in a quarter of the time of a hash.
    find = partition_for_recurring_key if len(different) <= len(keys) // 2 else partition_for_key
    found = {key: find(key, partition_count) for key in different}
    return list(map(found.__getitem__, keys))
