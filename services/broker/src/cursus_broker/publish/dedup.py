"""Recognising repeated anonymous messages by their content, within a window of time, per topic.

The message id is FNV-1a 64 of the value, as legacy clients know it. 64 bits collide, so a second hash over the whole
encoded record and its length are compared too: only an equal message is ever called a duplicate. Messages are looked up
by the second hash: equal values under different keys are different messages, and must not displace each other.

All topics share one memory, so that all of it can be bounded. What is remembered is forgotten when it falls out of the
window, or early where a bound says so: the oldest of the topic at the topic's bound, the oldest of a large topic at
the broker's. After a restart a topic's window is read back from its logs; see `publish/recall.py`.
"""

from __future__ import annotations

import random
import struct
from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import Final, NamedTuple

import xxhash

from cursus_broker.log.api import Offset
from cursus_broker.pace import Pace
from cursus_proto.partitioner import key_hash
from cursus_proto.v1.records_pb2 import Record

_MARK: Final = struct.Struct(
    ">"
    "Q"  # key: the record hash, mixed with the topic's salt
    "Q"  # message_id
    "I"  # record_bytes
    "I"  # partition
    "q"  # offset
    "q"  # time, in ms
)
_KEY: Final = struct.Struct(">Q")
_TIME: Final = struct.Struct(">q")
_TIME_AT: Final = _MARK.size - _TIME.size

# A dictionary that grows is copied in one step, 15 ms for 250,000 entries. Divided, no step is longer than a fraction
# of a millisecond.
_SHARDS: Final = 256

# Sizes of windows in powers of two: a window of n marks is in class n.bit_length().
_SIZE_CLASSES: Final = 64


class Fingerprint(NamedTuple):
    """What a message is known again by."""

    message_id: int
    record_hash: int
    record_bytes: int

    @classmethod
    def of(cls, record: Record) -> Fingerprint:
        """The same for equal records, however their set was packed or compressed."""
        encoded = record.SerializeToString(deterministic=True)
        return cls(key_hash(record.value), xxhash.xxh3_64_intdigest(encoded), len(encoded))


class Remembered(NamedTuple):
    """Where the first copy of a message lies."""

    partition: int
    offset: Offset
    time_ms: int


@dataclass(frozen=True, slots=True)
class ContentLimits:
    """How long contents are remembered, and how many of them."""

    window_ms: int
    topic_entries: int
    total_entries: int


class ContentMemory:
    """The contents all topics remember. A content is one packed mark: with its key and two references, 170 to 210
    bytes, less than half of what objects take, and nothing the garbage collector has to follow.
    """

    def __init__(self, limits: ContentLimits) -> None:
        self.limits = limits
        self.total = 0
        """Marks of all windows."""
        self.shards: list[dict[int, bytes]] = [{} for _ in range(_SHARDS)]
        # Windows that hold anything, by the class of their size, so that a large one is found without a search.
        self._classes: list[OrderedDict[ContentWindow, None]] = [OrderedDict() for _ in range(_SIZE_CLASSES)]
        self._occupied = 0  # bit i is set while class i has windows

    def open(self) -> ContentWindow:
        """A window for a topic, empty."""
        return ContentWindow(self)

    async def clean(self, now_ms: int, pace: Pace) -> int:
        """Forget what fell out of the window. Answers how many contents went."""
        forgotten = 0
        for window in [window for windows in self._classes for window in windows]:
            await pace.took()
            while taken := window.clean(now_ms, pace.left):
                forgotten += taken
                await pace.took(taken)
        return forgotten

    async def drop(self, window: ContentWindow, pace: Pace) -> None:
        """Forget a window whose topic is gone."""
        while taken := window.drain(pace.left):
            await pace.took(taken)

    def make_room(self, now_ms: int) -> None:
        """Let a large window forget its oldest content if the memory holds too many. Windows whose sizes have the same
        power of two take turns."""
        if self.total > self.limits.total_entries:
            size_class = self._classes[self._occupied.bit_length() - 1]
            window = next(iter(size_class))
            size_class.move_to_end(window)
            window.forget_oldest(now_ms)

    def resized(self, window: ContentWindow, before: int, after: int) -> None:
        """Note that a window holds another number of marks."""
        self.total += after - before
        old_class, new_class = before.bit_length(), after.bit_length()
        if old_class == new_class:
            return
        if before:
            del self._classes[old_class][window]
            if not self._classes[old_class]:
                self._occupied &= ~(1 << old_class)
        if after:
            self._classes[new_class][window] = None
            self._occupied |= 1 << new_class


