"""One segment: a file of entries with consecutive offsets, appended to while it is the last of its log.

A segment knows how to write, find, read and walk entries in its file. When to roll, sync or delete it is the log's
business. `append` and `read_cached` run on the event loop; whatever may wait for the disk says so and runs in a thread.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from cursus_broker.errors import PartitionDamaged
from cursus_broker.log.api import EntryHeader
from cursus_broker.log.entry import (
    CONTROL_BYTES,
    BadEntry,
    Taken,
    check_control,
    check_data,
    crc32c,
    header_bytes_hint,
    pack_control,
    stored_bytes,
    stored_header_bytes,
    synced_before,
    take,
    unpack_header,
)
from cursus_broker.log.files import Files, page_buffer, read_file, replace_file
from cursus_broker.log.index import MAX_INDEX_BYTES, NO_TIME, SparseIndex, Summary, unpack_index
from cursus_broker.log.names import TEMPORARY_SUFFIX, index_name, segment_name
from cursus_broker.log.resources import READ_BUFFER_BYTES, Resources
from cursus_broker.log.settings import KIB, MIB

_WALK_BYTES: Final = MIB
# Without payloads a walk jumps from header to header; a read this long catches many headers of small entries and wastes
# little on large ones.
_HEADER_WALK_BYTES: Final = 16 * KIB
_MIN_WINDOW_BYTES: Final = 4 * KIB
MAX_WINDOW_BYTES: Final = 8 * MIB


class Place(NamedTuple):
    """An entry's offset and where it begins in the file."""

    offset: int
    position: int


class CannotUndo(Exception):
    """A write failed half way and could not be taken back: the end of the file is unknown."""


class Walked(NamedTuple):
    position: int
    header: EntryHeader
    synced_before: int


