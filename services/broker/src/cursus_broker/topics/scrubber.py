"""The scrubber: reads what lies still on disk, all of it again and again, so that damage is known before it is wanted.

It goes through the topics by name, at a bounded rate, in a thread of little importance. Where it is goes into a small
file, so that a restart goes on from there and does not verify the first topics for ever.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import structlog

from cursus_broker.errors import StorageFailed
from cursus_broker.log.api import Offset
from cursus_broker.topics.catalog import Catalog
from cursus_broker.topics.partition import Partition

log = structlog.get_logger(__name__)

_SAVE_EVERY_S: Final = 10.0


@dataclass(slots=True)
class Progress:
    """When the present round began, and how far it is: everything before this place is verified. `topic` is empty
    between two rounds."""

    began_ms: int = 0
    topic: str = ""
    partition: int = 0
    offset: int = 0


class Scrubber:
    """Verifies the logs of a catalog. One `run` at a time."""

    def __init__(
        self,
        catalog: Catalog,
        bytes_per_s: int,
        interval_ms: int,
        file: Path,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        """`file` keeps the progress over restarts. A rate of 0 lets `run` do nothing."""
        self._catalog = catalog
        self._bytes_per_s = bytes_per_s
        self._interval_ms = interval_ms
        self._file = file
        self._now_ms = now_ms
        self._stop = threading.Event()
        self._saved_at = 0.0
        self.progress = Progress()
        # Plain counters for metrics; the bytes are counted in the thread.
        self.verified_bytes = 0
        self.rounds = 0
        self.round_bytes = 0
        self.round_total_bytes = 0

    @property
    def share_done(self) -> float:
        """Of the present round, from 0 to 1. Active segments are not verified, so that it jumps to 1 at the end."""
        if not self.progress.topic:
            return 1.0
        return min(self.round_bytes / self.round_total_bytes, 1.0) if self.round_total_bytes else 0.0

    async def run(self) -> None:
        """Until cancelled."""
        if not self._bytes_per_s:
            return
        self.progress = await asyncio.to_thread(self._load)
        try:
            while True:
                if not self.progress.topic:
                    due_ms = self.progress.began_ms + self._interval_ms
                    await asyncio.sleep(max(0, due_ms - self._now_ms()) / 1000)
                    self.progress = Progress(self._now_ms())
                await self._round()
        finally:
            self._stop.set()

    async def _round(self) -> None:
        """All that is left of the present round."""
        left = list(self._left())
        self.round_bytes = 0
        self.round_total_bytes = sum(partition.log.size_bytes for partition in left)
        for partition in left:
            await self._scrub(partition)
        self.rounds += 1
        self.progress = Progress(self.progress.began_ms)
        await asyncio.to_thread(self._save)

    def _left(self) -> Iterator[Partition]:
        here = (self.progress.topic, self.progress.partition)
        for topic in self._catalog.topics():
            for partition in topic.healthy():
                if (topic.name, partition.id) >= here:
                    yield partition

    async def _scrub(self, partition: Partition) -> None:
        here, place = self.progress, (partition.topic, partition.id)
        offset: Offset | None = Offset(here.offset if (here.topic, here.partition) == place else 0)
        while offset is not None:
            self.progress = Progress(here.began_ms, partition.topic, partition.id, offset)
            if time.monotonic() - self._saved_at > _SAVE_EVERY_S:
                self._saved_at = time.monotonic()
                await asyncio.to_thread(self._save)
            try:
                offset = await partition.log.scrub(offset, self._pause)
            except StorageFailed as error:
                log.warning("scrub.failed", topic=partition.topic, partition=partition.id, cause=str(error))
                return

    def _pause(self, verified_bytes: int) -> bool:
        """Called by the thread that verifies, and keeps it to the rate."""
        self.verified_bytes += verified_bytes
        self.round_bytes += verified_bytes
        return not self._stop.wait(verified_bytes / self._bytes_per_s)

    # In threads.

    def _load(self) -> Progress:
        """What was saved; from the beginning if that is nothing, or nothing that can be read."""
        try:
            fields = json.loads(self._file.read_bytes())
            return Progress(
                int(fields["began_ms"]), str(fields["topic"]), int(fields["partition"]), int(fields["offset"])
            )
        except (OSError, ValueError, KeyError, TypeError):
            return Progress()

    def _save(self) -> None:
        # Not synced, and not missed: without it a round begins anew.
        with suppress(OSError):
            temporary = self._file.with_suffix(".tmp")
            temporary.write_text(json.dumps(asdict(self.progress)))
            os.replace(temporary, self._file)
