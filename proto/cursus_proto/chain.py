"""The checksum of all that a producer has stored in an epoch: broker and producers compute it, each from what it has.

The CRC32C of 16 bytes for each batch, in order, all big-endian:

    first_sequence  i64
    record_count    u32
    records_crc32c  u32  of the set's bytes as sent and stored, compressed if they are

`DescribedProducer.checksum` in publish_service.proto says the same to other languages.
"""

from __future__ import annotations

import struct
from typing import Final

import google_crc32c

_BATCH: Final = struct.Struct(
    ">"
    "q"  # first_sequence
    "I"  # record_count
    "I"  # records_crc32c
)

EMPTY: Final = 0
"""Before the first batch of an epoch."""


def extend(checksum: int, first_sequence: int, record_count: int, records_crc32c: int) -> int:
    """The checksum with one more batch behind what it covers.

    >>> f"{extend(EMPTY, 0, 1, 0xC1D04330):08x}"
    '99d1641a'
    """
    extended: int = google_crc32c.extend(checksum, _BATCH.pack(first_sequence, record_count, records_crc32c))
    return extended
