"""Single turns of a lane. How they combine is in tests/property/test_producer_lane.py."""

from __future__ import annotations

import pytest

from cursus_grpc._batch import Batch
from cursus_grpc._lane import Lane, UnlikelyAnswer
from cursus_grpc.errors import (
    BrokerUnreachable,
    ClientClosed,
    CursusError,
    DeliveryTimeout,
    ProducerForgotten,
    RecordTooLarge,
    SequenceConflict,
    SequenceGap,
    SequenceTooOld,
    WriteTimeout,
)
from cursus_grpc.types import TopicPartition

PLACE = TopicPartition("t", 0)


def lane_with(*counts: int) -> tuple[Lane, list[Batch]]:
    """A lane with batches of these sizes in flight, with deadlines 1, 2, 3 …"""
    lane, batches = Lane(PLACE, 8), list[Batch]()
    for index, count in enumerate(counts):
        batch = Batch(PLACE, 0.0, 1.0 + index)
        batch.count = count
        lane.number(batch)
        batches.append(batch)
    return lane, batches


def numbers(batches: list[Batch]) -> list[tuple[int, int]]:
    return [(batch.epoch, batch.first_sequence) for batch in batches]


def test_sequences_run_on_over_batches() -> None:
    _, batches = lane_with(3, 2, 1)
    assert numbers(batches) == [(0, 0), (0, 3), (0, 5)]


def test_a_broken_stream_sends_all_of_them_again_in_order_with_their_numbers() -> None:
    lane, batches = lane_with(3, 2, 1)
    lane.connection_lost(BrokerUnreachable("broken"))
    again = [lane.resend() for _ in batches]
    assert again == batches
    assert numbers(again) == [(0, 0), (0, 3), (0, 5)]
    assert not lane.must_resend()


def test_a_refusal_that_passes_sends_them_again_after_the_pause() -> None:
    lane, batches = lane_with(3, 2)
    assert lane.refuse(batches[0], lane.attempt, WriteTimeout("busy"), pause_until=5.0) == []
    assert lane.resume_at == 5.0
    assert [lane.resend(), lane.resend()] == batches


def test_answers_to_an_earlier_attempt_mean_nothing() -> None:
    lane, batches = lane_with(3, 2)
    earlier = lane.attempt
    lane.refuse(batches[0], earlier, WriteTimeout("busy"), pause_until=0.0)
    assert lane.refuse(batches[1], earlier, SequenceGap("too early"), pause_until=0.0) == []
    assert list(lane.in_flight) == batches
    assert numbers(batches) == [(0, 0), (0, 3)]


def test_a_final_refusal_costs_its_batch_and_the_others_begin_an_epoch() -> None:
    lane, batches = lane_with(3, 2, 1)
    refusal = RecordTooLarge("too large")
    (verdict,) = lane.refuse(batches[0], lane.attempt, refusal, pause_until=0.0)
    assert (verdict.batch, verdict.error) == (batches[0], refusal)
    assert numbers(batches[1:]) == [(1, 0), (1, 2)]
    assert lane.must_resend()


def test_a_broker_that_lost_what_it_acknowledged_is_met_with_a_new_epoch() -> None:
    lane, batches = lane_with(3, 2)
    lane.acknowledge(batches[0], lane.attempt, 100, 0)
    assert lane.refuse(batches[1], lane.attempt, SequenceGap("what came before?"), pause_until=0.0) == []
    assert numbers(batches[1:]) == [(1, 0)]
    # Offsets begin anew with the log.
    assert lane.resend() is batches[1]
    (verdict,) = lane.acknowledge(batches[1], lane.attempt, 0, 0)
    assert verdict.base_offset == 0


FORGOTTEN = ProducerForgotten("forgotten", {"never_known": "false"})
NEVER_KNOWN = ProducerForgotten("never known", {"never_known": "true"})


@pytest.mark.parametrize("refusal", [FORGOTTEN, NEVER_KNOWN])
def test_a_forgotten_producer_goes_on_in_a_new_epoch(refusal: ProducerForgotten) -> None:
    """It was idle for a long time, so that nothing it has in flight can have been stored before."""
    lane, batches = lane_with(3, 2, 1)
    lane.acknowledge(batches[0], lane.attempt, 100, 0)
    assert lane.refuse(batches[1], lane.attempt, refusal, pause_until=0.0) == []
    assert numbers(batches[1:]) == [(1, 0), (1, 2)]
    assert lane.must_resend()


def test_what_may_be_stored_is_not_sent_again_by_a_producer_that_was_forgotten() -> None:
    """The broker would take it for new, and nobody would notice that it is stored twice."""
    lane, batches = lane_with(3, 2, 1)
    lane.acknowledge(batches[0], lane.attempt, 100, 0)
    lane.connection_lost(BrokerUnreachable("broken"))
    fresh = Batch(PLACE, 0.0, 9.0)
    fresh.count = 1
    assert [lane.resend(), lane.resend()] == batches[1:]
    lane.number(fresh)
    verdicts = lane.refuse(batches[1], lane.attempt, FORGOTTEN, pause_until=0.0)
    assert [verdict.batch for verdict in verdicts] == batches[1:]
    for verdict in verdicts:
        assert isinstance(verdict.error, DeliveryTimeout)
        assert verdict.error.maybe_stored
        assert verdict.error.__cause__ is FORGOTTEN
    assert list(lane.in_flight) == [fresh]
    assert numbers([lane.resend()]) == [(1, 0)]


