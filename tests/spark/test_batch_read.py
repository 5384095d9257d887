"""A topic read as a table: every field of every record, between any bounds."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession

from cursus_grpc import Admin, Producer
from cursus_grpc.testing import Broker
from tests.spark.conftest import MakeTopic, Read

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def numbered(broker: Broker, topic: str, count: int, *, partitions: int = 2) -> None:
    """Values 0 to `count`, in turns over the partitions."""
    with Producer(broker.address, acks="all") as producer:
        for number in range(count):
            producer.send(topic, b"%d" % number, partition=number % partitions)


def values(rows: list[Row]) -> list[int]:
    return sorted(int(row["value"]) for row in rows)


def test_every_field_arrives_as_it_was_sent(broker: Broker, make_topic: MakeTopic, read: Read) -> None:
    topic = make_topic(1)
    moment_ms = 1_767_323_045_678
    with Producer(broker.address, acks="all") as producer:
        producer.send(
            topic,
            b"\x00\xff",
            key=b"k",
            timestamp_ms=moment_ms,
            headers=[("a", b"1"), ("a", b""), ("ü", b"\xff")],
            event_type="created",
            schema_version=3,
            aggregate_version=7,
            metadata="note",
        ).result()
        producer.send(topic, b"", key=b"").result()
        producer.send(topic, None).result()
    first, empty, null = read(topic, includeHeaders=True, extraColumns="all").orderBy("offset").collect()
    assert (first["key"], first["value"], first["topic"], first["partition"]) == (b"k", b"\x00\xff", topic, 0)
    assert [row["offset"] for row in (first, empty, null)] == [0, 1, 2]
    assert first["timestamp"] == (EPOCH + timedelta(milliseconds=moment_ms)).replace(tzinfo=None)
    assert first["timestampType"] == 0
    assert [tuple(header) for header in first["headers"]] == [("a", b"1"), ("a", b""), ("ü", b"\xff")]
    assert (first["event_type"], first["schema_version"]) == (b"created", 3)
    assert (first["aggregate_version"], first["metadata"]) == (7, b"note")
    assert first["producer_id"] == empty["producer_id"] != b""
    assert [row["sequence"] for row in (first, empty, null)] == [0, 1, 2]
    # Null, empty and absent are three things.
    assert (empty["key"], empty["value"], empty["headers"]) == (b"", b"", None)
    assert (null["key"], null["value"]) == (None, None)
    assert (null["event_type"], null["schema_version"], null["metadata"]) == (None, None, None)
    assert null["timestampType"] == 1
    assert null["timestamp"] == null["append_time"]


def test_a_schema_picks_columns_in_any_order(broker: Broker, spark: SparkSession, make_topic: MakeTopic) -> None:
    topic = make_topic(2)
    numbered(broker, topic, 10)
    options = {"bootstrap.servers": broker.address, "subscribe": topic}
    rows = spark.read.format("cursus").schema("offset bigint, value binary").options(**options).load()
    assert rows.columns == ["offset", "value"]
    assert values(rows.collect()) == list(range(10))
    with pytest.raises(PySparkException, match="there is no column 'colour'"):
        spark.read.format("cursus").schema("colour string").options(**options).load().collect()
    with pytest.raises(PySparkException, match="column 'value' is binary, not string"):
        spark.read.format("cursus").schema("value string").options(**options).load().collect()


def test_a_topic_is_a_view_in_sql(broker: Broker, spark: SparkSession, make_topic: MakeTopic) -> None:
    topic = make_topic(2)
    numbered(broker, topic, 10)
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW orders USING cursus OPTIONS (`bootstrap.servers` '{broker.address}',"
        f" subscribe '{topic}')"
    )
    (row,) = spark.sql("SELECT count(*) AS n, sum(CAST(CAST(value AS STRING) AS INT)) AS s FROM orders").collect()
    assert (row["n"], row["s"]) == (10, 45)


def test_bounds_by_offset_and_time(broker: Broker, admin: Admin, make_topic: MakeTopic, read: Read) -> None:
    topic = make_topic(2)
    numbered(broker, topic, 20)
    start = json.dumps({topic: {"0": 3, "1": -2}})
    end = json.dumps({topic: {"0": 5, "1": -1}})
    rows = read(topic, startingOffsets=start, endingOffsets=end).collect()
    assert values(rows) == sorted([6, 8, *range(1, 20, 2)])
    first = min(admin.list_offsets(topic, 0).values(), key=lambda one: one.append_time_ms or 0)
    assert first.append_time_ms is not None
    assert read(topic, startingTimestamp=first.append_time_ms).count() == 20
    assert read(topic, endingTimestamp=first.append_time_ms).count() == 0
    late = first.append_time_ms + 10**9
    with pytest.raises(PySparkException, match="has no record appended so late"):
        read(topic, startingTimestamp=late).count()
    assert read(topic, startingTimestamp=late, startingOffsetsByTimestampStrategy="latest").count() == 0


def test_offsets_have_to_name_what_is_read(broker: Broker, make_topic: MakeTopic, read: Read) -> None:
    topic = make_topic(2)
    with pytest.raises(PySparkException, match="says nothing about partition 1"):
        read(topic, startingOffsets=json.dumps({topic: {"0": 0}})).count()
    with pytest.raises(PySparkException, match="names partition 7"):
        read(topic, startingOffsets=json.dumps({topic: {"0": 0, "1": 0, "7": 0}})).count()


def test_topics_by_pattern_and_partitions_by_number(broker: Broker, spark: SparkSession, make_topic: MakeTopic) -> None:
    one, two = make_topic(2, prefix="matched"), make_topic(1, prefix="matched")
    numbered(broker, one, 10)
    numbered(broker, two, 5, partitions=1)
    reader = spark.read.format("cursus").option("bootstrap.servers", broker.address)
    found = reader.option("subscribePattern", f"({one}|{two})").load()
    assert {row["topic"]: row["count"] for row in found.groupBy("topic").count().collect()} == {one: 10, two: 5}
    reader = spark.read.format("cursus").option("bootstrap.servers", broker.address)
    assert values(reader.option("assign", json.dumps({one: [1]})).load().collect()) == [1, 3, 5, 7, 9]
    reader = spark.read.format("cursus").option("bootstrap.servers", broker.address)
    with pytest.raises(PySparkException, match=r"partition 9 of topic .* does not exist"):
        reader.option("assign", json.dumps({one: [9]})).load().collect()


def test_a_topic_that_does_not_exist_is_named(read: Read) -> None:
    with pytest.raises(PySparkException, match="topic 'nowhere' does not exist"):
        read("nowhere").count()


def test_large_partitions_are_split(broker: Broker, make_topic: MakeTopic, read: Read) -> None:
    topic = make_topic(2)
    numbered(broker, topic, 3_000)
    rows = read(topic, minPartitions=6)
    assert rows.rdd.getNumPartitions() == 6
    assert values(rows.collect()) == list(range(3_000))
    ordered = rows.where("partition = 0").orderBy("offset").collect()
    assert [int(row["value"]) for row in ordered] == list(range(0, 3_000, 2))


def test_filters_narrow_what_is_fetched(broker: Broker, spark: SparkSession, make_topic: MakeTopic, read: Read) -> None:
    topic = make_topic(4)
    numbered(broker, topic, 400, partitions=4)
    setting = "spark.sql.python.filterPushdown.enabled"
    wanted = "partition = 3 AND offset >= 90 AND offset < 95"
    answers = []
    for enabled in ("false", "true"):
        spark.conf.set(setting, enabled)
        try:
            rows = read(topic).where(wanted)
            answers.append(sorted(row["offset"] for row in rows.collect()))
            partitions = read(topic).where(wanted).rdd.getNumPartitions()
        finally:
            spark.conf.unset(setting)
    assert answers == [list(range(90, 95))] * 2
    assert partitions == 1


def test_filters_on_append_time_are_exact(
    broker: Broker, spark: SparkSession, make_topic: MakeTopic, read: Read
) -> None:
    topic = make_topic(1)
    numbered(broker, topic, 5, partitions=1)
    numbered(broker, topic, 5, partitions=1)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        rows = read(topic, extraColumns="append_time")
        times = sorted({row["append_time"] for row in rows.collect()})
        stored = [row["append_time"] for row in rows.collect()]
        for moment in times:
            assert rows.where(f"append_time >= '{moment}'").count() == sum(one >= moment for one in stored)
            assert rows.where(f"append_time < '{moment}'").count() == sum(one < moment for one in stored)
            assert rows.where(f"append_time = '{moment}'").count() == stored.count(moment)
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_an_empty_topic_is_an_empty_table(make_topic: MakeTopic, read: Read) -> None:
    assert read(make_topic(3)).collect() == []


@pytest.mark.parametrize("fail", [True, False])
def test_expired_offsets_obey_the_option(
    broker: Broker, admin: Admin, make_topic: MakeTopic, read: Read, fail: bool
) -> None:
    topic = make_topic(1)
    numbered(broker, topic, 20, partitions=1)
    admin.delete_records(topic, {0: 12})
    start = json.dumps({topic: {"0": 3}})
    rows = read(topic, startingOffsets=start, failOnDataLoss=fail)
    if fail:
        with pytest.raises(PySparkException, match=r"begins at offset \d+, not at 3.*failOnDataLoss"):
            rows.count()
    else:
        assert values(rows.collect()) == list(range(12, 20))


def test_a_wrong_option_fails_at_load(read: Read) -> None:
    with pytest.raises(PySparkException, match=r"(?i)option `startingOffset`: unknown; did you mean `startingOffsets`"):
        read("orders", startingOffset="earliest")


def test_nobody_listening_is_said(spark: SparkSession) -> None:
    reader = spark.read.format("cursus").option("bootstrap.servers", "127.0.0.1:1").option("subscribe", "orders")
    with pytest.raises(PySparkException, match=r"127\.0\.0\.1:1"):
        reader.load().count()
