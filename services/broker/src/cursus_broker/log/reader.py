"""Reading a log: on the event loop if the bytes are in memory, otherwise in a thread."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Final, TypeVar

from cursus_broker.errors import OffsetOutOfRange, PartitionDamaged, storage_failure
from cursus_broker.log.api import Entry, EntryHeader, Offset, TimedOffset
from cursus_broker.log.damage import Damages
from cursus_broker.log.extent import Extent
from cursus_broker.log.resources import Resources
from cursus_broker.log.segment import Place, Segment

T = TypeVar("T")

_MAX_HINTS: Final = 64
"""Readers of one log that go on where they stopped without a search. More readers than this search the index."""

_HEADERS_AT_ONCE: Final = 512


class LogReader:
    """The reading half of a log; see `api.Log` for what the methods promise."""

    def __init__(self, resources: Resources, extent: Extent, executor: Executor, damages: Damages) -> None:
        self._resources = resources
        self._damages = damages
        self._extent = extent
        self._executor = executor
        self._loop = asyncio.get_running_loop()
        # Where the reader that stopped at an offset goes on.
        self._hints: OrderedDict[int, tuple[Segment, int]] = OrderedDict()

    async def read(self, offset: int, max_bytes: int, max_records: int) -> Sequence[Entry]:
        self._extent.require(offset)
        if offset == self._extent.next_offset:
            return ()
        segment = self._extent.segment_of(offset)
        hint = self._hint(segment, offset)
        start = hint or self._place_of(segment, offset)
        taken = None if start is None else segment.read_cached(self._resources, start, offset, max_bytes, max_records)
        if taken is None:
            # Only a hint is known to be right. What an index says is looked up again, and checked, in the thread.
            sequential = hint is not None and segment is not self._extent.active
            work = partial(
                segment.read, self._resources, hint, offset, max_bytes, max_records, segment.size_bytes, sequential
            )
            taken = await self._in_thread(offset, segment, work)
        self._remember(taken.next_offset, segment, taken.position)
        return taken.entries

    async def headers(self, offset: int) -> AsyncIterator[EntryHeader]:
        self._extent.require(offset)
        while offset < self._extent.next_offset:
            if offset < self._extent.earliest_offset:  # trimmed while the caller was busy
                raise OffsetOutOfRange(offset, self._extent.earliest_offset, self._extent.next_offset)
            segment = self._extent.segment_of(offset)
            hint = self._hint(segment, offset)
            work = partial(segment.read_headers, self._resources, hint, offset, segment.size_bytes, _HEADERS_AT_ONCE)
            found, place = await self._in_thread(offset, segment, work)
            self._remember(place.offset, segment, place.position)
            offset = place.offset
            for header in found:
                yield header

    async def header_at(self, offset: int) -> EntryHeader | None:
        self._extent.require(offset)
        if offset == self._extent.next_offset:
            return None
        segment = self._extent.segment_of(offset)
        hint = self._hint(segment, offset)
        work = partial(segment.read_headers, self._resources, hint, offset, segment.size_bytes, 1)
        found, _ = await self._in_thread(offset, segment, work)
        return found[0]

    async def find_time(self, time_ms: int) -> TimedOffset | None:
        extent = self._extent
        for segment in tuple(extent.segments):
            if segment.max_append_ms < time_ms or segment.next_offset <= extent.earliest_offset or segment.removed:
                continue
            earliest = extent.earliest_offset
            work = partial(segment.find_time, self._resources, time_ms, earliest, segment.size_bytes)
            try:
                header = await self._in_thread(earliest, segment, work)
            except OffsetOutOfRange:
                continue  # trimmed meanwhile
            if header is not None:
                return TimedOffset(Offset(max(header.base_offset, earliest)), header.append_time_ms)
        return None

    def forget_removed(self) -> None:
        """Drop what is remembered of segments that were removed."""
        for offset in [offset for offset, (segment, _) in self._hints.items() if segment.removed]:
            del self._hints[offset]

    def _hint(self, segment: Segment, offset: int) -> Place | None:
        hint = self._hints.get(offset)
        return Place(offset, hint[1]) if hint is not None and hint[0] is segment else None

    def _place_of(self, segment: Segment, offset: int) -> Place | None:
        index = segment.cached_index(self._resources)
        return None if index is None else Place(*index.find_offset(offset))

    def _remember(self, offset: int, segment: Segment, position: int) -> None:
        if segment.removed:
            return
        self._hints[offset] = (segment, position)
        if len(self._hints) > _MAX_HINTS:
            self._hints.popitem(last=False)

    async def _in_thread(self, offset: int, segment: Segment, work: Callable[[], T]) -> T:
        """Run a read in a thread and translate its failures."""
        try:
            return await self._loop.run_in_executor(self._executor, work)
        except PartitionDamaged as damage:
            if not segment.removed:
                self._damages.note(damage, "reader")
            raise
        except OSError as error:
            if segment.removed:
                raise OffsetOutOfRange(offset, self._extent.earliest_offset, self._extent.next_offset) from error
            if isinstance(error, FileNotFoundError):
                missing = PartitionDamaged(segment.path, 0, "the file is missing")
                self._damages.note(missing, "reader")
                raise missing from error
            raise storage_failure("cannot read", error) from error
