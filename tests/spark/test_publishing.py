"""Tasks and the driver's part of a write against a real broker, without Spark between them: what happens when work is
repeated, doubled, cut differently or left half done."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest

from cursus_grpc import Admin, Consumer, TopicPartition
from cursus_grpc.batches import BatchPublisher, NumberedSet
from cursus_grpc.testing import Broker
from cursus_proto import records
from cursus_proto.v1.records_pb2 import Record
from cursus_spark import chunks
from cursus_spark.identity import Identity, of_batch, of_transaction
from cursus_spark.outcomes import NotRepeatable, TaskWritten
from cursus_spark.publishing import TaskWriter
from cursus_spark.write_options import WriteOptions
from cursus_spark.writer import abandon, finish, planned_partitions
from tests.spark.conftest import MakeTopic


class Sink:
    """A topic, and writes to it."""

    def __init__(self, broker: Broker, topic: str) -> None:
        self._broker = broker
        self.topic = topic
        self.options = WriteOptions.parse({"bootstrap.servers": broker.address, "topic": topic}, streaming=False)

    def task(self, write: Identity, task: int, rows: Sequence[int]) -> TaskWritten:
        writer = TaskWriter(self.options, write, task, planned_partitions(self.options))
        return writer.write([batch(rows)])

    def attempt(self, write: Identity, tasks: Sequence[Sequence[int]]) -> None:
        """All tasks, and the driver's commit."""
        finish(self.options, [self.task(write, number, rows) for number, rows in enumerate(tasks)])

    def values(self) -> list[int]:
        with Consumer(self._broker.address, reset="earliest") as consumer:
            return sorted(
                int(record.value or b"")
                for partition in range(planned_partitions(self.options)[self.topic])
                for record in consumer.range(self.topic, partition)
            )


def batch(rows: Sequence[int]) -> pa.RecordBatch:
    return pa.record_batch([pa.array([f"{row}" for row in rows])], names=["value"])


