"""The names of a partition's files. Nobody else spells or parses one.

partition_{id}_segment_{n}.log         entries; n counts up from 0 without gaps
partition_{id}_segment_{n}.index       the segment's sparse index, once it is sealed
partition_{id}_segment_{n}.cut-{k}     bytes that recovery cut off the segment
partition_{id}.checkpoint              earliest and synced offset
partition_{id}.unsynced                empty: a sync was refused, and what is in the page cache proves nothing
partition_{id}.next.tmp, ….tmp         unfinished; removed when the log is opened
"""

from __future__ import annotations

import re
from typing import Final

TEMPORARY_SUFFIX: Final = ".tmp"
# Callers do not use `~` in the names of directories, so none of theirs can be mistaken for one of these.
DELETED_PREFIX: Final = ".deleted~"
ORPHANED_PREFIX: Final = ".orphaned~"
CLOSED_MARK: Final = ".closed~"
"""An empty file beside the directories: all logs in them were closed cleanly, and none was opened since."""

_SEGMENT_FILE: Final = re.compile(r"partition_(\d+)_segment_(\d+)\.(log|index|cut-\d+)")


def segment_name(partition: int, number: int) -> str:
    return f"partition_{partition}_segment_{number}.log"


def index_name(partition: int, number: int) -> str:
    return f"partition_{partition}_segment_{number}.index"


def cut_name(partition: int, number: int, count: int) -> str:
    return f"partition_{partition}_segment_{number}.cut-{count}"


def checkpoint_name(partition: int) -> str:
    return f"partition_{partition}.checkpoint"


def refused_sync_name(partition: int) -> str:
    return f"partition_{partition}.unsynced"


def prepared_name(partition: int) -> str:
    return f"partition_{partition}.next{TEMPORARY_SUFFIX}"


def parse_segment_file(name: str) -> tuple[int, int, str] | None:
    """Partition, segment number and kind (`log`, `index`, `cut-k`); None for the name of anything else."""
    match = _SEGMENT_FILE.fullmatch(name)
    return None if match is None else (int(match[1]), int(match[2]), match[3])


def is_temporary(name: str, partition: int) -> bool:
    """Whether the name is that of an unfinished file of this partition."""
    return name.endswith(TEMPORARY_SUFFIX) and name.startswith(file_prefixes(partition))


def file_prefixes(partition: int) -> tuple[str, str]:
    """One of these begins the name of every file of the partition, and of no other's."""
    return f"partition_{partition}.", f"partition_{partition}_"
