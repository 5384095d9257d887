"""Tables written to topics: every column, and once however often tasks are repeated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from cursus_grpc import Admin
from cursus_grpc.testing import Broker
from cursus_proto.partitioner import partition_for_key
from tests.spark.conftest import MakeTopic, Read

Transform = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def write(broker: Broker, rows: DataFrame, topic: str | None = None, **options: object) -> None:
    given = {"bootstrap.servers": broker.address} | ({} if topic is None else {"topic": topic}) | options
    writer = rows.write.format("cursus").mode("append")
    writer.options(**{name: str(value) for name, value in given.items()}).save()


def values(rows: DataFrame) -> list[int]:
    return sorted(int(row["value"]) for row in rows.select("value").collect())


def numbered(spark: SparkSession, count: int, tasks: int) -> DataFrame:
    return spark.range(0, count, 1, tasks).selectExpr("CAST(id AS STRING) AS value")


def failing(after: int, again: Callable[[pa.RecordBatch], pa.RecordBatch] = lambda batch: batch) -> Transform:
    """Rows that end with a failure in the first attempt at a task; the next one has them all, perhaps changed."""

    def transform(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        first = context.attemptNumber() == 0
        handed_out = 0
        for batch in batches:
            yield batch if first else again(batch)
            handed_out += batch.num_rows
            if first and handed_out >= after:
                raise RuntimeError("the first attempt fails here")

    return transform


def test_every_column_arrives(broker: Broker, spark: SparkSession, make_topic: MakeTopic, read: Read) -> None:
    topic = make_topic(3)
    moment = datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
    headers = [("a", b"1"), ("a", b""), ("ü", None)]
    rows = spark.createDataFrame(
        [
            (b"k", b"\x00\xff", topic, 2, headers, moment),
            (b"", b"", topic, 1, [], None),
            (None, None, topic, 0, None, None),
        ],
        "key binary, value binary, topic string, partition int,"
        " headers array<struct<key:string,value:binary>>, timestamp timestamp",
    )
    write(broker, rows.coalesce(1))
    null, empty, full = read(topic, includeHeaders=True).orderBy("partition").collect()
    assert (full["key"], full["value"], full["partition"]) == (b"k", b"\x00\xff", 2)
    assert full["timestamp"] == moment.replace(tzinfo=None)
    assert [tuple(header) for header in full["headers"]] == headers
    assert (empty["key"], empty["value"], empty["partition"], empty["timestampType"]) == (b"", b"", 1, 1)
    assert (null["key"], null["value"], null["partition"], null["headers"]) == (None, None, 0, None)


def test_keys_decide_as_for_every_client(
    broker: Broker, spark: SparkSession, make_topic: MakeTopic, read: Read
) -> None:
    one, two = make_topic(5), make_topic(3)
    rows = spark.range(0, 3_000, 1, 3).selectExpr(
        f"IF(id % 2 = 0, '{one}', '{two}') AS topic", "concat('key-', id % 50) AS key", "CAST(id AS STRING) AS value"
    )
    write(broker, rows)
    for topic, partitions, odd in ((one, 5, 0), (two, 3, 1)):
        found = read(topic).orderBy("partition", "offset").collect()
        assert sorted(int(row["value"]) for row in found) == list(range(odd, 3_000, 2))
        assert all(row["partition"] == partition_for_key(row["key"], partitions) for row in found)


def test_a_round_trip_keeps_order_in_each_partition(
    broker: Broker, spark: SparkSession, make_topic: MakeTopic, read: Read
) -> None:
    source, copy = make_topic(2), make_topic(2)
    write(broker, numbered(spark, 30_000, 3), source)
    write(broker, read(source), copy)
    for partition in (0, 1):
        wanted, found = (
            [row["value"] for row in read(topic).where(f"partition = {partition}").orderBy("offset").collect()]
            for topic in (source, copy)
        )
        assert wanted == found


@pytest.mark.parametrize(("count", "after"), [(30_000, 20_000), (400_000, 360_000)], ids=["few", "more than 64 sets"])
def test_a_task_that_is_tried_again_stores_once(
    broker: Broker, spark: SparkSession, make_topic: MakeTopic, read: Read, count: int, after: int
) -> None:
    topic = make_topic(1)
    write(broker, numbered(spark, count, 1).mapInArrow(failing(after), "value string"), topic)
    assert values(read(topic)) == list(range(count))
    (row,) = read(topic).selectExpr("max(offset) AS last").collect()
    assert row["last"] == count - 1


@pytest.mark.parametrize(("count", "after"), [(30_000, 20_000), (400_000, 360_000)], ids=["few", "more than 64 sets"])
def test_a_task_that_has_other_rows_when_tried_again_fails(
    broker: Broker, spark: SparkSession, make_topic: MakeTopic, count: int, after: int
) -> None:
    def other(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.slice(0, batch.num_rows - 1)

    topic = make_topic(1)
    rows = numbered(spark, count, 1).mapInArrow(failing(after, other), "value string")
    with pytest.raises(PySparkException, match="Make the plan deterministic"):
        write(broker, rows, topic)


def test_two_writes_in_one_foreach_batch_both_store(
    broker: Broker, spark: SparkSession, make_topic: MakeTopic, read: Read, checkpoint: str
) -> None:
    source, target = make_topic(1), make_topic(2)
    write(broker, numbered(spark, 100, 1), source)

    def twice(rows: DataFrame, _: int) -> None:
        write(broker, rows.select("value"), target)
        write(broker, rows.select("value"), target)

    stream = spark.readStream.format("cursus").option("bootstrap.servers", broker.address)
    stream = stream.option("subscribe", source).option("startingOffsets", "earliest")
    query = stream.load().writeStream.foreachBatch(twice).option("checkpointLocation", checkpoint)
    query.trigger(availableNow=True).start().awaitTermination()
    assert set(Counter(values(read(target))).items()) == {(number, 2) for number in range(100)}


def test_a_version_is_written_once(broker: Broker, spark: SparkSession, make_topic: MakeTopic, read: Read) -> None:
    topic = make_topic(2)
    for version in (3, 3, 2, 4):
        write(broker, numbered(spark, 100, 2), topic, txnAppId="nightly", txnVersion=version)
    assert set(Counter(values(read(topic))).items()) == {(number, 2) for number in range(100)}
    write(broker, numbered(spark, 100, 2), topic, txnAppId="other", txnVersion=3)
    assert read(topic).count() == 300


def test_what_cannot_be_written_is_named(broker: Broker, spark: SparkSession, make_topic: MakeTopic) -> None:
    topic = make_topic(2)
    rows = numbered(spark, 1, 1)
    with pytest.raises(PySparkException, match="column 'value' has to be binary or string, not bigint"):
        write(broker, spark.range(1).withColumnRenamed("id", "value"), topic)
    with pytest.raises(PySparkException, match="column 'colour' cannot be written"):
        write(broker, rows.selectExpr("value", "'red' AS colour"), topic)
    with pytest.raises(PySparkException, match="there is no column 'value'"):
        write(broker, rows.selectExpr("value AS key"), topic)
    with pytest.raises(PySparkException, match="neither the option `topic` nor a column 'topic'"):
        write(broker, rows)
    with pytest.raises(PySparkException, match="topic 'nowhere' does not exist"):
        write(broker, rows, "nowhere")
    with pytest.raises(PySparkException, match="has no partition 7: it has 2"):
        write(broker, rows.selectExpr("value", "7 AS partition"), topic)
    with pytest.raises(PySparkException, match="null as its topic"):
        write(broker, rows.selectExpr("value", "CAST(null AS STRING) AS topic"))
    with pytest.raises(PySparkException, match=r"(?i)option `topics`: unknown; did you mean `topic`"):
        write(broker, rows, topic, topics="a")
    with pytest.raises(PySparkException, match="cannot be overwritten"):
        rows.write.format("cursus").mode("overwrite").option("bootstrap.servers", broker.address).option(
            "topic", topic
        ).save()


def test_nothing_is_written_of_nothing(
    broker: Broker, spark: SparkSession, admin: Admin, make_topic: MakeTopic, read: Read
) -> None:
    topic = make_topic(1)
    write(broker, numbered(spark, 10, 2).where("value = 'none'"), topic)
    assert read(topic).count() == 0
