"""A topic read as a stream: every record once, over restarts, limits, new partitions and lost data."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from cursus_grpc import END, Admin, Producer, TopicConfig
from cursus_grpc.testing import Broker
from tests.harness.terminal import CURSUS, Outcome, command_environment, run_piped
from tests.harness.waiting import eventually
from tests.spark.conftest import MakeTopic

DEADLINE_S = 240.0


class Stream:
    """A query that collects what it reads, and what every micro-batch had."""

    def __init__(self, spark: SparkSession, broker: Broker, topic: str, checkpoint: str) -> None:
        self._spark = spark
        self._checkpoint = checkpoint
        self._given: dict[str, object] = {"bootstrap.servers": broker.address, "subscribe": topic}
        self.batches: list[list[tuple[int, int, bytes]]] = []
        self._may_go_on = threading.Event()
        self._may_go_on.set()
        self._query: StreamingQuery | None = None

    def start(self, *, available_now: bool = False, **options: object) -> StreamingQuery:
        given = {"startingOffsets": "earliest"} | self._given | options
        reader = self._spark.readStream.format("cursus")
        rows = reader.options(**{name: str(value) for name, value in given.items()}).load()
        writer = rows.writeStream.foreachBatch(self._collect).option("checkpointLocation", self._checkpoint)
        writer = writer.trigger(availableNow=True) if available_now else writer.trigger(processingTime="0 seconds")
        self._query = writer.start()
        return self._query

    def run(self, **options: object) -> None:
        """Everything that is there now."""
        query = self.start(available_now=True, **options)
        assert query.awaitTermination(int(DEADLINE_S))

    def stop(self) -> None:
        if self._query is not None:
            self._query.stop()

    def _collect(self, rows: DataFrame, _: int) -> None:
        self.batches.append([(row["partition"], row["offset"], row["value"]) for row in rows.collect()])
        self._may_go_on.wait()

    def hold(self) -> None:
        """Every batch stays under way from now on, with its rows collected, until it may go on."""
        self._may_go_on.clear()

    def go_on(self) -> None:
        self._may_go_on.set()

    @property
    def values(self) -> list[bytes]:
        return [value for batch in self.batches for _, _, value in batch]

    def wait_for(self, count: int) -> None:
        """Fails if the query ends before it has read so many records."""

        def there() -> bool:
            assert self._query is not None
            if (error := self._query.exception()) is not None:
                raise error
            return len(self.values) >= count

        wait_until(there)


def wait_until(condition: Callable[[], bool]) -> None:
    asyncio.run(eventually(condition, DEADLINE_S, ignoring=()))


MakeStream = Callable[[str], Stream]


@pytest.fixture
def stream(spark: SparkSession, broker: Broker, checkpoint: str) -> Iterator[MakeStream]:
    made: list[Stream] = []

    def make(topic: str) -> Stream:
        made.append(Stream(spark, broker, topic, checkpoint))
        return made[-1]

    yield make
    for one in made:
        one.stop()


def publish(broker: Broker, topic: str, numbers: range, *, partitions: int = 2) -> list[bytes]:
    values = [b"%d" % number for number in numbers]
    with Producer(broker.address, acks="all") as producer:
        for number, value in zip(numbers, values, strict=True):
            producer.send(topic, value, partition=number % partitions)
    return values


def lag(admin: Admin, group: str) -> dict[int, tuple[int | None, int]]:
    found = admin.describe_group(group).partitions
    return {one.partition.partition: (one.committed_offset, one.lag_records) for one in found}


def test_a_stream_follows_and_its_lag_is_seen(
    broker: Broker, admin: Admin, make_topic: MakeTopic, stream: MakeStream
) -> None:
    topic = make_topic(2)
    first = publish(broker, topic, range(100))
    running = stream(topic)
    query = running.start(groupId=f"{topic}-group")
    running.wait_for(100)
    second = publish(broker, topic, range(100, 150))
    running.wait_for(150)
    assert sorted(running.values) == sorted(first + second)
    # Spark says that a batch is done when it plans the next one; the group must not wait for a next one.
    wait_until(lambda: lag(admin, f"{topic}-group") == {0: (75, 0), 1: (75, 0)})
    progress: Any = query.lastProgress
    (source,) = progress["sources"]
    assert json.loads(source["latestOffset"])[topic] == {"0": 75, "1": 75}


def test_lag_shows_on_the_command_line_and_falls_to_zero(
    broker: Broker, make_topic: MakeTopic, stream: MakeStream, tmp_path: Path
) -> None:
    topic = make_topic(2)
    group = f"{topic}-group"
    environment = command_environment(tmp_path, CURSUS_BROKER=broker.address)

    def described(*flags: str) -> Outcome:
        return asyncio.run(run_piped([*CURSUS, "group", "describe", group, *flags], environment))

    def wait_for_lag(records: int) -> None:
        async def shown() -> Outcome:
            told = await run_piped([*CURSUS, "group", "describe", group, "--output", "json"], environment)
            assert told.status == 0, told.stderr  # the group may not be there yet
            assert sum(one["lag_records"] for one in told.json["partitions"]) == records, told.text
            return told

        waiting: Coroutine[Any, Any, Outcome] = eventually(shown, DEADLINE_S)
        asyncio.run(waiting)

    running = stream(topic)
    running.hold()
    publish(broker, topic, range(100))
    running.start(groupId=group, maxOffsetsPerTrigger=40)
    wait_for_lag(100)
    assert "lag 100 in 2 partitions" in described().text
    running.go_on()
    wait_for_lag(0)
    assert "lag 0 in 2 partitions" in described().text


def test_a_restarted_stream_goes_on_where_it_was(
    broker: Broker, admin: Admin, make_topic: MakeTopic, stream: MakeStream
) -> None:
    topic = make_topic(2)
    running = stream(topic)
    everything = publish(broker, topic, range(40))
    running.run()
    everything += publish(broker, topic, range(40, 60))
    running.run()
    running.run()
    assert sorted(running.values) == sorted(everything)
    # The group's name lives in the checkpoint, so all three runs have shared one.
    (group,) = [
        one.name
        for one in admin.list_groups()
        if one.name.startswith("cursus-spark-") and _reads(admin, one.name, topic)
    ]
    assert lag(admin, group) == {0: (30, 0), 1: (30, 0)}


def _reads(admin: Admin, group: str, topic: str) -> bool:
    return any(one.partition.topic == topic for one in admin.describe_group(group).partitions)


def test_a_limit_is_honoured_in_every_batch(broker: Broker, make_topic: MakeTopic, stream: MakeStream) -> None:
    topic = make_topic(2)
    everything = publish(broker, topic, range(50))
    running = stream(topic)
    running.run(maxOffsetsPerTrigger=20)
    assert [len(batch) for batch in running.batches] == [20, 20, 10]
    assert sorted(running.values) == sorted(everything)


def test_a_batch_waits_for_enough_records(broker: Broker, make_topic: MakeTopic, stream: MakeStream) -> None:
    topic = make_topic(1)
    running = stream(topic)
    publish(broker, topic, range(5), partitions=1)
    running.start(minOffsetsPerTrigger=50, maxTriggerDelay="1h")
    running.wait_for(5)  # the first batch comes at once
    publish(broker, topic, range(5, 30), partitions=1)
    publish(broker, topic, range(30, 60), partitions=1)
    running.wait_for(60)
    assert [len(batch) for batch in running.batches if batch] == [5, 55]


def test_partitions_that_are_added_are_read_from_their_beginning(
    broker: Broker, admin: Admin, make_topic: MakeTopic, stream: MakeStream
) -> None:
    topic = make_topic(1)
    everything = publish(broker, topic, range(10), partitions=1)
    running = stream(topic)
    running.start()
    running.wait_for(10)
    admin.add_partitions(topic, 3)
    everything += publish(broker, topic, range(10, 40), partitions=3)
    running.wait_for(40)
    assert sorted(running.values) == sorted(everything)


def test_a_stream_begins_at_the_end_by_default(broker: Broker, make_topic: MakeTopic, stream: MakeStream) -> None:
    topic = make_topic(1)
    publish(broker, topic, range(10), partitions=1)
    running = stream(topic)
    running.run(startingOffsets="latest")
    fresh = publish(broker, topic, range(10, 15), partitions=1)
    running.run(startingOffsets="latest")
    assert running.values == fresh


@pytest.mark.parametrize("fail", [True, False])
def test_retention_under_a_stream_obeys_the_option(
    broker: Broker, admin: Admin, make_topic: MakeTopic, stream: MakeStream, fail: bool
) -> None:
    topic = make_topic(1)
    publish(broker, topic, range(10), partitions=1)
    running = stream(topic)
    running.run(failOnDataLoss=fail)
    publish(broker, topic, range(10, 30), partitions=1)
    admin.delete_records(topic, {0: 20})
    if fail:
        with pytest.raises(PySparkException, match=r"10 to 19 expired unread.*failOnDataLoss"):
            running.run(failOnDataLoss=fail)
    else:
        running.run(failOnDataLoss=fail)
        assert running.values == [b"%d" % number for number in (*range(10), *range(20, 30))]


@pytest.mark.parametrize("fail", [True, False])
def test_retention_overtakes_a_running_stream(tmp_path: Path, spark: SparkSession, fail: bool) -> None:
    """The broker's own retention, by size, while a batch of the stream is under way, and partitions come meanwhile."""
    with Broker("--topics-retention-check-ms", "100") as broker, Admin(broker.address) as admin:
        config = TopicConfig(segment_bytes=4_096, retention_bytes=16_384)
        admin.create_topic("orders", 1, config)
        running = Stream(spark, broker, "orders", str(tmp_path / "own-checkpoint"))
        publish(broker, "orders", range(10), partitions=1)
        running.hold()
        query = running.start(failOnDataLoss=fail)
        try:
            running.wait_for(10)
            admin.add_partitions("orders", 2)
            added = publish(broker, "orders", range(1, 20, 2), partitions=2)
            # Small batches: a segment is deleted whole, and the one that is written to stays.
            with Producer(broker.address, acks="all", batch_records=10) as producer:
                for number in range(1_000):
                    producer.send("orders", b"%d-" % number + b"x" * 100, partition=0)
            wait_until(lambda: admin.list_offsets("orders", END, [0])[0].earliest_offset > 10)
            running.go_on()
            if fail:
                wait_until(lambda: query.exception() is not None)
                assert "10 to" in str(query.exception())
                assert "expired unread" in str(query.exception())
                assert "failOnDataLoss" in str(query.exception())
                assert len(running.values) == 10
            else:
                wait_until(lambda: any(value.startswith(b"999-") for value in running.values))
                assert query.exception() is None
                earliest = admin.list_offsets("orders", END, [0])[0].earliest_offset
                places = [place for batch in running.batches for place in batch]
                read = [offset for partition, offset, _ in places if partition == 0]
                # Every offset that is there once, in order, and a gap where records expired.
                assert read == sorted(set(read))
                assert set(read) >= set(range(earliest, 1_010))
                assert sorted(value for partition, _, value in places if partition == 1) == sorted(added)
        finally:
            running.go_on()
            running.stop()