def test_what_a_partition_never_knew_is_sent_again() -> None:
    """Power loss took all of the producer's batches, or the topic was made anew."""
    lane, batches = lane_with(3, 2)
    lane.acknowledge(batches[0], lane.attempt, 100, 0)
    lane.connection_lost(BrokerUnreachable("broken"))
    lane.resend()
    assert lane.refuse(batches[1], lane.attempt, NEVER_KNOWN, pause_until=0.0) == []
    assert numbers([lane.resend()]) == [(1, 0)]


@pytest.mark.parametrize("refusal", [SequenceConflict("other bytes"), SequenceTooOld("too old to be compared")])
def test_a_conflict_leaves_the_later_batches_their_numbers(refusal: CursusError) -> None:
    lane, batches = lane_with(3, 2)
    (verdict,) = lane.refuse(batches[0], lane.attempt, refusal, pause_until=0.0)
    assert verdict.batch is batches[0]
    assert numbers(batches[1:]) == [(0, 3)]


def test_an_offset_that_goes_back_cannot_be_the_answer() -> None:
    lane, batches = lane_with(3, 2)
    lane.acknowledge(batches[0], lane.attempt, 100, 0)
    with pytest.raises(UnlikelyAnswer):
        lane.acknowledge(batches[1], lane.attempt, 100, 0)


def test_an_expired_batch_is_sent_again_while_a_younger_one_depends_on_it() -> None:
    lane, batches = lane_with(3, 2)
    (verdict,) = lane.expire(1.0)
    assert isinstance(verdict.error, DeliveryTimeout)
    assert verdict.error.maybe_stored
    lane.connection_lost(BrokerUnreachable("broken"))
    assert [lane.resend(), lane.resend()] == batches
    assert lane.acknowledge(batches[0], lane.attempt, 0, 0) == []  # told already
    (verdict,) = lane.acknowledge(batches[1], lane.attempt, 3, 0)
    assert verdict.error is None


def test_when_all_have_expired_a_new_epoch_begins() -> None:
    lane, batches = lane_with(3, 2)
    assert len(lane.expire(10.0)) == 2
    assert lane.idle
    fresh = Batch(PLACE, 10.0, 20.0)
    fresh.count = 1
    lane.number(fresh)
    assert numbers([fresh]) == [(1, 0)]
    assert not any(batch is fresh for batch in batches)


def test_a_batch_that_was_only_ever_refused_is_known_not_to_be_stored() -> None:
    lane, batches = lane_with(3)
    lane.refuse(batches[0], lane.attempt, WriteTimeout("busy"), pause_until=9.0)
    (verdict,) = lane.expire(1.0)
    assert isinstance(verdict.error, DeliveryTimeout)
    assert not verdict.error.maybe_stored
    assert isinstance(verdict.error.__cause__, WriteTimeout)


def test_giving_up_tells_what_may_be_stored_from_what_is_not() -> None:
    lane, _ = lane_with(3)
    waiting = Batch(PLACE, 0.0, 1.0)
    lane.sealed.append(waiting)
    sent, unsent = lane.abandon(ClientClosed("closed"))
    assert isinstance(sent.error, DeliveryTimeout)
    assert sent.error.maybe_stored
    assert isinstance(unsent.error, ClientClosed)


def test_a_batch_that_expired_as_not_stored_is_never_sent_again() -> None:
    """It used to stay in its place for the sake of those behind it, and so could be stored after all."""
    lane, batches = lane_with(3, 2)
    lane.refuse(batches[0], lane.attempt, WriteTimeout("busy"), pause_until=0.0)
    (verdict,) = lane.expire(1.0)
    assert isinstance(verdict.error, DeliveryTimeout)
    assert not verdict.error.maybe_stored
    assert list(lane.in_flight) == [batches[1]]
    assert numbers([lane.resend()]) == [(1, 0)]


def test_behind_a_refused_batch_that_may_be_stored_already_others_may_be_stored_too() -> None:
    """The first attempt broke with its connection and was stored all the same, so the broker took the second batch of
    the next attempt although it was too busy to look at the first."""
    lane, batches = lane_with(3)
    lane.connection_lost(BrokerUnreachable("broken"))
    lane.resend()
    behind = Batch(PLACE, 0.0, 2.0)
    behind.count = 2
    lane.number(behind)
    lane.refuse(batches[0], lane.attempt, WriteTimeout("busy"), pause_until=5.0)
    errors = [verdict.error for verdict in lane.expire(now=2.0)]
    assert [isinstance(error, DeliveryTimeout) and error.maybe_stored for error in errors] == [True, True]
