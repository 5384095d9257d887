"""Partitions being read, and what was received and not handed out yet.

An `Inbox` holds what the streams bring until the application asks for it: events, which come first, and chunks of
batches. What it can hold is bounded by the credit the streams were granted; a chunk gives its credit back when it is
handed out.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from cursus_grpc._records import Record, next_offset, unpack
from cursus_grpc._retry import Deadline
from cursus_grpc.errors import CursusError
from cursus_grpc.types import TopicPartition
from cursus_proto.internal.v1.opaque_pb2 import RecordBatch

UNKNOWN: Final = -1


class Reading:
    """A partition that the consumer reads. `safe <= position <= fetched`, once they are known."""

    __slots__ = ("committed", "fetched", "gone", "paused", "place", "position", "safe", "version")

    def __init__(self, place: TopicPartition, offset: int = UNKNOWN) -> None:
        self.place = place
        self.fetched = offset
        """The next offset to receive; UNKNOWN until the broker has resolved where the reading starts."""
        self.position = offset
        """The next offset to hand out."""
        self.safe = offset
        """Everything below was handed out and, since the application came back for more, processed."""
        self.committed = UNKNOWN
        self.paused = False
        self.gone = False
        """Not assigned any more."""
        self.version = 0
        """Counts jumps: what was received before a jump is not handed out after it."""

    def start_at(self, offset: int) -> None:
        """The broker has resolved where the reading starts."""
        self.fetched = self.position = self.safe = offset

    def jump(self, offset: int = UNKNOWN) -> None:
        """Go on elsewhere; what was received is void."""
        self.version += 1
        self.start_at(offset)


class CreditSource(Protocol):
    """A stream that was granted credit."""

    def give_back(self, size: int) -> None:
        """This many bytes that it sent are not held any more."""


@dataclass(slots=True)
class Chunk:
    """Batches of one partition as they came together."""

    reading: Reading
    batches: deque[RecordBatch]
    size: int
    source: CreditSource
    version: int = field(init=False)

    def __post_init__(self) -> None:
        self.version = self.reading.version

    @property
    def void(self) -> bool:
        return self.reading.gone or self.version != self.reading.version


@dataclass(frozen=True, slots=True)
class Failure:
    """Something the application has to be told by an exception."""

    error: CursusError


@dataclass(frozen=True, slots=True)
class Rebalance:
    """A change of what a group member owns."""

    generation: int
    stream: int
    """Which stream told it: an acknowledgement belongs there."""
    revoked: Sequence[Reading]
    lost: Sequence[Reading]
    """Taken away without asking: somebody else may own them already."""
    assigned: Sequence[Reading]


Event = Failure | Rebalance


class Inbox:
    """Lives on one event loop. `attention` may be read from any thread."""

    def __init__(self) -> None:
        self.attention = False
        """True when whoever hands out records should stop and come back: an event waits, or a partition was paused,
        moved or taken away."""
        self._events: deque[Event] = deque()
        self._chunks: deque[Chunk] = deque()
        self._arrived = asyncio.Event()

    def put_event(self, event: Event) -> None:
        self._events.append(event)
        self.attention = True
        self._arrived.set()

    def put(self, chunk: Chunk) -> None:
        self._chunks.append(chunk)
        self._arrived.set()

    def put_back(self, chunk: Chunk) -> None:
        """The rest of a chunk that was being handed out."""
        self._chunks.appendleft(chunk)
        self._arrived.set()

    def look_again(self) -> None:
        """A partition was paused, resumed or moved."""
        self.attention = True
        self._arrived.set()

    async def take(self, deadline: Deadline, ended: asyncio.Event | None = None) -> Event | Chunk | None:
        """The next event or, if there is none, chunk that may be handed out. None at the deadline, or when the inbox is
        empty and `ended`."""
        while True:
            self.attention = False
            if self._events:
                return self._events.popleft()
            if (chunk := self.take_chunk()) is not None:
                return chunk
            if ended is not None and ended.is_set():
                return None
            self._arrived.clear()
            try:
                async with asyncio.timeout(deadline.left_s()):
                    await self._arrived.wait()
            except TimeoutError:
                return None

    def take_chunk(self) -> Chunk | None:
        """The next chunk that may be handed out, if it is there already."""
        waiting = deque[Chunk]()
        found = None
        while self._chunks and found is None:
            chunk = self._chunks.popleft()
            if chunk.void:
                chunk.source.give_back(chunk.size)
            elif chunk.reading.paused:
                waiting.append(chunk)
            else:
                found = chunk
        self._chunks.extendleft(reversed(waiting))
        if found is not None:
            found.source.give_back(found.size)
            found.size = 0
        return found

    def drop_void(self) -> None:
        """Let go of what will not be handed out."""
        for _ in range(len(self._chunks)):
            chunk = self._chunks.popleft()
            if chunk.void:
                chunk.source.give_back(chunk.size)
            else:
                self._chunks.append(chunk)


def hand_out(chunk: Chunk, inbox: Inbox) -> Iterator[Record]:
    """The records of a chunk, one by one. A record counts as processed when the next one is asked for.

    Stops early if something needs attention; call `unfinished` afterwards. Raises CorruptBatch.
    """
    reading, batches = chunk.reading, chunk.batches
    while batches and not chunk.void:
        batch = batches[0]
        messages, info, offset = unpack(batch, reading.place, reading.position)
        for message in messages:
            record = Record(message, info, offset)
            reading.safe = offset
            offset += 1
            reading.position = offset
            yield record
            if inbox.attention:
                return
        reading.safe = reading.position = max(reading.position, next_offset(batch))
        batches.popleft()


def take_batch(chunk: Chunk, max_records: int) -> list[Record]:
    """Up to `max_records` records of a chunk at once. What they leave of it is unfinished."""
    reading, batches = chunk.reading, chunk.batches
    taken: list[Record] = []
    while batches and len(taken) < max_records and not chunk.void:
        batch = batches[0]
        records = unpack(batch, reading.place, reading.position).records()
        room = max_records - len(taken)
        taken += records[:room]
        if room < len(records):
            reading.position = records[room].offset
        else:
            reading.position = max(reading.position, next_offset(batch))
            batches.popleft()
    return taken


def unfinished(chunk: Chunk) -> bool:
    """Whether a chunk has more to hand out."""
    return bool(chunk.batches) and not chunk.void
