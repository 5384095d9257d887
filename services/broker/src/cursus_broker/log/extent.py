"""What a log consists of at this moment: its segments in order, and where it begins and ends.

Pure bookkeeping on the event loop, shared by writing (`log.py`), reading (`reader.py`) and deleting (`trim.py`).
"""

from __future__ import annotations

from bisect import bisect_right

from cursus_broker.errors import OffsetOutOfRange
from cursus_broker.log.segment import Segment


class Extent:
    """The segments of a log, oldest first; the last is the active one, and there always is one."""

    def __init__(self, segments: list[Segment], earliest_offset: int) -> None:
        self.segments = segments
        self.active = segments[-1]
        self.earliest_offset = earliest_offset
        self._bases = [segment.base_offset for segment in segments]
        self._sealed_bytes = sum(segment.size_bytes for segment in segments[:-1])

    @property
    def next_offset(self) -> int:
        return self.active.next_offset

    @property
    def size_bytes(self) -> int:
        return self._sealed_bytes + self.active.size_bytes

    def require(self, offset: int) -> None:
        """Raise OffsetOutOfRange unless the offset is in the log or its end."""
        if not self.earliest_offset <= offset <= self.next_offset:
            raise OffsetOutOfRange(offset, self.earliest_offset, self.next_offset)

    def segment_of(self, offset: int) -> Segment:
        """The segment that holds the offset, which has to be in the log or its end."""
        if offset >= self.active.base_offset:
            return self.active
        return self.segments[bisect_right(self._bases, offset) - 1]

    def begin(self, segment: Segment) -> Segment:
        """Make a new segment the active one; answers the one that was."""
        assert segment.base_offset == self.next_offset
        previous, self.active = self.active, segment
        self._sealed_bytes += previous.size_bytes
        self.segments.append(segment)
        self._bases.append(segment.base_offset)
        return previous

    def move_earliest(self, before: int) -> list[Segment]:
        """Let the log begin at `before`; answers the segments that are no part of it any more."""
        self.earliest_offset = before
        count = 0
        while self.segments[count] is not self.active and self.segments[count].next_offset <= before:
            count += 1
        removed = self.segments[:count]
        del self.segments[:count], self._bases[:count]
        for segment in removed:
            segment.removed = True
            self._sealed_bytes -= segment.size_bytes
        return removed
