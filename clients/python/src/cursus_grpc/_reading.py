"""Partitions being read, and what was received and not handed out yet.

An `Inbox` holds what the streams bring until the application asks for it: events, which come first, and chunks of
batches. What it can hold is bounded by the credit the streams were granted; a chunk gives its credit back when it is
handed out.

The streams fill it on the client's event loop. Records are handed out on the application's thread, which may be
another one, and there nothing but the making of a record happens for each of them: how far the application is can be
seen from outside, and it is stopped from outside.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import length_hint
from typing import Any, Final, Protocol

from cursus_grpc._records import Deserializers, Record, Unpacked, make_records, next_offset, unpack
from cursus_grpc.errors import ClientError, CursusError
from cursus_grpc.types import OffsetAndMetadata, TopicPartition
from cursus_proto.bounds import Bounds
from cursus_proto.internal.v1.opaque_pb2 import RecordBatch

UNKNOWN: Final = -1


class Hand:
    """Records of one batch that are being handed out. Any thread may ask how far that is, and stop it."""

    __slots__ = ("_values", "end", "offsets", "start")

    def __init__(self, unpacked: Unpacked) -> None:
        self.start, self.end = unpacked.offsets.start, unpacked.offsets.stop
        self.offsets = iter(unpacked.offsets)
        self._values = unpacked.values

    @property
    def position(self) -> int:
        """The next offset to hand out."""
        return self.end - length_hint(self.offsets)

    @property
    def safe(self) -> int:
        """Everything below was processed: all that was handed out but the last one."""
        return max(self.start, self.position - 1)

    def stop(self) -> None:
        """Hand out nothing more. Whoever walks through the values meets their end."""
        self._values.clear()


class Reading:
    """A partition that the consumer reads. `safe <= position <= fetched`, once they are known, and all of them stand in
    the leader epoch `epoch`."""

    __slots__ = (
        "_epoch_before_cut",
        "_hand",
        "_lock",
        "_position",
        "_safe",
        "committed",
        "end_offset",
        "epoch",
        "fetched",
        "gone",
        "lost",
        "paused",
        "place",
        "version",
    )

    def __init__(self, place: TopicPartition, offset: int = UNKNOWN, epoch: int | None = None) -> None:
        self.place = place
        self.epoch = epoch
        """None until the broker has told it."""
        self.fetched = offset
        """The next offset to receive; UNKNOWN until the broker has resolved where the reading starts."""
        self.committed = UNKNOWN
        """What need not be committed again: it is, or it never can be."""
        self.end_offset: int | None = None
        """Of the log, as the last response told; None: none came yet."""
        self.paused = False
        self.gone = False
        """Not assigned any more."""
        self.lost = False
        """Taken away before the application let go: somebody else may own it already."""
        self.version = 0
        """Counts jumps and cuts: what was received before one is not handed out after it."""
        self._epoch_before_cut: int | None = None
        self._position = offset
        self._safe = offset
        self._hand: Hand | None = None
        self._lock = threading.Lock()

    @property
    def position(self) -> int:
        """The next offset to hand out."""
        hand = self._hand
        return self._position if hand is None else hand.position

    @property
    def safe(self) -> int:
        """Everything below was handed out and, since the application came back for more, processed."""
        hand = self._hand
        return self._safe if hand is None else hand.safe

    def handed_out(self) -> OffsetAndMetadata:
        """The position as it may be committed, with the epoch it stands in."""
        with self._lock:
            return OffsetAndMetadata(self.position, leader_epoch=self.epoch)

    def processed(self) -> OffsetAndMetadata:
        """What is safe to commit, with the epoch it stands in."""
        with self._lock:
            return OffsetAndMetadata(self.safe, leader_epoch=self.epoch)

    def epoch_of(self, offset: int) -> int | None:
        """The epoch in which the application came to an offset that it names itself. One that it has not come to since
        the log was cut is from before the cut."""
        with self._lock:
            if self._epoch_before_cut is not None and offset > self.position:
                return self._epoch_before_cut
            return self.epoch

    def start_at(self, offset: int) -> None:
        """The broker has resolved where the reading starts. What is being handed out meanwhile goes on."""
        with self._lock:
            self.fetched = offset
            if self._hand is None:
                self._position = self._safe = offset

    def jump(self, offset: int = UNKNOWN, epoch: int | None = None) -> None:
        """Go on elsewhere; what was received is void."""
        with self._lock:
            self.version += 1
            self.fetched = self._position = self._safe = offset
            self.epoch = epoch
            self._let_go()

    def cut(self, offset: int, epoch: int) -> int:
        """The log was cut at `offset`. Go on from there or, where the application has not come that far, from where it
        is: what was received and not handed out is void, also below the cut, since it can be read again. Answers where
        the application was."""
        with self._lock:
            if self._hand is not None:
                # First of all: the application may be taking records on its own thread, and each one counts.
                self._hand.stop()
            position, safe = self.position, self.safe
            self._let_go()
            self.version += 1
            self._epoch_before_cut, self.epoch = self.epoch, epoch
            self.committed = UNKNOWN
            self.fetched = self._position = min(position, offset)
            self._safe = min(safe, offset)
            return position

    def take_in_hand(self, hand: Hand, version: int) -> bool:
        """Follow what is handed out. False if the reading has jumped since that version."""
        with self._lock:
            if self.version == version:
                self._hand = hand
            return self.version == version

    def put_down(self, hand: Hand) -> bool:
        """The application came back for more after the last record. False if the reading does not follow this hand any
        more."""
        with self._lock:
            is_followed = self._hand is hand
            if is_followed:
                self._position = self._safe = hand.position
                self._let_go()
            return is_followed

    def advance(self, position: int, version: int) -> bool:
        """Everything before is handed out at once. Nothing of it is processed yet. False if the reading has jumped
        since that version: then it must not be handed out."""
        with self._lock:
            if self.version == version:
                self._position = position
                self._let_go()
            return self.version == version

    def stop(self) -> None:
        """Hand out nothing more of what is being handed out."""
        with self._lock:
            self._position, self._safe = self.position, self.safe
            self._let_go()

    def settle(self) -> None:
        """Everything that was handed out is processed."""
        with self._lock:
            self._safe = self._position = self.position
            self._let_go()

    def _let_go(self) -> None:
        hand, self._hand = self._hand, None
        if hand is not None:
            hand.stop()


class CreditSource(Protocol):
    """A stream that was granted credit."""

    def give_back(self, size: int) -> None:
        """This many bytes that it sent are not held any more. For any thread."""


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
    gone: Sequence[Reading]
    """What it owns no more."""
    assigned: Sequence[Reading]

    @property
    def revoked(self) -> list[Reading]:
        """Of what is gone, that which it may still finish: nobody else gets it before it is let go."""
        return [reading for reading in self.gone if not reading.lost]

    @property
    def lost(self) -> list[Reading]:
        """Of what is gone, that which was taken away. More may come, as long as the member does not let go."""
        return [reading for reading in self.gone if reading.lost]


@dataclass(frozen=True, slots=True)
class Truncated:
    """The log was cut below what the application, or its group, had read."""

    reading: Reading
    position: int
    """Where it was."""
    offset: int
    """Where it goes on."""


Event = Failure | Rebalance | Truncated


class Signal(Protocol):
    """Wakes whoever waits for the inbox: an event of asyncio or of threading, as the application waits."""

    def set(self) -> None: ...

    def clear(self) -> None: ...


class Inbox:
    """Filled on one event loop. What it holds may be taken by another thread, if the signal is for threads."""

    def __init__(self, arrived: Signal, within: Bounds, deserializers: Deserializers | None = None) -> None:
        """`within` bounds what a batch may unpack to when it is handed out."""
        self.within = within
        self.deserializers = deserializers
        self.attention = False
        """True when whoever hands out records should stop and come back: an event waits, or a partition was paused,
        moved or taken away."""
        self.records_received = self.bytes_received = 0
        self._arrived = arrived
        self._events: deque[Event] = deque()
        self._chunks: deque[Chunk] = deque()
        self._hand: Hand | None = None
        self._lock = threading.Lock()

    def put_event(self, event: Event) -> None:
        with self._lock:
            self._events.append(event)
        self.look_again()

    def tell_trouble(self, error: CursusError) -> None:
        """Something that goes on, and is tried again: told once to an application that does not ask for records."""
        with self._lock:
            if any(isinstance(event, Failure) for event in self._events):
                return
            self._events.append(Failure(error))
        self.look_again()

    def put(self, chunk: Chunk) -> None:
        self.records_received += sum(batch.record_count for batch in chunk.batches)
        self.bytes_received += chunk.size
        with self._lock:
            self._chunks.append(chunk)
        self._arrived.set()

    def put_back(self, chunk: Chunk) -> None:
        """The rest of a chunk that was being handed out."""
        with self._lock:
            self._chunks.appendleft(chunk)

    def look_again(self) -> None:
        """Something needs attention."""
        self.attention = True
        # Looked at afterwards, while `watch` looks at the attention afterwards: one of the two sees the other.
        if (hand := self._hand) is not None:
            hand.stop()
        self._arrived.set()

    def watch(self, hand: Hand) -> None:
        """Stop this one, instead of those before, as soon as something needs attention."""
        self._hand = hand
        if self.attention:
            hand.stop()

    def take(self) -> Event | Chunk | None:
        """The next event or, if there is none, chunk that may be handed out. None if nothing is there: then wait for
        the signal."""
        with self._lock:
            self._arrived.clear()
            self.attention = False
            return self._events.popleft() if self._events else self._take_chunk()

    def take_chunk(self) -> Chunk | None:
        """The next chunk that may be handed out, if it is there already and nothing needs attention."""
        with self._lock:
            return None if self.attention else self._take_chunk()

    def _take_chunk(self) -> Chunk | None:
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

    def bytes_held(self) -> int:
        with self._lock:
            return sum(chunk.size for chunk in self._chunks)

    def forget(self) -> None:
        """Let go of everything, told and received."""
        with self._lock:
            self._events.clear()
            chunks, self._chunks = self._chunks, deque()
        for chunk in chunks:
            chunk.source.give_back(chunk.size)
        self.look_again()

    def drop_void(self) -> None:
        """Let go of what will not be handed out."""
        with self._lock:
            for _ in range(len(self._chunks)):
                chunk = self._chunks.popleft()
                if chunk.void:
                    chunk.source.give_back(chunk.size)
                else:
                    self._chunks.append(chunk)


def hand_out(chunk: Chunk, inbox: Inbox, end_offset: int | None = None) -> Iterator[Record[Any, Any]]:
    """The records of a chunk, up to `end_offset`, one by one. A record counts as processed when the next one is asked
    for.

    Stops early if something needs attention; call `unfinished` afterwards. Raises CorruptBatch, BatchTooLarge.
    """
    # One after the other in C: a generator around each batch's generator would cost as much as a record's making.
    return chain.from_iterable(_hands(chunk, inbox, end_offset))


def _hands(chunk: Chunk, inbox: Inbox, end_offset: int | None) -> Iterator[Iterator[Record[Any, Any]]]:
    reading, batches = chunk.reading, chunk.batches
    while batches and not chunk.void and not inbox.attention:
        unpacked = unpack(batches[0], reading.place, reading.position, inbox.within, inbox.deserializers)
        if end_offset is not None:
            unpacked = unpacked.until(end_offset)
        hand = Hand(unpacked)
        if not reading.take_in_hand(hand, chunk.version):
            return
        inbox.watch(hand)
        yield make_records(unpacked.values, hand.offsets, unpacked.batch)
        if not reading.put_down(hand) or hand.position < hand.end:
            return
        batches.popleft()
        if end_offset is not None and hand.end >= end_offset:
            batches.clear()


def take_batch(chunk: Chunk, inbox: Inbox, taken: list[Record[Any, Any]], max_records: int) -> None:
    """Add records of a chunk to those that were taken, up to `max_records`, all at once. What is not taken is
    unfinished. Raises CorruptBatch, BatchTooLarge, but only if nothing was taken: what was must not be lost."""
    reading, batches = chunk.reading, chunk.batches
    while batches and len(taken) < max_records and not chunk.void:
        batch = batches[0]
        try:
            records = unpack(batch, reading.place, reading.position, inbox.within, inbox.deserializers).records()
        except ClientError:
            if taken:
                return
            raise
        room = max_records - len(taken)
        is_rest = room < len(records)
        after = records[room].offset if is_rest else max(reading.position, next_offset(batch))
        if not reading.advance(after, chunk.version):
            break
        taken += records[:room]
        if not is_rest:
            batches.popleft()


def unfinished(chunk: Chunk) -> bool:
    """Whether a chunk has more to hand out."""
    return bool(chunk.batches) and not chunk.void
