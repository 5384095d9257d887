"""Sets of sequence numbers with gaps between them, as windowed producers leave them."""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Final

# Runs of sequences a windowed producer may have seen apart from each other. Beyond it the lowest gap is given up.
MAX_RUNS: Final = 1_000

_NUMBER_BYTES: Final = 8


class Runs:
    """A set of sequence numbers as sorted, disjoint, half-open runs."""

    __slots__ = ("_ends", "_starts")

    def __init__(self, runs: Iterable[tuple[int, int]] = ()) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        for start, end in runs:
            self._starts.append(start)
            self._ends.append(end)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._starts, self._ends, strict=True)

    def __contains__(self, number: int) -> bool:
        index = bisect_right(self._starts, number) - 1
        return index >= 0 and number < self._ends[index]

    def overlaps(self, start: int, end: int) -> bool:
        """Whether any number of [start, end) is in the set."""
        index = bisect_right(self._starts, start) - 1
        if index >= 0 and start < self._ends[index]:
            return True
        return index + 1 < len(self._starts) and self._starts[index + 1] < end

    def covers(self, start: int, end: int) -> bool:
        """Whether all numbers of [start, end) are in the set."""
        index = bisect_right(self._starts, start) - 1
        return index >= 0 and end <= self._ends[index]

    def add(self, start: int, end: int) -> None:
        """Add [start, end)."""
        first = bisect_right(self._starts, start) - 1
        if first < 0 or self._ends[first] < start:
            first += 1
        last = bisect_right(self._starts, end)
        if first < last:
            start = min(start, self._starts[first])
            end = max(end, self._ends[last - 1])
        self._starts[first:last] = [start]
        self._ends[first:last] = [end]
        if len(self._starts) > MAX_RUNS:
            self._starts[0:2] = [self._starts[0]]
            self._ends[0:2] = [self._ends[1]]

    def clear(self) -> None:
        self._starts.clear()
        self._ends.clear()

    def __len__(self) -> int:
        """How many runs there are."""
        return len(self._starts)

    def pack(self) -> bytes:
        """For `unpack`: all starts, then all ends, 8 bytes big-endian each."""
        return struct.pack(f">{2 * len(self._starts)}q", *self._starts, *self._ends) if self._starts else b""

    @classmethod
    def unpack(cls, packed: bytes) -> Runs:
        numbers = struct.unpack(f">{len(packed) // _NUMBER_BYTES}q", packed)
        half = len(numbers) // 2
        return cls(zip(numbers[:half], numbers[half:], strict=True))
