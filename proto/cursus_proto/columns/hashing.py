"""The partitions of many keys at once. What comes out is what `cursus_proto.partitioner` answers for each of them."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from cursus_proto.partitioner import key_hash

# FNV-1a, 64 bits.
_OFFSET_BASIS: Final = np.uint64(0xCBF29CE484222325)
_PRIME: Final = np.uint64(0x100000001B3)

_LONGEST: Final = 128
"""Keys beyond are hashed one by one: a step is taken for every byte of the longest key."""


def key_hashes(data: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.uint64]:
    """The hashes of the keys that lie at these places of `data`.

    >>> key_hashes(np.frombuffer(b"user-123", np.uint8), np.array([0]), np.array([8])) % np.uint64(4)
    array([3], dtype=uint64)
    """
    hashes = np.empty(len(starts), np.uint64)
    # The longest first: those that still have a byte at a place are then the first ones.
    order = np.argsort(-lengths, kind="stable")
    ordered = lengths[order]
    at = starts[order]
    long = int(np.searchsorted(-ordered, -_LONGEST))
    for row in order[:long].tolist():
        hashes[row] = key_hash(data[starts[row] : starts[row] + lengths[row]].tobytes())
    at, ordered = at[long:], ordered[long:]
    found = np.full(len(at), _OFFSET_BASIS, np.uint64)
    longest = int(ordered[0]) if len(ordered) else 0
    for place, count in enumerate(np.searchsorted(-ordered, -np.arange(longest)).tolist()):
        active = found[:count]
        active ^= data[at[:count] + place]
        active *= _PRIME
    hashes[order[long:]] = found
    return hashes
