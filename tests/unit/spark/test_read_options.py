"""Options of a read: what they mean, and that a wrong one is refused by its name."""

from __future__ import annotations

import pytest

from cursus_grpc import TLS, TopicPartition
from cursus_spark.options import OptionRefused
from cursus_spark.read_options import (
    Assign,
    AtOffsets,
    AtTimestamp,
    AtTimestamps,
    Edge,
    ReadOptions,
    Subscribe,
    SubscribePattern,
)

NEEDED = {"bootstrap.servers": "localhost:50051", "subscribe": "orders"}


def parsed(**options: str) -> ReadOptions:
    return ReadOptions.parse(NEEDED | options, streaming=False)


def streamed(**options: str) -> ReadOptions:
    return ReadOptions.parse(NEEDED | options, streaming=True)


def test_the_defaults_of_a_batch_read_are_everything_that_is_synced() -> None:
    options = parsed()
    assert options.selection == Subscribe(("orders",))
    assert (options.starting, options.ending) == (Edge.EARLIEST, Edge.LATEST)
    assert (options.fail_on_data_loss, options.read_unsynced) == (True, False)


def test_a_stream_begins_at_the_end_unless_told_otherwise() -> None:
    assert streamed().starting is Edge.LATEST
    assert streamed(startingOffsets="earliest").starting is Edge.EARLIEST


@pytest.mark.parametrize("name", ["minPartitions", "minpartitions", "cursus.minPartitions", "CURSUS.MINPARTITIONS"])
def test_names_are_taken_in_any_case_and_with_the_prefix(name: str) -> None:
    assert parsed(**{name: "7"}).min_partitions == 7


def test_topics_are_selected_in_three_ways() -> None:
    without = {"bootstrap.servers": "localhost"}
    assert ReadOptions.parse({**without, "subscribe": "a, b,a"}, streaming=False).selection == Subscribe(("a", "b"))
    pattern = ReadOptions.parse({**without, "subscribePattern": "a.*"}, streaming=False)
    assert pattern.selection == SubscribePattern("a.*")
    assigned = ReadOptions.parse({**without, "assign": '{"a": [0, 2], "b": [1]}'}, streaming=False)
    assert assigned.selection == Assign((TopicPartition("a", 0), TopicPartition("a", 2), TopicPartition("b", 1)))


def test_bounds_are_edges_offsets_and_times() -> None:
    offsets = AtOffsets({TopicPartition("orders", 0): 23, TopicPartition("orders", 1): -2})
    assert parsed(startingOffsets='{"orders": {"0": 23, "1": -2}}').starting == offsets
    assert parsed(endingTimestamp="1700000000000").ending == AtTimestamp(1_700_000_000_000)
    times = AtTimestamps({TopicPartition("orders", 0): 5})
    assert parsed(startingOffsetsByTimestamp='{"orders": {"0": 5}}').starting == times


def test_durations_have_units() -> None:
    waits = {"minOffsetsPerTrigger": "10"}
    assert streamed(maxTriggerDelay="2m", **waits).max_trigger_delay_ms == 120_000
    assert streamed(maxTriggerDelay="500", **waits).max_trigger_delay_ms == 500
    assert streamed(**waits).max_trigger_delay_ms == 15 * 60_000


def test_tls_is_on_with_any_of_its_options_and_pem_text_is_taken_as_it_is() -> None:
    assert parsed().endpoint.tls is None
    assert parsed(tls="true").endpoint.tls == TLS()
    pem = "-----BEGIN CERTIFICATE-----\n..."
    assert parsed(**{"tls.ca": pem, "tls.serverName": "broker"}).endpoint.tls == TLS(
        ca=pem.encode(), server_name="broker"
    )
    assert parsed(**{"tls.ca": "ca.pem"}).endpoint.tls == TLS(ca="ca.pem")


def test_columns_are_asked_for_by_name() -> None:
    assert parsed(includeHeaders="true", extraColumns="sequence,append_time").extra_columns == (
        "headers",
        "sequence",
        "append_time",
    )
    assert "metadata" in parsed(extraColumns="all").extra_columns


