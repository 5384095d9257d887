"""Logs that are cut under their readers, by power loss or damage: reading goes on at the cut, and never in silence.

Every record is a batch of its own here, so that a log can be cut at any of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cursus_grpc import END, Admin, AsyncConsumer, Producer, TopicPartition, errors
from cursus_grpc.testing import Broker
from cursus_grpc.types import OffsetAndMetadata
from tests.harness.damage import cut_log
from tests.integration.client.faces import Face

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
# Far above what any of these takes; what must not happen is waiting for ever.
NEVER_S = 60.0

Told = list[tuple[TopicPartition, int, int]]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """A broker of the test's own with the topic `t`."""
    with Broker(data_dir=tmp_path) as running:
        with Admin(running.address) as admin:
            admin.create_topic("t", 2)
        yield running


@pytest.fixture
def forgetful() -> Iterator[Broker]:
    """One that syncs only what acks all, rolls and commits ask for."""
    flags = ("--log-linger-ms", "60s", "--log-flush-records", "1000000")
    with Broker(*flags, in_process=True, can_lose_power=True) as running:
        with Admin(running.address) as admin:
            admin.create_topic("t", 2)
        yield running


def publish(broker: Broker, values: range, prefix: str = "", partition: int = 0, acks: Any = "all") -> None:
    with Producer(broker.address, acks=acks) as producer:
        for value in values:
            producer.send("t", f"{prefix}{value}".encode(), partition=partition).result()


def lose(broker: Broker, tmp_path: Path, entries: int) -> None:
    """The broker dies, and its disk forgets the end of the log of partition 0."""
    broker.kill()
    cut_log(tmp_path, "t", entries)


async def read(consumer: Any, count: int) -> list[bytes]:
    found: list[bytes] = []
    for _ in range(count):
        record = await consumer.poll(NEVER_S)
        assert record is not None, f"nothing came after {found}"
        found.append(record.value)
    return found


def numbered(values: range, prefix: str = "") -> list[bytes]:
    return [f"{prefix}{value}".encode() for value in values]


def told_to(told: Told) -> Any:
    return lambda partition, position, offset: told.append((partition, position, offset))


async def begin(consumer: Any, group: bool) -> None:
    if group:
        await consumer.subscribe(["t"])
    else:
        await consumer.assign({P0: 0, P1: 0})


