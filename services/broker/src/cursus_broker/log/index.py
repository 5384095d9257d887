"""The sparse index of a segment: where in the file an offset or a time is to be looked for.

An item stands for an entry of the log; there is one about every `index_interval_bytes`. It says that the entry begins
with this offset at this position, and what the highest append time before it is. The highest, not the last: clocks
step back, and the first entry at or after a time is the one at which the running maximum passes it.

An index is a cache. It lives in memory while its segment grows and is written when the segment is sealed; one that is
missing, damaged or does not fit its segment is made again from the log. The file:

    relative offsets  i64 each   offset - base_offset, ascending
    positions         i64 each   bytes from the start of the segment
    times             i64 each   highest append time before the entry; NO_TIME for the first
    trailer           magic 4s "CIDX", version u8, item_count u32, segment_bytes i64, base_offset i64, next_offset i64,
                      created i64, max_append_time i64, crc32c u32 over everything before it
"""

from __future__ import annotations

import struct
import sys
import threading
from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from cursus_broker.log.entry import crc32c

NO_TIME: Final = -(2**63)
"""Before every append time: the running maximum of no entries."""

_MAGIC: Final = b"CIDX"
_VERSION: Final = 1
_TRAILER: Final = struct.Struct(
    ">"
    "4s"  # magic
    "B"  # version
    "I"  # item_count
    "q"  # segment_bytes
    "q"  # base_offset
    "q"  # next_offset
    "q"  # created
    "q"  # max_append_time
)
_CRC: Final = struct.Struct(">I")
_TRAILER_BYTES: Final = _TRAILER.size + _CRC.size
_ITEM_BYTES: Final = 24

MAX_INDEX_BYTES: Final = 512 * 1024 * 1024
"""An index with an item per entry of the largest segment stays below this."""


@dataclass(frozen=True, slots=True)
class Summary:
    """What a sealed segment's index vouches for without a walk."""

    segment_bytes: int
    base_offset: int
    next_offset: int
    created_ms: int
    max_append_ms: int


class SparseIndex:
    """Items of one segment, in the order of the log. Offsets are absolute here."""

    __slots__ = ("offsets", "positions", "times")

    def __init__(self) -> None:
        self.offsets = array("q")
        self.positions = array("q")
        self.times = array("q")

    def __len__(self) -> int:
        return len(self.offsets)

    def note(self, offset: int, position: int, max_time_before: int, interval_bytes: int) -> None:
        """Take note of an entry; kept if the last kept one lies far enough back."""
        positions = self.positions
        if positions and position - positions[-1] < interval_bytes:
            return
        self.offsets.append(offset)
        positions.append(position)
        self.times.append(max_time_before)

    def find_offset(self, offset: int) -> tuple[int, int]:
        """Offset and position of the last item at or below `offset`. There has to be one."""
        at = bisect_right(self.offsets, offset) - 1
        assert at >= 0, f"offset {offset} lies before the segment"
        return self.offsets[at], self.positions[at]

    def find_time(self, time_ms: int) -> tuple[int, int]:
        """Offset and position from which on to look for the first entry at or after `time_ms`: all before is older."""
        at = max(bisect_left(self.times, time_ms) - 1, 0)
        return self.offsets[at], self.positions[at]

    def pack(self, summary: Summary) -> bytes:
        relative = array("q", (offset - summary.base_offset for offset in self.offsets))
        content = b"".join(_big_endian(column).tobytes() for column in (relative, self.positions, self.times))
        content += _TRAILER.pack(
            _MAGIC,
            _VERSION,
            len(self),
            summary.segment_bytes,
            summary.base_offset,
            summary.next_offset,
            summary.created_ms,
            summary.max_append_ms,
        )
        return content + _CRC.pack(crc32c(content))


def unpack_index(content: bytes) -> tuple[SparseIndex, Summary] | None:
    """What `pack` made of it; None if the content is damaged in any way."""
    if len(content) < _TRAILER_BYTES or _CRC.unpack_from(content, len(content) - 4)[0] != crc32c(content[:-4]):
        return None
    magic, version, count, *summary = _TRAILER.unpack_from(content, len(content) - _TRAILER_BYTES)
    if magic != _MAGIC or version != _VERSION or len(content) != count * _ITEM_BYTES + _TRAILER_BYTES:
        return None
    index = SparseIndex()
    column_bytes = count * 8
    for number, column in enumerate((index.offsets, index.positions, index.times)):
        column.frombytes(content[number * column_bytes : (number + 1) * column_bytes])
        if sys.byteorder == "little":
            column.byteswap()
    base_offset: int = summary[1]
    index.offsets = array("q", (base_offset + relative for relative in index.offsets))
    return index, Summary(*summary)


def _big_endian(column: array[int]) -> array[int]:
    if sys.byteorder == "little":
        column = column[:]
        column.byteswap()
    return column


class IndexCache:
    """Indexes of sealed segments by path, least recently used first to go. Safe to use from any thread."""

    def __init__(self, max_items: int = 512 * 1024) -> None:
        self._max_items = max_items
        self._items = 0
        self._lock = threading.Lock()
        self._indexes: OrderedDict[str, SparseIndex] = OrderedDict()

    def __len__(self) -> int:
        return len(self._indexes)

    def get(self, path: str) -> SparseIndex | None:
        with self._lock:
            index = self._indexes.get(path)
            if index is not None:
                self._indexes.move_to_end(path)
            return index

    def put(self, path: str, index: SparseIndex) -> None:
        with self._lock:
            self._remove(path)
            self._indexes[path] = index
            # One more for each index, so that very many tiny ones are bounded too.
            self._items += len(index) + 1
            while self._items > self._max_items and len(self._indexes) > 1:
                self._remove(next(iter(self._indexes)))

    def forget(self, path: str) -> None:
        with self._lock:
            self._remove(path)

    def _remove(self, path: str) -> None:
        index = self._indexes.pop(path, None)
        if index is not None:
            self._items -= len(index) + 1
