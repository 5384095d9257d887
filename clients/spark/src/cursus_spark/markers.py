"""What is known of a write in the broker, as notes beside committed offsets of a consumer group.

    cursus-spark-sink/NAME           finished: {"batch": n}, written by the driver for every topic that the batch wrote
                                     to. Whatever is not above n is not written again.
    cursus-spark-sink-begun-0/NAME   claims: {"batch": n, "attempt": a, "partitions": c}, written by a task before its
                                     first set to a topic. The first claim on a batch stands. It fixes the number of
                                     partitions that routes the batch, whatever is added later, and tells that there was
                                     another attempt.
    …-begun-1/NAME, -2 …             claims of tasks numbered from 4,096, 8,192 … on: how many an attempt may have had.

Each note lies with partition 0 of its topic, at offset 0, which can always be committed again.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cursus_grpc import TopicPartition
from cursus_grpc.types import CommittedOffset, OffsetAndMetadata
from cursus_spark.identity import Identity

if TYPE_CHECKING:
    from cursus_grpc import Admin, AsyncAdmin

Committed = Mapping[TopicPartition, CommittedOffset]

_TASKS: Final = 4_096
_MOST_CLASSES: Final = 13
"""Of task numbers: Spark has at most about 2**24 tasks in a stage."""


@dataclass(frozen=True, slots=True)
class Claim:
    """That an attempt has begun to write a batch to a topic, routed over so many partitions."""

    batch: int
    attempt: str
    partitions: int

    def note(self) -> OffsetAndMetadata:
        return _note(batch=self.batch, attempt=self.attempt, partitions=self.partitions)


def finished(committed: Committed) -> int:
    """The last finished batch, -1 if there is none."""
    return max((int(note["batch"]) for _, note in _notes(committed)), default=-1)


def claims(committed: Committed, batch: int) -> dict[str, Claim]:
    """The claims on a batch, by topic."""
    found = {
        topic: Claim(int(note["batch"]), str(note["attempt"]), int(note["partitions"]))
        for topic, note in _notes(committed)
    }
    return {topic: claim for topic, claim in found.items() if claim.batch == batch}


def _notes(committed: Committed) -> Iterable[tuple[str, dict[str, str | int]]]:
    for place, one in committed.items():
        if place.partition == 0 and one.metadata:
            yield place.topic, json.loads(one.metadata)


def _note(**content: str | int) -> OffsetAndMetadata:
    return OffsetAndMetadata(0, json.dumps(content, separators=(",", ":")))


def _claims_group(identity: Identity, number: int) -> str:
    return f"cursus-spark-sink-begun-{number}/{identity.name}"


def _finished_group(identity: Identity) -> str:
    return f"cursus-spark-sink/{identity.name}"


class ClaimRefused(RuntimeError):
    """Two attempts at a batch run at once and disagree."""


class TaskClaims:
    """The claims of one task. Asked before its first set to each topic."""

    def __init__(self, admin: Admin, identity: Identity, task: int, planned: Mapping[str, int]) -> None:
        assert identity.version is not None
        self._admin = admin
        self._identity = identity
        self._batch = identity.version
        self._planned = planned
        # A task of a higher class claims for the lower ones too, so that they are found one after the other.
        self._groups = [_claims_group(identity, number) for number in range((task // _TASKS).bit_length() + 1)]
        self._known = claims(admin.fetch_offsets(self._groups[-1]), self._batch)

    def partitions(self, topics: Collection[str]) -> dict[str, int]:
        """By how many partitions the rows of each topic are routed. Raises ClaimRefused, KeyError for a topic that was
        not there when the batch was planned."""
        missing = [topic for topic in topics if topic not in self._known]
        if missing:
            for group in self._groups:
                self._claim(group, missing)
        return {topic: self._known[topic].partitions for topic in topics}

    def _claim(self, group: str, topics: Collection[str]) -> None:
        standing = claims(self._admin.fetch_offsets(group), self._batch)
        wanted = {
            topic: standing.get(topic) or Claim(self._batch, self._identity.attempt, self._planned[topic])
            for topic in topics
        }
        new = {TopicPartition(topic, 0): one.note() for topic, one in wanted.items() if topic not in standing}
        if new:
            self._admin.commit_offsets(group, new)
            standing = claims(self._admin.fetch_offsets(group), self._batch)
        for topic, claim in wanted.items():
            known = self._known.setdefault(topic, claim)
            if (found := standing.get(topic)) is None or found.partitions != known.partitions:
                raise ClaimRefused(
                    f"batch {self._batch} is being written by two drivers, which route topic {topic!r} over"
                    f" {known.partitions} and {found.partitions if found else 'other'} partitions: stop one of them"
                )


async def other_attempts(admin: AsyncAdmin, identity: Identity) -> tuple[set[str], int]:
    """The topics that any attempt has begun to write the batch to, if another one than this has begun at all, else
    none; and how many tasks it may have had."""
    assert identity.version is not None
    topics: set[str] = set()
    others = False
    tasks = 0
    for number in range(_MOST_CLASSES):
        found = claims(await admin.fetch_offsets(_claims_group(identity, number)), identity.version)
        if not found:
            break
        topics |= found.keys()
        others = others or any(claim.attempt != identity.attempt for claim in found.values())
        tasks = _TASKS << number
    return (topics if others else set()), tasks


async def finish(admin: AsyncAdmin, identity: Identity, topics: Collection[str]) -> None:
    """The batch is stored. Told for all topics at once, or for none."""
    assert identity.version is not None
    note = _note(batch=identity.version)
    if topics:
        await admin.commit_offsets(
            _finished_group(identity), {TopicPartition(topic, 0): note for topic in sorted(topics)}
        )


def is_finished(admin: Admin, identity: Identity) -> bool:
    return identity.version is not None and identity.version <= finished(admin.fetch_offsets(_finished_group(identity)))