@pytest.mark.parametrize("group", ["g", None])
async def test_a_consumer_that_lives_through_power_loss_goes_on_where_the_log_ended(
    face: Face, forgetful: Broker, group: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """It used to read again from 0, or in a group to wait for the offset that power loss had taken."""
    told: Told = []
    publish(forgetful, range(5))
    publish(forgetful, range(5, 25), acks=1)
    options = {"group": group, "auto_commit": False, "on_truncated": told_to(told)}
    async with face.consumer(forgetful.address, **options) as consumer:
        await begin(consumer, group is not None)
        assert await read(consumer, 25) == numbered(range(25))
        with caplog.at_level(logging.WARNING, "cursus_grpc"):
            await asyncio.to_thread(forgetful.power_loss)
            await asyncio.to_thread(publish, forgetful, range(3), "new ")
            assert await read(consumer, 3) == numbered(range(3), "new ")
        assert await consumer.position(P0) == 8
        assert await consumer.poll(0.2) is None
    assert told == [(P0, 25, 5)]
    assert "t[0]: the log was cut at offset 5" in caplog.text


@pytest.mark.parametrize("group", ["g", None])
async def test_a_log_that_has_grown_past_the_position_again_is_read_from_the_cut(
    face: Face, broker: Broker, tmp_path: Path, group: str | None
) -> None:
    """Only the epoch tells such a reader from one that was nowhere near the cut."""
    told: Told = []
    publish(broker, range(25))
    options = {"group": group, "auto_commit": False, "on_truncated": told_to(told)}
    async with face.consumer(broker.address, **options) as consumer:
        await begin(consumer, group is not None)
        assert await read(consumer, 25) == numbered(range(25))
        await asyncio.to_thread(lose, broker, tmp_path, 5)
        with Broker(data_dir=tmp_path) as elsewhere:
            await asyncio.to_thread(publish, elsewhere, range(40), "new ")
        await asyncio.to_thread(broker.start)
        assert await read(consumer, 40) == numbered(range(40), "new ")
    assert told == [(P0, 25, 5)]


async def test_what_was_received_and_not_handed_out_is_dropped_above_the_cut_and_handed_out_once_below(
    face: Face, broker: Broker, tmp_path: Path
) -> None:
    told: Told = []
    publish(broker, range(25))
    async with face.consumer(broker.address, on_truncated=told_to(told)) as consumer:
        await consumer.assign({P0: 0})
        assert await read(consumer, 3) == numbered(range(3))
        await asyncio.to_thread(lose, broker, tmp_path, 5)
        await asyncio.to_thread(broker.start)
        await asyncio.to_thread(publish, broker, range(3), "new ")
        # The rest may have been handed out before the consumer heard of the cut, or not; nothing comes twice.
        assert await read(consumer, 2) == numbered(range(3, 5))
        later = await read(consumer, 1)
        while later[-1] != b"new 2":
            later += await read(consumer, 1)
    lost = later[:-3]
    assert later[-3:] == numbered(range(3), "new ")
    assert lost == numbered(range(5, 5 + len(lost)))
    assert told == ([(P0, 5 + len(lost), 5)] if lost else [])


async def test_a_group_whose_commit_is_above_the_cut_goes_on_from_it_and_is_told(
    face: Face, broker: Broker, tmp_path: Path
) -> None:
    """A new member used to receive nothing: the committed offset was above the end of the log."""
    told: Told = []
    publish(broker, range(25))
    async with face.consumer(broker.address, group="g", topics=["t"]) as consumer:
        assert await read(consumer, 25) == numbered(range(25))
    await asyncio.to_thread(lose, broker, tmp_path, 5)
    await asyncio.to_thread(broker.start)
    async with face.admin(broker.address) as admin:
        (moved,) = (await admin.fetch_offsets("g", [P0])).values()
        assert (moved.offset, moved.truncated_from) == (5, 25)
        described = {part.partition: part for part in (await admin.describe_group("g")).partitions}
        assert (described[P0].committed_offset, described[P0].truncated_from, described[P0].lag_records) == (5, 25, 0)
        assert described[P1].truncated_from is None
    await asyncio.to_thread(publish, broker, range(30), "new ")
    async with face.consumer(broker.address, group="g", topics=["t"], on_truncated=told_to(told)) as consumer:
        assert await read(consumer, 30) == numbered(range(30), "new ")
        assert told == [(P0, 25, 5)]
        await consumer.commit()
        committed = (await consumer.committed([P0]))[P0]
        assert (committed.offset, committed.truncated_from) == (35, None)


async def test_partitions_that_are_assigned_where_the_group_left_off_are_told_of_a_moved_offset(
    face: Face, broker: Broker, tmp_path: Path
) -> None:
    told: Told = []
    publish(broker, range(25))
    with Admin(broker.address) as admin:
        admin.commit_offsets("g", {P0: 25})
    await asyncio.to_thread(lose, broker, tmp_path, 5)
    await asyncio.to_thread(broker.start)
    await asyncio.to_thread(publish, broker, range(1), "new ")
    async with face.consumer(broker.address, group="g", on_truncated=told_to(told)) as consumer:
        await consumer.assign([P0])
        assert await read(consumer, 1) == [b"new 0"]
    assert told == [(P0, 25, 5)]


async def test_a_commit_from_before_the_cut_is_refused_for_its_partition_alone(
    face: Face, broker: Broker, tmp_path: Path
) -> None:
    publish(broker, range(25))
    publish(broker, range(10), partition=1)
    told: Told = []
    async with face.consumer(broker.address, group="g", auto_commit=False, on_truncated=told_to(told)) as consumer:
        await consumer.assign({P0: 0, P1: 0})
        await read(consumer, 35)
        old = await consumer.bookmark(P0)
        await asyncio.to_thread(lose, broker, tmp_path, 5)
        await asyncio.to_thread(broker.start)
        await asyncio.to_thread(publish, broker, range(40), "new ")
        await read(consumer, 1)
        assert told == [(P0, 25, 5)]
        for offset in (old, 25):
            with pytest.raises(errors.CommitFailed) as caught:
                await consumer.commit({P0: offset, P1: 10})
            (refusal,) = caught.value.errors.items()
            assert refusal[0] == P0
            assert isinstance(refusal[1], errors.LogTruncated)
            assert refusal[1].offset == 5
        committed = await consumer.committed([P0, P1])
        assert (committed[P0].offset, committed[P1].offset) == (None, 10)
        # What has been read since may be committed, with the epoch or without.
        await consumer.commit({P0: 6})
        await read(consumer, 39)
        await consumer.commit()
        assert (await consumer.committed([P0]))[P0].offset == 45


async def test_automatic_commits_go_on_behind_a_cut(face: Face, broker: Broker, tmp_path: Path) -> None:
    publish(broker, range(25))
    options = {"group": "g", "topics": ["t"], "auto_commit_interval_ms": 20.0}
    async with face.consumer(broker.address, **options) as consumer:
        await read(consumer, 25)
        await asyncio.to_thread(lose, broker, tmp_path, 5)
        await asyncio.to_thread(broker.start)
        await asyncio.to_thread(publish, broker, range(3), "new ")
        assert await read(consumer, 3) == numbered(range(3), "new ")
    with Admin(broker.address) as admin:
        assert admin.fetch_offsets("g", [P0])[P0].offset == 8


async def test_a_bookmark_from_before_the_cut_is_noticed_wherever_it_is_given(
    face: Face, broker: Broker, tmp_path: Path
) -> None:
    publish(broker, range(25))
    async with face.consumer(broker.address) as consumer:
        await consumer.assign({P0: 0})
        await read(consumer, 25)
        old = await consumer.bookmark(P0)
    await asyncio.to_thread(lose, broker, tmp_path, 5)
    await asyncio.to_thread(broker.start)
    await asyncio.to_thread(publish, broker, range(30), "new ")
    told: Told = []
    async with face.consumer(broker.address, on_truncated=told_to(told)) as consumer:
        with pytest.raises(errors.LogTruncated) as caught:
            await consumer.range("t", 0, old, 30)
        assert caught.value.offset == 5
        assert len(await consumer.range("t", 0, old.offset, 30)) == 5
        await consumer.assign({P0: old})
        assert await read(consumer, 1) == [b"new 0"]
        await consumer.seek(P0, old)
        assert await read(consumer, 1) == [b"new 0"]
        await consumer.seek(P0, old.offset)
        assert await read(consumer, 1) == [b"new 20"]
    assert told == [(P0, 25, 5), (P0, 25, 5)]


async def test_a_consumer_that_wants_to_be_asked_is_told_by_an_exception(
    face: Face, broker: Broker, tmp_path: Path
) -> None:
    publish(broker, range(25))
    told: Told = []
    async with face.consumer(broker.address, reset="error", on_truncated=told_to(told)) as consumer:
        await consumer.assign({P0: 0})
        await read(consumer, 25)
        await asyncio.to_thread(lose, broker, tmp_path, 5)
        await asyncio.to_thread(broker.start)
        await asyncio.to_thread(publish, broker, range(2), "new ")
        with pytest.raises(errors.LogTruncated) as caught:
            await consumer.poll(NEVER_S)
        await consumer.seek(P0, caught.value.offset)
        assert await read(consumer, 2) == numbered(range(2), "new ")
    assert told == []


@pytest.mark.parametrize("group", ["g", None])
async def test_a_partition_that_asks_again_whether_it_can_go_on_loses_and_repeats_nothing(
    broker: Broker, group: str | None
) -> None:
    """As it does when a commit is the first to hear of a cut, which no test can bring about at will."""
    async with AsyncConsumer(broker.address, group=group, auto_commit=False) as consumer:
        await begin(consumer, group is not None)
        for part in range(4):
            await asyncio.to_thread(publish, broker, range(10), f"{part}/")
            assert await read(consumer, 10) == numbered(range(10), f"{part}/")
            assert consumer._core is not None
            consumer._core._ask_again(consumer._core.reading(P0))
        assert await consumer.poll(0.2) is None


@pytest.mark.parametrize("seeks", [False, True], ids=["subscribed", "own streams"])
async def test_a_topic_that_is_made_anew_is_read_from_its_beginning(face: Face, broker: Broker, seeks: bool) -> None:
    """Its records used to be skipped up to the offset that was reached in the old one."""
    publish(broker, range(25))
    async with face.consumer(broker.address, group="g", topics=["t"], reset="latest", auto_commit=False) as consumer:
        while await consumer.assignment() != {P0, P1}:
            assert await consumer.poll(0.05) is None
        if seeks:
            await consumer.seek(P0, 20)
        else:
            publish(broker, range(20, 25))
        assert await read(consumer, 5) == numbered(range(20, 25))

        def make_anew() -> None:
            with Admin(broker.address) as admin:
                admin.delete_topic("t")
                admin.create_topic("t", 2)
            publish(broker, range(30), "new ")

        await asyncio.to_thread(make_anew)
        found = await read(consumer, 1)
        while found[-1] != b"new 29":
            found += await read(consumer, 1)
    # From the beginning if the member saw only the change; else, as a topic it sees first, from where `reset` says.
    assert found == numbered(range(30 - len(found), 30), "new ")


async def test_offsets_are_listed_with_epoch_and_what_is_synced(face: Face, forgetful: Broker) -> None:
    publish(forgetful, range(5))
    publish(forgetful, range(5, 8), acks=1)
    async with face.admin(forgetful.address) as admin:
        before = (await admin.list_offsets("t", END))[0]
        assert (before.next_offset, before.synced_offset) == (8, 5)
        synced = (await admin.list_offsets("t", END, sync=True))[0]
        assert (synced.next_offset, synced.synced_offset) == (8, 8)
        await asyncio.to_thread(forgetful.power_loss)
        after = (await admin.list_offsets("t", END))[0]
        assert after.next_offset == after.synced_offset == 8, "what was synced when it was asked for is still there"
        assert after.leader_epoch > before.leader_epoch
        leaders = (await admin.describe_cluster(["t"])).topics[0].partitions
        assert leaders[0].leader_epoch == after.leader_epoch


async def test_a_clean_restart_is_not_noticed(face: Face, broker: Broker) -> None:
    publish(broker, range(25))
    told: Told = []
    async with face.consumer(broker.address, group="g", topics=["t"], on_truncated=told_to(told)) as consumer:
        assert await read(consumer, 25) == numbered(range(25))
        before = await consumer.bookmark(P0)
        await asyncio.to_thread(broker.restart)
        await asyncio.to_thread(publish, broker, range(2), "new ")
        assert await read(consumer, 2) == numbered(range(2), "new ")
        assert await consumer.bookmark(P0) == OffsetAndMetadata(27, leader_epoch=before.leader_epoch)
    assert told == []


async def test_a_killed_broker_that_lost_nothing_moves_nobody(face: Face, broker: Broker) -> None:
    publish(broker, range(25))
    told: Told = []
    async with face.consumer(broker.address, group="g", topics=["t"], on_truncated=told_to(told)) as consumer:
        assert await read(consumer, 25) == numbered(range(25))
        before = await consumer.bookmark(P0)
        await asyncio.to_thread(broker.kill)
        await asyncio.to_thread(broker.start)
        await asyncio.to_thread(publish, broker, range(2), "new ")
        assert await read(consumer, 2) == numbered(range(2), "new ")
        after = await consumer.bookmark(P0)
        assert (after.offset, after.leader_epoch > before.leader_epoch) == (27, True)
    assert told == []
