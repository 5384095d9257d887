"""How full the disks are. Asked in threads: a network file system may take its time to answer."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

import structlog
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

log = structlog.get_logger(__name__)

_LONGEST_BELIEVED_S: Final = 10.0
"""Where the file system never said that it is full, as with a quota or one very large batch: without a further refusal
for so long there may be room again."""

_ROOM_BYTES: Final = 1024 * 1024
"""Free bytes that count as room: less may be taken by the batch that was refused."""


class DiskRoom:
    """Whether publishes are refused because a disk is full. It is told of refusals, and finds out when they end."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._directories: list[Path] = []
        self._refused_at = 0.0
        self._was_seen = False
        self.is_full = False

    def watch(self, directories: Iterable[Path]) -> None:
        self._directories += directories

    def refused(self) -> None:
        """Something was refused for want of room."""
        self._refused_at = self._clock()
        if not self.is_full:
            self.is_full, self._was_seen = True, False
            log.error("disk.full", directories=[str(path) for path in self._directories])

    async def look(self) -> None:
        """Find out whether there is room again. To be called every second or so."""
        if not self.is_full:
            return
        if not await asyncio.to_thread(self._has_room):
            self._was_seen = True
        elif self._was_seen or self._clock() - self._refused_at > _LONGEST_BELIEVED_S:
            self.is_full = False
            log.info("disk.has_room")

    def _has_room(self) -> bool:
        return all(_free_bytes(path) >= _ROOM_BYTES for path in self._directories)


def _free_bytes(path: Path) -> int:
    try:
        status = os.statvfs(path)
    except OSError:
        return 0
    return status.f_bavail * status.f_frsize


class DiskCollector(Collector):
    """Size and free space of the file systems that directories lie on, each file system once."""

    def __init__(self, directories: Mapping[str, Path]) -> None:
        """By the name that becomes the label; of directories on one file system the first name stands for all."""
        self._directories = dict(directories)

    def describe(self) -> list[Metric]:
        """Nothing in advance: the directories may not be there yet."""
        return []

    def collect(self) -> Iterator[Metric]:
        size = GaugeMetricFamily(
            "cursus_disk_size_bytes", "Size of the file system the directory lies on.", labels=("directory",)
        )
        used = GaugeMetricFamily("cursus_disk_used_bytes", "Bytes in use on it, by anybody.", labels=("directory",))
        free = GaugeMetricFamily(
            "cursus_disk_free_bytes", "Bytes the broker may still write to it.", labels=("directory",)
        )
        seen: set[int] = set()
        for name, path in self._directories.items():
            try:
                device, status = path.stat().st_dev, os.statvfs(path)
            except OSError:
                continue  # gone, or not mounted: absent says more than a number would
            if device not in seen:
                seen.add(device)
                size.add_metric((name,), status.f_blocks * status.f_frsize)
                used.add_metric((name,), (status.f_blocks - status.f_bfree) * status.f_frsize)
                free.add_metric((name,), status.f_bavail * status.f_frsize)
        yield size
        yield used
        yield free
