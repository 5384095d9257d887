"""What a partition's log promises, on one page. The segment engine in this package keeps these promises on local
files; a replicated engine can stand behind the same methods.

Offsets count records. Ranges are half-open: `next_offset` is the first offset that is not assigned yet.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, NewType, Protocol

from cursus_broker.errors import PartitionDamaged
from cursus_broker.log.epochs import Epochs

Offset = NewType("Offset", int)

MANY_RECORDS: Final = 2**31
"""Stands for no limit on the number of records: a read is bounded by its bytes long before."""

Pause = Callable[[int], bool]
"""Told how many bytes were verified; returns when the next may be. False: no more of them."""

NO_SEQUENCE = -1
"""First sequence of a batch whose producer did not number it."""

# The values made for every batch are named tuples: immutable like the frozen dataclasses elsewhere, at a fifth of the
# cost of making one.


class Batch(NamedTuple):
    """A record set on its way into the log. `payload` is the set as the producer packed it; nobody looks inside."""

    payload: bytes
    record_count: int
    payload_crc: int
    codec: int = 0
    flags: int = 0
    producer_id: bytes = b""
    producer_epoch: int = 0
    first_sequence: int = NO_SEQUENCE


class EntryHeader(NamedTuple):
    """What the log knows about a stored batch without its payload."""

    base_offset: Offset
    record_count: int
    append_time_ms: int
    payload_bytes: int
    payload_crc: int
    codec: int
    flags: int
    producer_id: bytes
    producer_epoch: int
    first_sequence: int

    @property
    def next_offset(self) -> Offset:
        return Offset(self.base_offset + self.record_count)


class Entry(NamedTuple):
    """A stored batch, whole."""

    header: EntryHeader
    payload: bytes


@dataclass(frozen=True, slots=True)
class TimedOffset:
    """An offset found by time, with the append time of the batch it lies in."""

    offset: Offset
    append_time_ms: int


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """How long a log keeps its records."""

    max_age_ms: int | None = None  # None: age retires nothing
    max_bytes: int | None = None  # None: size retires nothing


@dataclass(frozen=True, slots=True)
class Retained:
    """What retention did to one log."""

    earliest_offset: Offset
    removed_segments: int
    removed_bytes: int
    rolled: bool  # a new segment was begun because the active one was old


@dataclass(frozen=True, slots=True)
class Cut:
    """A torn tail that was cut off: none of it was ever acknowledged as synced."""

    file: str
    position: int
    offset: Offset  # the log goes on from here
    bytes: int  # of this file and of all segments after it
    records: int  # at least so many, as far as headers can be read
    cause: str
    set_aside: tuple[str, ...]  # where the bytes are now


@dataclass(frozen=True, slots=True)
class Recovered:
    """What opening a log found and did."""

    earliest_offset: Offset
    next_offset: Offset
    segments: int
    cut: Cut | None
    rebuilt_indexes: int
    walked_bytes: int
    removed_segments: int  # left over from an interrupted trim
    removed_files: int  # unfinished or orphaned files
    closed_cleanly: bool  # nothing that anybody could have read is missing
    epochs: Epochs  # with the one that began now, if one did: to be durable before the log is served


class Log(Protocol):
    """One partition's log: a single writer, any number of readers, all on one event loop."""

    @property
    def earliest_offset(self) -> Offset:
        """First offset that can be read. Equal to `next_offset` while the log is empty."""

    @property
    def next_offset(self) -> Offset:
        """The offset the next appended record gets."""

    @property
    def synced_offset(self) -> Offset:
        """Everything below survives power loss. Never above `next_offset`."""

    @property
    def leader_epoch(self) -> int:
        """The epoch the log is in. It does not change while the log is open."""

    def truncated(self, offset: int, epoch: int) -> Offset | None:
        """Where a reader that was at `offset` in `epoch` has to go on because the log was cut below it since, at or
        above `earliest_offset`; None if it was not."""

    @property
    def size_bytes(self) -> int:
        """Bytes of all retained segments."""

    @property
    def unsynced_bytes(self) -> int:
        """Bytes written but not yet synced: what power loss would take."""

    @property
    def segment_count(self) -> int: ...

    @property
    def refusal(self) -> str | None:
        """Why appends are refused, since the disk failed; None while they are not."""

    @property
    def damage(self) -> PartitionDamaged | None:
        """What a reader or `scrub` met last within the log, while it is retained and was not found sound since. The
        rest of the log is served."""

    # Counters for metrics, since the log was opened.
    appended_records: int
    appended_bytes: int
    syncs: int
    sync_seconds_total: float

    def append(self, batch: Batch, now_ms: int) -> EntryHeader:
        """Write the batch into the page cache and make it visible. Never waits for the disk: survives the death of
        the process, not yet the loss of power. All or nothing: on an error nothing is visible or left behind.

        Raises StorageFailed.
        """

    async def read(self, offset: Offset, max_bytes: int, max_records: int = MANY_RECORDS) -> Sequence[Entry]:
        """Whole entries from the one that holds `offset` on, at least one if there is any, together not above
        `max_bytes` and `max_records` unless the first alone is. Empty at `next_offset`. Suspends only if the bytes are
        not in memory. May answer fewer entries than would fit: at the end of a segment, or where the bytes in memory
        end.

        Raises OffsetOutOfRange, PartitionDamaged, StorageFailed.
        """

    def headers(self, offset: Offset) -> AsyncIterator[EntryHeader]:
        """Headers of the entries from the one that holds `offset` to the end, without reading payloads.

        Raises OffsetOutOfRange, PartitionDamaged.
        """

    async def header_at(self, offset: Offset) -> EntryHeader | None:
        """Header of the entry that holds `offset`, without its payload; None at `next_offset`.

        Raises OffsetOutOfRange, PartitionDamaged, StorageFailed.
        """

    async def find_time(self, time_ms: int) -> TimedOffset | None:
        """The first offset whose batch was appended at or after `time_ms`; None if there is none."""

    async def sync(self, upto: Offset) -> None:
        """Return once everything below `upto` survives power loss. One disk sync serves all who wait for it.

        Raises StorageFailed; the log then refuses further appends until it is opened anew.
        """

    def sync_soon(self, upto: Offset) -> asyncio.Future[None] | None:
        """Have everything below `upto` survive power loss at the next good moment for the disk, which is within some
        times the length of a sync. The future ends then, or fails with StorageFailed; None if it is synced already.
        Logs asked in one step of the loop share a sync of the file system if they are very many.

        Raises StorageFailed.
        """

    async def trim(self, before: Offset) -> Offset:
        """Forget the records below `before` for good and answer the new earliest offset. Survives power loss.

        Raises OffsetOutOfRange if `before` is above `next_offset`.
        """

    async def retain(self, policy: RetentionPolicy, now_ms: int) -> Retained:
        """What the log does about its age, for a maintenance loop to call: begin a new segment where the active one is
        old, and remove the segments that the policy retires. Raises StorageFailed.
        """

    async def scrub(self, offset: Offset, pause: Pause) -> Offset | None:
        """Verify what lies on disk and does not change any more, from `offset` on, one piece of it: answers where the
        next begins, None if this was the last. What is damaged is in `damage` then, and passed over. Runs in a thread
        of little importance, which calls `pause` with the bytes of every step before it goes on.

        Raises StorageFailed.
        """

    async def recheck(self) -> PartitionDamaged | None:
        """Verify again the files in which damage was met, which somebody may have restored. Answers what is left of it.

        Raises StorageFailed.
        """

    def configure(self, *, segment_bytes: int | None, segment_ms: int | None) -> None:
        """Let this log roll by its own measures; None follows the engine's settings. Takes effect at the next roll."""

    async def close(self) -> None:
        """Sync and let go of every file. Idempotent."""


