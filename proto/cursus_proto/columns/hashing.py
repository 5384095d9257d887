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
    hashes = np.full(len(starts), _OFFSET_BASIS, np.uint64)
    short = lengths <= _LONGEST
    for row in np.flatnonzero(~short).tolist():
        hashes[row] = key_hash(data[starts[row] : starts[row] + lengths[row]].tobytes())
    for place in range(int(lengths[short].max(initial=0))):
        rows = np.flatnonzero(short & (lengths > place))
        hashes[rows] = (hashes[rows] ^ data[starts[rows] + place]) * _PRIME
    return hashes