def split(count: int, tasks: int) -> list[range]:
    return [range(count * task // tasks, count * (task + 1) // tasks) for task in range(tasks)]


@pytest.fixture
def sink(broker: Broker, make_topic: MakeTopic) -> Sink:
    return Sink(broker, make_topic(3))


@pytest.fixture
def small_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten rows a set, so that few rows are many sets."""
    monkeypatch.setattr(chunks.cut, "__defaults__", (10, chunks.BYTES))


def micro_batch(number: int, attempt: str, query: str = "q") -> Identity:
    return Identity(f"stream/{query}", number + 1, number, attempt)


def test_an_unfinished_batch_is_stored_once_by_any_number_of_attempts(sink: Sink) -> None:
    for attempt in ("a", "b", "c"):
        for task, rows in enumerate(split(100, 4)):
            sink.task(micro_batch(0, attempt, sink.topic), task, rows)
    sink.attempt(micro_batch(0, "d", sink.topic), split(100, 4))
    assert sink.values() == list(range(100))


@pytest.mark.parametrize(("before", "after"), [(4, 8), (8, 4), (1, 3), (3, 1)])
def test_other_tasks_than_before_fail_and_go_on_when_told(sink: Sink, before: int, after: int) -> None:
    sink.attempt(micro_batch(0, "a", sink.topic), split(50, before))
    for task, rows in enumerate(split(100, before)):
        sink.task(micro_batch(1, "a", sink.topic), task, rows)
    with pytest.raises(NotRepeatable, match="atLeastOnce"):
        sink.attempt(micro_batch(1, "b", sink.topic), split(100, after))
    alone = Identity(f"stream/{sink.topic}", 2, 1, "c", alone=True)
    sink.attempt(alone, split(100, after))
    assert set(sink.values()) == set(range(100))
    stored = len(sink.values())
    sink.attempt(micro_batch(1, "d", sink.topic), split(100, before))  # finished: skipped
    sink.attempt(micro_batch(2, "d", sink.topic), split(100, after))
    assert len(sink.values()) == stored + 100


def test_a_row_of_a_task_that_is_no_more_is_found(sink: Sink) -> None:
    """Only the last of five tasks had got anywhere before the driver died."""
    sink.task(micro_batch(0, "a", sink.topic), 4, range(80, 100))
    with pytest.raises(NotRepeatable, match="records of task 4, which has 0 now"):
        sink.attempt(micro_batch(0, "b", sink.topic), split(100, 4))


def test_an_attempt_that_has_nothing_any_more_is_found(sink: Sink) -> None:
    sink.task(micro_batch(0, "a", sink.topic), 0, range(5))
    with pytest.raises(NotRepeatable, match="records of task 0, which has 0 now"):
        sink.attempt(micro_batch(0, "b", sink.topic), [[]])


def test_added_partitions_reroute_nothing_before_the_next_batch(sink: Sink, admin: Admin) -> None:
    for task, rows in enumerate(split(100, 4)):
        sink.task(micro_batch(0, "a", sink.topic), task, rows)
    admin.add_partitions(sink.topic, 40)
    sink.attempt(micro_batch(0, "b", sink.topic), split(100, 4))
    assert sink.values() == list(range(100))
    written = sink.task(micro_batch(1, "b", sink.topic), 0, range(5))
    turn = micro_batch(1, "b", sink.topic).seed % 40
    assert [place.partition for place in written.rows] == [turn]


@pytest.mark.usefixtures("small_sets")
@pytest.mark.parametrize("ahead", [10, 640, 650, 1_995, 2_000])
def test_a_task_goes_on_behind_what_is_stored(broker: Broker, make_topic: MakeTopic, ahead: int) -> None:
    """Also behind more sets than the broker remembers, and where a copy of the task has finished."""
    sink = Sink(broker, make_topic(1))
    write = of_batch(sink.topic)
    sink.task(write, 0, range(ahead - ahead % 10))
    sink.attempt(write, [range(2_000)])
    assert sink.values() == list(range(2_000))


@pytest.mark.usefixtures("small_sets")
@pytest.mark.parametrize("stored", [20, 2_000])
@pytest.mark.parametrize(
    "again", [[1, 0, *range(2, 2_000)], list(range(1, 2_001)), list(range(15))], ids=["order", "others", "fewer"]
)
def test_a_task_with_other_rows_fails(broker: Broker, make_topic: MakeTopic, stored: int, again: list[int]) -> None:
    sink = Sink(broker, make_topic(1))
    write = of_batch(sink.topic)
    sink.task(write, 0, range(stored))
    with pytest.raises(NotRepeatable, match="Make the plan deterministic"):
        sink.attempt(write, [again])


def test_a_left_over_of_an_older_batch_is_fenced(broker: Broker, make_topic: MakeTopic) -> None:
    sink = Sink(broker, make_topic(1))
    sink.task(micro_batch(1, "b", sink.topic), 0, range(10))
    with pytest.raises(NotRepeatable, match="a newer micro-batch"):
        sink.task(micro_batch(0, "a", sink.topic), 0, range(10))


def test_a_copy_of_a_task_that_outlives_its_write_stores_nothing(sink: Sink, admin: Admin) -> None:
    write = of_batch(sink.topic)
    sink.attempt(write, split(100, 4))
    ids = [write.producer_id(task) for task in range(4)]
    assert [admin.describe_producers(sink.topic, partition, ids) for partition in range(3)] == [{}, {}, {}]
    with pytest.raises(NotRepeatable, match="the write has ended, and this is a left-over"):
        sink.task(write, 0, split(100, 4)[0])
    assert sink.values() == list(range(100))


def test_a_write_that_has_failed_leaves_no_producers(sink: Sink, admin: Admin) -> None:
    """Also those of tasks that have stored something and failed then, of which the driver hears nothing."""
    write = of_batch(sink.topic)
    written = [sink.task(write, task, rows) for task, rows in enumerate(split(100, 4))]
    abandon(sink.options, write, [written[0], None, None, written[3]])
    ids = [write.producer_id(task) for task in range(4)]
    assert [admin.describe_producers(sink.topic, partition, ids) for partition in range(3)] == [{}, {}, {}]


def test_finished_writes_crowd_nobody_out(broker: Broker, make_topic: MakeTopic) -> None:
    """A partition remembers 10,000 producers, and these are 200 more."""
    sink = Sink(broker, make_topic(1))
    place = TopicPartition(sink.topic, 0)
    payload = records.pack([Record(value=b"0")])
    with BatchPublisher(broker.address, acks=1) as publisher:
        publisher.publish([NumberedSet.of(place, b"living", 0, 0, payload, 1)])
        for job in range(51):
            write = of_batch(f"{sink.topic}-{job}")
            tasks = range(200)
            publisher.publish([NumberedSet.of(place, write.producer_id(task), 0, 0, payload, 1) for task in tasks])
            publisher.flush()
            finish(sink.options, [TaskWritten(write, task, {place: 1}) for task in tasks])
        publisher.publish([NumberedSet.of(place, b"living", 0, 1, payload, 1)])
        publisher.flush()
    assert len(sink.values()) == 51 * 200 + 2


def test_versions_that_are_not_higher_are_skipped(sink: Sink) -> None:
    for version, tasks in ((5, 2), (5, 3), (4, 2)):
        sink.attempt(of_transaction(sink.topic, version, f"{version}-{tasks}"), split(100, tasks))
    assert sink.values() == list(range(100))
    sink.attempt(of_transaction(sink.topic, 6, "x"), split(100, 2))
    assert len(sink.values()) == 200


def test_tasks_beyond_four_thousand_are_looked_for_too(sink: Sink) -> None:
    sink.task(micro_batch(0, "a", sink.topic), 9_000, range(5))
    with pytest.raises(NotRepeatable, match="records of task 9000, which has 0 now"):
        sink.attempt(micro_batch(0, "b", sink.topic), [range(5)])