@pytest.mark.parametrize(
    ("option", "value", "why"),
    [
        ("subscribe", "a,,b", "empty name"),
        ("assign", "{}", "contradicts"),
        ("subscribePattern", "x", "contradicts"),
        ("startingOffsets", "first", "neither earliest, latest nor JSON"),
        ("startingOffsets", "latest", "cannot start at `latest`"),
        ("startingOffsets", '{"orders": {"0": -1}}', "cannot start at `latest`"),
        ("startingOffsets", '{"orders": {"zero": 1}}', "not a partition number"),
        ("startingOffsets", '{"orders": {"0": -3}}', "is not a number from -2 on"),
        ("startingOffsets", '{"orders": {"0": true}}', "is not a number"),
        ("startingOffsets", '{"orders": 5}', "no object of partitions"),
        ("startingOffsets", "{broken", "not JSON"),
        ("startingTimestamp", "yesterday", "not a whole number"),
        ("startingTimestamp", "-1", "below 0"),
        ("endingOffsets", "earliest", "cannot end at `earliest`"),
        ("minPartitions", "0", "below 1"),
        ("minPartitions", "many", "not a whole number"),
        ("failOnDataLoss", "maybe", "neither true nor false"),
        ("readUpTo", "the end", "not one of synced, written"),
        ("extraColumns", "colour", "there is no 'colour'"),
        ("maxOffsetsPerTrigger", "5", "is for streams"),
        ("groupIdPrefix", "x", "is for streams"),
        ("tls.cert", "c.pem", "`tls.key`"),
        ("startingOffsetsByTimestampStrategy", "guess", "not one of error, latest"),
        ("retryTimeout", "soon", "not a duration"),
    ],
)
def test_a_wrong_value_is_refused_by_the_name_of_its_option(option: str, value: str, why: str) -> None:
    with pytest.raises(OptionRefused, match="option `") as refused:
        parsed(**{option: value})
    assert why in str(refused.value)
    assert "`" + option.split(".")[0] in str(refused.value)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"startingOffsets": "earliest", "startingTimestamp": "5"}, "startingOffsets"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "5"}, "minOffsetsPerTrigger"),
        ({"maxTriggerDelay": "5m"}, "maxTriggerDelay"),
        ({"endingOffsets": "latest"}, "endingOffsets"),
        ({"groupId": "a", "groupIdPrefix": "b"}, "groupId"),
        ({"tls": "false", "tls.ca": "x"}, "tls.ca"),
    ],
)
def test_options_of_a_stream_that_contradict_each_other_are_refused(options: dict[str, str], named: str) -> None:
    with pytest.raises(OptionRefused, match=f"option `{named}`"):
        streamed(**options)


def test_an_unknown_option_is_refused_with_the_name_that_was_meant() -> None:
    for given, meant in (
        ("startingOffset", "startingOffsets"),
        ("kafka.bootstrap.servers", "bootstrap.servers"),
        ("minPartition", "minPartitions"),
    ):
        with pytest.raises(OptionRefused, match=f"option `{given}`.*`{meant}`"):
            parsed(**{given: "x"})
    with pytest.raises(OptionRefused, match="option `colour`: unknown"):
        parsed(colour="red")


def test_an_option_given_twice_must_say_the_same() -> None:
    assert parsed(**{"minPartitions": "3", "cursus.minPartitions": "3"}).min_partitions == 3
    with pytest.raises(OptionRefused, match="given twice"):
        parsed(**{"minPartitions": "3", "cursus.minPartitions": "4"})


@pytest.mark.parametrize("missing", ["bootstrap.servers", "subscribe"])
def test_what_is_needed_is_asked_for_by_name(missing: str) -> None:
    given = {name: value for name, value in NEEDED.items() if name != missing}
    with pytest.raises(OptionRefused, match=f"option `{missing}`: is missing"):
        ReadOptions.parse(given, streaming=False)


def test_what_spark_passes_along_is_its_own() -> None:
    assert parsed(checkpointLocation="/somewhere").min_partitions is None
