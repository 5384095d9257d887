"""From logs to partitions: making those of new topics, and opening all of them when the broker starts.

A partition is handed out when nothing about it can be taken back by power loss: its files are synced, its leader epochs
stored or about to be stored with its topic.
"""

from __future__ import annotations

import asyncio
from collections import Counter as Tally
from typing import Final

import structlog

from cursus_broker.consume.tail import Tail, TailBudget
from cursus_broker.errors import PartitionDamaged
from cursus_broker.log.api import Engine, Offset, Recovered
from cursus_broker.log.epochs import Epochs
from cursus_broker.metadata.model import Snapshot, StoredTopic, TopicPartition
from cursus_broker.metadata.store import MetadataStore
from cursus_broker.publish.replay import is_usable, rebuild_ledger
from cursus_broker.topics.config import TopicConfig
from cursus_broker.topics.partition import Partition

log = structlog.get_logger(__name__)

# Logs opened side by side at start: enough to keep the engine's threads busy.
_OPEN_AT_ONCE: Final = 16

Opened = Partition | PartitionDamaged


class Opener:
    """Opens logs and puts partitions together. Used by one catalog."""

    def __init__(self, engine: Engine, store: MetadataStore, tails: TailBudget, tail_records: int) -> None:
        self._engine = engine
        self._store = store
        self._tails = tails
        self._tail_records = tail_records
        self.cuts: Tally[str] = Tally()
        self.cut_records: Tally[str] = Tally()
        self.cut_bytes = 0

    async def open(self, snapshot: Snapshot) -> dict[str, tuple[TopicConfig, list[Opened]]]:
        """The partitions of every topic of the snapshot, by its name. A damaged one is noted and the others opened.

        Raises StorageFailed.
        """
        gate = asyncio.Semaphore(_OPEN_AT_ONCE)
        epoch = self._store.next_epoch()  # one for all that were not closed cleanly
        begun: dict[TopicPartition, Epochs] = {}
        topics: dict[str, tuple[TopicConfig, list[Opened]]] = {}

        async def open_topic(stored: StoredTopic) -> None:
            async with gate:
                config = TopicConfig.from_json(stored.config_json)
                partitions: list[Opened] = []
                for partition_id in range(stored.partitions):
                    place = TopicPartition(stored.name, partition_id)
                    known = snapshot.epochs.get(place, Epochs())
                    partition, epochs = await self._open(place, config, known, epoch)
                    partitions.append(partition)
                    if epochs != known:
                        begun[place] = epochs
                topics[stored.name] = (config, partitions)

        async with asyncio.TaskGroup() as tasks:
            for stored in snapshot.topics:
                tasks.create_task(open_topic(stored))
        if begun:
            # In one transaction: thousands of them, one for each log, would take longer than opening the logs.
            await self._store.put_epochs(begun)
            log.info("log.epoch_begun", epoch=epoch, partitions=len(begun))
        if not any(isinstance(one, PartitionDamaged) for _, partitions in topics.values() for one in partitions):
            # Not beside a damaged log: it must begin an epoch when it can be opened again.
            self._engine.all_opened()
        return topics

    async def make(
        self, topic: str, partition_ids: range, config: TopicConfig
    ) -> tuple[list[Opened], dict[int, Epochs]]:
        """New partitions, and the epochs to store with them. They are durable: the metadata may speak of them."""
        partitions: list[Opened] = []
        begun: dict[int, Epochs] = {}
        epoch = self._store.next_epoch()
        for partition_id in partition_ids:
            place = TopicPartition(topic, partition_id)
            partition, begun[partition_id] = await self._open(place, config, None, epoch)
            partitions.append(partition)
        await self._engine.secure(topic, [one.id for one in partitions if isinstance(one, Partition)])
        return partitions, begun

    async def reopen(self, place: TopicPartition, config: TopicConfig) -> Opened:
        """The partition, whose log is closed or never could be opened, opened as at a start of the broker.

        Raises StorageFailed.
        """
        known = await self._store.load_epochs(place)
        try:
            partition, epochs = await self._open(place, config, known, self._store.next_epoch())
            if epochs != known:
                await self._store.put_epochs({place: epochs})
        except BaseException:
            await self._engine.release(place.topic, [place.partition])
            raise
        return partition

    async def _open(
        self, place: TopicPartition, config: TopicConfig, known: Epochs | None, epoch: int
    ) -> tuple[Opened, Epochs]:
        """The partition and its epochs, to be stored before it is served."""
        try:
            opened, recovered = await self._engine.open(place.topic, place.partition, known, epoch)
            self._report(place, recovered)
            stored = await self._store.load_ledger(place)
            if stored is not None and not is_usable(stored, opened):
                await self._store.drop_ledger(place)
                stored = None
            ledger = await rebuild_ledger(opened, stored)
        except PartitionDamaged as damage:
            log.error("partition.damaged", topic=place.topic, partition=place.partition, **damage.metadata)
            await self._engine.release(place.topic, [place.partition])  # it may be open, and damaged further on
            return damage, known or Epochs()
        tail = Tail(self._tails, self._tail_records, opened.next_offset)
        upto = Offset(0 if stored is None else stored.reach.upto_offset)
        partition = Partition(place.topic, place.partition, opened, tail, ledger, upto, recovered.cut)
        configure(partition, config)
        return partition, recovered.epochs

    def _report(self, place: TopicPartition, recovered: Recovered) -> None:
        """Tell and count what opening a log had to repair."""
        if recovered.cut is not None:
            self.cuts[place.topic] += 1
            self.cut_bytes += recovered.cut.bytes
            self.cut_records[place.topic] += recovered.cut.records
            log.warning(
                "log.recovery.cut",
                topic=place.topic,
                partition=place.partition,
                segment=recovered.cut.file,
                position=recovered.cut.position,
                cut_bytes=recovered.cut.bytes,
                cut_records=recovered.cut.records,
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


def configure(partition: Partition, config: TopicConfig) -> None:
    partition.log.configure(segment_bytes=config.segment_bytes, segment_ms=config.segment_ms)
