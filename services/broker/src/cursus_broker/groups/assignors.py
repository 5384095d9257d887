"""Who reads which partition: pure functions from members and partitions to owners.

Every strategy gives each partition of a subscribed topic to exactly one member that subscribes to it, and the same
input always gives the same answer. Members are compared by name, so the order in which they joined does not matter.

A group may have thousands of members and partitions, so a strategy works in short runs and says after each how many
steps it took, a step being about a microsecond: whoever lets it run can let others have their turn in between.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Collection, Generator, Mapping
from enum import StrEnum
from typing import Final, Protocol, TypeAlias, TypeVar

from cursus_broker.metadata.model import TopicPartition

MemberId: TypeAlias = str
Owners: TypeAlias = dict[TopicPartition, MemberId]
Work: TypeAlias = Generator[int, None, Owners]
"""Yields the steps of each run, none longer than `RUN_STEPS` by much, and returns the owners."""

RUN_STEPS: Final = 256


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
    ) -> Work:
        """Assign every partition of the topics in `partitions` (name → count) that `members` (id → topics) want.

        `current` is the assignment so far; it may name members, topics and partitions that are gone.
        """


def modulo(
    members: Mapping[MemberId, Collection[str]],
    partitions: Mapping[str, int],
    current: Mapping[TopicPartition, MemberId],
) -> Work:
    owners: Owners = {}
    subscribers = yield from _subscribers(members, partitions)
    for topic, wanted_by in subscribers.items():
        for run in _runs(partitions[topic]):
            for partition in run:
                owners[TopicPartition(topic, partition)] = wanted_by[partition % len(wanted_by)]
            yield len(run)
    return owners


def range_(
    members: Mapping[MemberId, Collection[str]],
    partitions: Mapping[str, int],
    current: Mapping[TopicPartition, MemberId],
) -> Work:
    owners: Owners = {}
    subscribers = yield from _subscribers(members, partitions)
    for topic, wanted_by in subscribers.items():
        share, extra = divmod(partitions[topic], len(wanted_by))
        larger = extra * (share + 1)  # partitions that belong to the shares that are one larger
        for run in _runs(partitions[topic]):
            for partition in run:
                rank = partition // (share + 1) if partition < larger else extra + (partition - larger) // share
                owners[TopicPartition(topic, partition)] = wanted_by[rank]
            yield len(run)
    return owners


def sticky(
    members: Mapping[MemberId, Collection[str]],
    partitions: Mapping[str, int],
    current: Mapping[TopicPartition, MemberId],
) -> Work:
    """Keep what can be kept, give the free partitions to whoever has least, then even out."""
    subscribers = yield from _subscribers(members, partitions)
    alike = next(iter(subscribers.values()), [])
    for wanted_by in subscribers.values():
        yield 1 + len(wanted_by) // 64  # a comparison of lists is much cheaper than its length in steps
        if wanted_by != alike:
            return (yield from _sticky_unlike(members, subscribers, partitions, current))
    return (yield from _sticky_alike(alike, {topic: partitions[topic] for topic in subscribers}, current))


def _sticky_alike(
    members: Collection[MemberId], partitions: Mapping[str, int], current: Mapping[TopicPartition, MemberId]
) -> Work:
    """For members that all want the same: everybody's share is known beforehand, so one pass over the partitions does,
    and a group of thousands of them does not keep the event loop."""
    held: dict[MemberId, list[TopicPartition]] = {member: [] for member in members}
    to_give: list[TopicPartition] = []
    for topic, count in partitions.items():
        for run in _runs(count):
            for number in run:
                partition = TopicPartition(topic, number)
                held.get(current.get(partition, ""), to_give).append(partition)
            yield len(run)
    if not held:
        return {}
    share, larger = divmod(sum(partitions.values()), len(held))
    quotas: dict[MemberId, int] = {}
    # The shares that are one larger go to those that have most: they lose the least then.
    for rank, member in enumerate(sorted(held, key=lambda one: (-len(held[one]), one))):
        quotas[member] = share + (rank < larger)
        held[member], surplus = _thin_out(held[member], quotas[member])
        to_give += surplus
        yield 1 + len(held[member]) + len(surplus)
    # In turn and not one after the other, so that the partitions of a topic, which come together, spread.
    takers = deque(member for member in sorted(held) if len(held[member]) < quotas[member])
    for run in _runs(len(to_give)):
        for index in run:
            member = takers.popleft()
            held[member].append(to_give[index])
            if len(held[member]) < quotas[member]:
                takers.append(member)
        yield len(run)
    owners: Owners = {}
    for member, parts in held.items():
        owners.update(dict.fromkeys(parts, member))
        yield 1 + len(parts)
    return owners


def _thin_out(parts: list[TopicPartition], most: int) -> tuple[list[TopicPartition], list[TopicPartition]]:
    """What is left of a member's partitions and what is taken: some here and some there, so that it keeps a share of
    each topic and not all of some."""
    surplus = max(0, len(parts) - most)
    kept: list[TopicPartition] = []
    taken: list[TopicPartition] = []
    for number, partition in enumerate(parts):
        is_due = (number + 1) * surplus // len(parts) > number * surplus // len(parts)
        (taken if is_due else kept).append(partition)
    return kept, taken


def _sticky_unlike(
    members: Mapping[MemberId, Collection[str]],
    subscribers: Mapping[str, list[MemberId]],
    partitions: Mapping[str, int],
    current: Mapping[TopicPartition, MemberId],
) -> Work:
    """For members that want different topics.

    Evening out looks for a chain of members, each able to take a partition of the one before, from one that has most
    to one that has at least two fewer. A plain move is a chain of two. Each chain evens the load by one, so their
    number is bounded by the number of partitions.
    """
    held: dict[MemberId, dict[str, list[int]]] = {member: defaultdict(list) for member in members}
    load = dict.fromkeys(members, 0)
    free: dict[str, list[int]] = {}
    for topic in subscribers:
        wanted_by = set(subscribers[topic])
        for run in _runs(partitions[topic]):
            for partition in run:
                owner = current.get(TopicPartition(topic, partition))
                if owner is not None and owner in wanted_by:
                    held[owner][topic].append(partition)
                    load[owner] += 1
                else:
                    free.setdefault(topic, []).append(partition)
            yield len(run)

    # Topics with few subscribers first: their partitions have the least choice.
    for topic in sorted(free, key=lambda name: (len(subscribers[name]), name)):
        queue = [(load[member], member) for member in subscribers[topic]]
        heapq.heapify(queue)
        yield len(queue)
        for run in _runs(len(free[topic])):
            for index in run:
                count, member = queue[0]
                held[member][topic].append(free[topic][index])
                load[member] = count + 1
                heapq.heapreplace(queue, (count + 1, member))
            yield len(run)

    while chain := (yield from _evening_chain(held, load, subscribers)):
        for giver, topic, taker in chain:
            held[taker][topic].append(held[giver][topic].pop())
            load[giver] -= 1
            load[taker] += 1
    owners: Owners = {}
    for member, topics in held.items():
        for topic, numbers in topics.items():
            owners.update((TopicPartition(topic, partition), member) for partition in numbers)
            yield 1 + len(numbers)
    return owners


ASSIGNORS: Final[Mapping[Strategy, Assignor]] = {
    Strategy.MODULO: modulo,
    Strategy.RANGE: range_,
    Strategy.STICKY: sticky,
}

_T = TypeVar("_T")


def in_one_go(work: Generator[int, None, _T]) -> _T:
    """The result of work that is known to be short."""
    try:
        while True:
            next(work)
    except StopIteration as done:
        result: _T = done.value
        return result


_Step: TypeAlias = tuple[MemberId, str, MemberId]  # giver, topic, taker


def _runs(count: int) -> list[range]:
    """The numbers below `count` in runs of one slice at most."""
    return [range(start, min(start + RUN_STEPS, count)) for start in range(0, count, RUN_STEPS)]


def _subscribers(
    members: Mapping[MemberId, Collection[str]], partitions: Mapping[str, int]
) -> Generator[int, None, dict[str, list[MemberId]]]:
    """The subscribers of each topic that exists and has any, by name."""
    wanted: dict[str, list[MemberId]] = {}
    for member in sorted(members):
        for topic in members[member]:
            if topic in partitions:
                wanted.setdefault(topic, []).append(member)
        yield 1 + len(members[member])
    return wanted


def _evening_chain(
    held: Mapping[MemberId, Mapping[str, list[int]]],
    load: Mapping[MemberId, int],
    subscribers: Mapping[str, list[MemberId]],
) -> Generator[int, None, list[_Step]]:
    """The shortest chain that makes the assignment more even, or nothing if it cannot be made so."""
    if not load:
        return []
    least = min(load.values())
    yield len(load)
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
                yield 1 + len(subscribers[topic])
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
