from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cursus_gateway import records
from cursus_gateway.delivery import write_messages
from cursus_gateway.records import MIN_MESSAGE_BYTES, MalformedMessages, Run, read_messages
from cursus_proto import cutting
from cursus_proto import records as record_sets
from cursus_proto.columns.rows import FEWEST_ROWS
from cursus_proto.cutting import StoredBatch
from cursus_proto.internal.v1 import opaque_pb2
from cursus_proto.v1 import records_pb2
from tests.harness.legacy_wire import Message

U64 = st.integers(0, 2**64 - 1)
SHORT = st.binary(max_size=6)
MESSAGES = st.lists(
    st.builds(
        Message,
        sequence=st.one_of(st.integers(0, 300), U64),
        producer_id=st.sampled_from([b"", b"p1", b"p2"]),
        key=SHORT,
        epoch=st.one_of(st.integers(-2, 3), st.integers(-(2**63), 2**63 - 1)),
        payload=st.binary(max_size=200),
        event_type=SHORT,
        schema_version=st.integers(0, 2**32 - 1),
        aggregate_version=U64,
        metadata=SHORT,
    ),
    min_size=1,
    max_size=12,
)


def encode(messages: list[Message]) -> bytes:
    return b"".join(message.encoded() for message in messages)


def stored(run: Run, base_offset: int, codec: int = records_pb2.CODEC_NONE) -> StoredBatch:
    """The run as a reader gets it back from the broker."""
    batch = opaque_pb2.RecordBatch(
        base_offset=base_offset,
        record_count=run.record_count,
        codec=codec,  # type: ignore[arg-type]  # the stubs tell enums from numbers
        producer_id=run.producer_id,
        producer_epoch=run.epoch,
        first_sequence=-1 if run.first_sequence is None else run.first_sequence,
    )
    if codec == records_pb2.CODEC_NONE:
        batch.records = run.record_set
    else:
        batch.compressed_records = record_sets.pack(record_sets.unpack(run.record_set), codec)
    (found,) = cutting.stored([batch])
    return found if found.is_plain else found.with_plain(record_sets.decompress(batch.compressed_records, codec))


def round_trip(messages: list[Message], *, judged: bool, codec: int = records_pb2.CODEC_NONE) -> bytes:
    batches, offset = [], 0
    for run in read_messages(encode(messages), 0, len(messages), judged=judged).runs:
        batches.append(stored(run, offset, codec))
        offset += run.record_count
    written = write_messages(batches, 0, max_count=10_000, max_bytes=10**9)
    assert written.count == len(messages)
    assert written.size == sum(map(len, written.parts))
    return b"".join(written.parts)


def with_offsets(messages: list[Message]) -> bytes:
    return b"".join(offset.to_bytes(8, "big") + message.encoded()[8:] for offset, message in enumerate(messages))


@given(MESSAGES, st.booleans())
def test_every_field_survives_the_round_trip(messages: list[Message], judged: bool) -> None:
    assert round_trip(messages, judged=judged) == with_offsets(messages)


@pytest.mark.parametrize("key", [b"", b"key"])
@pytest.mark.parametrize("judged", [True, False])
def test_messages_that_are_alike_go_the_fast_way(key: bytes, judged: bool) -> None:
    body = encode([Message(1_000 + n, b"p", key, 3, bytes([n]) * 100) for n in range(FEWEST_ROWS)])
    assert records._same_size(body, 0, FEWEST_ROWS, judged) is not None


@given(at=st.integers(0, 10_000), byte=st.integers(1, 255), judged=st.booleans())
def test_any_byte_that_differs_is_read_as_the_general_way_reads_it(at: int, byte: int, judged: bool) -> None:
    messages = [Message(1_000 + n, b"p", b"key", 3, bytes([n]) * 20) for n in range(FEWEST_ROWS)]
    body = bytearray(encode(messages))
    body[at % len(body)] ^= byte
    with contextlib.suppress(struct.error):  # a length that reaches beyond the end
        fast = records._same_size(bytes(body), 0, FEWEST_ROWS, judged)
        if fast is not None:
            assert list(fast.runs) == list(records._any_size(bytes(body), 0, FEWEST_ROWS, judged).runs)


@given(MESSAGES, st.sampled_from([records_pb2.CODEC_GZIP, records_pb2.CODEC_ZSTD]))
def test_every_field_survives_a_compressed_set(messages: list[Message], codec: int) -> None:
    assert round_trip(messages, judged=True, codec=codec) == with_offsets(messages)


@pytest.mark.parametrize("count", [1, FEWEST_ROWS])
def test_an_empty_payload_is_stored_as_an_empty_value_and_not_as_null(count: int) -> None:
    for key in (b"", b"key"):
        body = encode([Message(1_000 + n, b"p", key, 3, b"") for n in range(count)])
        (run,) = read_messages(body, 0, count, judged=False).runs
        found = record_sets.unpack(run.record_set)
        assert [(one.HasField("value"), one.value) for one in found] == [(True, b"")] * count


@given(MESSAGES, st.booleans())
def test_record_sets_are_what_protobuf_itself_encodes(messages: list[Message], judged: bool) -> None:
    for run in read_messages(encode(messages), 0, len(messages), judged=judged).runs:
        parsed = records_pb2.RecordSet.FromString(run.record_set)
        assert parsed.SerializeToString() == run.record_set
        assert len(parsed.records) == run.record_count


