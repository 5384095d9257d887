"""What Spark calls to write: on executors for every task, in the driver when all of them are done.

The driver makes a writer for every batch and sends it to the tasks, with what they must agree on.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from cursus_grpc import AsyncAdmin, TopicPartition
from cursus_grpc.errors import CursusError, TopicNotFound
from cursus_spark import identity, markers
from cursus_spark.identity import Identity
from cursus_spark.outcomes import HOW_TO_GO_ON, HOW_TO_REPEAT, NotRepeatable, TaskWritten
from cursus_spark.planning import TopicMissing, ask, gather
from cursus_spark.write_options import WriteOptions

if TYPE_CHECKING:
    import pyarrow as pa

log: Final = logging.getLogger("cursus_spark")


class CursusWriter(DataSourceArrowWriter):
    """A batch write: once however often its tasks are repeated; with a transaction also if it is repeated whole."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._planned = planned_partitions(options)
        attempt = uuid.uuid4().hex
        transaction = options.transaction
        chosen = (
            identity.of_batch(attempt)
            if transaction is None
            else identity.of_transaction(transaction.app_id, transaction.version, attempt)
        )
        self._identity = replace(chosen, alone=options.at_least_once)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _write(self._options, self._identity, _context(), self._planned, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        finish(self._options, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """What its tasks have stored stays. If the write is never repeated, its tasks can be forgotten."""
        if self._identity.version is None:
            abandon(self._options, self._identity, messages)


class CursusStreamWriter(DataSourceStreamArrowWriter):
    """A stream's micro-batches, each written once."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._planned = planned_partitions(options)
        self._attempt = uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = _context()
        chosen = replace(identity.of_micro_batch(context, self._attempt), alone=self._options.at_least_once)
        return _write(self._options, chosen, context, self._planned, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        finish(self._options, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing can be taken back: the batch is repeated, and recognised."""


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "rows are written in tasks only"
    return context


def _write(
    options: WriteOptions,
    write: Identity,
    context: TaskContext,
    planned: Mapping[str, int],
    rows: Iterator[pa.RecordBatch],
) -> TaskWritten:
    from cursus_spark.publishing import TaskWriter  # only tasks need what it imports

    return TaskWriter(options, write, context.partitionId(), planned).write(rows)


def planned_partitions(options: WriteOptions) -> dict[str, int]:
    """How many partitions the topics have that may be written to. Raises TopicMissing."""

    async def asked(admin: AsyncAdmin) -> dict[str, int]:
        if options.topic is None:
            return {topic.name: topic.partition_count for topic in await admin.list_topics()}
        try:
            return {options.topic: (await admin.describe_topic(options.topic)).topic.partition_count}
        except TopicNotFound as error:
            raise TopicMissing(f"topic {options.topic!r} does not exist") from error

    return ask(options.endpoint, asked)


def finish(options: WriteOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    """All tasks have written. Note it, unless something is stored that none of them has. Raises NotRepeatable."""
    tasks = [message for message in messages if isinstance(message, TaskWritten)]
    if not tasks:
        return
    write = tasks[0].identity
    if any(task.skipped for task in tasks):
        log.info("%s, version %s, was written before; nothing was written now", write.name, write.version)
        return
    ask(options.endpoint, lambda admin: _finish(admin, write, tasks))


async def _finish(admin: AsyncAdmin, write: Identity, tasks: Sequence[TaskWritten]) -> None:
    topics = {place.topic for task in tasks for place in task.rows}
    if not write.alone:
        if write.version is None:
            suspects, most_tasks = topics, len(tasks)
        else:
            suspects, most_tasks = await markers.other_attempts(admin, write)
        await _check(admin, write, tasks, suspects, max(most_tasks, len(tasks)))
    if write.version is not None:
        await markers.finish(admin, write, topics)
    else:
        numbers: dict[TopicPartition, list[int]] = {}
        for task in tasks:
            for place in task.rows:
                numbers.setdefault(place, []).append(task.task)
        await _release(admin, write, numbers)


def abandon(options: WriteOptions, write: Identity, messages: Sequence[WriterCommitMessage | None]) -> None:
    """A write that is never repeated has failed. `messages` has a place for each task, also for those that failed."""
    topics = {place.topic for message in messages if isinstance(message, TaskWritten) for place in message.rows}
    if options.topic is not None:
        topics.add(options.topic)

    async def release(admin: AsyncAdmin) -> None:
        places = await _places(admin, topics)
        await _release(admin, write, dict.fromkeys(places, range(len(messages))))

    try:
        ask(options.endpoint, release)
    except CursusError as error:
        _not_released(write, error)


async def _release(admin: AsyncAdmin, write: Identity, tasks: Mapping[TopicPartition, Sequence[int]]) -> None:
    """Nobody writes in the name of these tasks any more: let the partitions forget what they have stored, so that they
    do not crowd out others, and keep out copies of them that still live."""

    async def release(place: TopicPartition, numbers: Sequence[int]) -> None:
        await admin.release_producers(*place, {write.producer_id(number): write.epoch for number in numbers})

    try:
        await gather(release(place, numbers) for place, numbers in tasks.items())
    except CursusError as error:
        # What was to be written is stored, or has failed for a reason of its own.
        _not_released(write, error)


def _not_released(write: Identity, error: CursusError) -> None:
    log.warning(
        "the producers of %s stay in the broker's memory until they have been idle for long: %s", write.name, error
    )


async def _places(admin: AsyncAdmin, topics: Collection[str]) -> list[TopicPartition]:
    """All partitions of these topics."""
    return [
        TopicPartition(topic, number)
        for topic in sorted(topics)
        for number in range((await admin.describe_topic(topic)).topic.partition_count)
    ]


async def _check(
    admin: AsyncAdmin, write: Identity, tasks: Sequence[TaskWritten], topics: set[str], most_tasks: int
) -> None:
    """Compare what the tasks have with all that is stored of the write: another attempt may have had other tasks, or
    rows of theirs elsewhere."""
    rows: dict[TopicPartition, dict[int, int]] = {}
    for task in tasks:
        for place, count in task.rows.items():
            rows.setdefault(place, {})[task.task] = count
    ids = {write.producer_id(number): number for number in range(most_tasks)}

    async def compare(place: TopicPartition) -> None:
        found = await admin.describe_producers(*place, ids)
        stored = {ids[one]: state.next_sequence for one, state in found.items() if state.epoch == write.epoch}
        _compare(write, place, stored, rows.get(place, {}))

    await gather(map(compare, await _places(admin, topics)))


def _compare(write: Identity, place: TopicPartition, stored: Mapping[int, int], written: Mapping[int, int]) -> None:
    for task in sorted(stored.keys() | written.keys()):
        if stored.get(task, 0) != written.get(task, 0):
            raise NotRepeatable(
                f"{write.name}, version {write.version}: partition {place.partition} of topic {place.topic!r} holds"
                f" {stored.get(task, 0)} records of task {task}, which has {written.get(task, 0)} now."
                f" {HOW_TO_REPEAT} {HOW_TO_GO_ON}"
            )