@pytest.mark.parametrize("fail", [True, False])
def test_a_topic_created_anew_under_a_stream_is_a_loss_and_read_from_its_beginning(
    broker: Broker, admin: Admin, make_topic: MakeTopic, stream: MakeStream, fail: bool
) -> None:
    """By its offsets alone the new topic looks like the old one with fifteen records more."""
    topic = make_topic(1)
    publish(broker, topic, range(10), partitions=1)
    running = stream(topic)
    running.run(failOnDataLoss=fail)
    admin.delete_topic(topic)
    admin.create_topic(topic, 1)
    anew = publish(broker, topic, range(100, 125), partitions=1)
    if fail:
        with pytest.raises(PySparkException, match="cut at offset 0"):
            running.run(failOnDataLoss=fail)
    else:
        running.run(failOnDataLoss=fail)
        assert running.values[10:] == anew


def test_a_broker_that_restarts_is_waited_for(tmp_path: Path, spark: SparkSession) -> None:
    with Broker() as broker:
        with Admin(broker.address) as admin:
            admin.create_topic("orders", 2)
        running = Stream(spark, broker, "orders", str(tmp_path / "own-checkpoint"))
        everything = publish(broker, "orders", range(50))
        running.start()
        try:
            running.wait_for(50)
            broker.kill()
            broker.restart()
            everything += publish(broker, "orders", range(50, 80))
            running.wait_for(80)
        finally:
            running.stop()
        assert sorted(running.values) == sorted(everything)


def test_options_of_batches_are_refused_by_name(broker: Broker, make_topic: MakeTopic, stream: MakeStream) -> None:
    with pytest.raises(PySparkException, match=r"(?i)option `endingOffsets`: is for batch reads"):
        stream(make_topic(1)).run(endingOffsets="latest")
