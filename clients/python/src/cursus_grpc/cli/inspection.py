"""Walks segment files without a broker: every entry, both checksums, indexes, checkpoints, and how they fit together.

Reads only, and goes on behind damage, where the broker would stop. Needs the broker's package, whose `log` owns the
bytes; `segments.py` imports this module when it is asked to.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cursus_broker.datadir import LOCK_NAME
from cursus_broker.errors import PartitionDamaged
from cursus_broker.log.api import EntryHeader
from cursus_broker.log.checkpoint import Checkpoint, unpack_checkpoint
from cursus_broker.log.entry import (
    CONTROL_BYTES,
    FIXED_BYTES,
    MAX_PRODUCER_ID_BYTES,
    BadEntry,
    candidates,
    stored_bytes,
    stored_header_bytes,
    unpack_header,
)
from cursus_broker.log.files import RealFiles
from cursus_broker.log.names import checkpoint_name, index_name, parse_segment_file, segment_name
from cursus_broker.log.segment import load_index_file, read_control, walk
from cursus_grpc import Record, TopicPartition
from cursus_grpc._records import unpack
from cursus_proto import codecs
from cursus_proto.bounds import DEFAULT_BOUNDS
from cursus_proto.internal.v1.opaque_pb2 import RecordBatch
from cursus_proto.v1 import records_pb2

_FILES: Final = RealFiles()
_WINDOW_BYTES: Final = 4 * 1024 * 1024
# A header that begins in one window may end behind it.
_OVERLAP_BYTES: Final = FIXED_BYTES + MAX_PRODUCER_ID_BYTES


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition's files. `numbers` are those of its segments, in order."""

    directory: Path
    partition: int
    numbers: tuple[int, ...]
    one_file: bool = False
    """Only one segment is to be looked at: what comes before and after it is not asked for."""

    @property
    def topic(self) -> str:
        return self.directory.name

    def segment(self, number: int) -> Path:
        return self.directory / segment_name(self.partition, number)

    def index(self, number: int) -> Path:
        return self.directory / index_name(self.partition, number)

    @property
    def checkpoint(self) -> Path:
        return self.directory / checkpoint_name(self.partition)


@dataclass(frozen=True, slots=True)
class EntrySeen:
    """A sound entry."""

    path: Path
    position: int
    header: EntryHeader


@dataclass(frozen=True, slots=True)
class Damage:
    """A place at which the log does not go on.

    `offset` is the first one that cannot be read there. The next sound entry, if there is one, is at `next_position`
    and has `next_offset`. `tail`: nothing sound follows in the partition and nothing says that something had been
    synced, so a broker that starts takes it for a torn tail and cuts it off.
    """

    path: Path
    position: int
    offset: int
    cause: str
    next_position: int | None = None
    next_offset: int | None = None
    tail: bool = False


@dataclass(frozen=True, slots=True)
class SegmentSeen:
    """A segment as a whole. `index` is `ok`, `damaged` (or of another size of the segment), `missing`, or `none`
    where none is due: the last segment of a partition has one only after a clean shutdown."""

    topic: str
    partition: int
    number: int
    path: Path
    size_bytes: int
    base_offset: int
    next_offset: int
    entries: int
    records: int
    first_ms: int | None
    last_ms: int | None
    index: str


Seen = EntrySeen | Damage | SegmentSeen


def find(root: Path, topic: str | None = None, partition: int | None = None) -> list[Partition]:
    """The partitions in a data directory, a log directory, a topic's directory, or the one a segment file is of."""
    only: int | None = None
    if root.is_file():
        parsed = parse_segment_file(root.name)
        if parsed is None or parsed[2] != "log":
            return []
        partition, only, _ = parsed
        root = root.parent
        directories = [root]
    else:
        logs = root / "logs" if (root / "logs").is_dir() else root
        directories = [logs, *sorted(path for path in logs.iterdir() if path.is_dir())]
    found: list[Partition] = []
    for directory in directories:
        if topic is not None and directory.name != topic:
            continue
        numbers: dict[int, list[int]] = {}
        for name in os.listdir(directory):
            parsed = parse_segment_file(name)
            if (
                parsed is not None
                and parsed[2] == "log"
                and partition in (None, parsed[0])
                and only in (None, parsed[1])
            ):
                numbers.setdefault(parsed[0], []).append(parsed[1])
        found += [
            Partition(directory, number, tuple(sorted(of)), one_file=only is not None)
            for number, of in sorted(numbers.items())
        ]
    return found


