"""Record sets to rows: stored batches in, one Arrow batch out, a column at a time. Only the columns that are asked for
are made, and nothing is done record by record.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from cursus_grpc import StoredBatch, TopicPartition
from cursus_grpc.errors import CorruptBatch
from cursus_proto import columns as record_columns
from cursus_proto.columns import Columns, Spans
from cursus_proto.v1.records_pb2 import Record
from cursus_spark.arrow_arrays import Bools, Ints, binary_array, constant_text, integers, timestamps
from cursus_spark.schema import APPEND_TIME, CREATE_TIME


class RowBuilder:
    """Makes rows of one partition, in the schema that Spark expects of the reader."""

    def __init__(self, place: TopicPartition, schema: StructType) -> None:
        self._place = place
        self._schema = to_arrow_schema(schema, timezone="UTC")

    def build(self, batches: Sequence[StoredBatch], start: int, end: int) -> pa.RecordBatch:
        """The records of these batches, which follow one another, from offset `start` to `end`.

        Raises CorruptBatch.
        """
        source = _Source(self._place, batches)
        arrays = [_COLUMNS[name](source) for name in self._schema.names]
        rows = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        first = batches[0].base_offset
        begin = max(0, start - first)
        return rows.slice(begin, min(end - first, rows.num_rows) - begin)


@dataclass
class _Source:
    """What the columns are made from. What several of them need is made once, and only if it is needed."""

    place: TopicPartition
    batches: Sequence[StoredBatch]

    @cached_property
    def counts(self) -> Ints:
        return np.array([batch.record_count for batch in self.batches], np.int64)

    @cached_property
    def count(self) -> int:
        return int(self.counts.sum())

    @cached_property
    def records(self) -> Columns:
        # Sets one after the other are a set: the fields of protobuf's repeated messages add up.
        found = record_columns.read(b"".join([batch.packed for batch in self.batches]))
        if found.count != self.count:
            self._find_the_wrong_one()
        return found

    def _find_the_wrong_one(self) -> None:
        topic, partition = self.place
        for batch in self.batches:
            if (found := record_columns.read(batch.packed).count) != batch.record_count:
                raise CorruptBatch(
                    f"the batch at offset {batch.base_offset} of {topic}[{partition}] holds {found} records and claims"
                    f" {batch.record_count}"
                )

    @cached_property
    def octets(self) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        return np.frombuffer(self.records.data, np.uint8)

    def each(self, of_batch: Callable[[StoredBatch], int]) -> Ints:
        """A number of every record's batch."""
        return np.repeat(np.array([of_batch(batch) for batch in self.batches], np.int64), self.counts)

    @cached_property
    def offsets(self) -> Ints:
        return self.each(lambda batch: batch.base_offset) + self.indexes

    @cached_property
    def indexes(self) -> Ints:
        """Of every record in its batch."""
        begins = np.cumsum(self.counts) - self.counts
        return np.arange(self.count) - np.repeat(begins, self.counts)

    @cached_property
    def append_ms(self) -> Ints:
        return self.each(lambda batch: batch.append_time_ms)

    @cached_property
    def stated_ms(self) -> Ints:
        return self.records.timestamps_ms

    def binary(self, spans: Spans, *, empty_is_null: bool = False) -> pa.Array:
        present: Bools | None = None if spans.absent is None else ~spans.absent
        if empty_is_null:
            present = spans.sizes > 0
        return binary_array(self.octets, spans.begins, spans.sizes, present)

    def own_or(self, field: int, otherwise: Ints) -> Ints:
        """A number that legacy records carry themselves where their batch has another."""
        own = self.records.numbered.get(field)
        if own is None:
            return otherwise
        numbers = own.numbers.view(np.int64)
        return numbers if own.absent is None else np.where(own.absent, otherwise, numbers)


def _timestamp(source: _Source) -> pa.Array:
    stated = source.stated_ms
    return timestamps(np.where(stated == 0, source.append_ms, stated))


def _timestamp_type(source: _Source) -> pa.Array:
    return integers(np.where(source.stated_ms == 0, APPEND_TIME, CREATE_TIME), pa.int32())


def _headers(source: _Source) -> pa.Array:
    found = source.records.headers
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    if found is None:
        return pa.nulls(source.count, kind)
    names = source.binary(Spans(found.names.begins, found.names.sizes)).cast(pa.string())
    pairs = pa.StructArray.from_arrays([names, source.binary(found.values)], ["key", "value"])
    none = np.diff(found.offsets) == 0
    # A list without headers is null, as in Spark's Kafka source. Arrow takes that from a null offset.
    offsets = pa.array(found.offsets, pa.int32(), mask=np.append(none, False))
    return pa.ListArray.from_arrays(offsets, pairs)


def _producer_ids(source: _Source) -> pa.Array:
    ids = pa.array([batch.producer_id or None for batch in source.batches], pa.binary())
    return ids.take(pa.array(np.repeat(np.arange(len(source.batches)), source.counts)))


def _of_producer(source: _Source, numbers: Ints) -> pa.Array:
    """Null for records of nobody."""
    anonymous = source.each(lambda batch: not batch.producer_id) == 1
    return integers(numbers, pa.int64(), absent=anonymous)


def _sequence(source: _Source) -> pa.Array:
    first = source.each(lambda batch: batch.first_sequence)
    numbers = source.own_or(Record.SEQUENCE_FIELD_NUMBER, np.where(first < 0, -1, first + source.indexes))
    return integers(numbers, pa.int64(), absent=numbers < 0)


def _stated(numbers: Ints) -> pa.Array:
    """0 means that the producer stated none."""
    return integers(numbers, pa.int64(), absent=numbers == 0)


_COLUMNS: Final[dict[str, Callable[[_Source], pa.Array]]] = {
    "key": lambda source: source.binary(source.records.keys),
    "value": lambda source: source.binary(source.records.values),
    "topic": lambda source: constant_text(source.place.topic, source.count),
    "partition": lambda source: integers(np.full(source.count, source.place.partition), pa.int32()),
    "offset": lambda source: integers(source.offsets, pa.int64()),
    "timestamp": _timestamp,
    "timestampType": _timestamp_type,
    "headers": _headers,
    "append_time": lambda source: timestamps(source.append_ms),
    "batch_offset": lambda source: integers(source.each(lambda batch: batch.base_offset), pa.int64()),
    "producer_id": _producer_ids,
    "producer_epoch": lambda source: _of_producer(
        source, source.own_or(Record.EPOCH_FIELD_NUMBER, source.each(lambda batch: batch.producer_epoch))
    ),
    "sequence": _sequence,
    "event_type": lambda source: source.binary(source.records.event_types, empty_is_null=True),
    "schema_version": lambda source: _stated(source.records.schema_versions.astype(np.int64)),
    "aggregate_version": lambda source: _stated(source.records.aggregate_versions.view(np.int64)),
    "metadata": lambda source: source.binary(source.records.metadata, empty_is_null=True),
}
