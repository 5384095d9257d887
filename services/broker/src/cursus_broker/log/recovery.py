"""Opening a log: find out what the disk holds, and cut off what power loss or a crash left unfinished.

The rules, in the order they are applied:

0. A log that is known has a segment. If there is none, files were lost, or a volume is not mounted: PartitionDamaged.
1. Unfinished files (`.tmp`) and indexes without a segment are removed.
2. Segments that lie wholly below the checkpoint's earliest offset are what an interrupted trim left: removed.
3. A segment whose index is sound and fits the file's size was synced and sealed: trusted without a walk.
   All others are walked, entry by entry, both checksums.
4. The first bad place (a broken entry, a missing segment, an offset that does not continue) ends the log. If anything
   proves that data behind it had been synced, this is damage: PartitionDamaged, and nothing is touched. The proofs are
   the checkpoint, a sealed segment further on, and any entry further on that was written when the log was already
   synced beyond the bad place. Without a proof it is a torn tail: everything from there on was unsynced, is moved to
   `….cut-k` files and the log goes on from there.
5. What was walked is synced, and lost indexes are written again. After a refused sync (see `refused.py`) it is first
   written anew, into files that take the place of the old ones.

Nothing here logs: `Recovered` says what was done, and the caller tells it as one event.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from cursus_broker.errors import PartitionDamaged
from cursus_broker.log.api import Cut, Offset, Recovered
from cursus_broker.log.checkpoint import Checkpoint, CheckpointFile
from cursus_broker.log.entry import (
    CONTROL_BYTES,
    FIXED_BYTES,
    MAX_PRODUCER_ID_BYTES,
    BadEntry,
    candidates,
    stored_bytes,
    synced_before,
)
from cursus_broker.log.epochs import Epochs
from cursus_broker.log.files import page_buffer
from cursus_broker.log.index import SparseIndex, Summary
from cursus_broker.log.names import TEMPORARY_SUFFIX, cut_name, file_prefixes, is_temporary, parse_segment_file
from cursus_broker.log.refused import RefusedSync
from cursus_broker.log.resources import Resources
from cursus_broker.log.segment import (
    Segment,
    Walked,
    load_index_file,
    read_control,
    segment_index_path,
    segment_path,
    store_index,
    walk,
)
from cursus_broker.log.settings import MIB

_COPY_BYTES: Final = MIB


@dataclass(frozen=True, slots=True)
class OpenedLog:
    """What `SegmentLog` starts from. There is at least one segment; the last is the active one, its index in memory."""

    directory: str
    partition: int
    segments: list[Segment]
    checkpoint: CheckpointFile
    earliest_offset: int
    names_unsynced: bool  # a segment was created and its directory not synced yet


@dataclass(frozen=True, slots=True)
class _Bad:
    """The first place at which the log does not go on."""

    number: int
    position: int
    offset: int
    cause: str


def recover(
    resources: Resources, directory: str, partition: int, now_ms: int, *, known: bool
) -> tuple[OpenedLog, Recovered]:
    """Open the partition's log in `directory`, which exists; a log that is `known` is never made. `Recovered` has no
    epochs yet. Blocks. Raises PartitionDamaged, OSError."""
    return _Recovery(resources, directory, partition, known).run(now_ms)


class _Recovery:
    def __init__(self, resources: Resources, directory: str, partition: int, known: bool) -> None:
        self._resources = resources
        self._known = known
        self._files = resources.files
        self._directory = directory
        self._partition = partition
        self._checkpoint_file = CheckpointFile(resources.files, directory, partition)
        self._checkpoint = Checkpoint()
        self._refused_sync = RefusedSync(resources.files, directory, partition)
        self._numbers: list[int] = []
        self._trusted: dict[int, tuple[SparseIndex, Summary]] = {}
        self._segments: list[Segment] = []
        self._walked: list[Segment] = []
        self._removed_segments = 0
        self._removed_files = 0
        self._rebuilt = 0
        self._walked_bytes = 0

    def run(self, now_ms: int) -> tuple[OpenedLog, Recovered]:
        self._checkpoint = self._checkpoint_file.load() or self._checkpoint
        self._survey()
        next_number = self._numbers[-1] + 1 if self._numbers else 0
        self._finish_trim()
        bad = self._load()
        if bad is not None:
            self._require_torn(bad)
        self._check_end(bad)
        earliest = self._checkpoint.earliest_offset
        created = None
        if not self._segments or self._segments[-1].next_offset < earliest:
            # Nothing that is there will stay, and the new segment comes first: see `known` in `_survey`.
            created = self._create(next_number, earliest, now_ms)
        cut = None if bad is None else self._cut(bad)
        if created is not None:
            self._remove(self._numbers_of_segments())
            self._segments = [created]
        self._make_durable()
        closed_cleanly = created is None and bad is None and self._segments[-1].number in self._trusted
        earliest = max(self._checkpoint.earliest_offset, self._segments[0].base_offset)
        opened = OpenedLog(
            self._directory,
            self._partition,
            self._segments,
            self._checkpoint_file,
            earliest,
            names_unsynced=created is not None and not self._known,
        )
        return opened, Recovered(
            Offset(earliest),
            Offset(self._segments[-1].next_offset),
            len(self._segments),
            cut,
            self._rebuilt,
            self._walked_bytes,
            self._removed_segments,
            self._removed_files,
            closed_cleanly,
            Epochs(),
        )

    def _path(self, number: int) -> str:
        return segment_path(self._directory, self._partition, number)

    def _index_path(self, number: int) -> str:
        return segment_index_path(self._directory, self._partition, number)

    def _survey(self) -> None:
        """List the segments, read their indexes, remove what nobody needs."""
        logs: set[int] = set()
        indexes: set[int] = set()
        unfinished: list[str] = []
        # Told from those of thousands of others as cheaply as can be: every partition of the topic looks at them all.
        prefixes = file_prefixes(self._partition)
        for name in [name for name in self._files.list(self._directory) if name.startswith(prefixes)]:
            parsed = parse_segment_file(name)
            if parsed is not None and parsed[0] == self._partition:
                if parsed[2] == "log":
                    logs.add(parsed[1])
                elif parsed[2] == "index":
                    indexes.add(parsed[1])
            elif is_temporary(name, self._partition):
                unfinished.append(name)
        if self._known and not logs:
            # A log that was once made has a segment at every moment, also when power is lost: see `trim.py`.
            raise PartitionDamaged(
                self._directory, 0, f"there is no segment of partition {self._partition}; is this the right volume?"
            )
        for name in unfinished:
            self._files.unlink(f"{self._directory}/{name}")
            self._removed_files += 1
        for number in indexes - logs:
            self._files.unlink(self._index_path(number))
            self._removed_files += 1
        self._numbers = sorted(logs)
        for number in indexes & logs:
            found = load_index_file(self._files, self._index_path(number))
            if found is not None and found[1].segment_bytes == self._files.size(self._path(number)):
                self._trusted[number] = found

    def _base_offset(self, number: int) -> int | None:
        if number in self._trusted:
            return self._trusted[number][1].base_offset
        try:
            with self._resources.pool.lease(self._path(number)) as handle:
                return read_control(self._files, handle.descriptor).base_offset
        except BadEntry:
            return None

    def _finish_trim(self) -> None:
        """Remove the segments before the one that holds the earliest offset."""
        if self._checkpoint.earliest_offset == 0:
            return
        for at in range(len(self._numbers) - 1, 0, -1):
            base_offset = self._base_offset(self._numbers[at])
            if base_offset is not None and base_offset <= self._checkpoint.earliest_offset:
                self._remove(self._numbers[:at])
                del self._numbers[:at]
                break

    def _load(self) -> _Bad | None:
        """Load the segments in order up to the first bad place."""
        offset: int | None = None
        for at, number in enumerate(self._numbers):
            if at and number != self._numbers[at - 1] + 1:
                missing = self._numbers[at - 1] + 1
                return _Bad(missing, 0, self._segments[-1].next_offset, "the segment is missing")
            segment, bad = self._trust(number) if number in self._trusted else self._walk(number, offset)
            if segment is not None:
                earliest = self._checkpoint.earliest_offset
                if offset is None and segment.base_offset > earliest:
                    cause = f"the log begins at offset {segment.base_offset}, records from {earliest} on are missing"
                    return _Bad(max(number - 1, 0), 0, earliest, cause)
                if offset is not None and segment.base_offset != offset:
                    cause = f"the segment begins at offset {segment.base_offset} where {offset} was expected"
                    return _Bad(number, 0, offset, cause)
                self._segments.append(segment)
                offset = segment.next_offset
            if bad is not None:
                return bad
        return None

    def _trust(self, number: int) -> tuple[Segment | None, _Bad | None]:
        index, summary = self._trusted[number]
        segment = Segment.sealed(self._path(number), number, summary)
        if number == self._numbers[-1]:
            segment.index = index
        return segment, None

    def _walk(self, number: int, expected_offset: int | None) -> tuple[Segment | None, _Bad | None]:
        """The segment as far as it is sound, and the place where it is not."""
        path = self._path(number)
        with self._resources.pool.lease(path) as handle:
            size_bytes = self._files.size(path)
            try:
                control = read_control(self._files, handle.descriptor)
            except BadEntry as bad:
                offset = self._checkpoint.earliest_offset if expected_offset is None else expected_offset
                return None, _Bad(number, 0, offset, bad.cause)
            segment = Segment(path, number, control.base_offset, control.append_time_ms)
            interval_bytes = self._resources.settings.index_interval_bytes
            try:
                for _, header, _ in walk(
                    self._files, handle.descriptor, control.base_offset, CONTROL_BYTES, size_bytes, payloads=True
                ):
                    segment.note(header, stored_bytes(header), interval_bytes)
            except BadEntry as bad:
                return segment, _Bad(number, bad.position, segment.next_offset, bad.cause)
            finally:
                self._walked.append(segment)
                self._walked_bytes += segment.size_bytes
        return segment, None

    def _require_torn(self, bad: _Bad) -> None:
        """Raise PartitionDamaged if anything proves that data behind the bad place had been synced."""
        lost_from = max(bad.offset, self._checkpoint.earliest_offset)
        if self._checkpoint.synced_offset > lost_from:
            self._refuse(bad, f"the checkpoint knows offset {self._checkpoint.synced_offset} as synced")
        for number in [number for number in self._numbers if number >= bad.number]:
            if number != bad.number and number in self._trusted:
                self._refuse(bad, f"segment {number} after it was sealed")
            begin = bad.position if number == bad.number else 0
            witness = self._witness(number, begin, bad.offset, lost_from)
            if witness is not None:
                self._refuse(bad, f"it was synced before the entry at byte {witness} of segment {number} was written")

    def _refuse(self, bad: _Bad, proof: str) -> None:
        raise PartitionDamaged(self._path(bad.number), bad.position, f"{bad.cause}, and {proof}")

    def _lost_records(self, bad: _Bad) -> int:
        """How many records lie behind the bad place, by the highest offset that a header there tells of."""
        highest = bad.offset
        for number in [number for number in self._numbers if number >= bad.number]:
            for _, header, _ in self._headers_behind(number, bad.position if number == bad.number else 0, bad.offset):
                highest = max(highest, header.next_offset)
        return highest - bad.offset

    def _witness(self, number: int, begin: int, min_offset: int, lost_from: int) -> int | None:
        """Position of an entry at or behind `begin` that was written when `lost_from` was already synced."""
        for position, _, synced in self._headers_behind(number, begin, min_offset):
            if synced > lost_from:
                return position
        return None

    def _headers_behind(self, number: int, begin: int, min_offset: int) -> Iterator[Walked]:
        """Everything in the segment at or behind `begin` that is a sound header of an offset from `min_offset` on."""
        path = self._path(number)
        if not self._files.exists(path):
            return
        overlap = FIXED_BYTES + MAX_PRODUCER_ID_BYTES
        with self._resources.pool.lease(path) as handle:
            size_bytes = self._files.size(path)
            while begin < size_bytes:
                window = page_buffer(min(_COPY_BYTES + overlap, size_bytes - begin))
                content = bytes(window[: self._files.pread(handle.descriptor, window, begin)])
                for at, header in candidates(content, min_offset):
                    yield Walked(begin + at, header, synced_before(content, at))
                begin += _COPY_BYTES

    def _cut(self, bad: _Bad) -> Cut | None:
        """Set everything from the bad place on aside; None if that is nothing but the name of an empty file."""
        set_aside: list[str] = []
        lost_bytes = 0
        lost_records = self._lost_records(bad)
        # Last first: should this be interrupted, what is left has no gap in its numbers.
        for number in reversed([number for number in self._numbers if number >= bad.number]):
            path = self._path(number)
            size_bytes = self._files.size(path)
            keep_bytes = bad.position if number == bad.number else 0
            if size_bytes > keep_bytes:
                set_aside.append(self._set_aside(number, keep_bytes, size_bytes))
                lost_bytes += size_bytes - keep_bytes
            elif keep_bytes == 0:
                self._resources.pool.forget(path)
                self._files.unlink(path)
                self._removed_files += 1
            if self._files.exists(self._index_path(number)):
                self._files.unlink(self._index_path(number))
        self._numbers = self._numbers_of_segments()
        self._reopen_last()
        if not lost_bytes:
            return None
        return Cut(
            self._path(bad.number),
            bad.position,
            Offset(bad.offset),
            lost_bytes,
            lost_records,
            bad.cause,
            tuple(reversed(set_aside)),
        )

    def _set_aside(self, number: int, keep_bytes: int, size_bytes: int) -> str:
        """Move the bytes behind `keep_bytes` to a file of their own, which is on disk before they leave this one."""
        path = self._path(number)
        count = 0
        while self._files.exists(aside := f"{self._directory}/{cut_name(self._partition, number, count)}"):
            count += 1
        if keep_bytes == 0:
            self._resources.pool.forget(path)
            self._files.rename(path, aside)
            self._files.sync_directory(self._directory)
            return aside
        with self._resources.pool.lease(path, writable=True) as handle:
            target = self._files.open(aside, writable=True, create=True)
            try:
                self._copy(handle.descriptor, target, keep_bytes, size_bytes)
                self._files.fdatasync(target)
            finally:
                self._files.close(target)
            self._files.sync_directory(self._directory)
            self._files.truncate(handle.descriptor, keep_bytes)
        return aside

    def _reopen_last(self) -> None:
        """The last segment that stays becomes the active one, whose index is in memory."""
        if self._segments and self._segments[-1].index is None:
            last = self._segments[-1]
            last.index = self._trusted[last.number][0]

    def _check_end(self, bad: _Bad | None) -> None:
        """A tail that is missing altogether leaves no bad place, but the checkpoint may know of it."""
        checkpoint = self._checkpoint
        next_offset = self._segments[-1].next_offset if self._segments else 0
        if checkpoint.synced_offset > max(next_offset, checkpoint.earliest_offset):
            path = self._segments[-1].path if self._segments else self._path(bad.number if bad else 0)
            position = self._segments[-1].size_bytes if self._segments else 0
            raise PartitionDamaged(
                path,
                position,
                f"the log ends at offset {next_offset}, but was synced up to {checkpoint.synced_offset}",
            )

    def _numbers_of_segments(self) -> list[int]:
        return [segment.number for segment in self._segments]

    def _remove(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self._resources.pool.forget(self._path(number))
            for path in (self._path(number), self._index_path(number)):
                if self._files.exists(path):
                    self._files.unlink(path)
            self._removed_segments += 1

    def _make_durable(self) -> None:
        """A log that was not closed cleanly may be in the page cache only. Sync it, so that all of it counts as synced,
        and seal the segments before the last."""
        kept = set(map(id, self._segments))
        walked = [segment for segment in self._walked if id(segment) in kept]
        refused = self._refused_sync.is_there()
        for segment in walked:
            if refused:
                self._write_anew(segment)
            else:
                self._sync(segment)
        if refused:
            # Before an index vouches for a file whose name power loss may still give back to the old one.
            self._files.sync_directory(self._directory)
        for segment in walked:
            if segment is not self._segments[-1]:
                assert segment.index is not None
                store_index(self._files, segment, segment.index)
                segment.index = None
                self._rebuilt += 1
        if walked:
            self._files.sync_directory(self._directory)
        if refused:
            self._refused_sync.remove()

    def _sync(self, segment: Segment) -> None:
        try:
            with self._resources.pool.lease(segment.path, writable=True) as handle:
                self._files.fdatasync(handle.descriptor)
        except OSError:
            self._refused_sync.leave()
            raise

    def _write_anew(self, segment: Segment) -> None:
        """Put a synced copy of what was walked of the segment in its place."""
        temporary = segment.path + TEMPORARY_SUFFIX
        target = self._files.open(temporary, writable=True, create=True)
        try:
            with self._resources.pool.lease(segment.path) as handle:
                self._copy(handle.descriptor, target, 0, segment.size_bytes)
            self._files.fdatasync(target)
        finally:
            self._files.close(target)
        self._resources.pool.forget(segment.path)
        self._files.rename(temporary, segment.path)

    def _copy(self, source: int, target: int, position: int, end: int) -> None:
        while position < end:
            window = page_buffer(min(_COPY_BYTES, end - position))
            filled = self._files.pread(source, window, position)
            if filled == 0 or self._files.writev(target, (bytes(window[:filled]),)) != filled:
                raise OSError("the copy of a segment is incomplete")
            position += filled

    def _create(self, number: int, base_offset: int, now_ms: int) -> Segment:
        """A segment to begin with. That of a known log is on disk at once; new logs are secured with their topic."""
        path = self._path(number)
        segment = Segment.create(self._resources, path, number, base_offset, now_ms, base_offset)
        if self._known:
            with self._resources.pool.lease(path, writable=True) as handle:
                self._files.fdatasync(handle.descriptor)
            self._files.sync_directory(self._directory)
        return segment
