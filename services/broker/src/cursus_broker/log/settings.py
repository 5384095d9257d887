"""What an operator may choose about storage. The engine receives this object and nothing else of the configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cursus_service.settings import Unit, setting

KIB: Final = 1024
MIB: Final = 1024 * KIB
DAY_MS: Final = 24 * 60 * 60 * 1000

MAX_SEGMENT_BYTES: Final = 2 * 1024 * MIB
"""Recovery may have to walk a whole segment; above this a restart after a crash would take minutes."""


@dataclass(frozen=True, slots=True)
class LogSettings:
    segment_bytes: int = setting(
        64 * MIB,
        help="Begin a new segment file before one grows beyond this. Smaller: more files, finer retention.",
        unit=Unit.BYTES,
        minimum=KIB,
        maximum=MAX_SEGMENT_BYTES,
    )
    segment_ms: int = setting(
        7 * DAY_MS,
        help="Begin a new segment file when the present one was begun this long ago, so that age can retire it.",
        unit=Unit.MILLISECONDS,
        minimum=1,
    )
    index_interval_bytes: int = setting(
        64 * KIB,
        help="One index item per this many log bytes. Smaller: shorter searches, more memory.",
        unit=Unit.BYTES,
        minimum=1,
        maximum=MAX_SEGMENT_BYTES,
    )
    flush_records: int = setting(
        500,
        help="Sync without lingering when this many records of a partition are unsynced. The disk rests first, for nine"
        " times as long as the last sync took: writing to a file that is being synced is slow.",
        minimum=1,
    )
    linger_ms: int = setting(
        100,
        help="Longest time written records wait for a sync: what power loss may take of records acknowledged with"
        " acks 1.",
        unit=Unit.MILLISECONDS,
        minimum=0,
    )
    scrub_bytes_per_s: int = setting(
        4 * MIB,
        help="Sealed segments are read and verified in the background, at most so fast, so that damage is found before"
        " a reader meets it. 0: never.",
        unit=Unit.BYTES,
        minimum=0,
    )
    scrub_interval_ms: int = setting(
        DAY_MS,
        help="Begin to verify all sealed segments again when the last time began this long ago.",
        unit=Unit.MILLISECONDS,
        minimum=100,
    )
    open_files: int = setting(
        2_048,
        help="Descriptors all segment files share; beyond it the least recently used one is closed. A partition that is"
        " written to needs one.",
        minimum=8,
    )
