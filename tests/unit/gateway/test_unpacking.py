"""What is unpacked for all connections: within bounds, in order, elsewhere if it is large, and given back."""

from __future__ import annotations

import asyncio
import gzip

import cramjam
import pytest

from cursus_gateway import unpacking as module
from cursus_gateway.batch import LegacyBatch
from cursus_gateway.body import CommandText, DirectMessage, Unreadable
from cursus_gateway.refusals import Refused
from cursus_gateway.settings import UnpackingSettings
from cursus_gateway.unpacking import Unpacking
from cursus_proto import codecs, cutting
from cursus_proto import records as record_sets
from cursus_proto.cutting import StoredBatch
from cursus_proto.internal.v1.opaque_pb2 import RecordBatch
from cursus_proto.v1.records_pb2 import CODEC_NONE, CODEC_ZSTD, Codec, Record
from tests.harness.gateway import envelope
from tests.harness.legacy_wire import Message, batch_body
from tests.harness.memory import MIB, growth
from tests.harness.waiting import eventually

PLACE = ("orders", 3)
MILLIONS = codecs.compress(CODEC_ZSTD, b"\n\0" * 20_000_000)


def unpacking(max_bytes: int = 64 * MIB, max_records: int = 1_000_000, shared_bytes: int = 512 * MIB) -> Unpacking:
    return Unpacking(UnpackingSettings(max_bytes, max_records, shared_bytes))


def bomb(plain_bytes: int = 64 * MIB) -> bytes:
    return bytes(cramjam.zstd.compress(envelope(b"x" * (plain_bytes - 8), "orders")))


async def test_a_small_frame_is_read_at_once_and_holds_what_it_unpacked_to() -> None:
    one = unpacking()
    packed = gzip.compress(batch_body([Message(payload=b"x" * 100)] * 50))
    read = one.read_now(packed)
    assert read is not None
    meaning, share = read
    assert isinstance(meaning, LegacyBatch)
    assert share is not None
    assert 0 < share.size == one.budget.used < 100_000
    share.give_back()
    assert one.budget.used == 0
    assert one.read_now(envelope("LIST")) == (CommandText(b"LIST", raw=False), None)


@pytest.mark.parametrize("body", [bomb(MIB), envelope(b"x" * (2 * MIB), "orders")], ids=["unpacks to much", "is large"])
async def test_what_takes_long_is_read_in_a_thread(body: bytes) -> None:
    one = unpacking()
    assert one.read_now(body) is None
    assert one.budget.used == 0
    meaning, share = await one.read(body)
    assert isinstance(meaning, DirectMessage)
    assert share.size == one.budget.used == 2 * len(meaning.payload)


async def test_a_frame_that_may_be_large_waits_for_room_and_gives_back_what_it_did_not_need() -> None:
    one = unpacking(shared_bytes=500 * MIB)
    others = await one.budget.take(100 * MIB)
    waiting = asyncio.create_task(one.read(bomb(MIB)))
    await eventually(lambda: one.budget.waiting)
    assert one.read_now(gzip.compress(envelope("LIST"))) is None, "first come, first served"
    others.give_back()
    _, share = await waiting
    assert one.budget.used == share.size < 5 * MIB


async def test_a_frame_is_refused_only_for_its_own_size() -> None:
    meaning, share = await unpacking(max_bytes=MIB).read(bomb(2 * MIB))
    assert isinstance(meaning, Unreadable)
    assert meaning.reply.startswith("ERROR: decode_failed reason=")
    assert not meaning.close
    assert share.size == 0


async def test_raw_snappy_has_no_magic_and_is_bounded_all_the_same() -> None:
    packed = bytes(cramjam.snappy.compress_raw(batch_body([Message(payload=bytes(MIB))])))
    assert len(packed) < 100_000
    one = unpacking()
    assert one.read_now(packed) is None
    meaning, _ = await one.read(packed)
    assert isinstance(meaning, LegacyBatch)


@pytest.mark.parametrize("payload", [b"", b"x"], ids=["empty messages", "tiny messages"])
def test_what_a_frame_is_said_to_cost_is_what_it_takes(payload: bytes) -> None:
    """The most messages that fit into a frame, alternating so that they are read one by one."""
    taken = growth(
        f"""
        import cramjam
        from cursus_gateway import body
        from tests.harness.legacy_wire import Message, batch_body
        head = batch_body([Message(payload=b"yy"), Message(payload={payload!r})])
        messages = head[37:]
        count = 16 * 2**20 // len(messages)
        plain = head[:33] + (2 * count).to_bytes(4, "big") + messages * count
        packed = bytes(cramjam.zstd.compress(plain))
        size = len(plain)
        del plain
        """,
        """
        meaning = body.read(packed)
        assert meaning.count == 2 * count
        """,
    )
    assert taken < module._FRAME_COPIES * 16 * MIB


