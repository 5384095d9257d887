from __future__ import annotations

from dataclasses import replace

import pytest

from cursus_broker.errors import InvalidRequest
from cursus_broker.groups.members import JoinRequest, Subscription
from tests.unit.broker.groups.doubles import request, wants


def test_a_pattern_means_whole_names_and_adds_to_the_named_topics() -> None:
    subscription = wants("audit", pattern="orders-.*")
    assert subscription.resolve(["orders-1", "my-orders-1", "audit", "orders"]) == {"orders-1", "audit"}


def test_a_pattern_that_makes_backtracking_explode_costs_nothing() -> None:
    assert Subscription(pattern="(a+)+b").resolve(["a" * 249]) == frozenset()


@pytest.mark.parametrize("pattern", ["(", "a{2,1}", "(?=x)y", "x" * 1_001], ids=["open", "range", "lookahead", "long"])
def test_a_bad_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidRequest, match="pattern"):
        JoinRequest("g", Subscription(pattern=pattern)).validate()


@pytest.mark.parametrize("name", ["", "a b", "tab\there", "nul\0", "x" * 250])
def test_a_group_name_is_printable_without_white_space(name: str) -> None:
    with pytest.raises(InvalidRequest, match="group name"):
        request("t", group=name).validate()


def test_unicode_names_of_249_characters_are_fine() -> None:
    request("t", group="ü" * 249, member_id="读者", instance_id="i" * 249).validate()


@pytest.mark.parametrize(
    "broken",
    [
        replace(request("t"), session_timeout_ms=999),
        replace(request("t"), session_timeout_ms=600_001),
        replace(request("t"), rebalance_timeout_ms=0),
        replace(request("t"), client_id="line\nbreak"),
        request("t", member_id="a b"),
        request("t", instance_id="a b"),
        request("a b"),
        request(),
    ],
)
def test_what_is_out_of_bounds_is_refused(broken: JoinRequest) -> None:
    with pytest.raises(InvalidRequest):
        broken.validate()
