"""Received records: unpacked a batch at a time, each a light view of its batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, Generic, NamedTuple, cast

from typing_extensions import TypeVar

from cursus_grpc.errors import BatchTooLarge, CorruptBatch, DeserializerFailed
from cursus_grpc.types import TopicPartition
from cursus_proto import codecs
from cursus_proto import records as record_sets
from cursus_proto.bounds import Bounds
from cursus_proto.internal.v1.opaque_pb2 import RecordBatch
from cursus_proto.uniform import cut_values
from cursus_proto.v1 import records_pb2

Value = TypeVar("Value", default=bytes)
"""What a consumer hands out as values: what its deserializer makes of them."""
Key = TypeVar("Key", default=bytes)


class Deserializers(NamedTuple):
    """What makes values and keys of bytes; None: they are handed out as bytes. Null stays null."""

    of_value: Callable[[bytes], Any] | None = None
    of_key: Callable[[bytes], Any] | None = None

    @property
    def any(self) -> bool:
        return self.of_value is not None or self.of_key is not None


class BatchInfo:
    """What the records of a batch share, and where the rest of them is found."""

    __slots__ = ("_base_offset", "_messages", "_packed", "append_time_ms", "deserializers", "partition", "topic")

    def __init__(
        self,
        place: TopicPartition,
        append_time_ms: int,
        base_offset: int,
        packed: bytes,
        messages: Sequence[records_pb2.Record] | None = None,
        deserializers: Deserializers | None = None,
    ) -> None:
        """`messages` is what the plain set `packed` holds, if it was parsed already."""
        self.deserializers = deserializers
        self.topic, self.partition = place
        self.append_time_ms = append_time_ms
        self._base_offset = base_offset
        self._packed = packed
        self._messages = messages

    def message(self, offset: int) -> records_pb2.Record:
        """The record at this offset with all its fields. The first call parses the set, for all of its records."""
        packed = self._packed  # looked at first: another thread may parse it meanwhile, and then lets go of it
        messages = self._messages
        if messages is None:
            messages = self._messages = record_sets.parse(packed)
            self._packed = b""
        return messages[offset - self._base_offset]


class Record(Generic[Value, Key]):
    """A record as a consumer meets it. Equal to another one if everything in it is, its place in the log included.

    Fields besides value and offset are read from its batch when asked for. A record that is kept keeps its batch.
    """

    # Without an `__init__`: to call one takes longer than everything else that a record needs. See `make_records`.
    __slots__ = ("_batch", "offset", "value")
    _batch: BatchInfo
    offset: int
    value: Value | None
    """None: null, which is not an empty value."""

    @property
    def topic(self) -> str:
        return self._batch.topic

    @property
    def partition(self) -> int:
        return self._batch.partition

    @property
    def key(self) -> Key | None:
        """None: no key. An empty key is a key."""
        return cast("Key | None", self.raw_key)

    @property
    def raw_value(self) -> bytes | None:
        """The value as it is stored, whatever the consumer's deserializer makes of it."""
        return cast("bytes | None", self.value)

    @property
    def raw_key(self) -> bytes | None:
        """The key as it is stored."""
        message = self._message
        return message.key if message.HasField("key") else None

    @property
    def timestamp_ms(self) -> int:
        """When the event happened, as the producer stated it; else when the broker stored it."""
        return self._message.timestamp_ms or self._batch.append_time_ms

    @property
    def append_time_ms(self) -> int:
        """When the broker stored the record."""
        return self._batch.append_time_ms

    @property
    def headers(self) -> tuple[tuple[str, bytes | None], ...]:
        """A value of None is null."""
        return tuple((header.key, value_of(header)) for header in self._message.headers)

    @property
    def event_type(self) -> bytes:
        return self._message.event_type

    @property
    def schema_version(self) -> int:
        return self._message.schema_version

    @property
    def aggregate_version(self) -> int:
        return self._message.aggregate_version

    @property
    def metadata(self) -> bytes:
        return self._message.metadata

    @property
    def _message(self) -> records_pb2.Record:
        return self._batch.message(self.offset)

    @property
    def _place(self) -> tuple[str, int, int]:
        return self._batch.topic, self._batch.partition, self.offset

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Record):
            return NotImplemented
        return (
            self._place == other._place
            and self.raw_value == other.raw_value
            and self.append_time_ms == other.append_time_ms
            and self._message == other._message
        )

    def __hash__(self) -> int:
        return hash(self._place)

    def __repr__(self) -> str:
        return (
            f"Record(topic={self.topic!r}, partition={self.partition}, offset={self.offset},"
            f" key={self.raw_key!r}, value={self.raw_value!r})"
        )

    def __reduce__(self) -> tuple[object, ...]:
        """By itself, without the batch it came in."""
        packed = record_sets.pack([self._message])
        return _restore, (self._place, self.append_time_ms, packed, self._batch.deserializers)