class ContentWindow:
    """The contents of one topic within the last `window_ms`."""

    __slots__ = ("_marks", "_memory", "_salt", "forgotten_early")

    def __init__(self, memory: ContentMemory) -> None:
        self._memory = memory
        # Equal contents of two topics must not meet in the shared memory.
        self._salt = random.getrandbits(64)
        # Oldest first. A mark that was displaced in the memory by a newer one of the same key stays here until its
        # time, and is then nothing to forget.
        self._marks: deque[bytes] = deque()
        self.forgotten_early = 0

    def __len__(self) -> int:
        return len(self._marks)

    @property
    def limits(self) -> ContentLimits:
        return self._memory.limits

    def find(self, fingerprint: Fingerprint, now_ms: int) -> Remembered | None:
        """The first copy, if there is one within the window."""
        key = fingerprint.record_hash ^ self._salt
        mark = self._memory.shards[key % _SHARDS].get(key)
        if mark is None:
            return None
        _, message_id, record_bytes, partition, offset, time_ms = _MARK.unpack(mark)
        same = message_id == fingerprint.message_id and record_bytes == fingerprint.record_bytes
        if not same or time_ms <= now_ms - self.limits.window_ms:
            return None
        return Remembered(partition, Offset(offset), time_ms)

    def remember(self, fingerprint: Fingerprint, partition: int, offset: Offset, now_ms: int) -> None:
        """Note a message that was stored. Not before: a failed attempt must not suppress its retry."""
        self.keep(self.mark(fingerprint, partition, offset, now_ms))

    def mark(self, fingerprint: Fingerprint, partition: int, offset: Offset, time_ms: int) -> bytes:
        """What `keep` takes: a message that may be remembered later, in the order of time."""
        key = fingerprint.record_hash ^ self._salt
        return _MARK.pack(key, fingerprint.message_id, fingerprint.record_bytes, partition, offset, time_ms)

    def keep(self, mark: bytes) -> None:
        """Remember a mark that is not older than those kept before."""
        (key,) = _KEY.unpack_from(mark)
        now_ms = time_of(mark)
        shard = self._memory.shards[key % _SHARDS]
        displaced = shard.get(key)
        if displaced is not None and not _same_content(displaced, mark) and self._is_early(displaced, now_ms):
            self.forgotten_early += 1
        shard[key] = mark
        size = len(self._marks)
        self._marks.append(mark)
        self._memory.resized(self, size, size + 1)
        if size >= self.limits.topic_entries:
            self.forget_oldest(now_ms)
        else:
            self._memory.make_room(now_ms)

    def clean(self, now_ms: int, most: int) -> int:
        """Forget at most so many of those that fell out of the window. Answers how many went."""
        until_ms = now_ms - self.limits.window_ms
        marks, size = self._marks, len(self._marks)
        forgotten = 0
        while marks and forgotten < most and time_of(marks[0]) <= until_ms:
            self._release(marks.popleft())
            forgotten += 1
        self._memory.resized(self, size, size - forgotten)
        return forgotten

    def drain(self, most: int) -> int:
        """Forget at most so many of all. Answers how many went."""
        size = len(self._marks)
        forgotten = min(size, most)
        for _ in range(forgotten):
            self._release(self._marks.popleft())
        self._memory.resized(self, size, size - forgotten)
        return forgotten

    def forget_oldest(self, now_ms: int) -> None:
        """Forget the oldest content at a bound, and count it if its time was not over."""
        size = len(self._marks)
        mark = self._marks.popleft()
        if self._release(mark) and self._is_early(mark, now_ms):
            self.forgotten_early += 1
        self._memory.resized(self, size, size - 1)

    def _is_early(self, mark: bytes, now_ms: int) -> bool:
        return time_of(mark) > now_ms - self.limits.window_ms

    def _release(self, mark: bytes) -> bool:
        """Take a mark out of the memory. False if a newer one is there instead."""
        (key,) = _KEY.unpack_from(mark)
        shard = self._memory.shards[key % _SHARDS]
        if shard.get(key) is not mark:
            return False
        del shard[key]
        if not shard:
            shard.clear()  # A dictionary gives back no room while it only loses entries.
        return True


def time_of(mark: bytes) -> int:
    """When the message was stored."""
    time_ms: int = _TIME.unpack_from(mark, _TIME_AT)[0]
    return time_ms


def _same_content(one: bytes, other: bytes) -> bool:
    return _MARK.unpack(one)[:3] == _MARK.unpack(other)[:3]
