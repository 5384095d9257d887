"""Writing the rows of one task. Every set gets the number it will have whenever the task is repeated, so that the
broker stores it once.

The broker remembers the last 64 sets of a producer. Where it has more than that from an earlier attempt, or from a
speculative copy of the task that is ahead, it cannot compare: then the task asks what is stored, proves by its checksum
that its own first rows are the same, and goes on behind them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from typing import NoReturn

import pyarrow as pa

from cursus_grpc import Admin, CursusError, TopicPartition
from cursus_grpc.batches import BatchPublisher, NumberedSet
from cursus_grpc.errors import ProducerFenced, ProducerForgotten, SequenceConflict, SequenceGap, SequenceTooOld
from cursus_proto import chain
from cursus_spark import chunks, markers, routing
from cursus_spark.identity import Identity
from cursus_spark.outcomes import HOW_TO_GO_ON, HOW_TO_REPEAT, NotRepeatable, TaskWritten
from cursus_spark.planning import CLIENT_ID
from cursus_spark.write_options import WriteOptions


@dataclass(slots=True)
class _Lane:
    """The task's records in one partition."""

    next_sequence: int = 0
    checksum: int = chain.EMPTY
    unknown: bool = False
    """Whether the broker could not compare a set."""
    stored: int = 0
    stored_checksum: int = chain.EMPTY
    """What is stored already, up to `stored`, and not sent again."""


class TaskWriter:
    """One attempt at one task."""

    def __init__(self, options: WriteOptions, identity: Identity, task: int, planned: Mapping[str, int]) -> None:
        self._options = options
        self._identity = identity
        self._task = task
        self._producer_id = identity.producer_id(task)
        self._planned = planned
        self._lanes: dict[TopicPartition, _Lane] = {}
        self._admin: Admin
        self._publisher: BatchPublisher
        self._claims: markers.TaskClaims | None = None

    def write(self, batches: Iterable[pa.RecordBatch]) -> TaskWritten:
        """Raises NotRepeatable, RowRefused, ClaimRefused, CursusError."""
        cut = chunks.cut(batches)
        first = next(cut, None)
        if first is None:
            return self._written()
        endpoint, options = self._options.endpoint, self._options
        with (
            Admin(
                endpoint.bootstrap,
                tls=endpoint.tls,
                client_id=CLIENT_ID,
                request_timeout_s=max(options.retry_timeout_s, 1.0),
            ) as self._admin,
            BatchPublisher(
                endpoint.bootstrap,
                tls=endpoint.tls,
                acks=options.acks,
                timeout_s=options.retry_timeout_s,
                client_id=CLIENT_ID,
                on_refused=self._refused,
            ) as self._publisher,
        ):
            if markers.is_finished(self._admin, self._identity):
                for _ in cut:  # Spark has rows to hand over, and waits until they are taken
                    pass
                return self._written(skipped=True)
            if self._identity.version is not None and not self._identity.alone:
                self._claims = markers.TaskClaims(self._admin, self._identity, self._task, self._planned)
            self._write_all(first, cut)
        return self._written()

    def _written(self, *, skipped: bool = False) -> TaskWritten:
        rows = {place: lane.next_sequence for place, lane in self._lanes.items()}
        return TaskWritten(self._identity, self._task, rows, skipped)

    def _write_all(self, first: pa.Table, others: Iterator[pa.Table]) -> None:
        turns = count(self._identity.seed + self._task)
        chunk: pa.Table | None = first
        while chunk is not None:
            fresh = [
                batch
                for one in routing.sets(chunk, next(turns), self._options.topic, self._partition_counts)
                if (batch := self._number(one)) is not None
            ]
            self._publisher.publish(fresh)
            chunk = next(others, None)
        self._publisher.flush()
        for place, lane in self._lanes.items():
            if lane.unknown:
                self._compare(place, lane)
            if lane.stored > lane.next_sequence:
                self._fail(place, f"{lane.stored} records are stored, and the task has {lane.next_sequence} now")

    def _partition_counts(self, topics: Iterable[str]) -> Mapping[str, int]:
        wanted = list(topics)
        for topic in wanted:
            if topic not in self._planned:
                raise routing.RowRefused(f"topic {topic!r} did not exist when the write was planned")
        return self._planned if self._claims is None else self._claims.partitions(wanted)

    def _number(self, one: routing.TargetSet) -> NumberedSet | None:
        """The set to send; None if it is stored already."""
        lane = self._lanes.setdefault(one.place, _Lane())
        if lane.unknown:
            self._publisher.flush()
            self._compare(one.place, lane)
        batch = NumberedSet.of(
            one.place, self._producer_id, self._identity.epoch, lane.next_sequence, one.payload, one.rows
        )
        lane.checksum = chain.extend(lane.checksum, batch.first_sequence, one.rows, batch.packed.crc32c)
        lane.next_sequence = batch.next_sequence
        if batch.first_sequence >= lane.stored:
            return batch
        self._prove(one.place, lane)
        return None

    def _refused(self, batch: NumberedSet, error: CursusError) -> None:
        if isinstance(error, SequenceTooOld):
            self._lanes[batch.place].unknown = True
            return
        if isinstance(error, SequenceConflict):
            self._fail(batch.place, f"other records are stored from number {batch.first_sequence} on", error)
        if isinstance(error, ProducerFenced):
            why = (
                "the write has ended, and this is a left-over of it"
                if self._identity.version is None
                else "a newer micro-batch or version of the same write has begun; this one is a left-over, or two"
                " queries run with one checkpoint"
            )
            raise NotRepeatable(f"{self._name(batch.place)}: {why}") from error
        if isinstance(error, (SequenceGap, ProducerForgotten)):
            raise NotRepeatable(
                f"{self._name(batch.place)}: what was stored before is not known any more, so the rest cannot be"
                f" stored behind it: {error}. {HOW_TO_GO_ON}"
            ) from error
        raise error

    def _compare(self, place: TopicPartition, lane: _Lane) -> None:
        """Find out what is stored. All sets of the lane are answered."""
        found = self._admin.describe_producers(*place, [self._producer_id]).get(self._producer_id)
        if found is None or found.epoch != self._identity.epoch or found.incomplete or found.checksum is None:
            raise NotRepeatable(
                f"{self._name(place)}: more is stored than the broker can compare, and its checksum is not known any"
                f" more. {HOW_TO_GO_ON}"
            )
        lane.unknown = False
        lane.stored, lane.stored_checksum = found.next_sequence, found.checksum
        self._prove(place, lane)

    def _prove(self, place: TopicPartition, lane: _Lane) -> None:
        """At the end of what is stored, the task's own records must have given the same."""
        if lane.next_sequence < lane.stored:
            return
        if lane.next_sequence > lane.stored or lane.checksum != lane.stored_checksum:
            self._fail(place, f"the {lane.stored} records that are stored are not those the task has now")

    def _name(self, place: TopicPartition) -> str:
        return f"task {self._task} of {self._identity.name}, partition {place.partition} of topic {place.topic!r}"

    def _fail(self, place: TopicPartition, what: str, error: CursusError | None = None) -> NoReturn:
        raise NotRepeatable(f"{self._name(place)}: {what}. {HOW_TO_REPEAT} {HOW_TO_GO_ON}") from error
