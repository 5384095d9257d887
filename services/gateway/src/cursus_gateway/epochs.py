"""The leader epochs a connection has read in: legacy requests carry none, but what a client asks for next on the same
connection mostly follows from what it was sent, and then a cut of the log in between can be noticed.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, NamedTuple

_MAX_PARTITIONS: Final = 1_000


class ReadUpTo(NamedTuple):
    """How far somebody has read, and in which epoch, if that is known."""

    next_offset: int
    epoch: int | None = None


class ReadEpochs:
    """How far the client of one connection was sent each partition, and in which epoch."""

    def __init__(self) -> None:
        self._sent: OrderedDict[tuple[str, int], ReadUpTo] = OrderedDict()

    def note(self, topic: str, partition: int, next_offset: int, epoch: int) -> None:
        """The client was sent everything it wanted below `next_offset`."""
        self._sent[topic, partition] = ReadUpTo(next_offset, epoch)
        self._sent.move_to_end((topic, partition))
        if len(self._sent) > _MAX_PARTITIONS:
            self._sent.popitem(last=False)

    def forget(self, topic: str, partition: int) -> None:
        """The client has been told that the log was cut: what it asks for now is its new choice."""
        self._sent.pop((topic, partition), None)

    def reading_on(self, topic: str, partition: int, offset: int) -> int | None:
        """The epoch, if a request for this offset goes on where the client is. Any other may be from elsewhere."""
        sent = self._sent.get((topic, partition))
        return sent.epoch if sent is not None and offset == sent.next_offset else None

    def processed(self, topic: str, partition: int, offset: int) -> ReadUpTo:
        """The offset with its epoch, if the client was sent what it says to have processed."""
        sent = self._sent.get((topic, partition))
        return ReadUpTo(offset, sent.epoch if sent is not None and offset <= sent.next_offset else None)
