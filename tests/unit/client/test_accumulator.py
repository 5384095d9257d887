"""Collecting records: routes, batches, bounds, and who is woken."""

from __future__ import annotations

import pytest

from cursus_grpc._accumulator import Accumulator, AccumulatorSettings
from cursus_grpc._attributes import Attributes
from cursus_grpc._batch import Batch, Delivery
from cursus_grpc._lane import Lane, Verdict
from cursus_grpc.errors import (
    BrokerUnreachable,
    BufferFull,
    ClientClosed,
    CursusError,
    DeliveryTimeout,
    PartitionNotFound,
    RecordTooLarge,
)
from cursus_grpc.types import RecordMetadata, TopicPartition
from cursus_proto import records as record_sets
from cursus_proto.partitioner import partition_for_key


class Fixture:
    def __init__(self, partitions: int = 4, **settings: float) -> None:
        self.woken = 0
        self.asked = 0
        self.reported: list[tuple[RecordMetadata | None, CursusError | None]] = []
        chosen = {
            "batch_bytes": 1_000,
            "batch_records": 100,
            "buffer_bytes": 10_000,
            "delivery_timeout_s": 60.0,
            "max_in_flight": 4,
        } | settings
        self.accumulator = Accumulator(
            AccumulatorSettings(**chosen),  # type: ignore[arg-type]  # integers where integers belong
            Delivery,
            self.wake,
            self.ask,
            lambda metadata, error: self.reported.append((metadata, error)),
        )
        self.accumulator.route("t", ["broker"] * partitions)

    def wake(self) -> None:
        self.woken += 1

    def ask(self) -> None:
        self.asked += 1

    def send(self, value: bytes = b"x", key: bytes | None = None, partition: int | None = None) -> Delivery:
        return self.accumulator.append("t", value, key, partition, None)

    def lane(self, partition: int = 0) -> Lane:
        return self.accumulator.lane(TopicPartition("t", partition))

    def open_batch(self) -> Batch:
        batch = self.lane().open
        assert batch is not None
        return batch

    def filled(self) -> list[int]:
        """Partitions that hold something."""
        return [lane.place.partition for lane in self.accumulator.lanes() if not lane.idle]


def test_a_key_decides_the_partition_as_the_broker_would() -> None:
    fixture = Fixture()
    for number in range(50):
        fixture.send(key=b"key-%d" % number)
    expected = [0] * 4
    for number in range(50):
        expected[partition_for_key(b"key-%d" % number, 4)] += 1
    assert [lane.open.count if lane.open else 0 for lane in fixture.accumulator.lanes()] == expected


def test_records_without_a_key_share_a_batch_and_then_move_on() -> None:
    fixture = Fixture(batch_records=10)
    for _ in range(10):
        fixture.send()
    assert len(fixture.filled()) == 1
    for _ in range(30):
        fixture.send()
    assert fixture.filled() == [0, 1, 2, 3]


def test_a_named_partition_is_taken_literally() -> None:
    fixture = Fixture()
    fixture.send(partition=2, key=b"whatever")
    assert fixture.filled() == [2]
    with pytest.raises(PartitionNotFound, match="no partition -1"):
        fixture.send(partition=-1)


def test_a_batch_is_full_by_bytes_or_by_records() -> None:
    fixture = Fixture(1, batch_bytes=100)
    for _ in range(3):
        fixture.send(b"x" * 45)
    assert [batch.count for batch in fixture.lane().sealed] == [2]
    fixture = Fixture(1, batch_records=2)
    for _ in range(3):
        fixture.send()
    assert [batch.count for batch in fixture.lane().sealed] == [2]


def test_a_record_larger_than_a_batch_has_one_of_its_own() -> None:
    fixture = Fixture(1, batch_bytes=100)
    fixture.send(b"small")
    fixture.send(b"x" * 500)
    fixture.send(b"small")
    assert [batch.count for batch in fixture.lane().sealed] == [1, 1]


def test_what_is_collected_is_a_record_set() -> None:
    fixture = Fixture(1)
    fixture.send(b"plain")
    fixture.send(b"keyed", key=b"k")
    fixture.accumulator.append("t", b"rich", b"k", None, Attributes(timestamp_ms=5, headers=[("h", b"v")]))
    fixture.accumulator.append("t", "text", None, None, None)
    batch = fixture.open_batch()
    packed = b"".join(batch.parts)
    assert len(packed) == batch.size
    found = record_sets.unpack(packed)
    assert [record.value for record in found] == [b"plain", b"keyed", b"rich", b"text"]
    assert [record.HasField("key") for record in found] == [False, True, True, False]
    assert (found[2].timestamp_ms, found[2].headers[0].key) == (5, "h")


def test_a_value_that_is_neither_bytes_nor_text_is_refused() -> None:
    for value in (5, ["x"]):
        with pytest.raises(TypeError, match="value must be bytes or str"):
            Fixture().accumulator.append("t", value, None, None, None)


