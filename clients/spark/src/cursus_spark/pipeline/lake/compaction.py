"""Merging the small files of closed hours. An hour's directory is written anew beside the lake and swapped in one
step, so that readers find either all the old files or all the new ones.

What lies in the staging directory is never needed: before the swap it is an unfinished copy, after it the old files. So
whoever comes after a kill removes it, having made sure that the lake has every record in it.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from cursus_grpc.cli.failures import Failed
from cursus_grpc.cli.output import plural, size
from cursus_spark.pipeline.lake.directory import Directory, sync
from cursus_spark.pipeline.lake.layout import ABOUT, LOCK, SCHEMA, Hour, Lake, LakeDamaged, LakeFile, overlapping
from cursus_spark.pipeline.lake.rename_exchange import ExchangeUnsupported, exchange
from cursus_spark.pipeline.lake.writer import BYTES, COMPRESSION, ROWS

TARGET_BYTES: Final = 256 * 1024 * 1024
"""Files are not merged beyond this."""

_RUNNING: Final = f"{ABOUT}/compaction.lock"

Fault = Callable[[str], None]
"""Told of every step that a kill could come after. Only tests give one."""


def _no_fault(_step: str) -> None:
    pass


@dataclass(slots=True)
class Compaction:
    """What was merged."""

    hours: int = 0
    files_before: int = 0
    files_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0

    def add(self, other: Compaction) -> None:
        self.hours += other.hours
        self.files_before += other.files_before
        self.files_after += other.files_after
        self.bytes_before += other.bytes_before
        self.bytes_after += other.bytes_after

    def summary(self) -> dict[str, int]:
        return {
            "hours": self.hours,
            "files_before": self.files_before,
            "files_after": self.files_after,
            "bytes_before": self.bytes_before,
            "bytes_after": self.bytes_after,
        }

    def text(self) -> str:
        if not self.hours:
            return "nothing to compact: closed hours have no small files to merge"
        return (
            f"compacted {plural(self.hours, 'hour')}: {plural(self.files_before, 'file')}, {size(self.bytes_before)},"
            f" to {plural(self.files_after, 'file')}, {size(self.bytes_after)}"
        )

    @staticmethod
    def check(lake: Lake, staging: Path | None = None) -> Path:
        """Where to stage. Raises Failed where directories cannot be swapped."""
        root = lake.directory.local
        if root is None:
            raise Failed(
                f"{lake.directory.location} is not on a local file system: without an atomic swap of directories"
                " readers could see records twice or not at all",
                "archive with a longer --interval instead, which makes larger files",
                "CANNOT_COMPACT",
            )
        root.mkdir(parents=True, exist_ok=True)
        staging = staging or root.with_name(f".{root.name}.compaction")
        if staging.resolve().is_relative_to(root.resolve()):
            # Both sides of a swap have names that readers look for.
            raise Failed(f"{staging} is in the lake, where readers would find it", reason="CANNOT_COMPACT")
        probes = root / ABOUT / "probe", staging / "probe"
        try:
            for probe in probes:
                probe.mkdir(parents=True, exist_ok=True)
            exchange(*probes)
        except ExchangeUnsupported as error:
            raise Failed(
                f"the lake cannot be compacted: {error.strerror}",
                "name a directory on the file system of the lake with --staging" if error.errno == errno.EXDEV else "",
                "CANNOT_COMPACT",
            ) from error
        finally:
            for probe in probes:
                shutil.rmtree(probe, ignore_errors=True)
        return staging


def compact_closed(
    lake: Lake, staging: Path | None = None, target_bytes: int = TARGET_BYTES, fault: Fault = _no_fault
) -> Compaction:
    """Merge what can be merged in all closed hours. Raises Failed if it cannot be done here or another process does it,
    LakeDamaged."""
    staging = Compaction.check(lake, staging)
    total = Compaction()
    with ExitStack() as stack:
        try:
            stack.enter_context(lake.directory.lock(_RUNNING, wait=False))
        except BlockingIOError as error:
            raise Failed("another process compacts this lake", reason="CANNOT_COMPACT") from error
        _clean(lake, staging)
        for topic in lake.topics():
            closed_before = lake.closed_before(topic)
            by_hour: dict[Hour, list[LakeFile]] = {}
            for files in lake.files(topic).values():
                for file in files:
                    if file.hour.end_ms <= closed_before:
                        by_hour.setdefault(file.hour, []).append(file)
            for hour in sorted(by_hour):
                total.add(_compact_hour(lake, staging, hour, sorted(by_hour[hour]), target_bytes, fault))
        shutil.rmtree(staging, ignore_errors=True)
    return total


def groups(files: list[LakeFile], target_bytes: int) -> list[list[LakeFile]]:
    """Which files become one: neighbours of a partition whose records follow one another, up to the wanted size. So
    that a name tells what is in a file, none is merged over a gap."""
    found: list[list[LakeFile]] = []
    for file in sorted(files):
        if found:
            last = found[-1][-1]
            follows = last.partition == file.partition and last.last + 1 == file.first
            if follows and sum(one.size for one in found[-1]) + file.size <= target_bytes:
                found[-1].append(file)
                continue
        found.append([file])
    return found


def _compact_hour(
    lake: Lake, staging: Path, hour: Hour, files: list[LakeFile], target_bytes: int, fault: Fault
) -> Compaction:
    merged = groups(files, target_bytes)
    if len(merged) == len(files):
        return Compaction()
    root = lake.directory.local
    assert root is not None
    here, new = root / hour.path, staging / hour.path
    new.mkdir(parents=True)
    for group in merged:
        _merge(here, new, group)
        fault("merged")
    sync(new)
    after = sum(one.stat().st_size for one in new.iterdir())
    with lake.directory.lock(LOCK):
        if {one.name for one in here.iterdir()} != {file.name for file in files}:
            # Something was added meanwhile: the next run takes it along.
            shutil.rmtree(new)
            return Compaction()
        fault("before swap")
        exchange(new, here)
        fault("swapped")
        sync(here.parent)
        sync(new.parent)
    shutil.rmtree(new)
    fault("removed")
    return Compaction(1, len(files), len(merged), sum(file.size for file in files), after)


def _merge(here: Path, new: Path, group: list[LakeFile]) -> None:
    """A bounded number of rows at a time."""
    first, last = group[0], group[-1]
    target = LakeFile(first.partition, first.first, last.last, first.hour)
    path = new / target.name
    if len(group) == 1:
        os.link(here / target.name, path)
        return
    with pq.ParquetWriter(path, SCHEMA, compression=COMPRESSION) as writer:
        for rows in _row_groups([here / file.name for file in group]):
            writer.write_table(rows, row_group_size=rows.num_rows)
    sync(path)
    found = pq.read_metadata(path).num_rows
    if found != len(target):
        raise LakeDamaged(f"{here} holds {found} records, where the names of its files promise {len(target)}")


def _row_groups(paths: Iterable[Path]) -> Iterator[pa.Table]:
    """The rows of files one after the other, small row groups joined to such as an archive would write."""
    waiting: list[pa.Table] = []
    for path in paths:
        with pq.ParquetFile(path) as parquet:
            for number in range(parquet.num_row_groups):
                waiting.append(parquet.read_row_group(number))
                if sum(one.num_rows for one in waiting) >= ROWS or sum(one.nbytes for one in waiting) >= BYTES:
                    yield pa.concat_tables(waiting)
                    waiting = []
    if waiting:
        yield pa.concat_tables(waiting)


def _clean(lake: Lake, staging: Path) -> None:
    """Remove what a run left that was killed. Raises LakeDamaged if the lake lacks anything of it."""
    left = Lake(Directory(str(staging)))
    for topic in left.topics():
        for partition, files in left.files(topic).items():
            there = lake.files(topic).get(partition, [])
            for file in files:
                covered = sum(
                    min(one.last, file.last) - max(one.first, file.first) + 1
                    for one in overlapping(there, file.first, file.last)
                )
                if covered != len(file):
                    raise LakeDamaged(
                        f"{staging / file.path} holds records that the lake lacks; look at both before removing it"
                    )
    shutil.rmtree(staging, ignore_errors=True)
