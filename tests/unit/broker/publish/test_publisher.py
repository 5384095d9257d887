"""Publishing into real logs without a network: routing, splitting, recognising, looking inside only where needed."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable
from pathlib import Path

import pytest

from cursus_broker.errors import (
    CorruptRecordSet,
    InvalidRequest,
    RecordTooLarge,
    RecordTooSmall,
    TopicNotFound,
    WriteTimeout,
)
from cursus_broker.log.api import Offset
from cursus_broker.log.files import RealFiles
from cursus_broker.publish.acks import Acks, Placed
from cursus_broker.publish.publisher import PublisherSettings
from cursus_broker.publish.submission import Deduplication, Submission
from cursus_broker.topics.config import TopicConfig
from cursus_proto import records as record_sets
from cursus_proto.partitioner import partition_for_key
from cursus_proto.v1 import records_pb2
from cursus_proto.v1.records_pb2 import Header, Record
from tests.unit.broker.publish.support import WINDOW_MS, desk

GARBAGE = Submission("orders", b"not zstd", 0, codec=records_pb2.CODEC_ZSTD, record_count=3)


def plain(*values: bytes | None, partition: int | None = 0) -> Submission:
    return packed([Record(value=value) for value in values], partition)


def packed(records: Iterable[Record], partition: int | None = 0) -> Submission:
    return Submission("orders", record_sets.pack(records), partition)


async def test_records_with_a_key_go_where_every_client_would_send_them(tmp_path: Path) -> None:
    keys = [b"user-%d" % number for number in range(20)] + [b""]
    async with desk(tmp_path, partitions=4) as at:
        for key in keys:
            receipt = await at.publisher.publish(packed([Record(key=key, value=b"of " + key)], None))
            assert [placed.partition for placed in receipt.placed] == [partition_for_key(key, 4)]


async def test_records_without_a_key_take_turns_and_a_batch_stays_together(tmp_path: Path) -> None:
    async with desk(tmp_path, partitions=3) as at:
        for number in range(6):
            receipt = await at.publisher.publish(plain(b"a%d" % number, b"b%d" % number, partition=None))
            (placed,) = receipt.placed
            assert (placed.partition, placed.record_count) == (number % 3, 2)
        assert await at.values(1) == [b"a1", b"b1", b"a4", b"b4"]


@pytest.mark.parametrize("codec", [records_pb2.CODEC_NONE, records_pb2.CODEC_ZSTD])
async def test_a_set_of_several_keys_is_split_in_order_and_packed_the_same_way(tmp_path: Path, codec: int) -> None:
    records = [Record(key=b"k%d" % (number % 5), value=b"%d" % number) for number in range(30)]
    async with desk(tmp_path, partitions=4) as at:
        submission = Submission("orders", record_sets.pack(records, codec), None, codec=codec, record_count=30)
        receipt = await at.publisher.publish(submission)
        for partition in range(4):
            expected = [one.value for one in records if partition_for_key(one.key, 4) == partition]
            assert await at.values(partition) == expected
            counts = [placed.record_count for placed in receipt.placed if placed.partition == partition]
            assert counts == ([len(expected)] if expected else [])


@pytest.mark.parametrize("codec", [records_pb2.CODEC_NONE, records_pb2.CODEC_ZSTD])
async def test_what_is_packed_again_keeps_null_and_empty_apart(tmp_path: Path, codec: int) -> None:
    records = [
        Record(key=b"k%d" % (number % 5), value=(None, b"", b"v")[number % 3], headers=[Header(key="h", value=content)])
        for number, content in enumerate([None, b"", b"h"] * 10)
    ]
    async with desk(tmp_path, partitions=4) as at:
        submission = Submission("orders", record_sets.pack(records, codec), None, codec=codec, record_count=30)
        assert len((await at.publisher.publish(submission)).placed) > 1
        for partition in range(4):
            assert await at.records(partition) == [one for one in records if partition_for_key(one.key, 4) == partition]


async def test_a_part_that_is_stored_of_a_repeated_batch_keeps_null_and_empty_apart(tmp_path: Path) -> None:
    values = [b"stored before", None, b"", b"v"]
    async with desk(tmp_path) as at:
        numbered = plain(*values)._replace(producer_id=b"p", windowed=True)
        await at.publisher.publish(plain(*values[:1])._replace(producer_id=b"p", windowed=True, first_sequence=1))
        receipt = await at.publisher.publish(numbered._replace(first_sequence=1))
        assert receipt.placed[0].fresh_record_count == 3
        assert await at.values(0) == values


async def test_a_null_is_no_repetition_of_an_empty_value(tmp_path: Path) -> None:
    async with desk(tmp_path) as at:
        for value in (None, b""):
            assert not (await at.publisher.publish(plain(value))).placed[0].duplicate
            assert (await at.publisher.publish(plain(value))).placed[0].duplicate
        assert await at.values(0) == [None, b""]


async def test_a_null_has_no_size_that_could_be_too_small(tmp_path: Path) -> None:
    async with desk(tmp_path, config=TopicConfig(min_value_bytes=1, max_value_bytes=1)) as at:
        await at.publisher.publish(plain(None, b"v"))
        with pytest.raises(RecordTooSmall):
            await at.publisher.publish(plain(None, b""))
        assert await at.values(0) == [None, b"v"]


async def test_an_equal_single_record_within_the_window_is_answered_with_the_first_place(tmp_path: Path) -> None:
    async with desk(tmp_path, partitions=2) as at:
        first = await at.publisher.publish(plain(b"hello", partition=None))
        stored_at = at.clock.now_ms
        at.clock.now_ms += WINDOW_MS - 1
        again = await at.publisher.publish(plain(b"hello", partition=None))
        assert first.placed == [Placed(0, 0, 1, False, stored_at, 1)]
        assert again.placed == [Placed(0, 0, 1, True, stored_at, 0)]
        assert at.tally.duplicates == [("orders", "content", 1)]
        at.clock.now_ms += 1
        late = await at.publisher.publish(plain(b"hello", partition=1))
        assert not late.placed[0].duplicate


@pytest.mark.parametrize(
    "other",
    [
        Record(key=b"k", value=b"hello"),
        Record(value=b"hello", headers=[Header(key="h", value=b"1")]),
        Record(value=b"hello", event_type=b"created"),
        Record(value=b"hello", timestamp_ms=5),
    ],
)
async def test_a_record_that_differs_beside_its_value_is_not_dropped(tmp_path: Path, other: Record) -> None:
    async with desk(tmp_path) as at:
        await at.publisher.publish(plain(b"hello"))
        receipt = await at.publisher.publish(packed([other]))
        assert not receipt.placed[0].duplicate
        assert await at.values(0) == [b"hello", b"hello"]


@pytest.mark.parametrize(
    ("config", "submission"),
    [
        (TopicConfig(content_deduplication=False), plain(b"hello")),
        (TopicConfig(), plain(b"hello")._replace(deduplication=Deduplication.NONE)),
        (TopicConfig(), plain(b"hello")._replace(producer_id=b"p")),
        (TopicConfig(), plain(b"hello", b"hello")),
    ],
    ids=["topic switched off", "request switched off", "producer without numbers", "batch"],
)
async def test_what_is_stored_each_time(tmp_path: Path, config: TopicConfig, submission: Submission) -> None:
    async with desk(tmp_path, config=config) as at:
        offsets = [(await at.publisher.publish(submission)).placed[0].base_offset for _ in range(3)]
        assert len(set(offsets)) == 3
        assert at.tally.duplicates == []


async def test_a_request_may_ask_for_content_where_the_topic_does_not(tmp_path: Path) -> None:
    async with desk(tmp_path, config=TopicConfig(content_deduplication=False)) as at:
        asked = plain(b"hello")._replace(deduplication=Deduplication.CONTENT)
        assert not (await at.publisher.publish(asked)).placed[0].duplicate
        assert (await at.publisher.publish(asked)).placed[0].duplicate
        with pytest.raises(InvalidRequest):
            await at.publisher.publish(plain(b"a", b"b")._replace(deduplication=Deduplication.CONTENT))


async def test_a_failed_attempt_does_not_suppress_its_retry(tmp_path: Path) -> None:
    async with desk(tmp_path, config=TopicConfig(max_value_bytes=4)) as at:
        with pytest.raises(RecordTooLarge):
            await at.publisher.publish(plain(b"hello"))
        at.topic.config = TopicConfig()
        assert not (await at.publisher.publish(plain(b"hello"))).placed[0].duplicate


async def test_a_compressed_set_for_a_named_partition_is_never_opened(tmp_path: Path) -> None:
    """So a set that only its consumer can refuse is stored as it came."""
    async with desk(tmp_path) as at:
        receipt = await at.publisher.publish(GARBAGE)
        assert receipt.placed[0].record_count == 3
        (entry,) = await at.topic.partition(0).log.read(Offset(0), 1)
        assert entry.payload == b"not zstd"


@pytest.mark.parametrize(
    ("config", "submission"),
    [
        (TopicConfig(), GARBAGE._replace(partition=None)),
        (TopicConfig(max_value_bytes=100), GARBAGE),
        (TopicConfig(), GARBAGE._replace(record_count=1)),
    ],
    ids=["to be routed", "to be measured", "to be recognised"],
)
async def test_a_compressed_set_is_opened_where_the_request_needs_it(
    tmp_path: Path, config: TopicConfig, submission: Submission
) -> None:
    async with desk(tmp_path, config=config) as at:
        with pytest.raises(CorruptRecordSet):
            await at.publisher.publish(submission)
        assert await at.values(0) == []


async def test_a_large_compressed_set_is_opened_in_a_thread(tmp_path: Path) -> None:
    noise = random.Random(1).randbytes(400_000)
    payload = record_sets.pack([Record(key=b"k", value=noise)], records_pb2.CODEC_LZ4)
    assert len(payload) > 256 * 1024
    submission = Submission("orders", payload, None, codec=records_pb2.CODEC_LZ4, record_count=1)
    async with desk(tmp_path) as at:
        await at.publisher.publish(submission)
        assert len(at.in_thread) == 1


async def test_a_compressed_set_with_another_count_than_stated_is_refused_where_it_is_opened(tmp_path: Path) -> None:
    payload = record_sets.pack([Record(value=b"a"), Record(value=b"b")], records_pb2.CODEC_GZIP)
    async with desk(tmp_path) as at:
        with pytest.raises(CorruptRecordSet):
            await at.publisher.publish(
                Submission("orders", payload, None, codec=records_pb2.CODEC_GZIP, record_count=3)
            )


@pytest.mark.parametrize("first_sequence", [-2, 2**62 + 1])
@pytest.mark.parametrize("windowed", [False, True])
async def test_sequences_out_of_range_are_refused(tmp_path: Path, first_sequence: int, windowed: bool) -> None:
    async with desk(tmp_path) as at:
        with pytest.raises(InvalidRequest):
            await at.publisher.publish(
                plain(b"a")._replace(producer_id=b"p", first_sequence=first_sequence, windowed=windowed)
            )


async def test_a_windowed_repetition_stores_only_its_new_records_and_says_so(tmp_path: Path) -> None:
    async with desk(tmp_path) as at:
        first = plain(b"1", b"2")._replace(producer_id=b"p", first_sequence=1, windowed=True)
        overlapping = plain(b"2", b"3", b"4")._replace(producer_id=b"p", first_sequence=2, windowed=True)
        await at.publisher.publish(first)
        receipt = await at.publisher.publish(overlapping)
        assert receipt.placed == [Placed(0, 2, 3, False, at.clock.now_ms, 2)]
        assert await at.values(0) == [b"1", b"2", b"3", b"4"]
        assert at.tally.duplicates == [("orders", "sequence", 1)]


async def test_an_unknown_topic_is_refused_unless_the_broker_creates_topics(tmp_path: Path) -> None:
    async with desk(tmp_path, missing=True) as at:
        with pytest.raises(TopicNotFound):
            await at.publisher.publish(plain(b"a"))
    creating = PublisherSettings(1 << 20, 1_000, 1 << 30, auto_create_topics=True)
    async with desk(tmp_path, missing=True, settings=creating) as at:
        assert (await at.publisher.publish(plain(b"a"))).placed[0].base_offset == 0


class StuckDisk(RealFiles):
    """Syncs wait until the disk is released."""

    def __init__(self) -> None:
        self.released = threading.Event()

    def fdatasync(self, descriptor: int) -> None:
        assert self.released.wait(60)
        super().fdatasync(descriptor)


async def test_a_publisher_waits_for_a_slow_disk_and_is_refused_in_the_end(tmp_path: Path) -> None:
    files = StuckDisk()
    impatient = PublisherSettings(1 << 20, write_timeout_ms=20, max_unsynced_bytes=0, auto_create_topics=False)
    async with desk(tmp_path, settings=impatient, files=files) as at:
        try:
            # Nothing is unsynced yet, so the first one finds room.
            await at.publisher.publish(plain(b"a", b"1"))
            with pytest.raises(WriteTimeout):
                await at.publisher.publish(plain(b"b", b"2"))
            assert await at.values(0) == [b"a", b"1"]
        finally:
            files.released.set()
        await at.topic.partition(0).log.sync(at.topic.partition(0).next_offset)
        await at.publisher.publish(plain(b"b", b"2"))
        assert await at.values(0) == [b"a", b"1", b"b", b"2"]


async def test_acks_all_waits_for_the_disk_and_acks_written_does_not(tmp_path: Path) -> None:
    files = StuckDisk()
    async with desk(tmp_path, files=files) as at:
        try:
            written = await at.publisher.append(plain(b"a", b"1"))
            synced = await at.publisher.append(plain(b"b", b"2")._replace(acks=Acks.ALL))
            another = await at.publisher.append(plain(b"c", b"3")._replace(acks=Acks.ALL))
            assert written.synced is None
            assert synced.synced is not None
            assert another.synced is not None
            assert not synced.synced.done()
        finally:
            files.released.set()
        await synced.synced
        await another.synced
        assert at.topic.partition(0).log.synced_offset == 6
