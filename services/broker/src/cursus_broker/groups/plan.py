"""A rebalance before it happens: who is to read what, worked out on a copy of the group, in short runs.

The group lives on meanwhile: members are heard of, acknowledge and commit. A plan says which version of the group it
was made for, and `state.Group.apply` what becomes of one that the group has left behind.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from cursus_broker.groups.assignors import ASSIGNORS, RUN_STEPS, MemberId, Strategy
from cursus_broker.groups.members import Subscription
from cursus_broker.metadata.model import TopicPartition
from cursus_broker.pace import SLICE_STEPS

MemberKey: TypeAlias = str
"""What assignors know a member by: `Member.sort_key`, which a process that takes over an instance inherits."""


@dataclass(frozen=True, slots=True)
class Tempo:
    """How soon a group is rebalanced, and how long the others wait for it. A step is a member or a partition."""

    at_once_steps: int = 64
    """A group of this size is rebalanced within the call that changes it: that is over in a fraction of a
    millisecond, and its few members are soon told."""
    gather_us_per_step: int = 100
    """A larger one rests after a rebalance, in proportion to its size, and gathers what changes meanwhile. A step of
    planning takes about a microsecond, and telling a member about a hundred: so rebalancing stays a small part of
    what the broker does, however many join. Nobody rests first: a change of a quiet group is planned at once."""
    max_gather_ms: int = 1_000
    slice_steps: int = SLICE_STEPS
    told_together: int = 16
    """Members woken in one turn of the event loop: each has some tenths of a millisecond to do then."""

    def gather_ms(self, steps: int) -> int:
        return min(steps * self.gather_us_per_step // 1_000, self.max_gather_ms)


class Plan:
    """The next assignment of a group. `work` must have ended before `moves` is looked at."""

    def __init__(
        self,
        version: int,
        strategy: Strategy,
        subscriptions: Mapping[MemberKey, Subscription],
        targets: Mapping[TopicPartition, MemberId],
        keys: Mapping[MemberId, MemberKey],
        topics: Mapping[str, int],
    ) -> None:
        """`targets` is who reads what so far, `keys` the key of each member there is. All of these stay as they are
        from now on: the caller hands over copies."""
        self.version = version
        self.subscriptions = subscriptions
        self.topics: dict[MemberKey, frozenset[str]] = {}
        """What each member's subscription came to."""
        self.partitions: dict[str, int] = {}
        """The topics that somebody wants, with their partitions."""
        self.moves: dict[TopicPartition, MemberKey | None] = {}
        """Partitions that get another target, and which; None if nobody wants them any more."""
        self._strategy = strategy
        self._targets = targets
        self._keys = keys
        self._existing = topics

    def work(self) -> Generator[int, None, None]:
        """Yields the steps of each run."""
        # Members mostly subscribe alike, and matching a pattern against thousands of names is not free.
        resolved: dict[Subscription, frozenset[str]] = {}
        for key, subscription in self.subscriptions.items():
            if subscription not in resolved:
                resolved[subscription] = topics = subscription.resolve(self._existing)
                self.partitions.update((topic, self._existing[topic]) for topic in topics)
                yield len(topics) + (len(self._existing) if subscription.pattern else 0)
            self.topics[key] = resolved[subscription]
        yield len(self.subscriptions)
        current: dict[TopicPartition, MemberKey] = {}
        for count, (partition, member_id) in enumerate(self._targets.items(), 1):
            current[partition] = self._keys[member_id]
            if count % RUN_STEPS == 0:
                yield RUN_STEPS
        owners = yield from ASSIGNORS[self._strategy](self.topics, self.partitions, current)
        for count, (partition, key) in enumerate(owners.items(), 1):
            if current.pop(partition, None) != key:
                self.moves[partition] = key
            if count % RUN_STEPS == 0:
                yield RUN_STEPS
        self.moves.update(dict.fromkeys(current))
