"""Damage to a broker's files while it does not run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from struct import Struct

from cursus_broker.log.api import Batch, EntryHeader
from cursus_broker.log.entry import CONTROL_BYTES, pack_header, stored_bytes, unpack_header
from cursus_broker.log.index import NO_TIME, SparseIndex, Summary

_LENGTH = Struct(">I")


def cut_log(data_dir: Path, topic: str, entries: int, partition: int = 0) -> None:
    """Cut a partition's log after so many entries of its first segment, as a disk does that forgets the rest. The
    broker must not have closed it."""
    (path,) = data_dir.glob(f"**/{topic}/partition_{partition}_segment_0.log")
    content = path.read_bytes()
    at = 0
    for _ in range(1 + entries):  # a segment begins with an entry of its own
        (size,) = _LENGTH.unpack_from(content, at)
        assert size, f"{path} has fewer than {entries} entries"
        at += _LENGTH.size + size
    with path.open("r+b") as file:
        file.truncate(at)


Stored = tuple[EntryHeader, bytes]
"""A batch as it lies in a log: its header and its record set."""


def rewrite_log(
    data_dir: Path,
    topic: str,
    change: Callable[[list[Stored]], list[Stored]],
    partition: int = 0,
    *,
    index: bool = True,
) -> None:
    """Put other batches into a partition's only segment, as their headers say, with sound checksums. With an index that
    knows each of them, the broker takes the segment as it is; without one it walks it. The broker must have been
    stopped."""
    (path,) = data_dir.glob(f"**/{topic}/partition_{partition}_segment_0.log")
    content = path.read_bytes()
    control = unpack_header(content, 0, len(content))
    assert control is not None
    entries: list[Stored] = []
    at = CONTROL_BYTES
    while at < len(content) and (header := unpack_header(content, at, len(content))) is not None:
        end = at + stored_bytes(header)
        entries.append((header, content[end - header.payload_bytes : end]))
        at = end
    rewritten = bytearray(content[:CONTROL_BYTES])
    known = SparseIndex()
    highest = NO_TIME
    changed = change(entries)
    for header, payload in changed:
        known.note(header.base_offset, len(rewritten), highest, 1)
        highest = max(highest, header.append_time_ms)
        batch = Batch(
            payload,
            header.record_count,
            header.payload_crc,
            header.codec,
            header.flags,
            header.producer_id,
            header.producer_epoch,
            header.first_sequence,
        )
        rewritten += pack_header(batch, header.base_offset, header.append_time_ms, 0) + payload
    path.write_bytes(rewritten)
    if index:
        summary = Summary(
            len(rewritten), control.base_offset, changed[-1][0].next_offset, control.append_time_ms, highest
        )
        path.with_suffix(".index").write_bytes(known.pack(summary))
    else:
        path.with_suffix(".index").unlink()
