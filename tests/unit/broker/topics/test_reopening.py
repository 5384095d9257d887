"""Opening a partition anew may itself fail, and be asked for again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from cursus_broker.app import Broker
from cursus_broker.errors import PartitionDamaged, StorageFailed
from cursus_broker.log.api import Offset
from cursus_broker.log.names import CLOSED_MARK
from cursus_broker.log.settings import LogSettings
from cursus_broker.metadata.model import TopicPartition
from cursus_broker.settings import BrokerSettings
from cursus_broker.topics.config import TopicConfig
from cursus_broker.topics.partition import Partition
from tests.harness.disks import HeldFiles
from tests.unit.broker.log.support import batch_of

SETTINGS = LogSettings(segment_bytes=1_024, linger_ms=3_600_000, flush_records=10**9)


def settings(tmp_path: Path) -> BrokerSettings:
    return BrokerSettings(data_dir=tmp_path / "data", log=SETTINGS)


async def refused(broker: Broker, files: HeldFiles) -> Partition:
    partition = (await broker.catalog.create("orders", 1, TopicConfig())).partition(0)
    partition.append(batch_of(b"synced"), 0)
    await partition.log.sync(partition.next_offset)
    partition.append(batch_of(b"doubtful"), 0)
    files.fails = True
    with pytest.raises(StorageFailed):
        await partition.log.sync(partition.next_offset)
    files.fails = False
    return partition


async def test_an_attempt_that_fails_late_can_be_made_again(tmp_path: Path) -> None:
    """The log was open then already, which the next attempt once took for a mistake of ours."""
    files = HeldFiles()
    async with Broker.open(settings(tmp_path), files) as broker:
        old = await refused(broker, files)
        attempts = 0

        async def fail_once(_: Mapping[TopicPartition, Partition]) -> None:
            nonlocal attempts
            attempts += 1
            if attempts == 1:
                raise StorageFailed("the metadata cannot be written")

        broker.catalog.on_reopen(fail_once)
        with pytest.raises(StorageFailed):
            await broker.catalog.reopen("orders", 0)
        with pytest.raises(StorageFailed):
            await old.read(Offset(0), 1_000)  # what an attempt may have changed is not read by what was before it
        assert await broker.catalog.reopen("orders", 0)
        new = broker.catalog.partition("orders", 0)
        assert new is not old
        assert [entry.payload for entry in await new.read(Offset(0), 1_000)] == [b"synced", b"doubtful"]
        assert new.leader_epoch > old.leader_epoch
        new.append(batch_of(b"after"), 0)
        await new.log.sync(new.next_offset)


async def test_a_broker_with_a_partition_that_could_not_be_reopened_was_not_closed_cleanly(tmp_path: Path) -> None:
    files = HeldFiles()
    chosen = settings(tmp_path)
    async with Broker.open(chosen, files) as broker:
        await refused(broker, files)
        files.fails = True
        with pytest.raises(StorageFailed):
            await broker.catalog.reopen("orders", 0)
        files.fails = False
    assert not (chosen.segment_dir / CLOSED_MARK).exists()


async def test_a_partition_that_could_not_be_opened_is_served_when_its_files_are_restored(tmp_path: Path) -> None:
    chosen = settings(tmp_path)
    async with Broker.open(chosen) as broker:
        partition = (await broker.catalog.create("orders", 1, TopicConfig())).partition(0)
        for _ in range(20):
            partition.append(batch_of(bytes(200)), 0)
        epoch = partition.leader_epoch
    lost = chosen.segment_dir / "orders" / "partition_0_segment_1.log"
    content = lost.read_bytes()
    lost.unlink()
    async with Broker.open(chosen) as broker:
        with pytest.raises(PartitionDamaged):
            broker.catalog.partition("orders", 0)
        with pytest.raises(PartitionDamaged):
            await broker.catalog.reopen("orders", 0)
        lost.write_bytes(content)
        assert await broker.catalog.reopen("orders", 0)
        served = broker.catalog.partition("orders", 0)
        assert served.next_offset == 20
        assert served.leader_epoch > epoch, "what was restored may be of another time"
