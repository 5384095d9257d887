"""Looking into sets: their records are counted before any is made, and all publishers share what they may take."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from cursus_broker.errors import CorruptRecordSet, RecordSetTooLarge
from cursus_broker.log.api import Batch
from cursus_broker.publish.publisher import PublisherSettings
from cursus_broker.publish.submission import Submission
from cursus_broker.publish.unpacking import Unpacker
from cursus_proto import codecs
from cursus_proto import records as record_sets
from cursus_proto.bounds import MIB, Bounds
from cursus_proto.v1.records_pb2 import CODEC_NONE, CODEC_ZSTD, Record
from cursus_service.budget import Budget
from tests.harness.waiting import eventually
from tests.unit.broker.publish.support import desk

T = TypeVar("T")

BOMB = codecs.compress(CODEC_ZSTD, b"\n\0" * 20_000_000)


async def in_thread(work: Callable[[], T]) -> T:
    return await asyncio.to_thread(work)


def batch(payload: bytes, count: int, codec: int = CODEC_ZSTD) -> Batch:
    return Batch(payload, count, record_sets.checksum(payload), codec)


async def test_a_set_is_opened_while_others_leave_room_and_gives_back_what_it_did_not_need() -> None:
    budget = Budget(64 * MIB)
    unpacker = Unpacker(Bounds(MIB, 1_000), budget, in_thread)
    packed = batch(record_sets.pack([Record(value=b"v")] * 100, CODEC_ZSTD), 100)
    opened = await unpacker.open(packed)
    assert len(opened.records) == 100
    assert 0 < budget.used < 100 * 1024
    rest = await budget.take(budget.size - budget.used)
    waiting = asyncio.create_task(unpacker.open(packed))
    await eventually(lambda: budget.waiting)
    rest.give_back()
    (await waiting).close()
    opened.close()
    assert budget.used == 0


@pytest.mark.parametrize("claimed", [1, 1_000])
async def test_what_a_set_holds_is_found_out_before_its_records_are_made(
    claimed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_sets, "parse", lambda plain: pytest.fail("records were made"))
    budget = Budget(64 * MIB)
    unpacker = Unpacker(Bounds(64 * MIB, 1_000_000), budget, in_thread)
    packed = batch(codecs.compress(CODEC_ZSTD, b"\n\0" * 900_000), claimed)
    with pytest.raises(CorruptRecordSet, match=f"holds 900000 records, the request says {claimed}"):
        await unpacker.open(packed)
    assert budget.used == 0


@pytest.mark.parametrize(
    ("within", "limit"),
    [(Bounds(MIB, 1_000_000), MIB), (Bounds(64 * MIB, 1_000), 1_000)],
    ids=["bytes", "records"],
)
async def test_a_set_beyond_a_bound_is_refused_with_the_bound(within: Bounds, limit: int) -> None:
    budget = Budget(64 * MIB)
    with pytest.raises(RecordSetTooLarge) as refused:
        await Unpacker(within, budget, in_thread).open(batch(BOMB, 20_000_000))
    assert refused.value.metadata["limit"] == str(limit)
    assert budget.used == 0


async def test_a_few_bytes_that_unpack_to_many_are_unpacked_in_a_thread(tmp_path: Path) -> None:
    payload = record_sets.pack([Record(key=b"k", value=bytes(4 * MIB))], CODEC_ZSTD)
    assert len(payload) < 1024
    async with desk(tmp_path) as at:
        await at.publisher.publish(Submission("orders", payload, None, codec=CODEC_ZSTD, record_count=1))
        assert len(at.in_thread) == 1
        assert [len(value or b"") for value in await at.values(0)] == [4 * MIB]


@pytest.mark.parametrize("partition", [None, 0])
async def test_more_records_than_the_broker_takes_are_refused_by_what_is_claimed_and_by_what_is_there(
    tmp_path: Path, partition: int | None
) -> None:
    settings = PublisherSettings(1 << 20, 1_000, 1 << 30, auto_create_topics=False, max_batch_records=100)
    async with desk(tmp_path, settings=settings) as at:
        for count in (100, 101):
            plain = record_sets.pack([Record(value=b"a\n")] * count)
            for codec in (CODEC_NONE, CODEC_ZSTD):
                payload = codecs.compress(codec, plain)
                submission = Submission("orders", payload, partition, codec=codec, record_count=count)
                if count == 100:
                    await at.publisher.publish(submission)
                else:
                    with pytest.raises(RecordSetTooLarge):
                        await at.publisher.publish(submission)
            if count == 101:
                with pytest.raises(RecordSetTooLarge):
                    await at.publisher.publish(Submission("orders", plain, partition))
        assert len(await at.values(0)) == 200
        # Counting more than two bytes a record may mean to walk through them.
        assert at.in_thread


async def test_many_records_are_divided_in_a_thread(tmp_path: Path) -> None:
    records = [Record(key=b"k%d" % number, value=b"v") for number in range(6_000)]
    async with desk(tmp_path, partitions=2) as at:
        receipt = await at.publisher.publish(Submission("orders", record_sets.pack(records), None))
        assert len(at.in_thread) == 2
        assert sum(placed.record_count for placed in receipt.placed) == 6_000


async def test_explicit_sequences_of_a_compressed_set_are_looked_for_before_it_is_stored(tmp_path: Path) -> None:
    """A start after a crash reads them from the set; one that cannot be unpacked would be found out only then."""
    submission = Submission(
        "orders", b"not zstd", 0, codec=CODEC_ZSTD, record_count=2, producer_id=b"p", windowed=True, sequences=[1, 3]
    )
    async with desk(tmp_path) as at:
        with pytest.raises(CorruptRecordSet):
            await at.publisher.publish(submission)
        assert await at.values(0) == []
