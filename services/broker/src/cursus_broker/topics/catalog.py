"""All topics of the broker: creating, changing and deleting them, and opening their logs at start.

Structural changes wait for one another; publishing and reading go on meanwhile. Metadata is durable before a change
is visible. The order of a deletion is: invisible, out of the metadata, off the disk. A crash in between leaves a
directory nobody knows; it is set aside at the next start, never adopted and never deleted silently.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from cursus_broker.consume.tail import Tail, TailBudget
from cursus_broker.errors import (
    CursusError,
    InvalidPartitionCount,
    PartitionDamaged,
    ResourceLimit,
    ShuttingDown,
    StorageFailed,
    TopicExists,
    TopicNotFound,
)
from cursus_broker.log.api import Engine, Recovered, RetentionPolicy
from cursus_broker.metadata.model import Snapshot, StoredLedger, StoredTopic, TopicPartition
from cursus_broker.metadata.store import MetadataStore
from cursus_broker.publish.dedup import ContentWindow
from cursus_broker.publish.replay import rebuild_ledger
from cursus_broker.topics.config import UNLIMITED, TopicConfig
from cursus_broker.topics.names import check_topic_name
from cursus_broker.topics.partition import Partition
from cursus_broker.topics.topic import Topic

log = structlog.get_logger(__name__)

# Logs opened side by side at start: enough to keep the engine's threads busy.
_OPEN_AT_ONCE: Final = 16


@dataclass(frozen=True, slots=True)
class CatalogSettings:
    """What the catalog needs to know of the configuration."""

    default_partitions: int
    max_topic_partitions: int
    max_partitions: int
    retention_ms: int
    retention_bytes: int
    tail_records: int
    tail_bytes: int
    dedup_window_ms: int
    dedup_max_entries: int


class Catalog:
    """The topics by name. Lives on one event loop."""

    def __init__(
        self,
        engine: Engine,
        store: MetadataStore,
        settings: CatalogSettings,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._engine = engine
        self._store = store
        self._settings = settings
        self._now_ms = now_ms
        self._topics: dict[str, Topic] = {}
        self._partition_count = 0
        self._tails = TailBudget(settings.tail_bytes)
        self._changing = asyncio.Lock()
        self._listeners: list[Callable[[], None]] = []

    # Looking

    def topic(self, name: str) -> Topic:
        """Raises TopicNotFound."""
        topic = self._topics.get(name)
        if topic is None:
            raise TopicNotFound(name)
        return topic

    def topics(self) -> list[Topic]:
        """All topics, sorted by name."""
        return [self._topics[name] for name in sorted(self._topics)]

    def names(self) -> Collection[str]:
        return self._topics.keys()

    def partition_count(self, topic: str) -> int | None:
        """None if there is no such topic."""
        known = self._topics.get(topic)
        return None if known is None else len(known.partitions)

    @property
    def total_partitions(self) -> int:
        return self._partition_count

    @property
    def tail_bytes(self) -> int:
        return self._tails.used_bytes

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """Earliest and next offset of a partition that exists; nothing can be said of a damaged one."""
        one = self._topics[topic].partitions[partition]
        return (0, 0) if isinstance(one, PartitionDamaged) else (one.earliest_offset, one.next_offset)

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call `listener` after every change of the set of topics or of a partition count."""
        self._listeners.append(listener)

    # Changing

    async def create(self, name: str, partition_count: int, config: TopicConfig) -> Topic:
        """Create a topic; a partition count of 0 means the default.

        Raises TopicExists, InvalidTopicName, InvalidPartitionCount, InvalidTopicConfig, ResourceLimit, StorageFailed.
        """
        check_topic_name(name)
        partition_count = self._checked_count(partition_count or self._settings.default_partitions)
        config.validate()
        async with self._changing:
            if name in self._topics:
                raise TopicExists(name)
            self._check_room(partition_count)
            stored = StoredTopic(name, uuid.uuid4(), partition_count, config.to_json(), self._now_ms())
            try:
                partitions = await self._open_partitions(name, range(partition_count), config)
                await self._store.put_topic(stored)
            except CursusError:
                await self._engine.delete(name)
                raise
            topic = self._admit(stored, config, partitions)
            log.info("topic.created", topic=name, partitions=partition_count)
        self._changed()
        return topic

    async def create_missing(self, name: str) -> Topic:
        """The topic, created with the defaults if it does not exist."""
        if (topic := self._topics.get(name)) is not None:
            return topic
        try:
            return await self.create(name, 0, TopicConfig())
        except TopicExists:
            return self.topic(name)

    async def delete(self, name: str) -> None:
        """Delete a topic with its data; its readers are told. Raises TopicNotFound, StorageFailed."""
        async with self._changing:
            topic = self.topic(name)
            del self._topics[name]
            self._partition_count -= len(topic.partitions)
            for partition in topic.healthy():
                partition.tail.close(TopicNotFound(name))
            await self._store.delete_topic(name)
            await self._engine.delete(name)
            log.info("topic.deleted", topic=name)
        self._changed()

    async def update(self, name: str, update: TopicConfig, reset_fields: Sequence[str]) -> Topic:
        """Change a topic's configuration. Raises TopicNotFound, InvalidTopicConfig, StorageFailed."""
        async with self._changing:
            topic = self.topic(name)
            config = topic.config.without(reset_fields).merged(update)
            config.validate()
            await self._store.put_topic(_stored(topic, config, len(topic.partitions)))
            topic.config = config
            for partition in topic.healthy():
                _configure(partition, config)
            log.info("topic.updated", topic=name)
            return topic

    async def add_partitions(self, name: str, partition_count: int) -> Topic:
        """Raise the number of partitions. Raises TopicNotFound, InvalidPartitionCount, ResourceLimit, StorageFailed."""
        async with self._changing:
            topic = self.topic(name)
            present = len(topic.partitions)
            if self._checked_count(partition_count) < present:
                raise InvalidPartitionCount(
                    f"topic {name!r} has {present} partitions and cannot shrink to {partition_count}",
                    partitions=present,
                )
            if partition_count == present:
                return topic
            self._check_room(partition_count - present)
            added = await self._open_partitions(name, range(present, partition_count), topic.config)
            await self._store.put_topic(_stored(topic, topic.config, partition_count))
            topic.partitions.extend(added)
            self._partition_count += len(added)
            log.info("topic.partitions_added", topic=name, partitions=partition_count)
        self._changed()
        return topic

    # Life

    async def open_all(self, snapshot: Snapshot) -> None:
        """Open every topic of the snapshot. A damaged partition is noted and the others served.

        Raises StorageFailed.
        """
        await self._engine.remove_leftovers()
        known = {stored.name for stored in snapshot.topics}
        for name in sorted(await self._engine.directories() - known):
            moved_to = await self._engine.set_aside(name)
            log.warning("topic.orphan_set_aside", directory=name, moved_to=moved_to)
        gate = asyncio.Semaphore(_OPEN_AT_ONCE)

        async def open_topic(stored: StoredTopic) -> None:
            async with gate:
                config = TopicConfig.from_json(stored.config_json)
                partitions = await self._open_partitions(stored.name, range(stored.partitions), config)
                self._admit(stored, config, partitions)

        async with asyncio.TaskGroup() as tasks:
            for stored in snapshot.topics:
                tasks.create_task(open_topic(stored))

    def end_waits(self) -> None:
        """Let nobody wait for records any more: the broker is about to stop."""
        for topic in self._topics.values():
            for partition in topic.healthy():
                partition.tail.close(ShuttingDown())

    async def close(self) -> None:
        """End the waits, remember the producers, forget the topics. Publishing must have stopped."""
        async with self._changing:
            self.end_waits()
            await self.save_ledgers(min_appended_bytes=1)
            self._topics.clear()

    # Maintenance

    async def retain(self) -> None:
        """Apply retention and age to every log once."""
        for topic in self.topics():
            policy = RetentionPolicy(
                max_age_ms=_limit(topic.config.retention_ms, self._settings.retention_ms),
                max_bytes=_limit(topic.config.retention_bytes, self._settings.retention_bytes),
            )
            for partition in topic.healthy():
                try:
                    retained = await partition.log.retain(policy, self._now_ms())
                except StorageFailed as error:
                    log.warning("retention.failed", topic=topic.name, partition=partition.id, cause=str(error))
                    continue
                if retained.removed_segments:
                    log.info(
                        "retention.removed",
                        topic=topic.name,
                        partition=partition.id,
                        segments=retained.removed_segments,
                        bytes=retained.removed_bytes,
                        earliest_offset=retained.earliest_offset,
                    )

    def clean_content(self) -> int:
        """Forget the content that fell out of its window. Answers how many entries went."""
        now_ms = self._now_ms()
        return sum(topic.content.clean(now_ms) for topic in self._topics.values())

    def forget_producers(self, idle_ms: int) -> int:
        """Forget producers that have been idle for so long. Answers how many."""
        before_ms = self._now_ms() - idle_ms
        return sum(one.producers.forget_idle(before_ms) for topic in self._topics.values() for one in topic.healthy())

    async def save_ledgers(self, min_appended_bytes: int) -> None:
        """Remember what partitions know of their producers, where much was appended since the last time, so that the
        next start need not read all headers.
        """
        writes = []
        for topic in self.topics():
            for partition in topic.healthy():
                if (upto := partition.ledger_due(min_appended_bytes)) is None:
                    continue
                ledger = StoredLedger(upto, partition.producers.dump())
                # Synced first: a ledger must never describe batches that power loss takes back.
                try:
                    await partition.log.sync(upto)
                    writes.append(self._store.put_ledger(TopicPartition(topic.name, partition.id), ledger))
                except CursusError as error:
                    log.warning("ledger.not_saved", topic=topic.name, partition=partition.id, cause=str(error))
        await asyncio.gather(*writes)

    # Inside

    def _checked_count(self, partition_count: int) -> int:
        if not 1 <= partition_count <= self._settings.max_topic_partitions:
            raise InvalidPartitionCount(
                f"{partition_count} partitions: a topic has 1 to {self._settings.max_topic_partitions}",
                partitions=partition_count,
                limit=self._settings.max_topic_partitions,
            )
        return partition_count

    def _check_room(self, added: int) -> None:
        if self._partition_count + added > self._settings.max_partitions:
            raise ResourceLimit(
                f"{self._partition_count} of at most {self._settings.max_partitions} partitions are in use",
                limit=self._settings.max_partitions,
            )

    def _changed(self) -> None:
        for listener in self._listeners:
            listener()

    def _admit(self, stored: StoredTopic, config: TopicConfig, partitions: list[Partition | PartitionDamaged]) -> Topic:
        content = ContentWindow(self._settings.dedup_window_ms, self._settings.dedup_max_entries)
        topic = Topic(stored.name, stored.id, config, stored.created_ms, partitions, content)
        self._topics[stored.name] = topic
        self._partition_count += len(partitions)
        return topic

    async def _open_partitions(
        self, topic: str, partition_ids: range, config: TopicConfig
    ) -> list[Partition | PartitionDamaged]:
        return [await self._open_partition(topic, partition_id, config) for partition_id in partition_ids]

    async def _open_partition(self, topic: str, partition_id: int, config: TopicConfig) -> Partition | PartitionDamaged:
        place = TopicPartition(topic, partition_id)
        try:
            opened, recovered = await self._engine.open(topic, partition_id)
            _report(place, recovered)
            stored = await self._store.load_ledger(place)
            ledger = await rebuild_ledger(opened, stored)
        except PartitionDamaged as damage:
            log.error("partition.damaged", topic=topic, partition=partition_id, **damage.metadata)
            return damage
        if stored is not None and stored.upto_offset > opened.next_offset:
            await self._store.put_ledger(place, StoredLedger(opened.next_offset, ledger.dump()))
        tail = Tail(self._tails, self._settings.tail_records, opened.next_offset)
        partition = Partition(topic, partition_id, opened, tail, ledger)
        _configure(partition, config)
        return partition


