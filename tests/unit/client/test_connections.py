"""Addresses, pauses, and where the brokers of a cluster are dialled."""

from __future__ import annotations

import pytest

from cursus_grpc._channel import ConnectionSettings, parse_bootstrap
from cursus_grpc._metadata import broker_targets
from cursus_grpc._retry import Backoff, Deadline
from cursus_grpc.types import TLS
from cursus_proto.v1.cluster_service_pb2 import BrokerAddress, GetMetadataResponse


@pytest.mark.parametrize(
    ("given", "parsed"),
    [
        ("localhost", ("localhost:50051",)),
        ("a:1,b:2", ("a:1", "b:2")),
        (" a:1 , ,b", ("a:1", "b:50051")),
        (["a:1", "b:2"], ("a:1", "b:2")),
        ("[::1]", ("[::1]:50051",)),
        ("[::1]:9", ("[::1]:9",)),
    ],
)
def test_addresses_come_as_text_or_as_a_list(given: str | list[str], parsed: tuple[str, ...]) -> None:
    assert parse_bootstrap(given) == parsed


@pytest.mark.parametrize("given", ["", " , ", ":1", "a:b", "a:70000", "::1"])
def test_what_is_no_address_is_refused(given: str) -> None:
    with pytest.raises(ValueError):
        parse_bootstrap(given)


def test_half_a_client_certificate_is_refused() -> None:
    with pytest.raises(ValueError, match="both cert and key"):
        TLS(cert=b"...")


def test_a_timeout_must_leave_some_time() -> None:
    with pytest.raises(ValueError, match="positive"):
        ConnectionSettings(("a:1",), request_timeout_s=0.0)


def test_pauses_double_up_to_a_bound_and_are_drawn_below_it() -> None:
    longest = Backoff(first_s=1.0, longest_s=5.0, draw=lambda _, high: high)
    assert [longest.next_s() for _ in range(5)] == [1.0, 2.0, 4.0, 5.0, 5.0]
    shortest = Backoff(first_s=1.0, longest_s=5.0, draw=lambda low, _: low)
    assert [shortest.next_s() for _ in range(3)] == [0.5, 1.0, 2.0]
    longest.reset()
    assert longest.next_s() == 1.0


def test_a_broker_that_is_away_for_days_does_not_overflow_the_pause() -> None:
    assert Backoff(failures=100_000).next_s() <= 1.0


def test_a_deadline_never_has_negative_time_left() -> None:
    assert Deadline(-1.0).left_s() == 0.0
    assert not Deadline(0.0).within(0.1)
    assert Deadline(None).left_s() is None
    assert Deadline(None).within(1e9)


def test_the_only_broker_is_dialled_where_it_answered() -> None:
    response = GetMetadataResponse(brokers=[BrokerAddress(broker_id=3, host="inside", port=1)])
    assert broker_targets(response, "localhost:9") == {3: "localhost:9"}


def test_several_brokers_are_dialled_where_they_say_unless_that_is_everywhere() -> None:
    brokers = [
        BrokerAddress(broker_id=1, host="one", port=1),
        BrokerAddress(broker_id=2, host="::1", port=2),
        BrokerAddress(broker_id=3, host="0.0.0.0", port=3),
    ]
    targets = broker_targets(GetMetadataResponse(brokers=brokers), "three:3")
    assert targets == {1: "one:1", 2: "[::1]:2", 3: "three:3"}
