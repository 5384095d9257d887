"""What an application sees of a received record."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from cursus_grpc import Record
from cursus_grpc._records import unpack
from cursus_grpc.errors import BatchTooLarge, CorruptBatch
from cursus_grpc.types import TopicPartition
from cursus_proto import records as record_sets
from cursus_proto.bounds import Bounds
from cursus_proto.internal.v1.opaque_pb2 import RecordBatch
from cursus_proto.v1 import records_pb2
from tests.harness.memory import MIB, growth

PLACE = TopicPartition("t", 0)
MANY = 500


def stored(
    messages: Sequence[records_pb2.Record],
    base_offset: int = 0,
    codec: records_pb2.Codec.ValueType = records_pb2.CODEC_NONE,
    append_time_ms: int = 99,
) -> RecordBatch:
    packed = record_sets.pack(messages, codec)
    batch = RecordBatch(
        base_offset=base_offset,
        record_count=len(messages),
        append_time_ms=append_time_ms,
        codec=codec,
        records_crc32c=record_sets.checksum(packed),
    )
    if codec == records_pb2.CODEC_NONE:
        batch.records = packed
    else:
        batch.compressed_records = packed
    return batch


def uniform(count: int = MANY) -> list[records_pb2.Record]:
    """Records that are cut out of their set without parsing it."""
    return [records_pb2.Record(key=b"key-%03d" % number, value=b"%06d" % number) for number in range(count)]


def records_of(messages: Sequence[records_pb2.Record], place: TopicPartition = PLACE, base: int = 0) -> list[Record]:
    return unpack(stored(messages, base), place, 0, Bounds()).records()


def test_a_record_shows_all_its_fields() -> None:
    message = records_pb2.Record(
        key=b"", value=b"v", timestamp_ms=7, event_type=b"e", schema_version=2, aggregate_version=3, metadata=b"m"
    )
    message.headers.add(key="h", value=b"1")
    rich, bare = records_of([message, records_pb2.Record()], base=4)
    assert (rich.topic, rich.partition, rich.offset, rich.key, rich.value) == ("t", 0, 4, b"", b"v")
    assert (rich.timestamp_ms, rich.append_time_ms, rich.headers) == (7, 99, (("h", b"1"),))
    assert (rich.event_type, rich.schema_version, rich.aggregate_version, rich.metadata) == (b"e", 2, 3, b"m")
    assert (bare.key, bare.value, bare.timestamp_ms, bare.headers) == (None, None, 99, ())


@pytest.mark.parametrize("count", [1, MANY])
def test_null_empty_and_some_are_told_apart(count: int) -> None:
    """Few records are parsed, many of one shape are cut out of their set."""
    for value in (None, b"", b"v"):
        found = records_of([records_pb2.Record(key=b"k", value=value)] * count)
        assert [record.value for record in found] == [value] * count
        assert pickle.loads(pickle.dumps(found[0])).value == value
        assert f"value={value!r}" in repr(found[0])
    null, empty = records_of([records_pb2.Record()])[0], records_of([records_pb2.Record(value=b"")])[0]
    assert null != empty


def test_a_header_may_be_null_or_empty() -> None:
    message = records_pb2.Record(value=b"v")
    message.headers.add(key="null")
    message.headers.add(key="empty", value=b"")
    (record,) = records_of([message])
    assert record.headers == (("null", None), ("empty", b""))
    assert pickle.loads(pickle.dumps(record)).headers == record.headers


@pytest.mark.parametrize("codec", [records_pb2.CODEC_NONE, records_pb2.CODEC_ZSTD])
def test_a_batch_is_unpacked_from_any_offset_on(codec: records_pb2.Codec.ValueType) -> None:
    for messages in (uniform(), [*uniform(), records_pb2.Record(value=b"another")]):
        found = unpack(stored(messages, 5, codec), PLACE, 300, Bounds()).records()
        assert [(one.offset, one.key, one.value) for one in found] == [
            (offset, one.key or None, one.value) for offset, one in enumerate(messages[295:], 300)
        ]


def test_records_are_equal_if_all_of_them_is() -> None:
    first, again = records_of(uniform()), records_of(uniform())
    assert first == again
    assert len({*first, *again}) == MANY
    assert first[0] != first[1]
    assert first[0] != records_of(uniform(), TopicPartition("t", 1))[0]
    assert first[0] != records_of(uniform(), base=1)[0]
    assert first[0] != unpack(stored(uniform(), append_time_ms=100), PLACE, 0, Bounds()).records()[0]
    other_key = uniform()
    other_key[0].key = b"another"
    assert first[0] != records_of(other_key)[0]
    assert first[1] == records_of(other_key)[1]
    assert first[0] != first[0].value


def test_a_record_is_shown_with_its_place_its_key_and_its_value() -> None:
    assert repr(records_of(uniform())[7]) == "Record(topic='t', partition=0, offset=7, key=b'key-007', value=b'000007')"
    assert "key=None" in repr(records_of([records_pb2.Record(value=b"v")])[0])


def test_a_record_can_be_copied_and_sent_to_another_process_without_its_batch() -> None:
    record = records_of(uniform())[7]
    assert copy.copy(record) == copy.deepcopy(record) == record
    sent = pickle.dumps(record)
    assert pickle.loads(sent) == record
    assert len(sent) < 500


def test_threads_may_share_the_records_of_a_batch() -> None:
    """The batch is parsed for the first of them, and let go of, while others look at it."""
    with ThreadPoolExecutor(4) as threads:
        for _ in range(20):
            found = records_of(uniform())
            keys = list(threads.map(lambda record: record.key, found))
            assert keys == [b"key-%03d" % number for number in range(MANY)]


def test_a_batch_that_is_not_what_it_claims_is_not_handed_out() -> None:
    for count in (3, MANY):
        flipped, short, garbage = (stored(uniform(count)) for _ in range(3))
        flipped.records = flipped.records[:-1] + b"\x00"
        short.record_count = count + 1
        garbage.records = b"\xff\xff" * count
        garbage.records_crc32c = record_sets.checksum(garbage.records)
        for damaged in (flipped, short, garbage):
            with pytest.raises(CorruptBatch, match="offset 0 of t"):
                unpack(damaged, PLACE, 0, Bounds())


@pytest.mark.parametrize("codec", [records_pb2.CODEC_NONE, records_pb2.CODEC_ZSTD])
def test_a_batch_is_unpacked_up_to_its_bounds_and_not_beyond(codec: records_pb2.Codec.ValueType) -> None:
    batch = stored(uniform(), 7, codec)
    size = len(record_sets.pack(uniform()))
    assert len(unpack(batch, PLACE, 0, Bounds(size, MANY)).values) == MANY
    bounds = [Bounds(size, MANY - 1)] + [Bounds(size - 1, MANY)] * (codec != records_pb2.CODEC_NONE)
    for within in bounds:
        with pytest.raises(BatchTooLarge) as refused:
            unpack(batch, PLACE, 0, within)
        assert refused.value.metadata == {
            "topic": "t",
            "partition": "0",
            "offset": "7",
            "next_offset": str(7 + MANY),
        }


@pytest.mark.parametrize("claimed", [1, 20_000_000])
def test_a_batch_of_millions_in_kilobytes_is_not_made_records_of(claimed: int) -> None:
    taken = growth(
        f"""
        from cursus_grpc._records import unpack
        from cursus_grpc.errors import CursusError
        from cursus_grpc.types import TopicPartition
        from cursus_proto import codecs
        from cursus_proto import records as record_sets
        from cursus_proto.bounds import Bounds
        from cursus_proto.internal.v1.opaque_pb2 import RecordBatch
        packed = codecs.compress({records_pb2.CODEC_ZSTD}, b"\\n\\0" * 20_000_000)
        batch = RecordBatch(record_count={claimed}, codec={records_pb2.CODEC_ZSTD}, compressed_records=packed)
        batch.records_crc32c = record_sets.checksum(packed)
        """,
        """
        try:
            unpack(batch, TopicPartition("t", 0), 0, Bounds())
        except CursusError:
            pass
        """,
    )
    assert taken < 200 * MIB
