"""Recognising repeated anonymous messages by their content, within a window of time, per topic.

The message id is FNV-1a 64 of the value, as legacy clients know it. 64 bits collide, so a second hash over the whole
encoded record and its length are compared too: only an equal message is ever called a duplicate. The window lives in
memory; it does not survive a restart.
"""

from __future__ import annotations

from dataclasses import dataclass

import xxhash

from cursus_broker.log.api import Offset
from cursus_proto.partitioner import key_hash


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What a message is known again by."""

    message_id: int
    record_hash: int
    record_bytes: int

    @classmethod
    def of(cls, value: bytes, encoded_record: bytes) -> Fingerprint:
        return cls(key_hash(value), xxhash.xxh3_64_intdigest(encoded_record), len(encoded_record))


@dataclass(frozen=True, slots=True)
class Remembered:
    """Where the first copy of a message lies."""

    fingerprint: Fingerprint
    partition: int
    offset: Offset
    time_ms: int


class ContentWindow:
    """The messages of one topic within the last `window_ms`, at most `max_entries` of them."""

    def __init__(self, window_ms: int, max_entries: int) -> None:
        self._window_ms = window_ms
        self._max_entries = max_entries
        # In order of time: a message is remembered anew only after it was forgotten or displaced.
        self._entries: dict[int, Remembered] = {}
        self.evicted_early = 0

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, fingerprint: Fingerprint, now_ms: int) -> Remembered | None:
        """The first copy, if there is one within the window."""
        entry = self._entries.get(fingerprint.message_id)
        if entry is None or entry.fingerprint != fingerprint or entry.time_ms <= now_ms - self._window_ms:
            return None
        return entry

    def remember(self, fingerprint: Fingerprint, partition: int, offset: Offset, now_ms: int) -> None:
        """Note a message that was stored. Not before: a failed attempt must not suppress its retry."""
        self._entries.pop(fingerprint.message_id, None)
        self._entries[fingerprint.message_id] = Remembered(fingerprint, partition, offset, now_ms)
        if len(self._entries) > self._max_entries:
            del self._entries[next(iter(self._entries))]
            self.evicted_early += 1

    def clean(self, now_ms: int) -> int:
        """Forget what fell out of the window. Answers how many entries went."""
        forgotten = 0
        while self._entries:
            message_id, entry = next(iter(self._entries.items()))
            if entry.time_ms > now_ms - self._window_ms:
                break
            del self._entries[message_id]
            forgotten += 1
        return forgotten
