"""Every option of reads and writes, right and wrong. An option without a row here fails the test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import pytest

from cursus_grpc import TLS, TopicPartition
from cursus_spark.options import Endpoint, OptionRefused
from cursus_spark.read_options import (
    READ_OPTIONS,
    Assign,
    AtOffsets,
    AtTimestamp,
    AtTimestamps,
    Edge,
    ReadOptions,
    Subscribe,
    SubscribePattern,
)
from cursus_spark.write_options import WRITE_OPTIONS, Transaction, WriteOptions

BROKER: Final = "localhost:50051"
PLACE: Final = TopicPartition("orders", 0)
PEM: Final = "-----BEGIN CERTIFICATE-----\n…"


@dataclass(frozen=True)
class Case:
    """What an option is good for, and what it does not take: values, each with a part of the reason."""

    value: str
    name: str
    """Of the field that it decides."""
    meaning: object
    wrong: Mapping[str, str]
    streaming: bool = False
    beside: Mapping[str, str] = field(default_factory=dict)
    """Other options it needs."""
    without: tuple[str, ...] = ()
    """Options that are there by default and would contradict it."""


TRUTH: Final = {"": "is empty", "yes": "neither true nor false"}
COUNT: Final = {
    "": "is empty",
    "0": "below 1",
    "-5": "below 1",
    "many": "not a whole number",
    "1.5": "not a whole number",
}
DURATION: Final = {"": "is empty", "soon": "not a duration", "-1s": "not a duration", "5 weeks": "not a duration"}
JSON_NUMBERS: Final = {
    "": "is empty",
    "{": "not JSON",
    "{}": "not an object of topics",
    "[1]": "not an object of topics",
    '{"orders": []}': "no object of partitions",
    '{"orders": {"x": 1}}': "not a partition number",
    '{"orders": {"0": "1"}}': "is not a number",
}
OFFSETS: Final = {key: why for key, why in JSON_NUMBERS.items() if key != "[1]"} | {"first": "neither earliest, latest"}
TIME: Final = {"": "is empty", "-1": "below 0", "today": "not a whole number"}

ENDPOINT: Final = {
    "bootstrap.servers": Case(BROKER, "endpoint", Endpoint(BROKER), {"": "is empty", " ": "is empty"}),
    "tls": Case("true", "endpoint", Endpoint(BROKER, TLS()), TRUTH),
    "tls.ca": Case(PEM, "endpoint", Endpoint(BROKER, TLS(ca=PEM.encode())), {"": "is empty"}),
    "tls.cert": Case(
        "c.pem",
        "endpoint",
        Endpoint(BROKER, TLS(cert="c.pem", key="k.pem")),
        {"": "is empty"},
        beside={"tls.key": "k.pem"},
    ),
    "tls.key": Case(
        "k.pem",
        "endpoint",
        Endpoint(BROKER, TLS(cert="c.pem", key="k.pem")),
        {"": "is empty"},
        beside={"tls.cert": "c.pem"},
    ),
    "tls.serverName": Case("broker", "endpoint", Endpoint(BROKER, TLS(server_name="broker")), {"": "is empty"}),
}

READS: Final[Mapping[str, Case]] = {
    **ENDPOINT,
    "subscribe": Case("b, a,b", "selection", Subscribe(("b", "a")), {"": "is empty", "a,,b": "empty name"}),
    "subscribePattern": Case(
        "a.*", "selection", SubscribePattern("a.*"), {"": "is empty", "a(": "not a regular"}, without=("subscribe",)
    ),
    "assign": Case(
        '{"orders": [0]}',
        "selection",
        Assign((PLACE,)),
        {
            "": "is empty",
            "x": "not JSON",
            "{}": "no",
            '{"a": []}': "no list",
            '{"a": [-1]}': "no list",
            '{"a": 1}': "no list",
        },
        without=("subscribe",),
    ),
    "startingOffsets": Case(
        '{"orders": {"0": 5}}', "starting", AtOffsets({PLACE: 5}), OFFSETS | {"latest": "cannot start"}
    ),
    "startingTimestamp": Case("5", "starting", AtTimestamp(5), TIME),
    "startingOffsetsByTimestamp": Case('{"orders": {"0": 5}}', "starting", AtTimestamps({PLACE: 5}), JSON_NUMBERS),
    "endingOffsets": Case("latest", "ending", Edge.LATEST, OFFSETS | {"earliest": "cannot end"}),
    "endingTimestamp": Case("5", "ending", AtTimestamp(5), TIME),
    "endingOffsetsByTimestamp": Case('{"orders": {"0": 5}}', "ending", AtTimestamps({PLACE: 5}), JSON_NUMBERS),
    "startingOffsetsByTimestampStrategy": Case(
        "latest", "late_start_is_latest", True, {"": "is empty", "guess": "not one of error, latest"}
    ),
    "maxOffsetsPerTrigger": Case("7", "max_offsets_per_trigger", 7, COUNT, streaming=True),
    "minOffsetsPerTrigger": Case("7", "min_offsets_per_trigger", 7, COUNT, streaming=True),
    "maxTriggerDelay": Case(
        "2m", "max_trigger_delay_ms", 120_000, DURATION, streaming=True, beside={"minOffsetsPerTrigger": "1"}
    ),
    "groupIdPrefix": Case("team", "group_id_prefix", "team", {"": "is empty"}, streaming=True),
    "groupId": Case("mine", "group_id", "mine", {"": "is empty"}, streaming=True),
    "minPartitions": Case("7", "min_partitions", 7, COUNT),
    "failOnDataLoss": Case("FALSE", "fail_on_data_loss", False, TRUTH),
    "readUpTo": Case("written", "read_unsynced", True, {"": "is empty", "end": "not one of synced, written"}),
    "includeHeaders": Case("true", "extra_columns", ("headers",), TRUTH),
    "extraColumns": Case(
        "sequence",
        "extra_columns",
        ("sequence",),
        {"": "is empty", "colour": "there is no 'colour'", "a,": "empty name"},
    ),
    "retryTimeout": Case("500ms", "retry_timeout_s", 0.5, DURATION),
}

WRITES: Final[Mapping[str, Case]] = {
    **ENDPOINT,
    "topic": Case("orders", "topic", "orders", {"": "is empty"}),
    "acks": Case("1", "acks", 1, {"": "is empty", "0": "not one of all", "2": "not one of all"}),
    "delivery": Case("atLeastOnce", "at_least_once", True, {"": "is empty", "atMostOnce": "not one of exactlyOnce"}),
    "retryTimeout": Case("5s", "retry_timeout_s", 5.0, DURATION),
    "txnAppId": Case(
        "nightly",
        "transaction",
        Transaction("nightly", 0),
        {"": "is empty", "a b": "without spaces", "x" * 101: "at most 100"},
        beside={"txnVersion": "0"},
    ),
    "txnVersion": Case(
        "3",
        "transaction",
        Transaction("nightly", 3),
        {"": "is empty", "-1": "below 0", "next": "not a whole number"},
        beside={"txnAppId": "nightly"},
    ),
}


def test_every_option_has_a_row() -> None:
    assert READS.keys() == set(READ_OPTIONS)
    assert WRITES.keys() == set(WRITE_OPTIONS)


def rows(*without: str) -> list[object]:
    tables: list[tuple[type[ReadOptions | WriteOptions], str, Mapping[str, Case]]] = [
        (ReadOptions, "read", READS),
        (WriteOptions, "write", WRITES),
    ]
    return [
        pytest.param(kind, name, case, id=f"{what} {name}")
        for kind, what, table in tables
        for name, case in table.items()
        if name not in without
    ]


def parse(kind: type[ReadOptions | WriteOptions], name: str, case: Case, value: str) -> ReadOptions | WriteOptions:
    given = {"bootstrap.servers": BROKER} | ({"subscribe": "orders"} if kind is ReadOptions else {})
    for unwanted in case.without:
        given.pop(unwanted, None)
    return kind.parse({**given, **case.beside, name: value}, streaming=case.streaming)


@pytest.mark.parametrize(("kind", "name", "case"), rows())
def test_a_right_value_means_what_it_says(kind: type[ReadOptions | WriteOptions], name: str, case: Case) -> None:
    assert getattr(parse(kind, name, case, case.value), case.name) == case.meaning


@pytest.mark.parametrize(("kind", "name", "case"), rows())
def test_a_wrong_value_is_refused_by_name_and_reason(
    kind: type[ReadOptions | WriteOptions], name: str, case: Case
) -> None:
    for value, why in case.wrong.items():
        with pytest.raises(OptionRefused) as refused:
            parse(kind, name, case, value)
        assert refused.value.option == name, f"{name} = {value!r}"
        assert why in str(refused.value), f"{name} = {value!r}"


# Those that are left out are always given under their own names.
@pytest.mark.parametrize(("kind", "name", "case"), rows("bootstrap.servers", "subscribe"))
def test_a_name_is_taken_in_any_case_and_with_the_prefix(
    kind: type[ReadOptions | WriteOptions], name: str, case: Case
) -> None:
    for spelled in (name.lower(), name.upper(), f"cursus.{name}"):
        assert getattr(parse(kind, spelled, case, case.value), case.name) == case.meaning
