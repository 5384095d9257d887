"""Handing out what was received: order, positions, pauses, jumps, and credit given back."""

from __future__ import annotations

from collections import deque

import pytest

from cursus_grpc._reading import Chunk, Failure, Inbox, Reading, hand_out, take_batch, unfinished
from cursus_grpc._records import unpack
from cursus_grpc._retry import Deadline
from cursus_grpc.errors import BrokerUnreachable, CorruptBatch
from cursus_grpc.types import TopicPartition
from cursus_proto import records as record_sets
from cursus_proto.internal.v1.opaque_pb2 import RecordBatch
from cursus_proto.v1 import records_pb2

PLACE = TopicPartition("t", 0)
NOW = 0.0


class Source:
    """A stream that counts the credit it gets back."""

    def __init__(self) -> None:
        self.returned = 0

    def give_back(self, size: int) -> None:
        self.returned += size


def batch(base_offset: int, count: int, codec: records_pb2.Codec.ValueType = records_pb2.CODEC_NONE) -> RecordBatch:
    messages = [records_pb2.Record(value=b"%d" % (base_offset + index)) for index in range(count)]
    packed = record_sets.pack(messages, codec)
    message = RecordBatch(
        base_offset=base_offset, record_count=count, codec=codec, records_crc32c=record_sets.checksum(packed)
    )
    if codec == records_pb2.CODEC_NONE:
        message.records = packed
    else:
        message.compressed_records = packed
    return message


def chunk(reading: Reading, *batches: RecordBatch, source: Source | None = None) -> Chunk:
    return Chunk(reading, deque(batches), 10, source or Source())


def test_records_come_in_order_from_the_position_on() -> None:
    reading = Reading(PLACE, 3)
    found = list(hand_out(chunk(reading, batch(0, 5), batch(5, 2)), Inbox()))
    assert [(record.offset, record.value) for record in found] == [(n, b"%d" % n) for n in range(3, 7)]
    assert (reading.safe, reading.position) == (7, 7)


def test_a_batch_that_lies_behind_the_position_is_skipped_and_does_not_move_it_back() -> None:
    reading = Reading(PLACE, 10)
    assert list(hand_out(chunk(reading, batch(0, 5)), Inbox())) == []
    assert reading.position == 10


def test_the_record_in_hand_does_not_count_as_processed() -> None:
    reading = Reading(PLACE, 0)
    records = hand_out(chunk(reading, batch(0, 3)), Inbox())
    next(records)
    assert (reading.safe, reading.position) == (0, 1)
    next(records)
    assert (reading.safe, reading.position) == (1, 2)


def test_something_that_needs_attention_ends_the_handing_out_and_nothing_is_lost() -> None:
    reading, inbox = Reading(PLACE, 0), Inbox()
    received = chunk(reading, batch(0, 3))
    records = hand_out(received, inbox)
    next(records)
    inbox.put_event(Failure(BrokerUnreachable("away")))
    assert list(records) == []
    assert unfinished(received)
    assert [record.offset for record in hand_out(received, Inbox())] == [1, 2]


def test_a_jump_makes_void_what_was_received_before() -> None:
    reading = Reading(PLACE, 0)
    received = chunk(reading, batch(0, 3))
    records = hand_out(received, Inbox())
    next(records)
    reading.jump(100)
    assert received.void
    assert not unfinished(received)
    assert (reading.position, reading.fetched) == (100, 100)


def test_a_batch_poll_takes_as_much_as_it_was_asked_for() -> None:
    reading = Reading(PLACE, 0)
    received = chunk(reading, batch(0, 3), batch(3, 3))
    assert [record.offset for record in take_batch(received, 4)] == [0, 1, 2, 3]
    assert (reading.safe, reading.position) == (0, 4)
    assert [record.offset for record in take_batch(received, 4)] == [4, 5]
    assert not unfinished(received)


async def test_events_come_before_chunks() -> None:
    inbox = Inbox()
    inbox.put(chunk(Reading(PLACE, 0), batch(0, 1)))
    inbox.put_event(failure := Failure(BrokerUnreachable("away")))
    assert await inbox.take(Deadline(NOW)) is failure
    assert isinstance(await inbox.take(Deadline(NOW)), Chunk)
    assert await inbox.take(Deadline(NOW)) is None


async def test_credit_comes_back_when_a_chunk_is_taken_or_dropped() -> None:
    inbox, source = Inbox(), Source()
    kept, dropped = Reading(PLACE, 0), Reading(TopicPartition("t", 1), 0)
    inbox.put(chunk(dropped, batch(0, 1), source=source))
    inbox.put(chunk(kept, batch(0, 1), source=source))
    dropped.gone = True
    taken = await inbox.take(Deadline(NOW))
    assert isinstance(taken, Chunk)
    assert taken.reading is kept
    assert source.returned == 20
    inbox.put_back(taken)
    await inbox.take(Deadline(NOW))
    assert source.returned == 20


async def test_a_paused_partition_keeps_its_chunks_in_order_and_its_credit() -> None:
    inbox, source = Inbox(), Source()
    paused, other = Reading(PLACE, 0), Reading(TopicPartition("t", 1), 0)
    chunks = [chunk(paused, batch(0, 1), source=source), chunk(paused, batch(1, 1), source=source)]
    for one in chunks:
        inbox.put(one)
    inbox.put(chunk(other, batch(0, 1)))
    paused.paused = True
    taken = await inbox.take(Deadline(NOW))
    assert isinstance(taken, Chunk)
    assert taken.reading is other
    assert await inbox.take(Deadline(NOW)) is None
    assert source.returned == 0
    paused.paused = False
    assert [await inbox.take(Deadline(NOW)), await inbox.take(Deadline(NOW))] == chunks


def test_a_compressed_batch_is_unpacked() -> None:
    unpacked = unpack(batch(5, 3, records_pb2.CODEC_ZSTD), PLACE, 6)
    assert [record.value for record in unpacked.records()] == [b"6", b"7"]


def test_a_record_shows_all_its_fields() -> None:
    message = records_pb2.Record(
        key=b"", value=b"v", timestamp_ms=7, event_type=b"e", schema_version=2, aggregate_version=3, metadata=b"m"
    )
    message.headers.add(key="h", value=b"1")
    packed = record_sets.pack([message, records_pb2.Record()])
    stored = RecordBatch(
        base_offset=4, record_count=2, append_time_ms=99, records=packed, records_crc32c=record_sets.checksum(packed)
    )
    rich, bare = unpack(stored, PLACE, 0).records()
    assert (rich.topic, rich.partition, rich.offset, rich.key, rich.value) == ("t", 0, 4, b"", b"v")
    assert (rich.timestamp_ms, rich.append_time_ms, rich.headers) == (7, 99, (("h", b"1"),))
    assert (rich.event_type, rich.schema_version, rich.aggregate_version, rich.metadata) == (b"e", 2, 3, b"m")
    assert (bare.key, bare.value, bare.timestamp_ms, bare.headers) == (None, b"", 99, ())


def test_a_batch_that_is_not_what_it_claims_is_not_handed_out() -> None:
    flipped, short, garbage = batch(0, 3), batch(0, 3), batch(0, 3)
    flipped.records = flipped.records[:-1] + b"\x00"
    short.record_count = 4
    garbage.records = b"\xff\xff"
    garbage.records_crc32c = record_sets.checksum(garbage.records)
    for damaged in (flipped, short, garbage):
        with pytest.raises(CorruptBatch, match="offset 0 of t"):
            unpack(damaged, PLACE, 0)
