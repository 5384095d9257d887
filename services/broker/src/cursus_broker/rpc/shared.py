"""Responses that several readers get: encoded once for all who read the same entries at the same time."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from cursus_broker.log.api import Entry
from cursus_broker.topics.partition import Partition

MOST_BYTES: Final = 4 * 1024 * 1024
"""What is kept of all partitions together."""

MOST_RESPONSES: Final = 1_024

_LARGEST_SHARE: Final = 4
"""A response that takes more than this part of the room is not kept: it would drive out all others."""


class _Kept(NamedTuple):
    first: Entry
    last: Entry
    entries: int
    message: bytes

    def is_of(self, entries: Sequence[Entry]) -> bool:
        """Whether these are the same objects: a topic that was created anew has others at the same offsets."""
        return self.first is entries[0] and self.last is entries[-1] and self.entries == len(entries)


class SharedResponses:
    """The latest response of each partition that reaches the end of its log. Those who follow the log ask for the same
    entries again and again; who reads history is alone with what it reads, and nothing is kept of it.
    """

    def __init__(
        self,
        encode: Callable[[Partition, Sequence[Entry]], bytes],
        most_bytes: int = MOST_BYTES,
        most_responses: int = MOST_RESPONSES,
    ) -> None:
        self._encode = encode
        self._most_bytes = most_bytes
        self._most_responses = most_responses
        self._kept: OrderedDict[tuple[str, int], _Kept] = OrderedDict()
        self.kept_bytes = 0
        self.encodings = 0
        """How often a response was encoded."""

    def __len__(self) -> int:
        return len(self._kept)

    def of(self, partition: Partition, entries: Sequence[Entry]) -> bytes:
        """The response with these entries, of which there has to be at least one."""
        at_end = entries[-1].header.next_offset == partition.next_offset
        place = (partition.topic, partition.id)
        kept = self._kept.get(place) if at_end else None
        if kept is not None and kept.is_of(entries):
            return kept.message
        message = self._encode(partition, entries)
        self.encodings += 1
        if at_end and len(message) * _LARGEST_SHARE <= self._most_bytes:
            self._keep(place, _Kept(entries[0], entries[-1], len(entries), message))
        return message

    def _keep(self, place: tuple[str, int], kept: _Kept) -> None:
        if (older := self._kept.pop(place, None)) is not None:
            self.kept_bytes -= len(older.message)
        self._kept[place] = kept
        self.kept_bytes += len(kept.message)
        while self.kept_bytes > self._most_bytes or len(self._kept) > self._most_responses:
            _, oldest = self._kept.popitem(last=False)
            self.kept_bytes -= len(oldest.message)
