"""The lake: where its files lie, what their names say, and how they appear.

    LAKE/topic=orders/date=2026-11-18/hour=04/p00003-0000000000000000120-0000000000000000245.parquet

holds the records 120 to 245, both included and none missing, of partition 3, all appended in that hour (UTC). A name is
a promise: a file has it only when it is complete, and no two files of a lake hold the same record. What is no data lies
in `_cursus`, which readers pass over, under names that do not end in `.parquet`:

    _cursus/lake.json             which lake this is, and its layout
    _cursus/incomplete/STREAM/    what tasks write before it is published
    _cursus/progress/TOPIC.json   until when each partition is archived, which closes hours
    _cursus/lock                  held while files are published or a directory is swapped
"""

from __future__ import annotations

import itertools
import json
import re
import uuid
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import PurePosixPath
from typing import Final

import pyarrow as pa
from pyarrow import fs

from cursus_spark.pipeline.lake.directory import Directory

HOUR_MS: Final = 3_600_000
LAYOUT: Final = 1
ABOUT: Final = "_cursus"
INCOMPLETE: Final = f"{ABOUT}/incomplete"
LOCK: Final = f"{ABOUT}/lock"
SUFFIX: Final = ".parquet"

_HOUR: Final = re.compile(r"topic=([^/]+)/date=(\d{4}-\d\d-\d\d)/hour=(\d\d)")
_NAME: Final = re.compile(r"p(\d{5,})-(\d{19})-(\d{19})\.parquet")

HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_TIME: Final = pa.timestamp("us", tz="UTC")

SCHEMA: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", _TIME),
        ("timestampType", pa.int32()),
        ("headers", HEADERS),
        ("append_time", _TIME),
        ("producer_id", pa.binary()),
        ("producer_epoch", pa.int64()),
        ("sequence", pa.int64()),
        ("event_type", pa.binary()),
        ("schema_version", pa.int64()),
        ("aggregate_version", pa.int64()),
        ("metadata", pa.binary()),
    ]
)
"""Of every file. The topic is in its path."""


class LakeDamaged(RuntimeError):
    """The lake holds what no archive wrote, or records twice."""


class LakeConflict(RuntimeError):
    """The lake and the topic, or two archives of one lake, contradict each other."""


@dataclass(frozen=True, slots=True, order=True)
class Hour:
    """A directory of the lake."""

    topic: str
    number: int
    """Hours since 1970, UTC."""

    @classmethod
    def parse(cls, path: str) -> Hour | None:
        """
        >>> Hour.parse("topic=orders/date=1970-01-02/hour=03")
        Hour(topic='orders', number=27)
        """
        if (found := _HOUR.fullmatch(path)) is None:
            return None
        try:
            begin = datetime.strptime(f"{found[2]} {found[3]} +0000", "%Y-%m-%d %H %z")
        except ValueError:
            return None
        return cls(found[1], int(begin.timestamp()) // 3_600)

    @property
    def path(self) -> str:
        return f"topic={self.topic}/{datetime.fromtimestamp(self.number * 3_600, UTC):date=%Y-%m-%d/hour=%H}"

    @property
    def begin_ms(self) -> int:
        return self.number * HOUR_MS

    @property
    def end_ms(self) -> int:
        return (self.number + 1) * HOUR_MS


@dataclass(frozen=True, slots=True, order=True)
class LakeFile:
    """A file by its name: the records `first` to `last` of a partition, both included."""

    partition: int
    first: int
    last: int
    hour: Hour
    size: int = field(default=0, compare=False)
    """Bytes; 0 where nobody asked."""

    @property
    def name(self) -> str:
        return f"p{self.partition:05}-{self.first:019}-{self.last:019}{SUFFIX}"

    @property
    def path(self) -> str:
        return f"{self.hour.path}/{self.name}"

    def __len__(self) -> int:
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True)
class Staged:
    """A complete file that is not published yet."""

    file: LakeFile
    staged: str


def overlapping(files: Sequence[LakeFile], first: int, last: int) -> list[LakeFile]:
    """Those of a partition's files, sorted, that hold any of these records."""
    begin = bisect_left(files, first, key=lambda one: one.last)
    found = []
    for one in files[begin:]:
        if one.first > last:
            break
        found.append(one)
    return found


