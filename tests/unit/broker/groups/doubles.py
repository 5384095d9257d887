"""Stand-ins for what the coordinator works with: topics, a store in memory, a clock that only tests move."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from itertools import count

from cursus_broker.errors import (
    CursusError,
    GroupNotFound,
    LogTruncated,
    PartitionDamaged,
    PartitionNotFound,
    StorageFailed,
    TopicNotFound,
)
from cursus_broker.groups.api import GroupLimits
from cursus_broker.groups.coordinator import GroupCoordinator
from cursus_broker.groups.members import JoinRequest, Subscription
from cursus_broker.groups.plan import Tempo
from cursus_broker.log.api import Offset
from cursus_broker.metadata.model import CommittedOffset, Snapshot, StoredGroup, TopicPartition
from cursus_broker.metadata.store import Settled


class FakePartition:
    """A partition whose log ends at 1,000 and is synced, until a test says otherwise."""

    def __init__(self) -> None:
        self.next_offset = Offset(1_000)
        self.synced_offset = 1_000
        self.leader_epoch = 1
        self.cut_at: int | None = None
        """Where the current epoch began because the log was cut there."""
        self.failure: StorageFailed | None = None
        self.asked: list[int] = []
        """The offsets that commits had to wait for."""
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    def check_epoch(self, offset: int, epoch: int | None) -> None:
        if epoch is not None and epoch < self.leader_epoch and self.cut_at is not None and self.cut_at < offset:
            raise LogTruncated(
                offset,
                epoch,
                offset=self.cut_at,
                leader_epoch=self.leader_epoch,
                earliest=0,
                next_offset=self.next_offset,
            )

    def sync_soon(self, upto: Offset) -> asyncio.Future[None] | None:
        if upto <= self.synced_offset:
            return None
        if self.failure is not None:
            raise self.failure
        self.asked.append(upto)
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((upto, woken))
        return woken

    def sync(self, upto: int) -> None:
        """The disk has got this far."""
        self.synced_offset = upto
        for wanted, woken in self._waiting:
            if wanted <= upto and not woken.done():
                woken.set_result(None)

    def fail(self) -> None:
        """The disk refuses, now and from now on."""
        self.failure = StorageFailed("sync failed")
        for _, woken in self._waiting:
            if not woken.done():
                woken.set_exception(self.failure)


class FakeTopics:
    """Topics by name with their number of partitions."""

    def __init__(self, counts: Mapping[str, int]) -> None:
        self.counts = dict(counts)
        self.damaged: set[TopicPartition] = set()
        self._partitions: dict[TopicPartition, FakePartition] = {}

    def names(self) -> Collection[str]:
        return self.counts.keys()

    def partition_count(self, topic: str) -> int | None:
        return self.counts.get(topic)

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        return 0, self.partition(topic, partition).next_offset

    def partition(self, topic: str, partition: int) -> FakePartition:
        count = self.counts.get(topic)
        if count is None:
            raise TopicNotFound(topic)
        if not 0 <= partition < count:
            raise PartitionNotFound(topic, partition, count)
        place = TopicPartition(topic, partition)
        if place in self.damaged:
            raise PartitionDamaged("segment", 0, "test")
        return self._partitions.setdefault(place, FakePartition())

    def delete(self, topic: str) -> None:
        """Its partitions are others if it is created again."""
        self.counts.pop(topic, None)
        self._partitions = {place: one for place, one in self._partitions.items() if place.topic != topic}


class MemoryStore:
    """Keeps the store's promises without a disk: writes settle in order, all or nothing, refused one by one.

    `hold` makes writes wait, `release` lets them go on, `failure` makes them fail until it is None again.
    """

    def __init__(self, topics: FakeTopics) -> None:
        self.groups: dict[str, StoredGroup] = {}
        self.offsets: dict[str, dict[TopicPartition, CommittedOffset]] = {}
        self.failure: CursusError | None = None
        self._topics = topics
        self._held: deque[Callable[[], None]] | None = None

    def snapshot(self) -> Snapshot:
        return Snapshot("cluster", 1, (), tuple(self.groups.values()), {g: dict(o) for g, o in self.offsets.items()})

    def hold(self) -> None:
        self._held = deque()

    def release(self) -> None:
        held, self._held = self._held, None
        for write in held or ():
            write()

    def put_group(self, group: StoredGroup, settled: Settled | None = None) -> Awaitable[None]:
        def apply() -> None:
            self.groups[group.name] = group

        return self._submit(apply, settled)

    def delete_group(self, name: str) -> Awaitable[None]:
        def apply() -> None:
            self.groups.pop(name, None)
            self.offsets.pop(name, None)

        return self._submit(apply, None)

    def commit_offsets(
        self, group: str, offsets: Mapping[TopicPartition, CommittedOffset], settled: Settled | None = None
    ) -> Awaitable[None]:
        def apply() -> None:
            if group not in self.groups:
                raise GroupNotFound(group)
            for partition in offsets:
                if partition.topic not in self._topics.counts:
                    raise TopicNotFound(partition.topic)
            self.offsets.setdefault(group, {}).update(offsets)

        return self._submit(apply, settled)

    def _submit(self, apply: Callable[[], None], settled: Settled | None) -> Awaitable[None]:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def write() -> None:
            error = self.failure
            if error is None:
                try:
                    apply()
                except CursusError as refused:
                    error = refused
            if settled is not None:
                settled(error)
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

        if self._held is None:
            asyncio.get_running_loop().call_soon(write)
        else:
            self._held.append(write)
        return asyncio.shield(done)


class Clock:
    def __init__(self) -> None:
        self.now_ms = 1_000_000

    def __call__(self) -> int:
        return self.now_ms


class World:
    """A coordinator with everything around it in reach."""

    def __init__(
        self, counts: Mapping[str, int], limits: GroupLimits | None = None, tempo: Tempo | None = None
    ) -> None:
        self.topics = FakeTopics(counts)
        self.store = MemoryStore(self.topics)
        self.clock = Clock()
        self._limits = limits
        self._tempo = tempo
        self._tokens: Iterator[int] = count(1)
        self.coordinator = self._start()

    def restart(self) -> None:
        """As after the death of the broker: only what was stored comes back."""
        self.coordinator = self._start()

    def pass_time(self, ms: int) -> None:
        self.clock.now_ms += ms
        self.coordinator.expire_due()

    def set_topic(self, name: str, partitions: int | None) -> None:
        """Create or grow the topic, or delete it with None."""
        if partitions is None:
            self.topics.delete(name)
            for offsets in self.store.offsets.values():
                for partition in [p for p in offsets if p.topic == name]:
                    del offsets[partition]
        else:
            self.topics.counts[name] = partitions
        self.coordinator.topic_changed(name)

    def _start(self) -> GroupCoordinator:
        return GroupCoordinator(
            self.store,
            self.topics,
            self.store.snapshot(),
            limits=self._limits,
            tempo=self._tempo,
            now_ms=self.clock,
            time_ms=self.clock,
            new_token=lambda: f"{next(self._tokens):08x}",
        )


def wants(*topics: str, pattern: str = "") -> Subscription:
    return Subscription(frozenset(topics), pattern)


def request(*topics: str, group: str = "readers", member_id: str = "", instance_id: str = "") -> JoinRequest:
    return JoinRequest(group, wants(*topics), member_id=member_id, instance_id=instance_id)


def partitions(topic: str, *numbers: int) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(topic, number) for number in numbers)