@given(
    first=st.one_of(
        st.integers(0, 300),
        st.integers(2**14 - 40, 2**14 + 5),
        st.integers(2**62 - 40, 2**62 + 40),
        st.integers(2**63 - 40, 2**63 + 40),
        st.integers(2**64 - 100, 2**64 - FEWEST_ROWS - 12),
    ),
    count=st.integers(FEWEST_ROWS, FEWEST_ROWS + 12),
    producer_id=st.sampled_from([b"", b"p"]),
    key=st.sampled_from([b"", b"key"]),
    epoch=st.sampled_from([0, 7, -1]),
    size=st.sampled_from([0, 1, 100, 127, 128, 2047, 2048]),
    judged=st.booleans(),
)
def test_the_fast_way_gives_the_same_bytes_as_the_general_one(
    first: int, count: int, producer_id: bytes, key: bytes, epoch: int, size: int, judged: bool
) -> None:
    messages = [Message(first + n, producer_id, key, epoch, bytes([n]) * size) for n in range(count)]
    body = encode(messages)
    fast = records._same_size(body, 0, count, judged)
    general = records._any_size(body, 0, count, judged)
    if fast is not None:
        assert list(fast.runs) == list(general.runs)
        assert (fast.first_sequence, fast.last_sequence) == (general.first_sequence, general.last_sequence)
        assert (fast.last_epoch, fast.last_producer_id) == (general.last_epoch, general.last_producer_id)
    assert round_trip(messages, judged=judged) == with_offsets(messages)


def test_sequences_one_by_one_go_into_the_envelope_of_an_idempotent_batch() -> None:
    body = encode([Message(n, b"p", payload=b"%d" % n) for n in (5, 6, 7)])
    (run,) = read_messages(body, 0, 3, judged=True).runs
    assert (run.first_sequence, run.sequences) == (5, ())
    assert not any(record.HasField("sequence") for record in record_sets.unpack(run.record_set))


def test_sequences_out_of_order_stand_in_envelope_and_records() -> None:
    body = encode([Message(n, b"p", payload=b"%d" % n) for n in (5, 7, 6)])
    (run,) = read_messages(body, 0, 3, judged=True).runs
    assert (run.first_sequence, list(run.sequences)) == (None, [5, 7, 6])
    assert [record.sequence for record in record_sets.unpack(run.record_set)] == [5, 7, 6]


def test_without_the_idempotent_flag_sequences_are_kept_and_not_judged() -> None:
    body = encode([Message(n, b"p", payload=b"%d" % n) for n in (5, 6, 7)])
    (run,) = read_messages(body, 0, 3, judged=False).runs
    assert (run.first_sequence, list(run.sequences)) == (None, [])
    assert [record.sequence for record in record_sets.unpack(run.record_set)] == [5, 6, 7]


def test_an_epoch_that_rises_within_a_batch_is_kept_for_every_message() -> None:
    body = encode([Message(n, b"p", epoch=n // 2, payload=b"x") for n in (1, 2, 3)])
    (run,) = read_messages(body, 0, 3, judged=True).runs
    assert run.epoch == 1
    assert [r.epoch if r.HasField("epoch") else run.epoch for r in record_sets.unpack(run.record_set)] == [0, 1, 1]


def test_a_batch_that_mixes_producers_is_split_in_order() -> None:
    body = encode([Message(1, producer, payload=producer) for producer in (b"a", b"a", b"b", b"a")])
    runs = read_messages(body, 0, 4, judged=False).runs
    assert [(run.producer_id, run.record_count) for run in runs] == [(b"a", 2), (b"b", 1), (b"a", 1)]


@given(MESSAGES, st.data())
def test_a_body_cut_or_continued_is_refused(messages: list[Message], data: st.DataObject) -> None:
    body = encode(messages)
    size = data.draw(st.integers(0, len(body) - 1))
    for bad in (body[:size], body + b"\0"):
        with pytest.raises(MalformedMessages):
            read_messages(bad, 0, len(messages), judged=False)


@given(st.binary(max_size=300), st.integers(0, 6))
def test_garbage_is_refused_or_read_but_never_crashes(body: bytes, count: int) -> None:
    with contextlib.suppress(MalformedMessages):
        read_messages(body, 0, count, judged=True)


def test_reading_begins_inside_a_batch_and_ends_at_the_limits() -> None:
    (run,) = read_messages(encode([Message(payload=b"%d" % n) for n in range(10)]), 0, 10, judged=False).runs
    written = write_messages([stored(run, 100)], 103, max_count=4, max_bytes=10**6)
    assert (written.count, written.next_offset) == (4, 107)
    one = len(Message(payload=b"0").encoded())
    written = write_messages([stored(run, 100)], 103, max_count=10, max_bytes=2 * one)
    assert (written.count, written.next_offset) == (2, 105)
    written = write_messages([stored(run, 100)], 103, max_count=10, max_bytes=1)
    assert (written.count, written.next_offset) == (1, 104)


def test_batches_of_one_producer_and_size_are_written_in_one_piece() -> None:
    runs = [
        read_messages(
            encode([Message(n, b"p", b"key", 3, bytes(80)) for n in range(first, first + 500)]), 0, 500, judged=j
        )
        for j, first in ((False, 1_000_000), (False, 1_000_000), (True, 7), (True, 507))
    ]
    batches = [stored(one.runs[0], 500 * number) for number, one in enumerate(runs)]
    written = write_messages(batches, 0, max_count=10_000, max_bytes=10**9)
    assert [len(part) for part in written.parts] == [1000 * (MIN_MESSAGE_BYTES + 1 + 3 + 80)] * 2
    assert (written.first_sequence, written.last_sequence) == (1_000_000, 1006)