class Segment:
    """State of one segment in memory: small, because a log may have ten thousand."""

    __slots__ = (
        "base_offset",
        "created_ms",
        "index",
        "indexed_bytes",
        "max_append_ms",
        "next_offset",
        "number",
        "path",
        "removed",
        "size_bytes",
    )

    def __init__(self, path: str, number: int, base_offset: int, created_ms: int) -> None:
        self.path = path
        self.number = number
        self.base_offset = base_offset
        self.next_offset = base_offset
        self.size_bytes = CONTROL_BYTES
        self.created_ms = created_ms
        self.max_append_ms = NO_TIME
        # Present while the segment grows and until its index is on disk; then the cache and the index file serve.
        self.index: SparseIndex | None = SparseIndex()
        self.indexed_bytes = 0  # size of the segment for which the index file was written
        self.removed = False

    @classmethod
    def sealed(cls, path: str, number: int, summary: Summary) -> Segment:
        """A segment whose index file was found sound and fitting."""
        segment = cls(path, number, summary.base_offset, summary.created_ms)
        segment.next_offset = summary.next_offset
        segment.size_bytes = segment.indexed_bytes = summary.segment_bytes
        segment.max_append_ms = summary.max_append_ms
        segment.index = None
        return segment

    @classmethod
    def create(
        cls,
        resources: Resources,
        path: str,
        number: int,
        base_offset: int,
        now_ms: int,
        synced_offset: int,
        prepared: str | None = None,
    ) -> Segment:
        """A new file with its control entry, made of the empty file `prepared` if there is one. Neither its name nor
        its bytes are synced. All or nothing. Raises OSError."""
        files, pool = resources.files, resources.pool
        if prepared is not None:
            files.rename(prepared, path)
        else:
            files.close(files.open(path, writable=True, create=True))
        segment = cls(path, number, base_offset, now_ms)
        segment.size_bytes = 0
        try:
            segment.write(resources, (pack_control(base_offset, now_ms, synced_offset),), CONTROL_BYTES)
        except (OSError, CannotUndo) as error:
            pool.forget(path)
            files.unlink(path)
            raise OSError(getattr(error, "errno", None) or errno.EIO, _cause(error)) from error
        segment.size_bytes = CONTROL_BYTES
        return segment

    @property
    def is_empty(self) -> bool:
        return self.next_offset == self.base_offset

    @property
    def index_path(self) -> str:
        return self.path.removesuffix(".log") + ".index"

    def summary(self) -> Summary:
        return Summary(self.size_bytes, self.base_offset, self.next_offset, self.created_ms, self.max_append_ms)

    # Writing.

    def write(self, resources: Resources, buffers: Sequence[bytes], size: int) -> None:
        """Append `size` bytes to the file, all or nothing. Raises OSError when nothing was written, CannotUndo."""
        pool, files = resources.pool, resources.files
        handle = pool.acquire_open(self.path, writable=True) or pool.acquire(self.path, writable=True)
        try:
            try:
                written = files.writev(handle.descriptor, buffers)
                if written == size:
                    return
                # A disk that was almost full takes what fits, and says why only when it is asked for the rest.
                rest = b"".join(buffers)[written:]
                if files.writev(handle.descriptor, (rest,)) == len(rest):
                    return
                failure = OSError(errno.ENOSPC, f"only a part of {size} bytes could be written")
            except OSError as error:
                failure = error
            try:
                files.truncate(handle.descriptor, self.size_bytes)
            except OSError as error:
                raise CannotUndo(f"{_cause(failure)}; and cutting the file back failed: {_cause(error)}") from error
            raise failure
        finally:
            pool.release(handle)

    def note(self, header: EntryHeader, size: int, interval_bytes: int) -> None:
        """Take an entry that now lies at the end of the file into account."""
        assert self.index is not None
        assert header.base_offset == self.next_offset
        self.index.note(header.base_offset, self.size_bytes, self.max_append_ms, interval_bytes)
        self.next_offset = header.next_offset
        self.size_bytes += size
        if header.append_time_ms > self.max_append_ms:
            self.max_append_ms = header.append_time_ms

    # Reading.

    def cached_index(self, resources: Resources) -> SparseIndex | None:
        """The index if it is in memory."""
        return self.index if self.index is not None else resources.indexes.get(self.path)

    def load_index(self, resources: Resources) -> SparseIndex:
        """The index from memory, its file or, failing both, the log. Blocks. Raises PartitionDamaged, OSError."""
        index = self.cached_index(resources)
        if index is None:
            found = load_index_file(resources.files, self.index_path)
            index = found[0] if found is not None and found[1] == self.summary() else self.rebuild_index(resources)
            if not self.removed:
                resources.indexes.put(self.path, index)
        return index

    def rebuild_index(self, resources: Resources) -> SparseIndex:
        """The index as the log has it; the file is replaced. Blocks. Raises PartitionDamaged, OSError."""
        index = SparseIndex()
        highest = NO_TIME
        with resources.pool.lease(self.path) as handle:
            for position, header, _ in self._walk(resources.files, handle.descriptor, self.base_offset, CONTROL_BYTES):
                index.note(header.base_offset, position, highest, resources.settings.index_interval_bytes)
                highest = max(highest, header.append_time_ms)
        store_index(resources.files, self, index)
        return index

    def read_cached(
        self, resources: Resources, start: Place, wanted: int, max_bytes: int, max_records: int
    ) -> Taken | None:
        """Entries from the one that holds `wanted` on, as far as they are in memory; None if that is none, or if
        anything looks odd: `read` then finds out. Never waits for the disk."""
        handle = resources.pool.acquire_open(self.path)
        if handle is None:
            return None
        try:
            offset, position = start
            # From an index item on, up to an interval lies before the wanted entry.
            ahead = 0 if offset == wanted else resources.settings.index_interval_bytes
            size = min(max(max_bytes, _MIN_WINDOW_BYTES) + ahead, self.size_bytes - position, READ_BUFFER_BYTES)
            window = resources.buffers.take(size)
            filled = resources.files.pread_cached(handle.descriptor, window, position)
            taken = take(window, 0, filled, offset, wanted, max_bytes, max_records)
        except BadEntry:
            return None
        finally:
            resources.pool.release(handle)
        return taken._replace(position=position + taken.position) if taken.entries else None

    def read(
        self,
        resources: Resources,
        start: Place | None,
        wanted: int,
        max_bytes: int,
        max_records: int,
        size_bytes: int,
        sequential: bool,
    ) -> Taken:
        """Entries from the one that holds `wanted` on, at least one. Blocks; runs in a thread while the segment may
        grow beyond `size_bytes`. Raises PartitionDamaged, OSError."""
        if start is None:
            index = self.load_index(resources)
            start = Place(*index.find_offset(wanted))
            if self.index is None and not self._begins_at(resources, start):
                # The index promises an entry where there is none. The log decides: sound, or damaged at a known place.
                index = self.rebuild_index(resources)
                resources.indexes.put(self.path, index)
                start = Place(*index.find_offset(wanted))
        with resources.pool.lease(self.path) as handle:
            if sequential and not handle.advised:
                resources.files.advise_sequential(handle.descriptor)
                handle.advised = True
            offset, position = start
            size = min(max(max_bytes, _MIN_WINDOW_BYTES), MAX_WINDOW_BYTES)
            while True:
                size = min(size, size_bytes - position)
                window = resources.buffers.take(size)
                filled = resources.files.pread(handle.descriptor, window, position)
                try:
                    taken = take(window, 0, filled, offset, wanted, max_bytes, max_records)
                except BadEntry as bad:
                    raise PartitionDamaged(self.path, position + bad.position, bad.cause) from bad
                position += taken.position
                if taken.entries:
                    return taken._replace(position=position)
                if filled < size or position + taken.needed_bytes > size_bytes:
                    raise PartitionDamaged(self.path, position, "the file ends within an entry")
                offset = taken.next_offset
                size = max(taken.needed_bytes, min(max_bytes, MAX_WINDOW_BYTES), _MIN_WINDOW_BYTES)

    def read_headers(
        self, resources: Resources, start: Place | None, wanted: int, size_bytes: int, limit: int
    ) -> tuple[list[EntryHeader], Place]:
        """Up to `limit` headers from the entry that holds `wanted` on, and where the next ones begin. Blocks. Raises
        PartitionDamaged, OSError."""
        if start is None:
            start = Place(*self.load_index(resources).find_offset(wanted))
        headers: list[EntryHeader] = []
        place = start
        with resources.pool.lease(self.path) as handle:
            walk = self._walk(resources.files, handle.descriptor, *start, size_bytes=size_bytes, payloads=False)
            for position, header, _ in walk:
                place = Place(header.next_offset, position + stored_bytes(header))
                if header.next_offset > wanted:
                    headers.append(header)
                    if len(headers) == limit:
                        break
        return headers, place

    def find_time(self, resources: Resources, time_ms: int, earliest: int, size_bytes: int) -> EntryHeader | None:
        """The first entry at or after `time_ms` that reaches beyond `earliest`. Blocks. Raises PartitionDamaged,
        OSError."""
        start = self.load_index(resources).find_time(time_ms)
        with resources.pool.lease(self.path) as handle:
            walk = self._walk(resources.files, handle.descriptor, *start, size_bytes=size_bytes, payloads=False)
            for _, header, _ in walk:
                if header.append_time_ms >= time_ms and header.next_offset > earliest:
                    return header
        return None

    def _begins_at(self, resources: Resources, place: Place) -> bool:
        buffer = memoryview(bytearray(min(_MIN_WINDOW_BYTES, max(self.size_bytes - place.position, 0))))
        with resources.pool.lease(self.path) as handle:
            filled = resources.files.pread(handle.descriptor, buffer, place.position)
        try:
            header = unpack_header(buffer, 0, filled)
        except BadEntry:
            return False
        return header is None or header.base_offset == place.offset

    def _walk(
        self,
        files: Files,
        descriptor: int,
        offset: int,
        position: int,
        size_bytes: int | None = None,
        payloads: bool = True,
    ) -> Iterator[Walked]:
        try:
            yield from walk(files, descriptor, offset, position, size_bytes or self.size_bytes, payloads=payloads)
        except BadEntry as bad:
            raise PartitionDamaged(self.path, bad.position, bad.cause) from bad