class Lake:
    """One lake. Goes to executors."""

    def __init__(self, directory: Directory) -> None:
        self.directory = directory

    def __reduce__(self) -> tuple[type[Lake], tuple[Directory]]:
        return Lake, (self.directory,)

    @cached_property
    def id(self) -> str:
        """Made with the lake. Raises LakeDamaged if it has a layout of another release."""
        name = f"{ABOUT}/lake.json"
        with self.directory.lock(LOCK):
            if (stored := self.directory.read_text(name)) is None:
                stored = json.dumps({"id": uuid.uuid4().hex, "layout": LAYOUT})
                self.directory.write_text(name, stored)
        found = json.loads(stored)
        self._check_layout(found)
        return str(found["id"])

    @property
    def is_one(self) -> bool:
        """Whether an archive has been here. Raises LakeDamaged as `id`."""
        stored = self.directory.read_text(f"{ABOUT}/lake.json")
        if stored is not None:
            self._check_layout(json.loads(stored))
        return stored is not None

    def _check_layout(self, found: Mapping[str, object]) -> None:
        if found.get("layout") != LAYOUT:
            raise LakeDamaged(
                f"the lake {self.directory.location} has layout {found.get('layout')}; this release writes {LAYOUT}"
            )

    def topics(self) -> list[str]:
        names = [PurePosixPath(one.path).name for one in self.directory.list("")]
        return sorted(name.removeprefix("topic=") for name in names if name.startswith("topic="))

    def files(self, topic: str) -> dict[int, list[LakeFile]]:
        """All files of a topic by partition, in the order of their records. Raises LakeDamaged."""
        return self._by_partition(self.directory.list(f"topic={topic}", deep=True))

    def files_in(self, hour: Hour) -> dict[int, list[LakeFile]]:
        """Likewise, of one directory."""
        return self._by_partition(self.directory.list(hour.path))

    def _by_partition(self, listed: Iterable[fs.FileInfo]) -> dict[int, list[LakeFile]]:
        found: dict[int, list[LakeFile]] = {}
        for one in listed:
            if one.type == fs.FileType.Directory:
                continue
            file = self._parse(one)
            found.setdefault(file.partition, []).append(file)
        for files in found.values():
            files.sort()
            for one, after in itertools.pairwise(files):
                if after.first <= one.last:
                    raise LakeDamaged(f"{one.path} and {after.path} of {self.directory.location} hold the same records")
        return found

    def _parse(self, info: fs.FileInfo) -> LakeFile:
        path = PurePosixPath(info.path)
        hour = Hour.parse("/".join(path.parent.parts[-3:]))
        name = _NAME.fullmatch(path.name)
        if hour is None or name is None or int(name[3]) < int(name[2]):
            raise LakeDamaged(f"{info.path} was not written by an archive; move it out of the lake")
        return LakeFile(int(name[1]), int(name[2]), int(name[3]), hour, info.size)

    def publish(self, staged: Iterable[Staged]) -> int:
        """Let files appear. Those that are there already are dropped: names say what is in them. Answers how many
        appeared. Raises LakeConflict if another archive has stored some of the records meanwhile."""
        wanted = list(staged)
        appeared = 0
        with self.directory.lock(LOCK):
            there = {hour: self.files_in(hour) for hour in {one.file.hour for one in wanted}}
            for one in wanted:
                file = one.file
                others = overlapping(there[file.hour].get(file.partition, []), file.first, file.last)
                if others and others != [file]:
                    raise LakeConflict(
                        f"another archive has stored {others[0].path} while this one wrote {file.name}: one lake takes"
                        " a topic from one archive at a time"
                    )
            for one in wanted:
                if one.file not in there[one.file.hour].get(one.file.partition, []):
                    self.directory.move(one.staged, one.file.path)
                    appeared += 1
        return appeared

    # Until when a topic is archived

    def archived_until(self, topic: str) -> dict[int, int]:
        """For each partition a time, in milliseconds since 1970, before which nothing will be archived any more."""
        stored = self.directory.read_text(_progress(topic))
        return {} if stored is None else {int(one): ms for one, ms in json.loads(stored)["until_ms"].items()}

    def note_archived(self, topic: str, until_ms: Mapping[int, int]) -> None:
        """Times never go back."""
        with self.directory.lock(LOCK):
            known = self.archived_until(topic)
            merged = {one: max(known.get(one, 0), until_ms.get(one, 0)) for one in known.keys() | until_ms.keys()}
            if merged != known:
                stored = {str(one): merged[one] for one in sorted(merged)}
                self.directory.write_text(_progress(topic), json.dumps({"until_ms": stored}))

    def closed_before(self, topic: str) -> int:
        """No archive will add a record of this topic that was appended before; milliseconds since 1970."""
        return min(self.archived_until(topic).values(), default=0)


def _progress(topic: str) -> str:
    return f"{ABOUT}/progress/{topic}.json"
