"""How many records get into batches at once: those of a portion, by partition, as far as each batch has room."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from cursus_grpc._batch import Batch
from cursus_grpc._lane import Lane
from cursus_grpc._many import Piece, Portion, RefusedRows
from cursus_grpc._metadata import no_partition
from cursus_grpc._routes import Route
from cursus_grpc.errors import CursusError, RecordTooLarge
from cursus_proto.records import Encoded

BatchFor = Callable[[Lane, int, float], tuple[Batch, bool]]
"""The batch of a lane that has room for so many bytes sent at that time."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a batch may hold, and a record have."""

    batch_bytes: int
    batch_records: int
    max_record_bytes: int
    buffer_bytes: int

    def too_large(self, size: int) -> RecordTooLarge:
        """What refuses a record that is larger than `max_record_bytes`, and whose limit that is."""
        limit = self.max_record_bytes
        whose = "the broker takes (max_batch_bytes)"
        if limit == self.buffer_bytes:
            whose = "fit into this producer's buffer (buffer_bytes)"
        return RecordTooLarge(
            f"the record has {size} bytes encoded, at most {limit} {whose}", {"size": str(size), "limit": str(limit)}
        )

    def leave_room(self, batch: Batch | None, size: int) -> bool:
        """Whether a record of this size may join the batch."""
        return batch is not None and batch.count < self.batch_records and batch.size + size <= self.batch_bytes


def join_many(
    portion: Portion, route: Route, limits: Limits, batch_for: BatchFor
) -> list[tuple[RefusedRows, CursusError]]:
    """Put the records of a portion into their batches. Answers those that can go nowhere, which the caller fails
    when it does not hold the lock any more, as it does now."""
    encoded = portion.encoded
    assert encoded is not None
    refused: list[tuple[RefusedRows, CursusError]] = []
    pieces: list[Piece] = []

    def refuse(rows: list[int], error: CursusError) -> None:
        one = RefusedRows(len(rows), sum(encoded.sizes[row] for row in rows))
        refused.append((one, error))
        pieces.append(Piece(one, 0, rows))

    targets = portion.targets(len(route.lanes))
    all_fit = max(encoded.sizes) <= limits.max_record_bytes
    if targets is None and all_fit:
        pieces += _fill(encoded, range(portion.count), portion.sent_at, route, None, limits, batch_for)
    else:
        groups: defaultdict[int | None, list[int]] = defaultdict(list)
        for row, target in enumerate(targets if targets is not None else [None] * portion.count):
            groups[target].append(row)
        for target, wanted in groups.items():
            rows = wanted
            if target is not None and target >= len(route.lanes):
                refuse(rows, no_partition(route.lanes[0].place.topic, target, len(route.lanes)))
                continue
            if not all_fit:
                oversized = [row for row in rows if encoded.sizes[row] > limits.max_record_bytes]
                rows = [row for row in rows if encoded.sizes[row] <= limits.max_record_bytes]
                if oversized:
                    refuse(oversized, limits.too_large(encoded.sizes[oversized[0]]))
            lane = None if target is None else route.lanes[target]
            pieces += _fill(encoded.only(rows), rows, portion.sent_at, route, lane, limits, batch_for)
    portion.join(pieces)
    return refused


def _fill(
    encoded: Encoded,
    rows: Sequence[int],
    sent_at: float,
    route: Route,
    lane: Lane | None,
    limits: Limits,
    batch_for: BatchFor,
) -> Iterator[Piece]:
    """Put records into the batches of a lane, or with None of one lane after the other."""
    ends = encoded.ends()
    start = 0
    while start < len(ends):
        size = encoded.sizes[start]
        target = lane
        if target is None:
            target = route.current if limits.leave_room(route.current.open, size) else route.advance()
        batch, _ = batch_for(target, size, sent_at)
        before = ends[start - 1] if start else 0
        fits_until = bisect_right(ends, before + limits.batch_bytes - batch.size)
        stop = min(max(start + 1, fits_until), start + limits.batch_records - batch.count)
        yield Piece(batch, batch.count, rows[start:stop])
        batch.parts += encoded.pieces(start, stop)
        batch.size += ends[stop - 1] - before
        batch.count += stop - start
        start = stop
