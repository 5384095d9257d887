"""A stream's progress as committed offsets of a consumer group, so that its lag shows where operators look for lag:
in `cursus group describe` and in the broker's metrics.

Only for the eyes: a stream starts from its checkpoint, never from here, and nothing that goes wrong here may stop it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from cursus_grpc import AsyncAdmin, TopicPartition
from cursus_grpc.errors import CursusError
from cursus_grpc.types import OffsetAndMetadata
from cursus_spark.offsets import Position, StreamOffset

log: Final = logging.getLogger("cursus_spark")


class GroupProgress:
    """What the group of one stream was told last."""

    def __init__(self, group_id: str | None, prefix: str) -> None:
        self._group_id = group_id
        self._prefix = prefix
        self._told: Mapping[TopicPartition, Position] = {}

    def name(self, stream: str) -> str:
        """The group of a stream: the one the user named, else one that lives with the checkpoint."""
        return self._group_id or f"{self._prefix}-{stream}"

    async def begin(self, admin: AsyncAdmin, offset: StreamOffset) -> None:
        """A stream with a new checkpoint: the group follows it, also back."""
        try:
            await admin.reset_offsets(
                self.name(offset.stream), {place: one.offset for place, one in offset.positions.items()}
            )
            self._told = dict(offset.positions)
        except CursusError as error:
            log.warning("the offsets of group %s were not reset: %s", self.name(offset.stream), error)

    async def processed(self, admin: AsyncAdmin, offset: StreamOffset) -> None:
        """Everything below the offset is done."""
        changed = {place: one for place, one in offset.positions.items() if self._told.get(place) != one}
        if not changed:
            return
        commits = {place: OffsetAndMetadata(one.offset, leader_epoch=one.epoch) for place, one in changed.items()}
        try:
            await admin.commit_offsets(self.name(offset.stream), commits)
        except CursusError as error:
            log.warning("the offsets of group %s were not committed: %s", self.name(offset.stream), error)
        # Not tried again before they change: the next commit says more than this one.
        self._told = {**self._told, **changed}