class DeserializedRecord(Record[Value, Key]):
    """A record of a consumer with deserializers, which are asked when one looks: what they cannot read is told there,
    with the record at hand, and keeps nobody from the records behind it."""

    __slots__ = ("raw_value",)
    raw_value: bytes | None

    @property
    def value(self) -> Value | None:  # type: ignore[override]  # nobody sets it
        """Raises DeserializerFailed."""
        assert self._batch.deserializers is not None
        return cast("Value | None", self._made("value", self.raw_value, self._batch.deserializers.of_value))

    @property
    def key(self) -> Key | None:
        """Raises DeserializerFailed."""
        assert self._batch.deserializers is not None
        return cast("Key | None", self._made("key", self.raw_key, self._batch.deserializers.of_key))

    def _made(self, what: str, raw: bytes | None, deserializer: Callable[[bytes], Any] | None) -> Any:
        if raw is None or deserializer is None:
            return raw
        try:
            return deserializer(raw)
        except Exception as error:
            topic, partition, offset = self._place
            raise DeserializerFailed(
                f"the {what} at offset {offset} of {topic}[{partition}] cannot be deserialized: {error!r}",
                {"topic": topic, "partition": str(partition), "offset": str(offset)},
            ) from error


def _restore(
    place: tuple[str, int, int], append_time_ms: int, packed: bytes, deserializers: Deserializers | None
) -> Record[Any, Any]:
    topic, partition, offset = place
    messages = record_sets.unpack(packed)
    batch = BatchInfo(TopicPartition(topic, partition), append_time_ms, offset, packed, messages, deserializers)
    (record,) = make_records([value_of(messages[0])], [offset], batch)
    return record


def value_of(message: records_pb2.Record | records_pb2.Header) -> bytes | None:
    """None: null."""
    value = message.value
    return value if value or message.HasField("value") else None


def make_records(
    values: Iterable[bytes | None], offsets: Iterable[int], batch: BatchInfo
) -> Iterator[Record[Any, Any]]:
    """Records of a batch, each made when it is asked for. They are then as short-lived as they can be, and that halves
    their cost. An offset is taken only for a value that is there."""
    return _make(values, offsets, batch) if batch.deserializers is None else _make_raw(values, offsets, batch)


def _make_raw(values: Iterable[bytes | None], offsets: Iterable[int], batch: BatchInfo) -> Iterator[Record[Any, Any]]:
    for value, offset in zip(values, offsets):  # noqa: B905  # as below
        record: DeserializedRecord[Any, Any] = DeserializedRecord()
        record.raw_value = value
        record.offset = offset
        record._batch = batch
        yield record


def _make(values: Iterable[bytes | None], offsets: Iterable[int], batch: BatchInfo) -> Iterator[Record[Any, Any]]:
    for value, offset in zip(values, offsets):  # noqa: B905  # what stops handing out empties the values
        record = Record()
        record.value = value
        record.offset = offset
        record._batch = batch
        yield record


def next_offset(batch: RecordBatch) -> int:
    """Where the batch after this one begins."""
    return batch.base_offset + batch.record_count


def payload_bytes(batch: RecordBatch) -> int:
    """Size of the set, as credit counts it."""
    return len(batch.compressed_records) or len(batch.records)


def by_partition(records: Iterable[Record[Value, Key]]) -> dict[TopicPartition, list[Record[Value, Key]]]:
    """The records of each partition, in order."""
    found: dict[TopicPartition, list[Record[Value, Key]]] = {}
    for batch, group in groupby(records, attrgetter("_batch")):
        found.setdefault(TopicPartition(batch.topic, batch.partition), []).extend(group)
    return found


