"""Options of a write: what they mean, and how wrong ones are refused."""

from __future__ import annotations

import pytest

from cursus_spark.options import OptionRefused
from cursus_spark.write_options import Transaction, WriteOptions

BROKER = {"bootstrap.servers": "localhost:1"}


def parse(*, streaming: bool = False, **given: str) -> WriteOptions:
    return WriteOptions.parse(BROKER | given, streaming=streaming)


def test_what_is_not_said_is_exactly_once() -> None:
    options = parse(topic="orders")
    assert (options.topic, options.acks, options.at_least_once, options.transaction) == ("orders", "all", False, None)
    assert options.retry_timeout_s == 120


def test_everything_can_be_said() -> None:
    options = parse(acks="1", delivery="atleastonce", retryTimeout="5s", txnAppId="nightly", txnVersion="0")
    assert (options.acks, options.at_least_once, options.retry_timeout_s) == (1, True, 5)
    assert options.transaction == Transaction("nightly", 0)


@pytest.mark.parametrize(
    ("given", "option", "why"),
    [
        ({"acks": "0"}, "acks", "'0' is not one of"),
        ({"delivery": "once"}, "delivery", "'once' is not one of"),
        ({"txnAppId": "a"}, "txnVersion", "is missing"),
        ({"txnVersion": "1"}, "txnAppId", "is missing"),
        ({"txnAppId": "a", "txnVersion": "-1"}, "txnVersion", "below 0"),
        ({"txnAppId": "a b", "txnVersion": "1"}, "txnAppId", "without spaces"),
        ({"subscribe": "a"}, "subscribe", "unknown"),
        ({"topics": "a"}, "topics", "did you mean `topic`"),
        ({"asyncProgressTrackingEnabled": "true"}, "asyncProgressTrackingEnabled", "leave it off"),
    ],
)
def test_a_wrong_option_is_refused_by_name(given: dict[str, str], option: str, why: str) -> None:
    with pytest.raises(OptionRefused, match=why) as refused:
        WriteOptions.parse(BROKER | given, streaming=False)
    assert refused.value.option == option


def test_a_stream_has_versions_of_its_own() -> None:
    with pytest.raises(OptionRefused, match="is for batch writes"):
        parse(streaming=True, txnAppId="a", txnVersion="1")


def test_asynchronous_progress_may_be_said_to_be_off() -> None:
    parse(streaming=True, asyncProgressTrackingEnabled="false")
