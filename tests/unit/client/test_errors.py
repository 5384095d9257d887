"""The client's exceptions against the broker's reasons, and how statuses become exceptions."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import grpc
import pytest
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status
from grpc.aio import AioRpcError, Metadata

from cursus_broker import errors as broker_errors
from cursus_broker.rpc import status as broker_status
from cursus_grpc import errors
from cursus_grpc._status import from_rpc_error, from_status
from cursus_grpc.types import TopicPartition


def all_refusals(parent: type[broker_errors.CursusError]) -> Iterator[type[broker_errors.CursusError]]:
    for child in parent.__subclasses__():
        if child.reason:
            yield child
        yield from all_refusals(child)


def all_exceptions(parent: type[errors.CursusError]) -> Iterator[type[errors.CursusError]]:
    yield parent
    for child in parent.__subclasses__():
        yield from all_exceptions(child)


def test_every_reason_of_the_broker_has_an_exception_and_no_other_does() -> None:
    reasons = {refusal.reason for refusal in all_refusals(broker_errors.CursusError)}
    assert set(errors.REASONS) == reasons | {"INTERNAL"}


def test_what_the_broker_calls_unavailable_is_retriable_and_conflicts_are_not() -> None:
    for refusal in all_refusals(broker_errors.CursusError):
        retriable = errors.REASONS[refusal.reason].retriable
        if issubclass(refusal, broker_errors.Unavailable):
            assert retriable
        if issubclass(refusal, broker_errors.InvalidRequest | broker_errors.NotFound):
            assert not retriable


def test_a_refusal_arrives_with_its_message_reason_and_metadata() -> None:
    error = from_status(broker_status.to_status(broker_errors.OffsetOutOfRange(7, 10, 20)))
    assert isinstance(error, errors.OffsetOutOfRange)
    assert str(error) == "offset 7 is outside [10, 20]"
    assert (error.reason, error.earliest, error.latest) == ("OFFSET_OUT_OF_RANGE", 10, 20)


def test_a_reason_of_a_newer_broker_is_kept() -> None:
    info = AnyMessage()
    info.Pack(ErrorInfo(reason="MOON_PHASE", domain="cursus", metadata={"phase": "new"}))
    error = from_status(Status(code=9, message="not tonight", details=[info]))
    assert isinstance(error, errors.UnknownRefusal)
    assert (error.reason, dict(error.metadata), error.retriable) == ("MOON_PHASE", {"phase": "new"}, False)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.UNAVAILABLE, errors.BrokerUnreachable),
        (grpc.StatusCode.DEADLINE_EXCEEDED, errors.DeadlineExceeded),
        (grpc.StatusCode.INTERNAL, errors.BrokerFailed),
        (grpc.StatusCode.UNKNOWN, errors.BrokerFailed),
        (grpc.StatusCode.UNIMPLEMENTED, errors.UnknownRefusal),
    ],
)
def test_a_status_of_the_transport_has_an_exception_too(code: grpc.StatusCode, kind: type[errors.CursusError]) -> None:
    assert type(from_rpc_error(AioRpcError(code, Metadata(), Metadata(), "details"))) is kind


def test_exceptions_survive_pickling() -> None:
    """Spark and process pools send them home."""
    for kind in all_exceptions(errors.CursusError):
        if kind in (errors.BatchTooLarge, errors.NoCommittedOffset, errors.CommitFailed, errors.DeliveryTimeout):
            continue
        again = pickle.loads(pickle.dumps(kind("what happened", {"key": "value"})))
        assert (type(again), str(again), again.metadata) == (kind, "what happened", {"key": "value"})


def test_exceptions_with_attributes_survive_pickling_too() -> None:
    place = TopicPartition("t", 1)
    timeout = pickle.loads(pickle.dumps(errors.DeliveryTimeout("late", maybe_stored=True)))
    assert timeout.maybe_stored
    assert pickle.loads(pickle.dumps(errors.NoCommittedOffset(place))).partition == place
    too_large = pickle.loads(pickle.dumps(errors.BatchTooLarge("too large", place, 3, 7)))
    assert (too_large.partition, too_large.next_offset) == (place, 7)
    failed = pickle.loads(pickle.dumps(errors.CommitFailed({place: errors.NotOwner("gone")})))
    assert isinstance(failed.errors[place], errors.NotOwner)
