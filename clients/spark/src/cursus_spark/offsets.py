"""Where a stream is, as it stands in Spark's checkpoint, and the ranges that tasks read.

A checkpointed offset is the JSON that users of Spark's Kafka source know, `{"orders": {"0": 23, "1": 5}}`, with what
Kafka's lacks under names that no topic can have:

    @epochs  the leader epoch each offset stands in, so that a log that was cut is told from one that expired
    @from    partitions whose batch does not begin where the one before ended, because data was lost under the
             stream and `failOnDataLoss` is off: where it begins instead. Written down, so that a repeated batch
             reads the same.
    @stream  made with the checkpoint: names the stream's consumer group over restarts
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heapreplace
from itertools import pairwise
from typing import Any, Final

from pyspark.sql.datasource import InputPartition

from cursus_grpc import TopicPartition

_EPOCHS: Final = "@epochs"
_FROM: Final = "@from"
_STREAM: Final = "@stream"


@dataclass(frozen=True, slots=True)
class Position:
    """The next offset to read, and the leader epoch it was learned in; None where that is not known."""

    offset: int
    epoch: int | None = None


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """How far a stream is in every partition."""

    stream: str
    positions: Mapping[TopicPartition, Position]
    begins_at: Mapping[TopicPartition, Position] = field(default_factory=dict)

    @classmethod
    def beginning(cls, positions: Mapping[TopicPartition, Position]) -> StreamOffset:
        """Of a new stream."""
        return cls(secrets.token_hex(4), positions)

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> StreamOffset:
        """What `to_json` wrote."""
        epochs = stored.get(_EPOCHS, {})
        begins_at = stored.get(_FROM, {})
        return cls(
            stored.get(_STREAM, ""),
            {
                TopicPartition(topic, int(partition)): Position(offset, epochs.get(topic, {}).get(partition))
                for topic, partitions in stored.items()
                if not topic.startswith("@")
                for partition, offset in partitions.items()
            },
            {
                TopicPartition(topic, int(partition)): Position(one["offset"], one.get("epoch"))
                for topic, partitions in begins_at.items()
                for partition, one in partitions.items()
            },
        )

    def to_json(self) -> dict[str, Any]:
        """Sorted: Spark compares the text of two offsets to see whether there is anything new."""
        stored: dict[str, Any] = {}
        epochs: dict[str, dict[str, int]] = {}
        begins_at: dict[str, dict[str, dict[str, int]]] = {}
        for (topic, partition), position in sorted(self.positions.items()):
            stored.setdefault(topic, {})[str(partition)] = position.offset
            if position.epoch is not None:
                epochs.setdefault(topic, {})[str(partition)] = position.epoch
        for (topic, partition), position in sorted(self.begins_at.items()):
            one = {"offset": position.offset}
            if position.epoch is not None:
                one["epoch"] = position.epoch
            begins_at.setdefault(topic, {})[str(partition)] = one
        stored[_EPOCHS] = epochs
        if begins_at:
            stored[_FROM] = begins_at
        stored[_STREAM] = self.stream
        return stored


class OffsetRange(InputPartition):
    """What one task reads: offsets of one partition from `start` up to and without `end`."""

    def __init__(self, topic: str, partition: int, start: int, end: int, epoch: int | None = None) -> None:
        super().__init__((topic, partition, start, end, epoch))
        self.topic = topic
        self.partition = partition
        self.start = start
        self.end = end
        self.epoch = epoch
        """The leader epoch `start` was learned in: the task is told if the log was cut below it since."""

    @property
    def place(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    def __len__(self) -> int:
        return max(0, self.end - self.start)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OffsetRange) and self.value == other.value

    def __hash__(self) -> int:
        return hash(self.value)


def split(ranges: Iterable[OffsetRange], min_partitions: int | None) -> list[OffsetRange]:
    """At least `min_partitions` ranges, if there are as many records: large ones are divided in proportion to their
    size, evenly. Empty ranges are dropped.

    >>> [len(part) for part in split([OffsetRange("t", 0, 0, 90), OffsetRange("t", 1, 0, 10)], 4)]
    [30, 30, 30, 10]
    """
    wanted = [one for one in ranges if len(one) > 0]
    if min_partitions is None or len(wanted) >= min_partitions:
        return wanted
    total = sum(map(len, wanted))
    parts = [max(1, len(one) * min_partitions // total) for one in wanted]
    # Rounding leaves some to be made: each time the range with the largest pieces is divided once more.
    pieces = [(-len(one) / count, index) for index, (one, count) in enumerate(zip(wanted, parts, strict=True))]
    heapify(pieces)
    for _ in range(min(min_partitions, total) - sum(parts)):
        index = pieces[0][1]
        parts[index] += 1
        heapreplace(pieces, (-len(wanted[index]) / parts[index], index))
    return [piece for one, count in zip(wanted, parts, strict=True) for piece in _divided(one, count)]


def _divided(whole: OffsetRange, count: int) -> list[OffsetRange]:
    count = min(count, len(whole))
    cuts = [whole.start + len(whole) * index // count for index in range(count + 1)]
    return [OffsetRange(whole.topic, whole.partition, start, end, whole.epoch) for start, end in pairwise(cuts)]


def admit(
    start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int], most: int
) -> dict[TopicPartition, int]:
    """How far a micro-batch of at most `most` records goes: every partition by its share of what waits, so that none
    starves. `start` names every partition of `end`.

    >>> one, two = TopicPartition("t", 0), TopicPartition("t", 1)
    >>> admit({one: 0, two: 0}, {one: 90, two: 10}, 10) == {one: 9, two: 1}
    True
    """
    waiting = {place: max(0, end[place] - start[place]) for place in end}
    total = sum(waiting.values())
    if total <= most:
        return {place: start[place] + count for place, count in waiting.items()}
    granted = {place: count * most // total for place, count in waiting.items()}
    # What rounding left goes to those with most waiting beyond their share, one each, in a fixed order.
    left = most - sum(granted.values())
    for place in sorted(waiting, key=lambda place: (granted[place] - waiting[place] * most / total, place)):
        if left == 0:
            break
        if granted[place] < waiting[place]:
            granted[place] += 1
            left -= 1
    return {place: start[place] + count for place, count in granted.items()}