async def refuse_lost_metadata(database: Path, engine: Engine) -> None:
    """Raise StorageFailed if there are logs but no metadata: somebody lost the one or the other. To be asked before a
    new database is made, which the next start would believe over the logs.
    """
    if not await asyncio.to_thread(database.exists) and (topics := await engine.directories()):
        raise StorageFailed(
            f"there are logs of {len(topics)} topics, but the metadata database {database} is missing: restore it from"
            " a backup, or move the logs away to start empty",
            file=database,
        )


def _configure(partition: Partition, config: TopicConfig) -> None:
    partition.log.configure(segment_bytes=config.segment_bytes, segment_ms=config.segment_ms)


def _stored(topic: Topic, config: TopicConfig, partition_count: int) -> StoredTopic:
    return StoredTopic(topic.name, topic.id, partition_count, config.to_json(), topic.created_ms)


def _limit(own: int | None, default: int) -> int | None:
    """A retention limit of the log's policy: the topic's own, else the broker's; None for no limit."""
    value = default if own is None else own
    return None if value == UNLIMITED else value


def _report(place: TopicPartition, recovered: Recovered) -> None:
    """Tell what opening a log had to repair."""
    if recovered.cut is not None:
        log.warning(
            "log.recovery.cut",
            topic=place.topic,
            partition=place.partition,
            segment=recovered.cut.file,
            position=recovered.cut.position,
            cut_bytes=recovered.cut.bytes,
            set_aside=list(recovered.cut.set_aside),
            next_offset=recovered.cut.offset,
            cause=recovered.cut.cause,
        )
    elif recovered.rebuilt_indexes:
        log.info(
            "log.recovery.indexes_rebuilt",
            topic=place.topic,
            partition=place.partition,
            count=recovered.rebuilt_indexes,
        )
