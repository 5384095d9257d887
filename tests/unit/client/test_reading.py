"""Handing out what was received: order, positions, pauses, jumps, and credit given back."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor

import pytest

from cursus_grpc._reading import Chunk, Failure, Inbox, Reading, hand_out, take_batch, unfinished
from cursus_grpc._records import Record
from cursus_grpc.errors import BatchTooLarge, BrokerUnreachable
from cursus_grpc.types import OffsetAndMetadata, TopicPartition
from cursus_proto import codecs
from cursus_proto import records as record_sets
from cursus_proto.bounds import Bounds
from cursus_proto.internal.v1.opaque_pb2 import RecordBatch
from cursus_proto.v1 import records_pb2

PLACE = TopicPartition("t", 0)


def new_inbox() -> Inbox:
    return Inbox(threading.Event(), Bounds())


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


def taken_from(one: Chunk, max_records: int) -> list[Record]:
    taken: list[Record] = []
    take_batch(one, new_inbox(), taken, max_records)
    return taken


def test_records_come_in_order_from_the_position_on() -> None:
    reading = Reading(PLACE, 3)
    found = list(hand_out(chunk(reading, batch(0, 5), batch(5, 2)), new_inbox()))
    assert [(record.offset, record.value) for record in found] == [(n, b"%d" % n) for n in range(3, 7)]
    assert (reading.safe, reading.position) == (7, 7)


def test_a_batch_that_lies_behind_the_position_is_skipped_and_does_not_move_it_back() -> None:
    reading = Reading(PLACE, 10)
    assert list(hand_out(chunk(reading, batch(0, 5)), new_inbox())) == []
    assert reading.position == 10


def test_the_record_in_hand_does_not_count_as_processed() -> None:
    reading = Reading(PLACE, 0)
    records = hand_out(chunk(reading, batch(0, 3)), new_inbox())
    next(records)
    assert (reading.safe, reading.position) == (0, 1)
    next(records)
    assert (reading.safe, reading.position) == (1, 2)


def test_something_that_needs_attention_ends_the_handing_out_and_nothing_is_lost() -> None:
    reading, inbox = Reading(PLACE, 0), new_inbox()
    received = chunk(reading, batch(0, 3))
    records = hand_out(received, inbox)
    next(records)
    inbox.put_event(Failure(BrokerUnreachable("away")))
    assert list(records) == []
    assert unfinished(received)
    assert [record.offset for record in hand_out(received, new_inbox())] == [1, 2]


def test_a_jump_makes_void_what_was_received_before() -> None:
    reading = Reading(PLACE, 0)
    received = chunk(reading, batch(0, 3))
    records = hand_out(received, new_inbox())
    next(records)
    reading.jump(100)
    assert received.void
    assert not unfinished(received)
    assert (reading.position, reading.fetched) == (100, 100)


def test_a_jump_in_mid_batch_ends_it_at_once_and_stays() -> None:
    """A reading used to go back to where it was: the record in hand wrote its own position after the jump."""
    reading = Reading(PLACE, 0)
    records = hand_out(chunk(reading, batch(0, 3)), new_inbox())
    next(records)
    reading.jump(100)
    assert list(records) == []
    assert (reading.safe, reading.position) == (100, 100)


def test_a_cut_below_the_position_goes_back_to_it_and_drops_what_was_not_handed_out() -> None:
    reading = Reading(PLACE, 0, epoch=1)
    received = chunk(reading, batch(0, 5), batch(5, 5))
    records = hand_out(received, new_inbox())
    assert [next(records).offset for _ in range(7)] == list(range(7))
    assert reading.cut(3, 2) == 7
    assert list(records) == []
    assert received.void
    assert (reading.safe, reading.position, reading.fetched, reading.epoch) == (3, 3, 3, 2)


def test_a_cut_above_the_position_leaves_the_application_where_it_is() -> None:
    reading = Reading(PLACE, 0, epoch=1)
    records = hand_out(chunk(reading, batch(0, 5)), new_inbox())
    assert [next(records).offset for _ in range(2)] == [0, 1]
    reading.fetched = 5
    assert reading.cut(4, 2) == 2
    assert list(records) == []
    # What was received below the cut is received again; the record in hand is not processed yet.
    assert (reading.safe, reading.position, reading.fetched) == (1, 2, 2)
    reading.settle()
    assert reading.safe == 2


def test_records_that_another_thread_takes_during_a_cut_are_all_counted() -> None:
    """The position is read after the handing out was stopped: read before, a record could be taken in between, and its
    offset would be handed out again."""
    for _ in range(50):
        reading = Reading(PLACE, 0, epoch=1)
        records = hand_out(chunk(reading, batch(0, 2_000)), new_inbox())
        taken = [next(records).offset]
        with ThreadPoolExecutor(1) as other:
            cut = other.submit(reading.cut, 10_000, 2)
            taken += [record.offset for record in records]
            assert cut.result() == reading.position == len(taken)
        assert taken == list(range(len(taken)))


def test_a_batch_that_is_taken_while_the_log_is_cut_is_not_handed_out() -> None:
    reading = Reading(PLACE, 0, epoch=1)
    received = chunk(reading, batch(0, 5))
    assert reading.advance(5, received.version)
    reading.cut(3, 2)
    assert not reading.advance(5, received.version)
    assert taken_from(received, 5) == []
    assert reading.position == 3


def test_what_may_be_committed_names_the_epoch_it_stands_in() -> None:
    reading = Reading(PLACE, 0, epoch=1)
    records = hand_out(chunk(reading, batch(0, 5)), new_inbox())
    assert [next(records).offset for _ in range(4)] == [0, 1, 2, 3]
    assert reading.processed() == OffsetAndMetadata(3, leader_epoch=1)
    assert reading.handed_out() == OffsetAndMetadata(4, leader_epoch=1)
    reading.cut(2, 7)
    assert reading.processed() == reading.handed_out() == OffsetAndMetadata(2, leader_epoch=7)


def test_an_offset_the_application_has_not_come_to_since_a_cut_is_from_before_it() -> None:
    reading = Reading(PLACE, 0, epoch=1)
    assert reading.epoch_of(9) == 1
    reading.advance(9, reading.version)
    reading.cut(5, 2)
    assert (reading.epoch_of(5), reading.epoch_of(6)) == (2, 1)
    reading.advance(6, reading.version)
    assert (reading.epoch_of(6), reading.epoch_of(7)) == (2, 1)


def test_where_the_application_is_can_be_asked_from_another_thread_at_any_record() -> None:
    reading = Reading(PLACE, 0)
    records = hand_out(chunk(reading, batch(0, 100), batch(100, 100)), new_inbox())
    with ThreadPoolExecutor(1) as other:
        for offset, record in enumerate(records):
            assert record.offset == offset
            assert other.submit(lambda: (reading.safe, reading.position)).result() == (offset, offset + 1)
    assert (reading.safe, reading.position) == (200, 200)


def test_positions_seen_from_another_thread_never_go_back_and_never_run_ahead() -> None:
    reading, count = Reading(PLACE, 0), 20_000
    records = hand_out(chunk(reading, *(batch(base, 100) for base in range(0, count, 100))), new_inbox())
    in_hand = [-1]
    wrong: list[tuple[int, int, int, int]] = []
    ended = threading.Event()

    def look() -> None:
        last = 0
        while not ended.is_set():
            before = in_hand[0]
            safe, position = reading.safe, reading.position
            # Whatever the application has begun is not safe, and what it had finished before is.
            if not (last <= safe <= position and before <= safe <= in_hand[0] + 1):
                wrong.append((last, before, safe, position))
            last = safe

    other = threading.Thread(target=look)
    other.start()
    for record in records:
        in_hand[0] = record.offset
    ended.set()
    other.join()
    assert wrong == []


def test_another_thread_stops_the_handing_out_before_the_next_record() -> None:
    reading, inbox = Reading(PLACE, 0), new_inbox()
    received = chunk(reading, batch(0, 100), batch(100, 100))
    records = hand_out(received, inbox)
    assert [next(records).offset for _ in range(42)] == list(range(42))
    with ThreadPoolExecutor(1) as other:
        other.submit(inbox.look_again).result()
    assert (reading.safe, reading.position) == (41, 42)
    assert list(records) == []
    assert (reading.safe, reading.position) == (42, 42)
    inbox.take()
    assert [record.offset for record in hand_out(received, inbox)] == list(range(42, 200))


def test_what_needs_attention_before_the_first_record_comes_first() -> None:
    reading, inbox = Reading(PLACE, 0), new_inbox()
    records = hand_out(chunk(reading, batch(0, 3)), inbox)
    inbox.look_again()
    assert list(records) == []
    assert (reading.safe, reading.position) == (0, 0)


def test_an_iterator_that_was_left_behind_hands_out_nothing_twice() -> None:
    """It used to go on with its own batch after somebody else had been given the rest of it."""
    reading = Reading(PLACE, 0)
    received = chunk(reading, batch(0, 5))
    left_behind = hand_out(received, new_inbox())
    next(left_behind)
    reading.settle()
    assert [record.offset for record in taken_from(received, 2)] == [1, 2]
    assert list(left_behind) == []
    assert (reading.safe, reading.position) == (1, 3)


@pytest.mark.parametrize("end_offset", [0, 2, 3, 4, 6, 9])
def test_a_bounded_chunk_ends_before_its_bound(end_offset: int) -> None:
    received = chunk(Reading(PLACE, 1), batch(0, 3), batch(3, 3))
    found = [record.offset for record in hand_out(received, new_inbox(), end_offset)]
    assert found == list(range(1, min(6, end_offset)))
    assert not unfinished(received)


def test_a_batch_poll_takes_as_much_as_it_was_asked_for() -> None:
    reading = Reading(PLACE, 0)
    received = chunk(reading, batch(0, 3), batch(3, 3))
    assert [record.offset for record in taken_from(received, 4)] == [0, 1, 2, 3]
    assert (reading.safe, reading.position) == (0, 4)
    assert [record.offset for record in taken_from(received, 4)] == [4, 5]
    assert not unfinished(received)


def test_events_come_before_chunks() -> None:
    inbox = new_inbox()
    inbox.put(chunk(Reading(PLACE, 0), batch(0, 1)))
    inbox.put_event(failure := Failure(BrokerUnreachable("away")))
    assert inbox.take() is failure
    assert isinstance(inbox.take(), Chunk)
    assert inbox.take() is None


def test_credit_comes_back_when_a_chunk_is_taken_or_dropped() -> None:
    inbox, source = new_inbox(), Source()
    kept, dropped = Reading(PLACE, 0), Reading(TopicPartition("t", 1), 0)
    inbox.put(chunk(dropped, batch(0, 1), source=source))
    inbox.put(chunk(kept, batch(0, 1), source=source))
    dropped.gone = True
    taken = inbox.take()
    assert isinstance(taken, Chunk)
    assert taken.reading is kept
    assert source.returned == 20
    inbox.put_back(taken)
    inbox.take()
    assert source.returned == 20


def test_a_paused_partition_keeps_its_chunks_in_order_and_its_credit() -> None:
    inbox, source = new_inbox(), Source()
    paused, other = Reading(PLACE, 0), Reading(TopicPartition("t", 1), 0)
    chunks = [chunk(paused, batch(0, 1), source=source), chunk(paused, batch(1, 1), source=source)]
    for one in chunks:
        inbox.put(one)
    inbox.put(chunk(other, batch(0, 1)))
    paused.paused = True
    taken = inbox.take()
    assert isinstance(taken, Chunk)
    assert taken.reading is other
    assert inbox.take() is None
    assert source.returned == 0
    paused.paused = False
    assert [inbox.take(), inbox.take()] == chunks


def too_large(base_offset: int) -> RecordBatch:
    """A few kilobytes that claim one record and hold twenty million."""
    packed = codecs.compress(records_pb2.CODEC_ZSTD, b"\n\0" * 20_000_000)
    return RecordBatch(
        base_offset=base_offset,
        record_count=1,
        codec=records_pb2.CODEC_ZSTD,
        records_crc32c=record_sets.checksum(packed),
        compressed_records=packed,
    )


def test_a_batch_that_is_too_large_is_told_again_and_again_until_it_is_jumped_over() -> None:
    reading, inbox = Reading(PLACE, 0), new_inbox()
    one = chunk(reading, batch(0, 2), too_large(2), batch(3, 1))
    records = hand_out(one, inbox)
    assert [next(records).offset for _ in range(2)] == [0, 1]
    for _ in range(2):
        with pytest.raises(BatchTooLarge, match=r"offset 2 of t\[0\].*seek to offset 3") as told:
            next(hand_out(one, inbox))
        assert unfinished(one)
        assert reading.position == 2
    assert (told.value.partition, told.value.next_offset) == (PLACE, 3)
    reading.jump(told.value.next_offset)
    assert [record.offset for record in hand_out(chunk(reading, batch(3, 1)), inbox)] == [3]


def test_what_was_taken_before_a_batch_that_is_too_large_is_not_lost_with_it() -> None:
    reading = Reading(PLACE, 0)
    one = chunk(reading, batch(0, 2), too_large(2))
    assert [record.offset for record in taken_from(one, 10)] == [0, 1]
    assert unfinished(one)
    with pytest.raises(BatchTooLarge):
        taken_from(one, 10)
    assert reading.position == 2
