"""Stored batches as legacy messages, against messages written field by field: the same bytes whether they go through
tables, record by record, or partly so, wherever reading begins and whatever ends it."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cursus_gateway import delivery
from cursus_gateway.delivery import Written, write_messages
from cursus_proto import cutting
from cursus_proto.columns.rows import FEWEST_ROWS
from cursus_proto.cutting import StoredBatch, read_fetched
from cursus_proto.internal.v1.opaque_pb2 import FetchedPartition, FetchResponse, RecordBatch
from cursus_proto.records import MalformedRecordSet, decompress, pack
from cursus_proto.v1.records_pb2 import CODEC_GZIP, CODEC_NONE, Record
from tests.harness.legacy_wire import Message

NO_LIMIT = 10**9

# Around the borders at which a sequence takes a byte more.
BORDERS = [1 << (7 * width) for width in range(1, 10)]
SEQUENCES = st.one_of(
    st.integers(0, 300),
    st.builds(lambda border, distance: max(0, border + distance), st.sampled_from(BORDERS), st.integers(-50, 5)),
    st.sampled_from([2**63 - 100, 2**64 - 100]),
)
COUNTS = st.one_of(st.integers(1, 60), st.sampled_from([1, FEWEST_ROWS - 1, FEWEST_ROWS, FEWEST_ROWS + 1]))


@dataclass
class Stored:
    """A batch, and the messages it is to become."""

    producer_id: bytes
    epoch: int
    first_sequence: int
    records: list[Record]
    codec: int = CODEC_NONE
    messages: list[Message] = field(default_factory=list)

    def batch(self, base_offset: int) -> RecordBatch:
        batch = RecordBatch(
            base_offset=base_offset,
            record_count=len(self.records),
            codec=self.codec,  # type: ignore[arg-type]  # the stubs tell enums from numbers
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            first_sequence=self.first_sequence,
        )
        packed = pack(self.records, self.codec)
        if self.codec == CODEC_NONE:
            batch.records = packed
        else:
            batch.compressed_records = packed
        self.messages = [self._message(index, base_offset) for index in range(len(self.records))]
        return batch

    def _message(self, index: int, base_offset: int) -> Message:
        record = self.records[index]
        counted = self.first_sequence + index if self.first_sequence >= 0 else 0
        return Message(
            sequence=record.sequence if record.HasField("sequence") else counted,
            producer_id=self.producer_id,
            key=record.key,
            epoch=record.epoch if record.HasField("epoch") else self.epoch,
            payload=record.value,
            event_type=record.event_type,
            schema_version=record.schema_version,
            aggregate_version=record.aggregate_version,
            metadata=record.metadata,
            offset=base_offset + index,
        )


@st.composite
def stored(draw: st.DrawFn) -> Stored:
    """Mostly alike, so that tables are made; one record may be of another kind."""
    count = draw(COUNTS)
    key_bytes = draw(st.sampled_from([0, 0, 1, 9, 130]))
    payload_bytes = draw(st.sampled_from([None, 0, 1, 2, 30, 100, 121, 126, 127, 128, 300]))
    content = draw(st.binary(min_size=16, max_size=16))
    numbered = draw(st.sampled_from(["nowhere", "envelope", "records", "records, not one by one"]))
    first = draw(SEQUENCES)
    records = []
    for index in range(count):
        filling = (content + index.to_bytes(2, "big")) * 20
        record = Record(key=filling[:key_bytes] if key_bytes else None)
        if payload_bytes is not None:
            record.value = filling[len(filling) - payload_bytes :]
        if numbered.startswith("records"):
            record.sequence = first + (index * 7 % 50 if "not" in numbered else index)
        records.append(record)
    odd = records[draw(st.integers(0, count - 1))]
    oddities = ["payload", "null", "empty", "key", "epoch", "event", "sequence", "header"]
    match draw(st.sampled_from([""] * 12 + oddities)):
        case "payload":
            odd.value += b"more"
        case "null":
            odd.ClearField("value")
        case "empty":
            odd.value = b""
        case "key":
            odd.key = b""
        case "epoch":
            odd.epoch = draw(st.integers(-(2**63), 2**63 - 1))
        case "event":
            odd.event_type, odd.metadata = b"created", b"{}"
            odd.schema_version, odd.aggregate_version = 3, 2**40
        case "sequence":
            odd.sequence = draw(st.integers(0, 2**64 - 1))
        case "header":
            odd.headers.add(key="h", value=b"v")
    return Stored(
        producer_id=draw(st.sampled_from([b"", b"p", b"another producer"])),
        epoch=draw(st.sampled_from([0, 0, 5, -1])),
        first_sequence=min(first, 2**63 - 100) if numbered == "envelope" else -1,
        records=records,
        codec=draw(st.sampled_from([CODEC_NONE] * 5 + [CODEC_GZIP])),
    )


@st.composite
def partitions(draw: st.DrawFn) -> list[Stored]:
    """Some batches, of which the same one may come again, as a producer of fixed-size events writes them."""
    kinds = draw(st.lists(stored(), min_size=1, max_size=3))
    chosen = draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=6))
    following: list[Stored] = []
    for kind in chosen:
        first_sequence = kind.first_sequence
        if following and first_sequence >= 0 and draw(st.booleans()):
            # Mostly numbered on from the batch before, as far as an envelope's numbers go.
            first_sequence = min(max(-1, following[-1].first_sequence + len(following[-1].records)), 2**63 - 100)
        following.append(Stored(kind.producer_id, kind.epoch, first_sequence, kind.records, kind.codec))
    return following


def laid_out(parts: list[Stored], base_offset: int) -> tuple[list[RecordBatch], list[Message]]:
    batches, messages = [], []
    for part in parts:
        batches.append(part.batch(base_offset))
        messages += part.messages
        base_offset += len(part.records)
    return batches, messages


def assert_every_byte(parts: list[Stored], base_offset: int, data: st.DataObject) -> None:
    """Reads from any offset up to any limit."""
    batches, messages = laid_out(parts, base_offset)
    begin = data.draw(st.one_of(st.just(0), st.integers(0, len(messages) - 1)), "begin")
    max_count = data.draw(st.one_of(st.just(NO_LIMIT), st.integers(1, len(messages))), "max_count")
    sizes = [len(message.encoded()) for message in messages[begin:]]
    max_bytes = data.draw(st.one_of(st.just(NO_LIMIT), st.integers(1, sum(sizes) + 1)), "max_bytes")
    count = 1
    while count < min(max_count, len(sizes)) and sum(sizes[: count + 1]) <= max_bytes:
        count += 1
    expected = messages[begin : begin + count]

    written = write_messages(fetched(batches), base_offset + begin, max_count=max_count, max_bytes=max_bytes)

    assert b"".join(written.parts) == b"".join(message.encoded() for message in expected)
    assert (written.count, written.size) == (count, sum(sizes[:count]))
    assert (written.first_sequence, written.last_sequence) == (expected[0].sequence, expected[-1].sequence)
    assert written.next_offset == base_offset + begin + count


@given(partitions(), st.integers(0, 2**40), st.data())
def test_messages_have_every_byte_from_any_offset_up_to_any_limit(
    parts: list[Stored], base_offset: int, data: st.DataObject
) -> None:
    assert_every_byte(parts, base_offset, data)


@pytest.mark.parametrize("count", [1, FEWEST_ROWS, 2 * FEWEST_ROWS, 3 * FEWEST_ROWS])
@pytest.mark.parametrize("begin", [0, 1, FEWEST_ROWS - 1, FEWEST_ROWS, FEWEST_ROWS + 1, 2 * FEWEST_ROWS - 1])
@pytest.mark.parametrize("between", [0, 1], ids=["equally far apart", "not equally far apart"])
def test_a_part_of_several_batches_that_make_one_table(begin: int, count: int, between: int) -> None:
    records = [Record(key=b"k", value=b"%09d" % number, sequence=1000 + number) for number in range(FEWEST_ROWS)]
    # Where an offset takes a byte more, what stands between two sets is longer.
    base_offset = 128 - 2 * FEWEST_ROWS if between else 1000
    batches, messages = laid_out([Stored(b"p", 5, -1, records) for _ in range(3)], base_offset)
    found = fetched(batches)
    distances = {after.begin - before.begin for before, after in itertools.pairwise(found)}
    assert len(distances) == 1 + between

    written = write_messages(found, base_offset + begin, max_count=count, max_bytes=NO_LIMIT)

    expected = messages[begin : begin + count]
    assert b"".join(written.parts) == b"".join(message.encoded() for message in expected)
    assert len(written.parts) == 1, "it is one table"
    assert (written.count, written.next_offset) == (len(expected), base_offset + begin + len(expected))


@given(
    parts=partitions(),
    damage=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2**20), st.integers(0, 255)), min_size=1, max_size=3),
    lengthen=st.integers(-1, 1),
)
def test_a_damaged_set_is_read_as_protobuf_reads_it_or_refused(
    parts: list[Stored], damage: list[tuple[int, int, int]], lengthen: int
) -> None:
    """Bytes are changed anywhere, so also where only the later rows of a table show it."""
    batches, _ = laid_out(parts, 0)
    for number, place, value in damage:
        batch = batches[number % len(batches)]
        packed = bytearray(batch.records)
        if packed:
            packed[place % len(packed)] = value
            batch.records = bytes(packed[:lengthen] if lengthen < 0 else packed + b"\0" * lengthen)
    assert_read_alike(batches)


@st.composite
def mixed(draw: st.DrawFn) -> Stored:
    """Records of all sizes, with and without keys, numbered or not, none of them of another kind."""
    count = draw(st.integers(FEWEST_ROWS, 60))
    sizes = st.sampled_from([None, 0, 1, 2, 3, 50, 126, 127, 128, 129, 300, 16_383, 16_384])
    keys = draw(st.sampled_from([st.none(), st.none() | st.binary(max_size=3), st.binary(min_size=1, max_size=200)]))
    first = draw(st.none() | SEQUENCES)
    records = [
        Record(
            key=draw(keys),
            value=None if (size := draw(sizes)) is None else bytes((index,)) * size,
            sequence=first + index if first is not None else None,
        )
        for index in range(count)
    ]
    codec = draw(st.sampled_from([CODEC_NONE, CODEC_GZIP]))
    return Stored(draw(st.sampled_from([b"", b"producer"])), 5, draw(st.sampled_from([-1, 7])), records, codec)


@given(mixed(), st.data())
def test_records_of_different_sizes_have_every_byte(part: Stored, data: st.DataObject) -> None:
    assert_every_byte([part], 1000, data)


def test_records_of_different_sizes_are_not_written_one_by_one() -> None:
    values = [None if number % 5 == 3 else b"v" * number for number in range(200)]
    records = [Record(key=b"k" * (number % 3), value=value, sequence=number) for number, value in enumerate(values)]
    batches, _ = laid_out([Stored(b"p", 5, -1, records)], 0)
    assert len(write_messages(fetched(batches), 0, max_count=NO_LIMIT, max_bytes=NO_LIMIT).parts) == 1


@given(mixed(), st.lists(st.tuples(st.integers(0, 2**20), st.integers(0, 255)), min_size=1, max_size=3))
def test_a_damaged_set_of_different_sizes_is_read_as_protobuf_reads_it_or_refused(
    part: Stored, damage: list[tuple[int, int]]
) -> None:
    (batch,), _ = laid_out([part], 0)
    packed = bytearray(batch.records)
    for place, value in damage if packed else ():
        packed[place % len(packed)] = value
    batch.records = bytes(packed)
    assert_read_alike([batch])


@given(
    row=st.integers(0, FEWEST_ROWS - 1),
    at=st.one_of(st.integers(-6, 8), st.integers(0, 200)),
    value=st.one_of(st.sampled_from([0x0A, 0x12, 0x48, 0x50, 0x7F, 0x80]), st.integers(0, 255)),
    key_bytes=st.sampled_from([0, 3, 60]),
    sequence=st.sampled_from([None, 5, 1_000_000]),
)
@example(row=5, at=1, value=0x0A, key_bytes=0, sequence=None)
@example(row=5, at=-1, value=0x80, key_bytes=0, sequence=5)
@example(row=5, at=-2, value=0x50, key_bytes=0, sequence=5)
@example(row=5, at=-3, value=0x00, key_bytes=0, sequence=1_000_000)
def test_a_single_byte_that_differs_in_a_later_row(
    row: int, at: int, value: int, key_bytes: int, sequence: int | None
) -> None:
    record = Record(key=b"k" * key_bytes or None, value=bytes(50), sequence=sequence)
    packed = bytearray(pack([record] * FEWEST_ROWS))
    stride = len(packed) // FEWEST_ROWS
    packed[row * stride + at % stride] = value
    batch = RecordBatch(record_count=FEWEST_ROWS, records=bytes(packed), codec=CODEC_NONE, first_sequence=-1)
    assert_read_alike([batch])


def fetched(batches: list[RecordBatch]) -> list[StoredBatch]:
    """The batches as they come out of a broker's response."""
    response = FetchResponse(partitions=[FetchedPartition(batches=batches)])
    ((_, found),) = read_fetched(response.SerializeToString())
    return [opened(one) for one in found]


def opened(one: StoredBatch) -> StoredBatch:
    return one if one.is_plain else one.with_plain(decompress(one.fields.compressed_records, one.fields.codec))


def assert_read_alike(batches: list[RecordBatch]) -> None:
    """Reads the batches in the usual way and record by record, and compares."""
    try:
        general = one_by_one(batches)
    except MalformedRecordSet:
        with pytest.raises(MalformedRecordSet):
            write_messages(fetched(batches), 0, max_count=NO_LIMIT, max_bytes=NO_LIMIT)
        return
    usual = write_messages(fetched(batches), 0, max_count=NO_LIMIT, max_bytes=NO_LIMIT)
    assert b"".join(usual.parts) == b"".join(general.parts)
    assert (usual.count, usual.size) == (general.count, general.size)


def one_by_one(batches: list[RecordBatch]) -> Written:
    writer = delivery._Writer(0, NO_LIMIT, NO_LIMIT, None)
    for batch in cutting.stored(batches):
        writer._write_any(opened(batch))
    return writer.written