def in_use(root: Path) -> bool:
    """Whether a broker runs on this data directory."""
    try:
        descriptor = os.open(root / LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def inspect(found: Partition) -> Iterator[Seen]:
    """Everything about one partition, in the order of the log; a segment itself after its entries. Raises OSError."""
    checkpoint, damage = _checkpoint(found)
    if damage is not None:
        yield damage
    expected: int | None = None
    previous: int | None = None
    held: Damage | None = None
    """Damage at the end of a segment: what it is depends on whether anything follows."""
    for number in found.numbers:
        if held is not None:
            yield held
            held = None
        path = found.segment(number)
        if previous is not None and number != previous + 1:
            yield Damage(found.segment(previous + 1), 0, expected or 0, "the segment is missing")
        seen: SegmentSeen | None = None
        for one in _segment(found, number, expected):
            if isinstance(one, Damage) and one.next_position is None:
                held = one
            else:
                yield one
            if isinstance(one, SegmentSeen):
                seen = one
        if seen is not None:
            if expected is not None and seen.base_offset != expected:
                cause = f"the segment begins at offset {seen.base_offset} where {expected} was expected"
                yield Damage(path, 0, expected, cause, 0, seen.base_offset)
            elif (
                expected is None and seen.base_offset > (earliest := checkpoint.earliest_offset) and not found.one_file
            ):
                cause = f"the log begins at offset {seen.base_offset}, records from {earliest} on are missing"
                yield Damage(path, 0, earliest, cause, 0, seen.base_offset)
            expected = seen.next_offset
        previous = number
    if held is not None:
        synced = checkpoint.synced_offset > held.offset
        yield Damage(held.path, held.position, held.offset, held.cause, tail=not synced)
    elif not found.one_file and checkpoint.synced_offset > (expected or 0):
        last = found.segment(found.numbers[-1])
        cause = f"the log ends at offset {expected}, but was synced up to {checkpoint.synced_offset}"
        yield Damage(last, last.stat().st_size, expected or 0, cause)


def records_of(found: Partition, seen: EntrySeen) -> list[Record]:
    """The records of an entry as a consumer would get them. Raises CorruptBatch if only its checksums are right,
    BatchTooLarge, OSError."""
    header = seen.header
    with seen.path.open("rb") as stream:
        stream.seek(seen.position + stored_header_bytes(header))
        payload = stream.read(header.payload_bytes)
    batch = RecordBatch(
        base_offset=header.base_offset,
        record_count=header.record_count,
        append_time_ms=header.append_time_ms,
        codec=records_pb2.Codec.ValueType(header.codec),
        records_crc32c=header.payload_crc,
    )
    if codecs.is_plain(header.codec):
        batch.records = payload
    else:
        batch.compressed_records = payload
    return unpack(batch, TopicPartition(found.topic, found.partition), header.base_offset, DEFAULT_BOUNDS).records()


def _checkpoint(found: Partition) -> tuple[Checkpoint, Damage | None]:
    path = found.checkpoint
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return Checkpoint(), None
    try:
        return unpack_checkpoint(content, str(path)), None
    except (PartitionDamaged, ValueError, KeyError, TypeError) as error:
        return Checkpoint(), Damage(path, 0, 0, f"the checkpoint cannot be read: {error}")


def _segment(found: Partition, number: int, expected: int | None) -> Iterator[Seen]:
    """The segment's entries, its damage, then itself."""
    path = found.segment(number)
    descriptor = _FILES.open(str(path), writable=False)
    try:
        size_bytes = os.fstat(descriptor).st_size
        position = CONTROL_BYTES
        try:
            base_offset = offset = int(read_control(_FILES, descriptor).base_offset)
        except BadEntry as bad:
            base_offset = offset = expected or 0
            resumed = _resume(descriptor, 0, offset, size_bytes)
            yield Damage(path, 0, offset, bad.cause, *resumed)
            position, offset = (size_bytes, offset) if resumed[0] is None else (resumed[0], resumed[1] or 0)
        entries = records = 0
        first_ms: int | None = None
        last_ms: int | None = None
        while position < size_bytes:
            try:
                for walked in walk(_FILES, descriptor, offset, position, size_bytes, payloads=True):
                    header = walked.header
                    yield EntrySeen(path, walked.position, header)
                    entries, records = entries + 1, records + header.record_count
                    first_ms = header.append_time_ms if first_ms is None else first_ms
                    last_ms = header.append_time_ms
                    position, offset = walked.position + stored_bytes(header), header.next_offset
                break
            except BadEntry as bad:
                next_position, next_offset = _resume(descriptor, bad.position, offset, size_bytes)
                yield Damage(path, bad.position, offset, bad.cause, next_position, next_offset)
                if next_position is None or next_offset is None:
                    break
                position, offset = next_position, next_offset
    finally:
        _FILES.close(descriptor)
    yield SegmentSeen(
        found.topic,
        found.partition,
        number,
        path,
        size_bytes,
        base_offset,
        offset,
        entries,
        records,
        first_ms,
        last_ms,
        _index_state(found, number, size_bytes),
    )


def _index_state(found: Partition, number: int, size_bytes: int) -> str:
    path = found.index(number)
    if not path.exists():
        return "none" if number == found.numbers[-1] else "missing"
    loaded = load_index_file(_FILES, str(path))
    return "ok" if loaded is not None and loaded[1].segment_bytes == size_bytes else "damaged"


def _resume(descriptor: int, bad_at: int, min_offset: int, size_bytes: int) -> tuple[int, int] | tuple[None, None]:
    """Position and offset of the next entry behind a bad one, if there is any with a sound header."""
    after = _behind(descriptor, bad_at, min_offset, size_bytes)
    if after is not None:
        return after
    begin = bad_at + 1
    while begin < size_bytes:
        content = os.pread(descriptor, min(_WINDOW_BYTES + _OVERLAP_BYTES, size_bytes - begin), begin)
        for at, header in candidates(content, min_offset):
            if begin + at + stored_bytes(header) <= size_bytes:
                return begin + at, int(header.base_offset)
        begin += _WINDOW_BYTES
    return None, None


def _behind(descriptor: int, bad_at: int, min_offset: int, size_bytes: int) -> tuple[int, int] | None:
    """Where only the payload is bad the header still tells where the next entry is. Looking there first keeps a payload
    that holds something like an entry from being taken for one."""
    header = _header(descriptor, bad_at, size_bytes)
    if header is None or header.base_offset != min_offset:
        return None
    position = bad_at + stored_bytes(header)
    following = _header(descriptor, position, size_bytes)
    if following is None or following.base_offset != header.next_offset:
        return None
    return position, int(following.base_offset)


def _header(descriptor: int, position: int, size_bytes: int) -> EntryHeader | None:
    content = os.pread(descriptor, min(_OVERLAP_BYTES, max(0, size_bytes - position)), position)
    try:
        return unpack_header(content, 0, len(content))
    except BadEntry:
        return None
