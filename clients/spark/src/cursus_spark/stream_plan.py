"""What the next micro-batch of a stream reads: decided here from what the checkpoint says and what the brokers have.
Nothing here asks anybody, so that every decision can be tested.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cursus_grpc import TopicPartition
from cursus_spark.offsets import OffsetRange, Position, StreamOffset, admit, split
from cursus_spark.planning import Extents


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a stream stands in the partitions that there are now."""

    begins: Mapping[TopicPartition, Position]
    """The next record to read in each."""
    moved: Mapping[TopicPartition, Position]
    """Those of them that do not begin where the stream had come to."""
    losses: tuple[str, ...]


def changed_epochs(started: StreamOffset, extents: Extents) -> dict[TopicPartition, Position]:
    """Positions whose partition has begun another epoch since: somebody has to ask whether it was cut below them."""
    return {
        place: position
        for place, position in started.positions.items()
        if place in extents and position.epoch is not None and position.epoch != extents[place].epoch
    }


def stand(started: StreamOffset, extents: Extents, cut_at: Mapping[TopicPartition, int]) -> Standing:
    """Compare where the stream was with what there is. `cut_at` names the partitions that were cut below it."""
    begins: dict[TopicPartition, Position] = {}
    moved: dict[TopicPartition, Position] = {}
    losses: list[str] = []
    for place, extent in extents.items():
        position = started.positions.get(place)
        name = f"partition {place.partition} of topic {place.topic!r}"
        if place in cut_at:
            moved[place] = Position(cut_at[place], extent.epoch)
            assert position is not None
            losses.append(
                f"{name} was cut at offset {cut_at[place]} by power loss or damage, after it was read up to"
                f" {position.offset}"
            )
        elif (wanted := position.offset if position else 0) < extent.earliest:
            moved[place] = Position(extent.earliest, extent.epoch)
            losses.append(
                f"{name} begins at offset {extent.earliest}: {wanted} to {extent.earliest - 1} expired unread"
            )
        begins[place] = moved.get(place) or position or Position(0, extent.epoch)
    losses += [
        f"partition {place.partition} of topic {place.topic!r} is gone"
        for place in sorted(started.positions.keys() - extents.keys())
    ]
    return Standing(begins, moved, tuple(losses))


def waiting(standing: Standing, extents: Extents) -> int:
    """Records that could be read now."""
    return sum(max(0, extents[place].end - position.offset) for place, position in standing.begins.items())


def advance(started: StreamOffset, standing: Standing, extents: Extents, most: int | None) -> StreamOffset:
    """The end of the next micro-batch, with at most so many records."""
    # A position may lie beyond the end: what was read as written is not synced yet.
    start = {place: position.offset for place, position in standing.begins.items()}
    end = {place: max(start[place], extents[place].end) for place in start}
    upto = end if most is None else admit(start, end, most)
    positions = {place: Position(offset, extents[place].epoch) for place, offset in upto.items()}
    if not standing.moved and _offsets(positions) == _offsets(started.positions):
        return started  # word for word, or Spark would plan an empty batch
    return StreamOffset(started.stream, positions, standing.moved)


def _offsets(positions: Mapping[TopicPartition, Position]) -> dict[TopicPartition, int]:
    return {place: position.offset for place, position in positions.items()}


def ranges(start: StreamOffset, end: StreamOffset, min_partitions: int | None) -> list[OffsetRange]:
    """What the tasks of the micro-batch between two offsets read. The same for a batch that is repeated."""
    found = []
    for place, upto in sorted(end.positions.items()):
        begin = end.begins_at.get(place) or start.positions.get(place) or Position(0, upto.epoch)
        found.append(OffsetRange(*place, begin.offset, upto.offset, begin.epoch))
    return split(found, min_partitions)


@dataclass(slots=True)
class Patience:
    """`minOffsetsPerTrigger`: a micro-batch waits for enough records, but not longer than `max_delay_ms`."""

    min_records: int
    max_delay_ms: int
    _last_ms: int | None = field(default=None)
    """When the last batch was let through; the first one comes at once, as in Spark's Kafka source."""

    def wait(self, records: int, now_ms: int) -> bool:
        """Whether to put the batch off. What is let through starts the wait anew."""
        if self._last_ms is not None and records < self.min_records and now_ms - self._last_ms < self.max_delay_ms:
            return True
        if records:
            self._last_ms = now_ms
        return False