def _cause(error: Exception) -> str:
    """Without the path that Python adds to what the system says."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def segment_path(directory: str, partition: int, number: int) -> str:
    return f"{directory}/{segment_name(partition, number)}"


def segment_index_path(directory: str, partition: int, number: int) -> str:
    return f"{directory}/{index_name(partition, number)}"


def load_index_file(files: Files, path: str) -> tuple[SparseIndex, Summary] | None:
    """What the index file says; None if it is missing, unreadable or damaged: an index is only a cache."""
    try:
        return unpack_index(read_file(files, path, MAX_INDEX_BYTES))
    except OSError:
        return None


def store_index(files: Files, segment: Segment, index: SparseIndex) -> None:
    """Write the index file of a segment that is synced and does not grow. Blocks. Raises OSError."""
    summary = segment.summary()
    path = segment.index_path
    replace_file(files, path, index.pack(summary), temporary=path + TEMPORARY_SUFFIX)
    segment.indexed_bytes = summary.segment_bytes


def read_control(files: Files, descriptor: int) -> EntryHeader:
    """The control entry a segment begins with. Raises BadEntry, OSError."""
    buffer = memoryview(bytearray(CONTROL_BYTES))
    header = unpack_header(buffer, 0, files.pread(descriptor, buffer, 0))
    if header is None:
        raise BadEntry(0, "the file ends within its control entry")
    check_control(header, 0)
    return header


def walk(
    files: Files, descriptor: int, offset: int, position: int, size_bytes: int, *, payloads: bool
) -> Iterator[Walked]:
    """Every entry of `[position, size_bytes)`, which has to continue the log at `offset`; with `payloads` their
    checksums too. Blocks. Raises BadEntry with the position in the file, OSError."""
    chunk_bytes = _WALK_BYTES if payloads else _HEADER_WALK_BYTES
    buffer = memoryview(b"")
    begin = filled = 0  # the buffer holds [begin, begin + filled) of the file

    def have(count: int) -> int:
        """Make the buffer begin at or before `position` and hold `count` bytes from there on, if the file does."""
        nonlocal buffer, begin, filled
        if position < begin or position + count > begin + filled:
            wanted_bytes = min(max(count, chunk_bytes), size_bytes - position)
            if len(buffer) < wanted_bytes:
                buffer = page_buffer(wanted_bytes)
            begin, filled = position, files.pread(descriptor, buffer[:wanted_bytes], position)
        return position - begin

    while position < size_bytes:
        at = have(CONTROL_BYTES)
        try:
            header = unpack_header(buffer, at, filled)
            if header is None:
                at = have(header_bytes_hint(buffer, at, filled))
                header = unpack_header(buffer, at, filled)
            if header is None:
                raise BadEntry(at, "the file ends within a header")
            check_data(header, at, offset)
            entry_bytes = stored_bytes(header)
            if position + entry_bytes > size_bytes:
                raise BadEntry(at, "the file ends within an entry")
            if payloads:
                at = have(entry_bytes)
                payload = bytes(buffer[at + stored_header_bytes(header) : at + entry_bytes])
                if crc32c(payload) != header.payload_crc:
                    raise BadEntry(at, "payload checksum differs")
        except BadEntry as bad:
            raise BadEntry(position, bad.cause) from None
        yield Walked(position, header, synced_before(buffer, at))
        offset = header.next_offset
        position += entry_bytes
