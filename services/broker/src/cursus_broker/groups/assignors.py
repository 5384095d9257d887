"""Who reads which partition: pure functions from members and partitions to owners.

Every strategy gives each partition of a subscribed topic to exactly one member that subscribes to it, and the same
input always gives the same answer. Members are compared by name, so the order in which they joined does not matter.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Final, Protocol, TypeAlias

from cursus_broker.metadata.model import TopicPartition

MemberId: TypeAlias = str
Owners: TypeAlias = dict[TopicPartition, MemberId]


class Strategy(StrEnum):
    MODULO = "modulo"
    """Partition p of a topic goes to subscriber p % count. What legacy clients expect."""
    RANGE = "range"
    """Each subscriber of a topic gets a run of neighbouring partitions."""
    STICKY = "sticky"
    """As even as subscriptions allow over all topics together, moving as few partitions as that takes."""


class Assignor(Protocol):
    def __call__(
        self,
        members: Mapping[MemberId, Collection[str]],
        partitions: Mapping[str, int],
        current: Mapping[TopicPartition, MemberId],
    ) -> Owners:
        """Assign every partition of the topics in `partitions` (name → count) that `members` (id → topics) want.

        `current` is the assignment so far; it may name members, topics and partitions that are gone.
        """


def modulo(
    members: Mapping[MemberId, Collection[str]],
    partitions: Mapping[str, int],
    current: Mapping[TopicPartition, MemberId],
) -> Owners:
    owners: Owners = {}
    for topic, subscribers in _subscribers(members, partitions).items():
        for partition in range(partitions[topic]):
            owners[TopicPartition(topic, partition)] = subscribers[partition % len(subscribers)]
    return owners


def range_(
    members: Mapping[MemberId, Collection[str]],
    partitions: Mapping[str, int],
    current: Mapping[TopicPartition, MemberId],
) -> Owners:
    owners: Owners = {}
    for topic, subscribers in _subscribers(members, partitions).items():
        share, extra = divmod(partitions[topic], len(subscribers))
        start = 0
        for rank, member in enumerate(subscribers):
            stop = start + share + (rank < extra)
            for partition in range(start, stop):
                owners[TopicPartition(topic, partition)] = member
            start = stop
    return owners


def sticky(
    members: Mapping[MemberId, Collection[str]],
    partitions: Mapping[str, int],
    current: Mapping[TopicPartition, MemberId],
) -> Owners:
    """Keep what can be kept, give the free partitions to whoever has least, then even out.

    Evening out looks for a chain of members, each able to take a partition of the one before, from one that has most
    to one that has at least two fewer. A plain move is a chain of two; longer ones matter only where subscriptions
    differ. Each chain evens the load by one, so their number is bounded by the number of partitions.
    """
    subscribers = _subscribers(members, partitions)
    held: dict[MemberId, dict[str, list[int]]] = {member: defaultdict(list) for member in members}
    load = dict.fromkeys(members, 0)
    free: dict[str, list[int]] = {}
    for topic in subscribers:
        wanted_by = set(subscribers[topic])
        for partition in range(partitions[topic]):
            owner = current.get(TopicPartition(topic, partition))
            if owner is not None and owner in wanted_by:
                held[owner][topic].append(partition)
                load[owner] += 1
            else:
                free.setdefault(topic, []).append(partition)

    # Topics with few subscribers first: their partitions have the least choice.
    for topic in sorted(free, key=lambda name: (len(subscribers[name]), name)):
        queue = [(load[member], member) for member in subscribers[topic]]
        heapq.heapify(queue)
        for partition in free[topic]:
            count, member = queue[0]
            held[member][topic].append(partition)
            load[member] = count + 1
            heapq.heapreplace(queue, (count + 1, member))

    while chain := _evening_chain(held, load, subscribers):
        for giver, topic, taker in chain:
            held[taker][topic].append(held[giver][topic].pop())
            load[giver] -= 1
            load[taker] += 1
    return {
        TopicPartition(topic, partition): member
        for member, topics in held.items()
        for topic, numbers in topics.items()
        for partition in numbers
    }


ASSIGNORS: Final[Mapping[Strategy, Assignor]] = {
    Strategy.MODULO: modulo,
    Strategy.RANGE: range_,
    Strategy.STICKY: sticky,
}

_Step: TypeAlias = tuple[MemberId, str, MemberId]  # giver, topic, taker


def _subscribers(
    members: Mapping[MemberId, Collection[str]], partitions: Mapping[str, int]
) -> dict[str, list[MemberId]]:
    """The subscribers of each topic that exists and has any, by name."""
    wanted: dict[str, list[MemberId]] = {}
    for member in sorted(members):
        for topic in members[member]:
            if topic in partitions:
                wanted.setdefault(topic, []).append(member)
    return wanted


def _evening_chain(
    held: Mapping[MemberId, Mapping[str, list[int]]],
    load: Mapping[MemberId, int],
    subscribers: Mapping[str, list[MemberId]],
) -> list[_Step]:
    """The shortest chain that makes the assignment more even, or nothing if it cannot be made so."""
    if not load:
        return []
    least = min(load.values())
    for start in sorted(load, key=lambda member: (-load[member], member)):
        if load[start] < least + 2:
            break
        came_by: dict[MemberId, _Step | None] = {start: None}
        searched: set[str] = set()  # the first member to reach a topic offers it to all its subscribers at once
        waiting = deque([start])
        while waiting:
            giver = waiting.popleft()
            for topic in sorted(name for name, numbers in held[giver].items() if numbers and name not in searched):
                searched.add(topic)
                takers = [member for member in subscribers[topic] if member not in came_by]
                for taker in sorted(takers, key=lambda member: (load[member], member)):
                    came_by[taker] = (giver, topic, taker)
                    if load[taker] <= load[start] - 2:
                        return _trace(came_by, taker)
                    waiting.append(taker)
    return []


def _trace(came_by: Mapping[MemberId, _Step | None], end: MemberId) -> list[_Step]:
    chain: list[_Step] = []
    step = came_by[end]
    while step is not None:
        chain.append(step)
        step = came_by[step[0]]
    return chain
