"""What a topic knows again of its contents after a restart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from cursus_broker.errors import WriteTimeout
from cursus_broker.log.api import MANY_RECORDS, Entry, EntryHeader, Offset
from cursus_broker.log.log import SegmentLog
from cursus_broker.publish.acks import Placed
from cursus_broker.publish.dedup import ContentLimits
from cursus_broker.publish.publisher import PublisherSettings
from cursus_broker.publish.submission import Deduplication, Submission
from cursus_broker.topics.config import TopicConfig
from cursus_proto import records as record_sets
from cursus_proto.v1 import records_pb2
from cursus_proto.v1.records_pb2 import Record
from tests.unit.broker.publish.support import LIMITS, WINDOW_MS, Desk, desk


def single(
    value: bytes, partition: int | None = 0, codec: int = records_pb2.CODEC_NONE, key: bytes | None = None
) -> Submission:
    payload = record_sets.pack([Record(value=value, key=key)], codec)
    return Submission("orders", payload, partition, codec=codec, record_count=1)


async def publish(at: Desk, submission: Submission) -> Placed:
    (placed,) = (await at.publisher.publish(submission)).placed
    return placed


@pytest.mark.parametrize("codec", [records_pb2.CODEC_NONE, records_pb2.CODEC_GZIP, records_pb2.CODEC_ZSTD])
async def test_a_repetition_after_a_restart_is_answered_with_the_first_place(tmp_path: Path, codec: int) -> None:
    sent = [
        *(single(b"in turn %d" % number, None, codec) for number in range(5)),
        *(single(b"keyed", None, codec, key=b"key %d" % number) for number in range(5)),
        *(single(b"named %d" % number, 2, codec) for number in range(300)),
    ]
    async with desk(tmp_path, partitions=3) as at:
        stored = []
        for one in sent:
            at.clock.now_ms += 1
            stored.append(await publish(at, one))
        later = at.clock.now_ms + WINDOW_MS // 2
    assert not any(placed.duplicate for placed in stored)
    assert len({placed.partition for placed in stored}) == 3
    async with desk(tmp_path, partitions=3, recall=True) as at:
        at.clock.now_ms = later
        again = [await publish(at, one) for one in sent]
        assert again == [placed._replace(duplicate=True, fresh_record_count=0) for placed in stored]
        assert len(at.topic.content) == len(sent)
        other_packing = await publish(at, single(b"named 7", 2, records_pb2.CODEC_LZ4))
        assert (other_packing.duplicate, other_packing.base_offset) == (True, stored[17].base_offset)


@pytest.mark.parametrize(
    "submission",
    [
        single(b"hello")._replace(deduplication=Deduplication.NONE),
        single(b"hello")._replace(producer_id=b"p"),
        Submission("orders", record_sets.pack([Record(value=b"hello"), Record(value=b"hello")]), 0),
    ],
    ids=["request switched off", "producer without numbers", "batch"],
)
async def test_what_was_not_remembered_suppresses_nothing_after_a_restart(
    tmp_path: Path, submission: Submission
) -> None:
    async with desk(tmp_path) as at:
        await publish(at, submission)
    async with desk(tmp_path, recall=True) as at:
        assert not (await publish(at, single(b"hello"))).duplicate
        assert (await publish(at, single(b"hello"))).duplicate


async def test_a_topic_with_content_deduplication_off_is_read_only_for_a_request_that_asks(tmp_path: Path) -> None:
    asked = single(b"hello")._replace(deduplication=Deduplication.CONTENT)
    async with desk(tmp_path, config=TopicConfig(content_deduplication=False)) as at:
        first = await publish(at, asked)
    async with desk(tmp_path, config=TopicConfig(content_deduplication=False), recall=True) as at:
        assert not (await publish(at, single(b"hello"))).duplicate
        assert at.topic.recall is not None
        assert not at.topic.recall.is_over
        again = await publish(at, asked)
        assert (again.duplicate, again.base_offset) == (True, first.base_offset)


async def test_the_window_goes_on_over_a_restart_and_ends_when_it_would_have(tmp_path: Path) -> None:
    async with desk(tmp_path, partitions=2) as at:
        start_ms = at.clock.now_ms
        for number in range(10):
            at.clock.now_ms = start_ms + number
            await publish(at, single(b"%d" % number, number % 2))
    async with desk(tmp_path, partitions=2, recall=True) as at:
        at.clock.now_ms = start_ms + WINDOW_MS + 3
        assert [(await publish(at, single(b"%d" % number, 0))).duplicate for number in range(10)] == [
            number > 3 for number in range(10)
        ]
        at.clock.now_ms += 3
        assert at.topic.content.clean(at.clock.now_ms, 100) == 3, "merged from both partitions in the order of time"


async def test_more_contents_than_the_topic_may_remember_are_forgotten_oldest_first_and_counted(
    tmp_path: Path,
) -> None:
    async with desk(tmp_path, partitions=2) as at:
        for number in range(30):
            at.clock.now_ms += WINDOW_MS // 40
            await publish(at, single(b"%d" % number, number % 2))
        now_ms = at.clock.now_ms
    limits = ContentLimits(WINDOW_MS, topic_entries=10, total_entries=100)
    async with desk(tmp_path, partitions=2, limits=limits, recall=True) as at:
        at.clock.now_ms = now_ms
        asked = [single(b"%d" % number)._replace(deduplication=Deduplication.CONTENT) for number in range(20, 30)]
        assert all([(await publish(at, one)).duplicate for one in asked])
        assert at.topic.content.forgotten_early == 20
        assert not (await publish(at, single(b"19"))).duplicate


class CountingLog(SegmentLog):
    """Counts the headers somebody takes, and the records that are read."""

    headers_taken = 0
    records_read = 0

    async def headers(self, offset: Offset) -> AsyncIterator[EntryHeader]:
        async for header in super().headers(offset):
            CountingLog.headers_taken += 1
            yield header

    async def read(self, offset: Offset, max_bytes: int, max_records: int = MANY_RECORDS) -> Sequence[Entry]:
        entries = await super().read(offset, max_bytes, max_records)
        CountingLog.records_read += sum(entry.header.record_count for entry in entries)
        return entries


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> type[CountingLog]:
    monkeypatch.setattr("cursus_broker.log.engine.SegmentLog", CountingLog)
    monkeypatch.setattr(CountingLog, "headers_taken", 0)
    monkeypatch.setattr(CountingLog, "records_read", 0)
    return CountingLog


def batch(number: int) -> Submission:
    return Submission("orders", record_sets.pack([Record(value=b"%d" % number)] * 3), 0)


async def test_only_the_window_is_walked_and_only_remembered_records_are_read(
    tmp_path: Path, counting: type[CountingLog]
) -> None:
    async with desk(tmp_path) as at:
        for number in range(500):
            await publish(at, single(b"old %d" % number))
        at.clock.now_ms += WINDOW_MS
        for number in range(200):
            await publish(at, batch(number))
        for number in range(5):
            await publish(at, single(b"new %d" % number))
    async with desk(tmp_path, recall=True) as at:
        at.clock.now_ms += WINDOW_MS
        assert (await publish(at, single(b"new 3"))).duplicate
        assert counting.headers_taken <= 205
        assert counting.records_read == 5


async def test_a_log_with_too_many_batches_is_not_walked_to_the_end_of_the_window(
    tmp_path: Path, counting: type[CountingLog]
) -> None:
    limits = ContentLimits(WINDOW_MS, topic_entries=50, total_entries=100)
    async with desk(tmp_path) as at:
        await publish(at, single(b"old"))
        at.clock.now_ms += 1
        for number in range(500):
            await publish(at, batch(number))
        at.clock.now_ms += WINDOW_MS * 3 // 4
        await publish(at, single(b"new"))
        now_ms = at.clock.now_ms
    async with desk(tmp_path, limits=limits, recall=True) as at:
        at.clock.now_ms = now_ms
        assert (await publish(at, single(b"new"))).duplicate
        assert counting.headers_taken <= 4 * 50 + 2
        assert at.topic.content.forgotten_early == 1, "of the part that was given up, what was met"
        assert not (await publish(at, single(b"old"))).duplicate


async def test_of_equal_messages_that_wait_for_the_recall_one_is_stored(tmp_path: Path) -> None:
    async with desk(tmp_path) as at:
        await publish(at, single(b"known"))
    async with desk(tmp_path, recall=True) as at:
        impatient = asyncio.create_task(publish(at, single(b"known")))
        waiting = [asyncio.create_task(publish(at, single(b"new"))) for _ in range(5)]
        await asyncio.sleep(0)
        impatient.cancel()
        placed = await asyncio.gather(*waiting)
        assert [one.duplicate for one in placed] == [False, True, True, True, True]
        assert {one.base_offset for one in placed} == {1}
        assert (await publish(at, single(b"known"))).duplicate


async def test_whoever_waits_too_long_for_the_recall_is_refused_and_may_come_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = asyncio.Event()

    class SlowLog(SegmentLog):
        async def headers(self, offset: Offset) -> AsyncIterator[EntryHeader]:
            await gate.wait()
            async for header in super().headers(offset):
                yield header

    async with desk(tmp_path) as at:
        await publish(at, single(b"hello"))
    monkeypatch.setattr("cursus_broker.log.engine.SegmentLog", SlowLog)
    settings = PublisherSettings(1 << 20, 1, 1 << 30, auto_create_topics=False)
    async with desk(tmp_path, settings=settings, recall=True) as at:
        with pytest.raises(WriteTimeout, match="read back"):
            await publish(at, single(b"hello"))
        assert not (await publish(at, single(b"hello")._replace(deduplication=Deduplication.NONE))).duplicate
        gate.set()
        assert at.topic.recall is not None
        await at.topic.recall.finish(at.clock.now_ms, at.unpack)
        assert (await publish(at, single(b"hello"))).duplicate


async def test_a_recall_that_is_cancelled_lets_go_of_those_who_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached = asyncio.Event()

    class EndlessLog(SegmentLog):
        async def headers(self, offset: Offset) -> AsyncIterator[EntryHeader]:
            reached.set()
            await asyncio.Event().wait()
            yield  # type: ignore[misc]  # never reached

    async with desk(tmp_path, limits=LIMITS) as at:
        await publish(at, single(b"hello"))
    monkeypatch.setattr("cursus_broker.log.engine.SegmentLog", EndlessLog)
    async with desk(tmp_path, recall=True) as at:
        waiting = asyncio.create_task(publish(at, single(b"hello")))
        await reached.wait()
        assert at.topic.recall is not None
        await at.topic.recall.cancel()
        assert not (await waiting).duplicate
