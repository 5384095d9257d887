"""Deleting the beginning of a log, so that power loss at any moment leaves it deleted or not, and never half.

The checkpoint is written before the first file goes. From then on the files are no part of the log; opening the log
removes those that are still there.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from functools import partial

from cursus_broker.errors import storage_failure
from cursus_broker.log.checkpoint import CheckpointFile
from cursus_broker.log.extent import Extent
from cursus_broker.log.names import cut_name, parse_segment_file
from cursus_broker.log.resources import Resources
from cursus_broker.log.segment import Segment
from cursus_broker.log.sync import GroupedSync


class Trimmer:
    """Deletes for one log, one deletion at a time. Appends and reads go on meanwhile."""

    def __init__(
        self,
        resources: Resources,
        extent: Extent,
        checkpoint: CheckpointFile,
        directory: str,
        partition: int,
        executor: Executor,
        file_lock: threading.Lock,
    ) -> None:
        """`file_lock` is held while files are removed."""
        self._resources = resources
        self._extent = extent
        self._checkpoint = checkpoint
        self._directory = directory
        self._partition = partition
        self._executor = executor
        self._file_lock = file_lock
        self._loop = asyncio.get_running_loop()
        self._deleting = asyncio.Lock()

    async def trim(
        self, before: int, sync: GroupedSync, roll: Callable[[], None], detached: Callable[[], None]
    ) -> None:
        """Let the log begin at `before`, which is not above its end. `roll` begins a new segment, `detached` is called
        as soon as segments have left the log. Raises StorageFailed."""
        async with self._deleting:
            if before <= self._extent.earliest_offset:
                return
            if before == self._extent.next_offset and not self._extent.active.is_empty:
                # All of the active segment goes. In a segment of its own the log remembers where it goes on.
                roll()
            # Otherwise power loss could leave a log that ends before it begins, or, if only the active segment is left,
            # none at all.
            if before == self._extent.active.base_offset:
                await sync.flush()
            else:
                await sync.wait(before)
            advance = partial(self._checkpoint.advance, earliest_offset=before, synced_offset=sync.synced_offset)
            try:
                await self._loop.run_in_executor(self._executor, advance)
            except OSError as error:
                raise storage_failure("cannot write the checkpoint", error) from error
            self._resources.fault("after_trim_checkpoint")
            removed = self._extent.move_earliest(before)
            detached()
            if removed:
                await self._loop.run_in_executor(self._executor, self._unlink, removed)

    def _unlink(self, removed: Sequence[Segment]) -> None:
        """Remove the files, oldest first. Runs in a thread. What cannot be removed now goes when the log is opened."""
        files, numbers = self._resources.files, {segment.number for segment in removed}
        with self._file_lock, suppress(OSError):
            for segment in removed:
                self._resources.pool.forget(segment.path)
                self._resources.indexes.forget(segment.path)
                files.unlink(segment.path)
                if files.exists(segment.index_path):
                    files.unlink(segment.index_path)
                self._resources.fault("after_unlink")
            # What recovery once cut off a segment goes with it.
            for parsed in map(parse_segment_file, files.list(self._directory)):
                if parsed is None:
                    continue
                partition, number, kind = parsed
                if partition == self._partition and number in numbers and kind.startswith("cut-"):
                    files.unlink(f"{self._directory}/{cut_name(partition, number, int(kind.removeprefix('cut-')))}")
