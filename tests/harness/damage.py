"""Damage to a broker's files while it does not run."""

from __future__ import annotations

from pathlib import Path
from struct import Struct

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
