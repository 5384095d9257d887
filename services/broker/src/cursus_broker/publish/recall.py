"""Reading a topic's window of contents back from its logs after a restart.

Done when the first message comes that would be recognised by its content, so that a broker starts as quickly as ever
and topics without such messages cost nothing. Entries say by a flag that their content was remembered: those stored
with DEDUPLICATION_NONE, or in batches, look alike otherwise and must not suppress anything. What the log does not hold,
because power loss took it, was never there.

The headers of the window's time are walked from the newest part of it to the oldest, each part twice as long as the one
before. Where there are more headers than may be walked, the oldest parts are left out.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import structlog

from cursus_broker.errors import CursusError, OffsetOutOfRange
from cursus_broker.log.api import Entry, Log, Offset
from cursus_broker.pace import Pace
from cursus_broker.publish.dedup import ContentWindow, Fingerprint, time_of
from cursus_broker.publish.producers import BY_CONTENT
from cursus_proto.v1.records_pb2 import Record

log = structlog.get_logger(__name__)

Unpack = Callable[[bytes, int], Awaitable[Sequence[Record]]]
"""Payload and codec to records; large ones in a thread. Raises CorruptRecordSet."""

# The newest part is this fraction of the window: 28 s of 30 minutes.
_PARTS: Final = 7

# Headers that may be walked for every content a topic may remember: a topic of nothing but such messages needs one,
# and one that mixes them with batches a few more. A million headers take a few seconds.
_HEADERS_PER_CONTENT: Final = 4

# What one read hands over is unpacked and hashed in one slice.
_READ_BYTES: Final = 64 * 1024
_READ_RECORDS: Final = 128

# Steps of a slice that unpacking and hashing one record takes.
_HASH_STEPS: Final = 8


class Recall:
    """One topic's window, and what the logs know of it. Begins when somebody first waits for it."""

    def __init__(self, topic: str, window: ContentWindow, logs: Sequence[tuple[int, Log]]) -> None:
        self._topic = topic
        self._window = window
        self._logs = logs
        self._task: asyncio.Task[None] | None = None
        self._over = asyncio.get_running_loop().create_future()
        self._walked = 0

    @property
    def is_over(self) -> bool:
        return self._over.done()

    async def finish(self, now_ms: int, unpack: Unpack) -> None:
        """Wait for the end, and begin if nobody has. Whoever stops waiting leaves it to the others."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(now_ms, unpack), name=f"recall-{self._topic}")
        await asyncio.shield(self._over)

    async def cancel(self) -> None:
        """End it, for good: the topic goes, or the broker."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if not self._over.done():
            self._over.set_result(None)

    async def _run(self, now_ms: int, unpack: Unpack) -> None:
        try:
            parts = await self._read_parts(now_ms, unpack)
            pace = Pace()
            for marks in reversed(parts):
                for mark in heapq.merge(*marks, key=time_of):
                    self._window.keep(mark)
                    await pace.took()
            log.info("content.recalled", topic=self._topic, contents=len(self._window), headers=self._walked)
        finally:
            self._over.set_result(None)

    async def _read_parts(self, now_ms: int, unpack: Unpack) -> list[list[list[bytes]]]:
        """Marks in the order of their time for each partition, for each part of the window, newest first."""
        limits = self._window.limits
        ends = {partition: one.next_offset for partition, one in self._logs}
        parts: list[list[list[bytes]]] = []
        recalled = 0
        for number in reversed(range(_PARTS)):
            from_ms = now_ms - (limits.window_ms >> number) + 1
            found: list[tuple[int, Log, list[Offset]]] = []
            for partition, one in self._logs:
                begin, offsets = await self._find(partition, one, from_ms, ends[partition], now_ms)
                ends[partition] = begin
                found.append((partition, one, offsets))
            contents = sum(len(offsets) for _, _, offsets in found)
            if self._walked > limits.topic_entries * _HEADERS_PER_CONTENT:
                self._window.forgotten_early += contents
                log.warning("content.recall_cut", topic=self._topic, headers=self._walked, before_ms=from_ms)
                break
            if recalled >= limits.topic_entries:
                self._window.forgotten_early += contents
                continue
            recalled += contents
            parts.append([await self._marks(partition, one, offsets, unpack) for partition, one, offsets in found])
        return parts

    async def _find(
        self, partition: int, one: Log, from_ms: int, end: Offset, now_ms: int
    ) -> tuple[Offset, list[Offset]]:
        """Where the part begins that ends before `end`, and the offsets of the remembered records in it."""
        limit = self._window.limits.topic_entries * _HEADERS_PER_CONTENT
        # Not `from_ms`: the clock may have stepped back, and what is skipped here is looked at by no other part.
        oldest_ms = now_ms - self._window.limits.window_ms
        offsets: list[Offset] = []
        begin = end
        try:
            first = await one.find_time(from_ms)
            if first is None or first.offset >= end:
                return end, offsets
            begin = first.offset
            async for header in one.headers(begin):
                if header.base_offset >= end or self._walked > limit:
                    break
                self._walked += 1
                if header.flags & BY_CONTENT and header.append_time_ms > oldest_ms:
                    offsets.append(header.base_offset)
        except CursusError as error:
            self._failed(partition, error)
        return begin, offsets

    async def _marks(self, partition: int, one: Log, offsets: Sequence[Offset], unpack: Unpack) -> list[bytes]:
        """The marks of the records at these offsets."""
        marks: list[bytes] = []
        pace = Pace()
        at = 0
        while at < len(offsets):
            run = 1
            while run < _READ_RECORDS and at + run < len(offsets) and offsets[at + run] == offsets[at] + run:
                run += 1
            try:
                entries = await one.read(offsets[at], _READ_BYTES, run)
                marks += [await self._mark(partition, entry, unpack) for entry in entries]
                await pace.took(len(entries) * _HASH_STEPS)
            except CursusError as error:
                self._failed(partition, error)
                break
            at += len(entries)
        return marks

    async def _mark(self, partition: int, entry: Entry, unpack: Unpack) -> bytes:
        header = entry.header
        (record,) = await unpack(entry.payload, header.codec)
        return self._window.mark(Fingerprint.of(record), partition, header.base_offset, header.append_time_ms)

    def _failed(self, partition: int, error: CursusError) -> None:
        """What retention took meanwhile is no failure. Anything else is told, and the contents read so far are kept:
        a repetition may then be stored again, which is less than refusing to publish."""
        if not isinstance(error, OffsetOutOfRange):
            log.warning("content.recall_failed", topic=self._topic, partition=partition, cause=str(error))
