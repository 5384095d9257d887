"""Committing offsets of a group, and looking them up."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any

from cursus_grpc import _convert, _rpcs, _tasks
from cursus_grpc._admin import raise_refused
from cursus_grpc._channel import Connections
from cursus_grpc._membership import Membership
from cursus_grpc._reading import UNKNOWN, Reading
from cursus_grpc.errors import CommitFailed, CursusError, LogTruncated
from cursus_grpc.types import CommittedOffset, OffsetAndMetadata, TopicPartition
from cursus_proto.v1 import group_service_pb2 as pb

_log = logging.getLogger("cursus_grpc")

CommitCallback = Callable[[Mapping[TopicPartition, OffsetAndMetadata], CursusError | None], object]
"""Told how a commit went: what was to be committed, and why it was not."""


def unsaved(readings: Iterable[Reading]) -> dict[TopicPartition, OffsetAndMetadata]:
    """What was processed, as far as it is new."""
    return {
        reading.place: processed
        for reading in readings
        if (processed := reading.processed()).offset not in (UNKNOWN, reading.committed)
    }


class Commits:
    """The commits of one consumer, one after the other. Lives on one event loop."""

    def __init__(
        self,
        group: str | None,
        connections: Connections,
        readings: Mapping[TopicPartition, Reading],
        ask_again: Callable[[Reading], None],
    ) -> None:
        """`ask_again` is called for one of the readings if its log turns out to have been cut below it."""
        self._group = group
        self._connections = connections
        self._readings = readings
        self._ask_again = ask_again
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], member: Membership | None) -> None:
        """Commit, as the member or as somebody outside the group. Raises CommitFailed, ValueError without a group, and
        what calls raise."""
        if self._group is None:
            raise ValueError("to commit a consumer needs a group")
        if not offsets:
            return
        offsets = {place: self._with_epoch(place, one) for place, one in offsets.items()}
        # One at a time: a commit that overtook an older one would make that one a step back.
        async with self._turn:
            request = pb.CommitOffsetsRequest(
                group=self._group,
                member_id=member.member_id if member is not None else "",
                generation=member.generation if member is not None else 0,
            )
            requests = _convert.commits_to_proto(request, offsets)
            responses = [await self._connections.call(_rpcs.COMMIT_OFFSETS, one) for one in requests]
            try:
                raise_refused(responses)
            except CommitFailed as error:
                self._note(offsets, error.errors)
                raise
            self._note(offsets, {})

    def _with_epoch(self, place: TopicPartition, one: OffsetAndMetadata) -> OffsetAndMetadata:
        reading = self._readings.get(place)
        if one.leader_epoch is not None or reading is None:
            return one
        return one._replace(leader_epoch=reading.epoch_of(one.offset))

    def _note(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], refused: Mapping[TopicPartition, CursusError]
    ) -> None:
        for place, one in offsets.items():
            reading, error = self._readings.get(place), refused.get(place)
            if reading is None or one.leader_epoch != reading.epoch:
                continue  # it has gone back meanwhile, or knows more than this answer
            if error is None or isinstance(error, LogTruncated):
                reading.committed = one.offset
            if isinstance(error, LogTruncated):
                self._ask_again(reading)

    def run(
        self,
        commit: Coroutine[Any, Any, None],
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        callback: CommitCallback | None,
    ) -> None:
        """Do it in the background and tell the callback how it went."""

        async def work() -> None:
            error: CursusError | None = None
            try:
                await commit
            except CursusError as refused:
                error = refused
                _log.warning("commit failed: %s", refused)
            if callback is not None:
                callback(offsets, error)

        task = _tasks.start(work(), "cursus-commit")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def committed(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, CommittedOffset]:
        """What the group has committed for these partitions. Raises ValueError without a group."""
        if self._group is None:
            raise ValueError("a consumer without a group has committed nothing")
        found: dict[TopicPartition, CommittedOffset] = {}
        for request in _convert.offset_questions(self._group, places):
            found |= _convert.committed_from_proto(await self._connections.call(_rpcs.FETCH_OFFSETS, request))
        return found

    async def committed_offset(self, place: TopicPartition) -> int | None:
        return (await self.committed([place]))[place].offset

    async def finished(self) -> None:
        """Wait for what runs in the background."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def close(self) -> None:
        """Give up what runs in the background."""
        for task in self._tasks:
            task.cancel()
        await self.finished()
