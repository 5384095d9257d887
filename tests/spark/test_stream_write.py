"""Streams written to topics: every micro-batch once, however often it is tried."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from cursus_grpc import Admin, Producer
from cursus_grpc.testing import Broker
from tests.spark.conftest import MakeTopic, Read

Start = Callable[..., None]


def numbers(broker: Broker, topic: str, begin: int, end: int, partitions: int) -> None:
    with Producer(broker.address, acks="all") as producer:
        for number in range(begin, end):
            producer.send(topic, b"%d" % number, partition=number % partitions)


def values(rows: DataFrame) -> list[int]:
    return sorted(int(row["value"]) for row in rows.select("value").collect())


@pytest.fixture
def copy(spark: SparkSession, broker: Broker, checkpoint: str) -> Start:
    """Copies a topic into another as far as it goes, with the test's checkpoint."""

    def run(
        source: str, target: str, *, tasks: int = 1, change: Callable[..., Any] | None = None, **options: object
    ) -> None:
        reader = spark.readStream.format("cursus").option("bootstrap.servers", broker.address)
        reader = reader.option("startingOffsets", "earliest").option("minPartitions", tasks)
        rows = reader.option("subscribe", source).load().select("value")
        if change is not None:
            rows = rows.mapInArrow(change, "value binary")
        writer = rows.writeStream.format("cursus").option("checkpointLocation", checkpoint)
        writer = writer.option("bootstrap.servers", broker.address).option("topic", target)
        writer = writer.options(**{name: str(value) for name, value in options.items()})
        writer.trigger(availableNow=True).start().awaitTermination()

    return run


def forget_last_batch(checkpoint: str) -> None:
    """As if the driver had died before Spark noted the batch as done: it is planned again."""
    commits = Path(checkpoint) / "commits"
    last = max(int(one.name) for one in commits.iterdir() if one.name.isdigit())
    (commits / str(last)).unlink()
    (commits / f".{last}.crc").unlink(missing_ok=True)


def forget_finished(admin: Admin, topic: str) -> None:
    """As if the driver had died before the sink noted the batch as finished."""
    groups = [one.name for one in admin.list_groups() if one.name.startswith("cursus-spark-sink/stream/")]
    for group in groups:
        if any(place.topic == topic for place in admin.fetch_offsets(group)):
            admin.delete_group(group)


def test_batches_follow_one_another(broker: Broker, make_topic: MakeTopic, read: Read, copy: Start) -> None:
    source, target = make_topic(2), make_topic(3)
    for begin in (0, 100, 200):
        numbers(broker, source, begin, begin + 100, 2)
        copy(source, target)
    assert values(read(target)) == list(range(300))
    epochs = {row["producer_epoch"] for row in read(target, extraColumns="producer_epoch").collect()}
    assert epochs == {1, 2, 3}


def test_a_finished_batch_is_skipped_whatever_its_tasks(
    broker: Broker, make_topic: MakeTopic, read: Read, copy: Start, checkpoint: str
) -> None:
    source, target = make_topic(1), make_topic(2)
    numbers(broker, source, 0, 100, 1)
    copy(source, target)
    forget_last_batch(checkpoint)
    copy(source, target, tasks=4)
    assert values(read(target)) == list(range(100))
    numbers(broker, source, 100, 200, 1)
    copy(source, target, tasks=4)
    assert values(read(target)) == list(range(200))


def test_an_unfinished_batch_is_stored_once_though_partitions_were_added(
    broker: Broker, admin: Admin, make_topic: MakeTopic, read: Read, copy: Start, checkpoint: str
) -> None:
    source, target = make_topic(2), make_topic(2)
    numbers(broker, source, 0, 100, 2)
    copy(source, target, tasks=2)
    forget_last_batch(checkpoint)
    forget_finished(admin, target)
    admin.add_partitions(target, 7)
    copy(source, target, tasks=2)
    assert values(read(target)) == list(range(100))
    assert {row["partition"] for row in read(target).collect()} <= {0, 1}


@pytest.mark.parametrize(("before", "after"), [(1, 4), (4, 1)])
def test_an_unfinished_batch_in_other_tasks_fails_until_told_otherwise(
    broker: Broker,
    admin: Admin,
    make_topic: MakeTopic,
    read: Read,
    copy: Start,
    checkpoint: str,
    before: int,
    after: int,
) -> None:
    source, target = make_topic(1), make_topic(8)
    numbers(broker, source, 0, 100, 1)
    copy(source, target, tasks=before)
    forget_last_batch(checkpoint)
    forget_finished(admin, target)
    with pytest.raises(PySparkException, match="delivery` = atLeastOnce"):
        copy(source, target, tasks=after)
    copy(source, target, tasks=after, delivery="atLeastOnce")
    assert set(values(read(target))) == set(range(100))
    numbers(broker, source, 100, 200, 1)
    copy(source, target, tasks=after)
    assert values(read(target).where("CAST(CAST(value AS STRING) AS INT) >= 100")) == list(range(100, 200))


def test_a_task_that_is_tried_again_stores_once(broker: Broker, make_topic: MakeTopic, read: Read, copy: Start) -> None:
    source, target = make_topic(1), make_topic(2)
    numbers(broker, source, 0, 20_000, 1)

    def fail_first(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        context = TaskContext.get()
        assert context is not None
        if context.attemptNumber() == 0:
            raise RuntimeError("the first attempt fails here")

    copy(source, target, change=fail_first)
    assert values(read(target)) == list(range(20_000))


def test_what_would_weaken_the_promise_is_refused(broker: Broker, make_topic: MakeTopic, copy: Start) -> None:
    source, target = make_topic(1), make_topic(1)
    with pytest.raises(PySparkException, match="option `txnAppId`: is for batch writes"):
        copy(source, target, txnAppId="a", txnVersion=1)
    with pytest.raises(PySparkException, match="async progress tracking"):
        copy(source, target, asyncProgressTrackingEnabled="true")
