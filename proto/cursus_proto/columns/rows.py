"""Rows at equal distances in a stretch of bytes, looked at and copied column by column by numpy.

For rows in the hundreds that costs a fiftieth of going from row to row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

Numbers: TypeAlias = NDArray[np.uint64]

FEWEST_ROWS: Final = 24
"""Below this, setting up the columns takes longer than going from row to row."""

_BIG_ENDIAN: Final = np.dtype(">u8")
_BYTE: Final = np.dtype(np.uint8)
_WORDS: Final = {size: np.dtype(f"<u{size}") for size in (1, 2, 4, 8)}


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of the same length that follow each other, in blocks of as many rows that lie equally far apart."""

    data: bytes | bytearray
    begin: int
    """Where the first row begins. What is said to be in a row is counted from there."""
    count: int
    """In all blocks."""
    size: int
    """The length of a row."""
    blocks: int = 1
    distance: int = 0
    """From the beginning of a block to that of the next."""

    def column(self, at: int, kind: np.dtype[Any]) -> NDArray[Any]:
        """What is in each row at a place, with a line for each block."""
        shape = (self.blocks, self.count // self.blocks)
        return np.ndarray(shape, kind, self.data, self.begin + at, (self.distance, self.size))

    def part(self, begin: int, end: int) -> tuple[Rows, int]:
        """The blocks that have rows from `begin` to `end`, of a single block only those rows; and how many rows of them
        come before `begin`."""
        if end - begin == self.count:
            return self, 0
        if self.blocks == 1:
            return Rows(self.data, self.begin + begin * self.size, end - begin, self.size), 0
        in_block = self.count // self.blocks
        first, last = begin // in_block, -(-end // in_block)
        start, count, blocks = self.begin + first * self.distance, (last - first) * in_block, last - first
        return Rows(self.data, start, count, self.size, blocks, self.distance), begin - first * in_block

    def is_constant(self, begin: int, end: int) -> bool:
        """Whether every row has the first one's bytes from `begin` to `end`."""
        size = end - begin
        if size > 8:
            first = bytes(self.data[self.begin + begin : self.begin + end])
            return self.column(begin, np.dtype((np.void, size))).tobytes() == first * self.count
        # Few bytes are one word, or two that overlap.
        word_bytes = 1 << max(size.bit_length() - 1, 0)
        for at in {begin, end - word_bytes} if size else ():
            words = self.column(at, _WORDS[word_bytes])
            if not (words == words[0, 0]).all():
                return False
        return True

    def big_endian(self, at: int) -> NDArray[Any]:
        """The numbers of 64 bits in each row, which can be read and, in a bytearray, assigned to."""
        return self.column(at, _BIG_ENDIAN)

    def copy(self, size: int, at: int, to: Rows, to_at: int) -> None:
        """A column of `size` bytes, to rows in as many blocks."""
        if size:
            kind = np.dtype((np.void, size))
            to.column(to_at, kind)[:] = self.column(at, kind)

    def read_varints(self, at: int, size: int) -> Numbers | None:
        """The number behind the byte `at` of each row, if in all of them that byte is the same and a varint of `size`
        bytes follows it. Nine bytes at most."""
        word_bytes = 4 if size < 4 else 8
        if size > 7 or word_bytes > self.size:
            return self._read_long_varints(at, size)
        # That byte and the number within one word; shifted, the byte is the lowest.
        begin = min(at, self.size - word_bytes)
        words = self.column(begin, _WORDS[word_bytes]) >> 8 * (at - begin)
        # All of that byte, and of the others the bit that says whether the number goes on: in the last one it does not.
        looked_at = int.from_bytes(b"\xff" + b"\x80" * size, "little")
        before = self.data[self.begin + at]
        expected = int.from_bytes(bytes((before,)) + b"\x80" * (size - 1) + b"\0", "little")
        part = words & looked_at
        if not (part == expected).all():
            return None
        numbers = words >> 8
        numbers &= 0x7F
        for place in range(1, size):
            np.right_shift(words, 8 + place, out=part)
            part &= 0x7F << 7 * place
            numbers |= part
        return numbers.ravel().astype(np.uint64, copy=False)

    def _read_long_varints(self, at: int, size: int) -> Numbers | None:
        """The same, byte by byte."""
        if not self.is_constant(at, at + 1):
            return None
        numbers = np.zeros((self.blocks, self.count // self.blocks), np.uint64)
        for place in range(size):
            octets = self.column(at + 1 + place, _BYTE)
            if not ((octets >= 0x80) == (place < size - 1)).all():
                return None
            numbers |= (octets & 0x7F).astype(np.uint64) << np.uint64(7 * place)
        return numbers.ravel()

    def write_varints(self, numbers: Numbers, size: int, at: int) -> None:
        """Numbers whose varints all take `size` bytes, one in each row."""
        for place in range(size):
            more = 0x80 if place < size - 1 else 0
            low = (numbers >> np.uint64(7 * place)) & np.uint64(0x7F) | np.uint64(more)
            self.column(at + place, _BYTE)[:] = low


def counted(first: int, count: int) -> Numbers:
    return np.arange(first, first + count, dtype=np.uint64)