class Engine(Protocol):
    """Where logs come from."""

    async def open(
        self, directory: str, partition: int, known: Epochs | None = None, epoch: int = 1
    ) -> tuple[Log, Recovered]:
        """Open a partition's log and tell what had to be repaired.

        `known` is what the caller remembers of it, and a log that is known must be there; None lets it be made. An
        engine without epochs of its own begins `epoch`, later than all known, where records may be missing that had
        been read: `Recovered` tells all epochs, for the caller to remember.

        Raises PartitionDamaged, StorageFailed.
        """

    async def secure(self, directory: str, partitions: Sequence[int]) -> None:
        """Let the empty logs of these partitions, just made, survive power loss: before the caller remembers them,
        since one that is known must be there.

        Raises StorageFailed.
        """

    async def release(self, directory: str, partitions: Sequence[int]) -> None:
        """Let go of those of the logs that are open, with nothing synced: logs just made that the caller will not
        remember after all, and logs that it could open and not use."""

    def all_opened(self) -> None:
        """Every log the caller knows is open, and their epochs are remembered. Only from now on may `close` count as a
        clean close of them all: a start that was given up half way must not hide how the broker had stopped before."""

    async def delete(self, directory: str) -> None:
        """Remove a directory and all logs in it. Once this returns the name is free, also after power loss.

        Raises StorageFailed.
        """

    async def remove_leftovers(self) -> int:
        """Finish deletions that a crash interrupted. For the start of the broker; answers how many there were."""

    async def directories(self) -> set[str]:
        """The directories that hold logs, known to the caller or not."""

    async def set_aside(self, directory: str) -> str:
        """Move a directory that nobody knows out of the way, for people to look at. Answers where it is now.

        Raises StorageFailed.
        """

    async def close(self) -> None:
        """Close every log that is still open. Idempotent."""