@pytest.mark.parametrize("key", [None, b"", b"k"])
@pytest.mark.parametrize("attributes", [None, Attributes(headers=[("h", None), ("h", b"")])])
def test_a_null_is_packed_as_one_and_an_empty_value_as_empty(key: bytes | None, attributes: Attributes | None) -> None:
    fixture = Fixture(1)
    for value in (None, b"", b"v", "", None):
        fixture.accumulator.append("t", value, key, None, attributes)
    batch = fixture.open_batch()
    records = record_sets.unpack(b"".join(batch.parts))
    assert [one.value if one.HasField("value") else None for one in records] == [None, b"", b"v", b"", None]
    assert [one.key if one.HasField("key") else None for one in records] == [key] * 5
    if attributes is not None:
        assert {tuple(header.HasField("value") for header in one.headers) for one in records} == {(False, True)}
    assert batch.size == len(b"".join(batch.parts))


def test_the_buffer_is_bounded_and_settling_makes_room() -> None:
    fixture = Fixture(1, buffer_bytes=300)
    for _ in range(2):
        fixture.send(b"x" * 100)
    with pytest.raises(BufferFull):
        fixture.send(b"x" * 100)
    room: list[bool] = []
    fixture.accumulator.when_room(lambda: room.append(True))
    assert not room
    (batch,) = fixture.accumulator.seal_all()
    fixture.lane().sealed.clear()
    fixture.accumulator.settle([Verdict(batch, None, 7, 0)])
    assert room == [True]
    assert fixture.accumulator.buffered_bytes == 0
    fixture.send(b"x" * 100)


def test_a_record_that_no_broker_takes_is_refused_at_once() -> None:
    fixture = Fixture()
    fixture.accumulator.limit(500)
    with pytest.raises(RecordTooLarge, match="at most 500"):
        fixture.send(b"x" * 500)
    fixture.send(b"x" * 490)


def test_the_sender_is_woken_once_for_a_lane() -> None:
    fixture = Fixture(1)
    for _ in range(5):
        fixture.send()
    assert fixture.woken == 1


def test_the_sender_is_behind_while_full_batches_wait() -> None:
    fixture = Fixture(1, batch_records=1)
    for _ in range(3):
        fixture.send()
    assert fixture.accumulator.behind
    with fixture.accumulator.lock:
        fixture.accumulator.pop_sealed(fixture.lane())
    assert not fixture.accumulator.behind
    assert fixture.accumulator.caught_up.is_set()


def test_deliveries_know_their_place_in_the_batch() -> None:
    fixture = Fixture(1)
    deliveries = [fixture.send() for _ in range(3)]
    assert not deliveries[0].done()
    (batch,) = fixture.accumulator.seal_all()
    fixture.lane().sealed.clear()
    fixture.accumulator.settle([Verdict(batch, None, 10, 99)])
    assert [delivery.result() for delivery in deliveries] == [RecordMetadata("t", 0, 10 + i, 99) for i in range(3)]
    assert [metadata.offset for metadata, _ in fixture.reported if metadata is not None] == [10, 11, 12]


def test_records_that_were_never_sent_expire_as_certainly_not_stored() -> None:
    fixture = Fixture(1, delivery_timeout_s=5.0)
    delivery = fixture.send()
    batch = fixture.open_batch()
    verdicts, _ = fixture.accumulator.expire(batch.deadline)
    fixture.accumulator.settle(verdicts)
    error = delivery.exception()
    assert isinstance(error, DeliveryTimeout)
    assert not error.maybe_stored
    assert fixture.reported == [(None, error)]
    assert fixture.accumulator.buffered_bytes == 0


def test_giving_up_fails_what_was_taken_and_takes_no_more() -> None:
    fixture = Fixture(1)
    delivery = fixture.send()
    fixture.accumulator.settle(fixture.accumulator.abandon(ClientClosed("closed")))
    assert isinstance(delivery.exception(), ClientClosed)
    with pytest.raises(ClientClosed):
        fixture.send()


def test_more_partitions_are_used_once_they_are_known() -> None:
    fixture = Fixture(1, batch_records=1)
    fixture.accumulator.route("t", ["broker"] * 3)
    for _ in range(3):
        fixture.send()
    assert fixture.filled() == [0, 1, 2]


def test_a_lane_whose_leader_moved_sends_everything_again() -> None:
    fixture = Fixture(1)
    fixture.send()
    lane = fixture.lane()
    with fixture.accumulator.lock:
        lane.number(fixture.accumulator.pop_open(lane))
    assert not lane.must_resend()
    fixture.accumulator.route("t", ["other"])
    assert lane.must_resend()
    assert isinstance(lane.in_flight[0].last_failure, BrokerUnreachable)


def test_a_callback_runs_when_the_record_is_settled_or_at_once() -> None:
    fixture = Fixture(1)
    delivery = fixture.send()
    told: list[Delivery] = []
    delivery.add_done_callback(told.append)
    (batch,) = fixture.accumulator.seal_all()
    fixture.lane().sealed.clear()
    assert not told
    fixture.accumulator.settle([Verdict(batch, None, 0, 0)])
    delivery.add_done_callback(told.append)
    assert told == [delivery, delivery]


def test_waiting_for_a_delivery_has_an_end() -> None:
    with pytest.raises(TimeoutError):
        Fixture().send().result(timeout_s=0.0)
