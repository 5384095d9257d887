"""Which partition a key belongs to. Broker and clients route with this one function, so that a client may route by
itself and name the partition: the fast path of publishing.
"""

from __future__ import annotations

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
