"""How full the disks are. Asked in the thread of the scrape: a network file system may take its time to answer."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


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
                free.add_metric((name,), status.f_bavail * status.f_frsize)
        yield size
        yield free
