"""All topics of the broker: creating, changing and deleting them, and opening their logs at start.

Structural changes wait for one another; publishing and reading go on meanwhile. Metadata is durable before a change
is visible. The order of a deletion is: invisible, out of the metadata, off the disk. A crash in between leaves a
directory nobody knows; it is set aside at the next start, never adopted and never deleted silently.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import structlog

from cursus_broker.consume.tail import TailBudget
from cursus_broker.errors import (
    CursusError,
    InvalidPartitionCount,
    PartitionDamaged,
    PartitionNotFound,
    PartitionReopened,
    ResourceLimit,
    ShuttingDown,
    StorageFailed,
    TopicExists,
    TopicNotFound,
)
from cursus_broker.log.api import Engine, Offset, RetentionPolicy
from cursus_broker.metadata.model import Snapshot, StoredTopic, TopicPartition
from cursus_broker.metadata.store import MetadataStore
from cursus_broker.pace import Pace
from cursus_broker.publish.dedup import ContentLimits, ContentMemory
from cursus_broker.publish.recall import Recall
from cursus_broker.topics.config import UNLIMITED, TopicConfig
from cursus_broker.topics.ledgers import Ledgers
from cursus_broker.topics.names import check_topic_name
from cursus_broker.topics.opening import Opener, configure
from cursus_broker.topics.partition import Partition
from cursus_broker.topics.topic import Topic

T = TypeVar("T")

log = structlog.get_logger(__name__)


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
    content: ContentLimits


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
        self._content = ContentMemory(settings.content)
        self._opener = Opener(engine, store, self._tails, settings.tail_records)
        self._ledgers = Ledgers(store)
        self._changing = asyncio.Lock()
        self._changes: set[asyncio.Task[object]] = set()
        self._listeners: list[Callable[[str], None]] = []
        self._reopen_listeners: list[Callable[[Mapping[TopicPartition, Partition]], Awaitable[None]]] = []

    # Looking

    def topic(self, name: str) -> Topic:
        """Raises TopicNotFound."""
        topic = self._topics.get(name)
        if topic is None:
            raise TopicNotFound(name)
        return topic

    def topics(self, names: Collection[str] | None = None) -> list[Topic]:
        """All topics, or those of `names` that exist; sorted by name."""
        found = self._topics.keys() if names is None else [name for name in set(names) if name in self._topics]
        return [self._topics[name] for name in sorted(found)]

    def names(self) -> Collection[str]:
        return self._topics.keys()

    def partition_count(self, topic: str) -> int | None:
        """None if there is no such topic."""
        known = self._topics.get(topic)
        return None if known is None else len(known.partitions)

    def partition(self, topic: str, partition: int) -> Partition:
        """Raises TopicNotFound, PartitionNotFound, PartitionDamaged."""
        return self.topic(topic).partition(partition)

    @property
    def total_partitions(self) -> int:
        return self._partition_count

    @property
    def tail_bytes(self) -> int:
        return self._tails.used_bytes

    @property
    def recovery_cuts(self) -> Mapping[str, int]:
        """Torn tails that were cut off when the broker started, by topic."""
        return self._opener.cuts

    @property
    def recovery_cut_records(self) -> Mapping[str, int]:
        """Records of these tails, as far as their headers could be read, by topic."""
        return self._opener.cut_records

    @property
    def recovery_cut_bytes(self) -> int:
        return self._opener.cut_bytes

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """Earliest and next offset of a partition that exists; nothing can be said of a damaged one."""
        one = self._topics[topic].partitions[partition]
        return (0, 0) if isinstance(one, PartitionDamaged) else (one.earliest_offset, one.next_offset)

    def on_change(self, listener: Callable[[str], None]) -> None:
        """Call `listener` with the topic's name after every creation, deletion or change of a partition count."""
        self._listeners.append(listener)

    def on_reopen(self, listener: Callable[[Mapping[TopicPartition, Partition]], Awaitable[None]]) -> None:
        """Have `listener` put right what depends on a partition that is opened anew, before it is served."""
        self._reopen_listeners.append(listener)

    # Changing

    async def create(self, name: str, partition_count: int, config: TopicConfig) -> Topic:
        """Create a topic; a partition count of 0 means the default.

        Raises TopicExists, InvalidTopicName, InvalidPartitionCount, InvalidTopicConfig, ResourceLimit, StorageFailed.
        """
        check_topic_name(name)
        partition_count = self._checked_count(partition_count or self._settings.default_partitions)
        config.validate()
        return await self._whole(self._create(name, partition_count, config))

    async def _create(self, name: str, partition_count: int, config: TopicConfig) -> Topic:
        async with self._changing:
            if name in self._topics:
                raise TopicExists(name)
            self._check_room(partition_count)
            stored = StoredTopic(name, uuid.uuid4(), partition_count, config.to_json(), self._now_ms())
            try:
                partitions, epochs = await self._opener.make(name, range(partition_count), config)
                await self._store.put_topic(stored, epochs)
            except CursusError:
                await self._engine.delete(name)
                raise
            topic = self._admit(stored, config, partitions, is_new=True)
            log.info("topic.created", topic=name, partitions=partition_count, config=config.set_fields())
        self._changed(name)
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
        await self._whole(self._delete(name))

    async def _delete(self, name: str) -> None:
        async with self._changing:
            topic = self.topic(name)
            del self._topics[name]
            self._partition_count -= len(topic.partitions)
            for partition in topic.healthy():
                partition.tail.close(TopicNotFound(name))
            try:
                await self._store.delete_topic(name)
                await self._engine.delete(name)
            finally:
                await self._forget_content(topic)
                # Also if the disk refused: nobody finds the topic any more.
                self._changed(name)
            log.info("topic.deleted", topic=name, partitions=len(topic.partitions), topic_id=str(topic.id))

    async def update(self, name: str, update: TopicConfig, reset_fields: Sequence[str]) -> Topic:
        """Change a topic's configuration. Raises TopicNotFound, InvalidTopicConfig, StorageFailed."""
        return await self._whole(self._update(name, update, reset_fields))

    async def _update(self, name: str, update: TopicConfig, reset_fields: Sequence[str]) -> Topic:
        async with self._changing:
            topic = self.topic(name)
            config = topic.config.without(reset_fields).merged(update)
            config.validate()
            await self._store.put_topic(_stored(topic, config, len(topic.partitions)))
            before, topic.config = topic.config, config
            for partition in topic.healthy():
                configure(partition, config)
            log.info("topic.updated", topic=name, changed=_changes(before.set_fields(), config.set_fields()))
            return topic

    async def add_partitions(self, name: str, partition_count: int) -> Topic:
        """Raise the number of partitions.

        Raises TopicNotFound, InvalidPartitionCount, ResourceLimit, StorageFailed; PartitionDamaged if none can be read.
        """
        return await self._whole(self._add_partitions(name, partition_count))

    async def _add_partitions(self, name: str, partition_count: int) -> Topic:
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
            if not topic.healthy():
                # Maybe the topic's volume is not mounted: nothing is to be made in its place.
                topic.partition(0)
            try:
                added, epochs = await self._opener.make(name, range(present, partition_count), topic.config)
                await self._store.put_topic(_stored(topic, topic.config, partition_count), epochs)
            except CursusError:
                await self._engine.release(name, range(present, partition_count))
                raise
            topic.partitions.extend(added)
            self._partition_count += len(added)
            log.info("topic.partitions_added", topic=name, partitions=partition_count, before=present)
        self._changed(name)
        return topic

    async def reopen(self, name: str, partition_id: int) -> bool:
        """Open the log of a partition anew that is damaged or takes no more. False if nothing is wrong with it.

        Raises TopicNotFound, PartitionNotFound, StorageFailed; PartitionDamaged if it cannot be served still.
        """
        return await self._whole(self._reopen(name, partition_id))

    async def _reopen(self, name: str, partition_id: int) -> bool:
        async with self._changing:
            topic = self.topic(name)
            if not 0 <= partition_id < len(topic.partitions):
                raise PartitionNotFound(name, partition_id, len(topic.partitions))
            present, place = topic.partitions[partition_id], TopicPartition(name, partition_id)
            if isinstance(present, Partition):
                if present.log.refusal is None:
                    return await _recheck(present)
                log.info("partition.reopening", topic=name, partition=partition_id, cause=present.log.refusal)
                text = f"partition {partition_id} of topic {name!r} is opened anew: try again"
                present.retire(PartitionReopened(text, topic=name, partition=partition_id))
                with suppress(StorageFailed):  # what could not be synced is what opening sees to
                    await present.log.close()
            opened = await self._opener.reopen(place, topic.config)
            if isinstance(opened, PartitionDamaged):
                topic.partitions[partition_id] = opened
                raise opened
            try:
                for listener in self._reopen_listeners:
                    await listener({place: opened})
            except BaseException:
                await self._engine.release(name, [partition_id])
                raise
            topic.partitions[partition_id] = opened
            if isinstance(present, PartitionDamaged) or opened.next_offset < present.next_offset:
                # As after a restart: what was remembered may lie behind the cut, or was never read.
                await self._forget_content(topic)
                topic.content = self._content.open()
                topic.recall = Recall(name, topic.content, [(one.id, one.log) for one in topic.healthy()])
            log.warning(
                "partition.reopened",
                topic=name,
                partition=partition_id,
                next_offset=opened.next_offset,
                leader_epoch=opened.leader_epoch,
                cut_records=0 if opened.cut is None else opened.cut.records,
            )
            return True

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
        opened = await self._opener.open(snapshot)
        for stored in snapshot.topics:
            config, partitions = opened[stored.name]
            self._admit(stored, config, partitions)

    def end_waits(self) -> None:
        """Let nobody wait for records any more: the broker is about to stop."""
        for topic in self._topics.values():
            for partition in topic.healthy():
                partition.tail.close(ShuttingDown())

    async def close(self) -> None:
        """End the waits, remember the producers, forget the topics. Publishing must have stopped."""
        async with self._changing:
            self.end_waits()
            for topic in self._topics.values():
                if topic.recall is not None:
                    await topic.recall.cancel()
            await self._ledgers.save(
                (topic.id, partition)
                for topic in self._topics.values()
                for partition in topic.healthy()
                if partition.is_ledger_behind
            )
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
                    if partition.ledger_upto < retained.earliest_offset:
                        await self._ledgers.save([(topic.id, partition)])

    async def trim(self, topic: Topic, partition_id: int, before: Offset) -> Offset:
        """Delete a partition's records below `before`, and answer the new earliest offset.

        Raises PartitionNotFound, PartitionDamaged, OffsetOutOfRange, StorageFailed.
        """
        partition = topic.partition(partition_id)
        if partition.ledger_upto < before:
            # Their headers are what a start would learn of the producers from.
            await self._ledgers.save([(topic.id, partition)])
        return await partition.log.trim(before)

    async def clean_content(self) -> int:
        """Forget the content that fell out of its window. Answers how many entries went."""
        return await self._content.clean(self._now_ms(), Pace())

    async def forget_producers(self, idle_ms: int) -> int:
        """Forget producers that have been idle for so long. Answers how many."""
        before_ms, pace, forgotten = self._now_ms() - idle_ms, Pace(), 0
        for topic in list(self._topics.values()):
            for partition in topic.healthy():
                await pace.took()
                while taken := partition.producers.forget_idle(before_ms, pace.left):
                    forgotten += taken
                    await pace.took(taken)
        return forgotten

    async def save_ledgers(self, min_appended_bytes: int, min_forgotten: int) -> None:
        """Remember what partitions know of their producers, where much has happened since the last time."""
        await self._ledgers.save(
            (topic.id, partition)
            for topic in self._topics.values()
            for partition in topic.healthy()
            if partition.is_ledger_due(min_appended_bytes, min_forgotten)
        )

    # Inside

    async def _whole(self, change: Coroutine[object, object, T]) -> T:
        """Finish a change also when whoever asked for it has left: half of it, in the metadata or on disk, would not
        match what is in memory."""
        task = asyncio.create_task(change, name="topic-change")
        self._changes.add(task)
        task.add_done_callback(self._change_done)
        return await asyncio.shield(task)

    def _change_done(self, task: asyncio.Task[T]) -> None:
        self._changes.discard(task)
        if not task.cancelled():
            task.exception()  # for whoever waits; nobody may

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

    def _changed(self, name: str) -> None:
        for listener in self._listeners:
            listener(name)

    async def _forget_content(self, topic: Topic) -> None:
        if topic.recall is not None:
            await topic.recall.cancel()
        await self._content.drop(topic.content, Pace())

    def _admit(
        self,
        stored: StoredTopic,
        config: TopicConfig,
        partitions: list[Partition | PartitionDamaged],
        *,
        is_new: bool = False,
    ) -> Topic:
        topic = Topic(stored.name, stored.id, config, stored.created_ms, partitions, self._content.open())
        if not is_new:
            topic.recall = Recall(stored.name, topic.content, [(one.id, one.log) for one in topic.healthy()])
        self._topics[stored.name] = topic
        self._partition_count += len(partitions)
        return topic


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


def _changes(before: Mapping[str, object], after: Mapping[str, object]) -> dict[str, str]:
    """What is another value now, as a person reads it."""
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    return {name: f"{before.get(name, 'default')} -> {after.get(name, 'default')}" for name in names}


async def _recheck(partition: Partition) -> bool:
    """Look again at the damage that was met in a partition that is served: its files may have been restored. False if
    none was. Raises PartitionDamaged."""
    if partition.log.damage is None:
        return False
    if (damage := await partition.log.recheck()) is not None:
        raise damage
    log.info("partition.damage_mended", topic=partition.topic, partition=partition.id)
    return True


def _stored(topic: Topic, config: TopicConfig, partition_count: int) -> StoredTopic:
    return StoredTopic(topic.name, topic.id, partition_count, config.to_json(), topic.created_ms)


def _limit(own: int | None, default: int) -> int | None:
    """A retention limit of the log's policy: the topic's own, else the broker's; None for no limit."""
    value = default if own is None else own
    return None if value == UNLIMITED else value
