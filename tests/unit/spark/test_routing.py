"""Rows go where their columns, keys and places say, and become the same bytes each time."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from cursus_grpc import TopicPartition
from cursus_proto.partitioner import partition_for_key
from cursus_proto.records import unpack
from cursus_spark.routing import RowRefused, TargetSet, sets

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def counts(topics: Collection[str]) -> dict[str, int]:
    return dict.fromkeys(topics, 4)


def routed(table: pa.Table, turn: int = 0, topic: str | None = "t") -> list[TargetSet]:
    return list(sets(table, turn, topic, counts))


def stored(found: list[TargetSet]) -> dict[TopicPartition, list[bytes]]:
    return {one.place: [record.value for record in unpack(one.payload)] for one in found}


def test_rows_without_a_key_go_where_the_turn_is() -> None:
    table = pa.table({"value": [b"a", b"b"]})
    assert stored(routed(table, turn=6)) == {TopicPartition("t", 2): [b"a", b"b"]}


def test_keys_and_named_partitions_decide() -> None:
    keys = [b"user-1", None, b"user-3", b""]
    table = pa.table(
        {
            "key": pa.array(keys, pa.binary()),
            "value": [b"0", b"1", b"2", b"3"],
            "partition": pa.array([None, None, 3, None], pa.int32()),
        }
    )
    wanted = [partition_for_key(b"user-1", 4), 1, 3, partition_for_key(b"", 4)]
    for row, partition in enumerate(wanted):
        assert b"%d" % row in stored(routed(table, turn=1))[TopicPartition("t", partition)]


def test_order_is_kept_in_each_partition_of_each_topic() -> None:
    count = 1_000
    table = pa.table(
        {"topic": [f"t{n % 3}" for n in range(count)], "key": [f"k{n % 7}" for n in range(count)]}
        | {"value": [f"{n}" for n in range(count)]}
    )
    found = stored(routed(table, topic=None))
    assert sorted(int(value) for values in found.values() for value in values) == list(range(count))
    assert all(sorted(values, key=int) == values for values in found.values())
    assert {place.topic for place in found} == {"t0", "t1", "t2"}
    assert {place.topic for place in stored(routed(table, topic="other"))} == {"other"}


def test_a_slice_has_the_bytes_of_its_rows() -> None:
    table = pa.table({"key": [b"a", None, b"c", b"d"], "value": ["one", None, "", "four"]})
    (whole,) = routed(table.slice(1, 2).combine_chunks().drop(["key"]))
    assert [(record.HasField("value"), record.value) for record in unpack(whole.payload)] == [(False, b""), (True, b"")]
    assert routed(table.slice(1, 3)) == routed(pa.table({"key": [None, b"c", b"d"], "value": [None, "", "four"]}))


def test_times_and_headers_are_written() -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, 678_999, tzinfo=UTC)
    table = pa.table(
        {
            "value": [b"a", b"b"],
            "timestamp": pa.array([moment, None], pa.timestamp("us", tz="UTC")),
            "headers": pa.array([[("k", None), ("k", b"")], None], HEADERS),
        }
    )
    (found,) = routed(table)
    first, second = unpack(found.payload)
    assert first.timestamp_ms == 1_767_323_045_678
    assert [(one.key, one.HasField("value")) for one in first.headers] == [("k", False), ("k", True)]
    assert (second.timestamp_ms, len(second.headers)) == (0, 0)


def test_what_few_records_have_is_written() -> None:
    table = pa.table(
        {
            "value": [b"a", b"b"],
            "event_type": [b"placed", None],
            "schema_version": pa.array([None, 7], pa.int64()),
            "aggregate_version": pa.array([-1, None], pa.int64()),
            "metadata": [None, "{}"],
        }
    )
    (found,) = routed(table)
    first, second = unpack(found.payload)
    assert (first.event_type, first.schema_version, first.aggregate_version, first.metadata) == (
        b"placed",
        0,
        2**64 - 1,
        b"",
    )
    assert (second.event_type, second.schema_version, second.aggregate_version, second.metadata) == (b"", 7, 0, b"{}")
    (without,) = routed(table.select(["value"]))
    empty = table.select(["value"]).append_column("metadata", pa.nulls(2, pa.binary()))
    assert routed(empty) == [without]


@pytest.mark.parametrize(
    ("column", "values", "why"),
    [
        ("topic", pa.array([None], pa.string()), "null as its topic"),
        ("partition", pa.array([-1], pa.int32()), "-1 as its partition"),
        ("timestamp", pa.array([0], pa.timestamp("us", tz="UTC")), "1970"),
        ("schema_version", pa.array([-1], pa.int64()), "a schema version beyond 0 to 4294967295"),
        ("headers", pa.array([[(None, b"x")]], HEADERS), "null as its key"),
    ],
)
def test_a_row_that_is_no_record_is_refused(column: str, values: pa.Array, why: str) -> None:
    with pytest.raises(RowRefused, match=why):
        routed(pa.table({"value": [b"a"], column: values}), topic=None if column == "topic" else "t")