# Stored record sets


def stored(base_offset: int, records: list[Record], codec: Codec.ValueType = CODEC_ZSTD) -> RecordBatch:
    batch = RecordBatch(base_offset=base_offset, record_count=len(records), codec=codec, first_sequence=-1)
    if codec == CODEC_NONE:
        batch.records = record_sets.pack(records)
    else:
        batch.compressed_records = record_sets.pack(records, codec)
    return batch


def values(*numbers: int) -> list[Record]:
    return [Record(value=b"%d" % number) for number in numbers]


def too_large(base_offset: int, claimed: int = 1) -> RecordBatch:
    packed = MILLIONS
    return RecordBatch(base_offset=base_offset, record_count=claimed, codec=CODEC_ZSTD, compressed_records=packed)


def batches(*found: RecordBatch) -> list[StoredBatch]:
    return cutting.stored(found)


async def test_plain_and_compressed_batches_are_delivered_together_in_order_from_the_offset_on() -> None:
    one = unpacking()
    found = batches(
        stored(0, values(0, 1)),
        stored(2, values(2, 3), CODEC_NONE),
        stored(4, values(4), CODEC_NONE),
        stored(5, values(5, 6)),
    )
    assert await one.payloads(found, 1, PLACE, 100) == ([b"%d" % number for number in range(1, 7)], 7)
    assert await one.payloads(found, 3, PLACE, 3) == ([b"3", b"4", b"5"], 6)
    written = await one.write(found, 1, PLACE, max_count=100, max_bytes=MIB)
    assert (written.count, written.next_offset, written.full) == (6, 7, False)
    written = await one.write(found, 0, PLACE, max_count=3, max_bytes=MIB)
    assert (written.count, written.next_offset) == (3, 3)
    assert one.budget.used == 0


async def test_limits_hold_over_batches_that_are_unpacked_one_by_one() -> None:
    one = unpacking()
    found = batches(*(stored(number, [Record(value=bytes(1_000))]) for number in range(10)))
    written = await one.write(found, 0, PLACE, max_count=100, max_bytes=3_500)
    assert (written.count, written.next_offset, written.full) == (3, 3, True)
    written = await one.write(found, 0, PLACE, max_count=100, max_bytes=10)
    assert written.count == 1


@pytest.mark.parametrize("claimed", [1, 20_000_000])
async def test_a_batch_that_unpacks_to_too_much_is_named_with_the_way_on(claimed: int) -> None:
    one = unpacking()
    found = batches(stored(5, values(5)), too_large(6, claimed))
    # What comes before it is delivered first.
    assert await one.payloads(found, 5, PLACE, 100) == ([b"5"], 6)
    assert (await one.write(found, 5, PLACE, max_count=100, max_bytes=MIB)).next_offset == 6
    for work in (
        one.payloads(found, 6, PLACE, 100),
        one.write(found, 6, PLACE, max_count=100, max_bytes=MIB),
    ):
        with pytest.raises(Refused, match=r"offset 6 of partition 3 of 'orders'") as refused:
            await work
        assert refused.value.reason == "RECORD_SET_TOO_LARGE"
        assert refused.value.metadata == {
            "topic": "orders",
            "partition": "3",
            "offset": "6",
            "next_offset": str(6 + claimed),
        }
    assert one.budget.used == 0


async def test_a_batch_that_cannot_be_read_is_named_also_if_it_is_plain_and_among_others() -> None:
    one = unpacking()
    broken = stored(6, values(6, 7), CODEC_NONE)
    broken.records = b"\n\x02\x0a\x05" + b"\n\0"
    lying = stored(6, values(6, 7))
    lying.record_count = 3
    for bad in (broken, lying):
        found = batches(stored(5, values(5), CODEC_NONE), bad, stored(9, values(9), CODEC_NONE))
        assert await one.payloads(found, 5, PLACE, 100) == ([b"5"], 6)
        with pytest.raises(Refused) as refused:
            await one.payloads(found[1:], 6, PLACE, 100)
        assert (refused.value.reason, refused.value.metadata["offset"]) == ("CORRUPT_RECORD_SET", "6")


async def test_sets_of_all_connections_wait_for_room_together() -> None:
    one = unpacking(shared_bytes=4 * MIB)
    found = batches(stored(0, [Record(value=bytes(MIB))]))
    everything = await one.budget.take(4 * MIB)
    waiting = [asyncio.create_task(one.payloads(found, 0, PLACE, 10)) for _ in range(3)]
    await eventually(lambda: one.budget.waiting == 3)
    everything.give_back()
    for payloads, next_offset in await asyncio.gather(*waiting):
        assert (len(payloads[0]), next_offset) == (MIB, 1)
    assert one.budget.used == 0
