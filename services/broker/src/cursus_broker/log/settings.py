"""What an operator may choose about storage. The engine receives this object and nothing else of the configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB
DAY_MS: Final = 24 * 60 * 60 * 1000

MAX_SEGMENT_BYTES: Final = 2 * 1024 * MIB
"""Recovery may have to walk a whole segment; above this a restart after a crash would take minutes."""


@dataclass(frozen=True, slots=True)
class LogSettings:
    segment_bytes: int = 64 * MIB  # Roll before a segment grows beyond this. Smaller: more files, finer retention.
    segment_ms: int = 7 * DAY_MS  # Roll a segment that was begun this long ago, so that age can retire it.
    index_interval_bytes: int = (
        64 * KIB
    )  # One index item per this many log bytes. Smaller: shorter search, more memory.
    flush_records: int = 500  # Sync at once when this many records are unsynced.
    linger_ms: int = 100  # Longest time written data waits for a sync: what power loss may take.
    open_files: int = 512  # Descriptors all segments share; beyond it the least recently used is closed.

    def __post_init__(self) -> None:
        for name, low, high in (
            ("segment_bytes", KIB, MAX_SEGMENT_BYTES),
            ("segment_ms", 1, None),
            ("index_interval_bytes", 1, MAX_SEGMENT_BYTES),
            ("flush_records", 1, None),
            ("linger_ms", 0, None),
            ("open_files", 8, None),
        ):
            value: int = getattr(self, name)
            if value < low or (high is not None and value > high):
                raise ValueError(
                    f"{name} is {value}: it must be at least {low}" + (f", at most {high}" if high else "")
                )