class Unpacked(NamedTuple):
    """The values of a batch from some offset on, and what makes records of them."""

    values: list[bytes | None]
    offsets: range
    batch: BatchInfo

    def records(self) -> list[Record[Any, Any]]:
        return list(make_records(*self))

    def until(self, end_offset: int) -> Unpacked:
        """Those of them that come before this offset."""
        count = max(0, end_offset - self.offsets.start)
        return Unpacked(self.values[:count], self.offsets[:count], self.batch)


class StoredBatch(NamedTuple):
    """A batch as it is stored, for programs that take its records apart themselves, all at once."""

    base_offset: int
    """Of the first record; the others follow one by one."""
    record_count: int
    append_time_ms: int
    producer_id: bytes
    """Empty: nobody's."""
    producer_epoch: int
    first_sequence: int
    """-1: not numbered."""
    packed: bytes
    """The records as an encoded `cursus.v1.RecordSet`, not compressed. Its checksum was right."""

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.record_count


def stored_batch(batch: RecordBatch, place: TopicPartition, within: Bounds) -> StoredBatch:
    """Raises CorruptBatch, BatchTooLarge."""
    return StoredBatch(
        batch.base_offset,
        batch.record_count,
        batch.append_time_ms,
        batch.producer_id,
        batch.producer_epoch,
        batch.first_sequence,
        _plain(batch, place, within),
    )


def unpack(
    batch: RecordBatch,
    place: TopicPartition,
    first_offset: int,
    within: Bounds,
    deserializers: Deserializers | None = None,
) -> Unpacked:
    """The records of a batch from `first_offset` on. Raises CorruptBatch, and BatchTooLarge before anything is made of
    one that holds more than it may."""
    base, count = batch.base_offset, batch.record_count
    plain = _plain(batch, place, within)
    messages: Sequence[records_pb2.Record] | None = None
    try:
        values = cut_values(plain, count)
        if values is None:
            messages = record_sets.parse(plain)
            # As `value_of`, without a call for each.
            values = [value if (value := message.value) or message.HasField("value") else None for message in messages]
    except record_sets.MalformedRecordSet as error:
        raise _corrupt(place, batch, str(error)) from error
    if len(values) != count:
        raise _corrupt(place, batch, f"it holds {len(values)} records and claims {count}")
    # The packed set is kept only as long as somebody may ask for what is not in the values.
    info = BatchInfo(place, batch.append_time_ms, base, plain if messages is None else b"", messages, deserializers)
    if first_offset > base:
        del values[: first_offset - base]
    start = max(base, first_offset)
    return Unpacked(values, range(start, start + len(values)), info)


def _plain(batch: RecordBatch, place: TopicPartition, within: Bounds) -> bytes:
    """The batch's set, checked, not compressed and no larger than it may be."""
    is_plain = codecs.is_plain(batch.codec)
    packed = batch.records if is_plain else batch.compressed_records
    if record_sets.checksum(packed) != batch.records_crc32c:
        raise _corrupt(place, batch, "its checksum does not fit")
    if batch.record_count > within.max_records:
        raise _too_large(place, batch, f"holds {batch.record_count} records, more than {within.max_records}")
    try:
        plain = packed if is_plain else record_sets.decompress(packed, batch.codec, within.max_bytes)
        record_sets.check(plain, within.max_records)
    except record_sets.RecordSetTooLarge as error:
        raise _too_large(place, batch, str(error)) from error
    except record_sets.MalformedRecordSet as error:
        raise _corrupt(place, batch, str(error)) from error
    return plain


def _corrupt(place: TopicPartition, batch: RecordBatch, what: str) -> CorruptBatch:
    return CorruptBatch(
        f"the batch at offset {batch.base_offset} of {place.topic}[{place.partition}] is damaged: {what}",
        {"topic": place.topic, "partition": str(place.partition), "offset": str(batch.base_offset)},
    )


def _too_large(place: TopicPartition, batch: RecordBatch, what: str) -> BatchTooLarge:
    end = next_offset(batch)
    message = (
        f"the batch at offset {batch.base_offset} of {place.topic}[{place.partition}] {what}: seek to offset {end} to"
        " go on behind it, or allow the consumer more with max_unpacked_bytes and max_unpacked_records"
    )
    return BatchTooLarge(message, place, batch.base_offset, end)
