"""What tests of the log share: batches that can be told apart, and a look at everything a log holds."""

from __future__ import annotations

import random
from dataclasses import dataclass

from cursus_broker.log.api import Batch, Entry, Log, Offset
from cursus_broker.log.entry import crc32c


@dataclass(frozen=True, slots=True)
class Stored:
    """What a test expects to find at an offset."""

    base_offset: int
    record_count: int
    payload: bytes

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.record_count


def batch_of(payload: bytes, record_count: int = 1, producer_id: bytes = b"", first_sequence: int = -1) -> Batch:
    return Batch(payload, record_count, crc32c(payload), producer_id=producer_id, first_sequence=first_sequence)


def random_batch(rng: random.Random, max_bytes: int = 400) -> Batch:
    return batch_of(
        rng.randbytes(rng.randint(0, max_bytes)),
        rng.randint(1, 5),
        rng.choice((b"", b"producer-7")),
        rng.randint(-1, 9),
    )


def append(log: Log, batch: Batch, now_ms: int) -> Stored:
    header = log.append(batch, now_ms)
    return Stored(header.base_offset, header.record_count, batch.payload)


def stored(entry: Entry) -> Stored:
    return Stored(entry.header.base_offset, entry.header.record_count, entry.payload)


async def read_all(log: Log, max_bytes: int = 4096) -> list[Stored]:
    """Everything from the earliest offset on, read as a consumer would."""
    found: list[Stored] = []
    offset = log.earliest_offset
    while entries := await log.read(offset, max_bytes):
        found.extend(stored(entry) for entry in entries)
        offset = Offset(found[-1].next_offset)
    assert offset == log.next_offset
    return found


def retained(model: list[Stored], earliest: int, next_offset: int) -> list[Stored]:
    """The part of the model a log with these bounds has to hold."""
    return [entry for entry in model if entry.next_offset > earliest and entry.base_offset < next_offset]
