"""Record sets as columns against protobuf's own parser: the same records, whichever way they are found, and the same
refusals."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cursus_proto import columns
from cursus_proto.columns import Columns, Numbered, Spans, Table, find_mixed
from cursus_proto.records import MalformedRecordSet, pack, unpack, varint
from cursus_proto.v1.records_pb2 import Header, Record
from tests.property.record_sets import contrived, shapes, value_of

CONTENT = st.none() | st.just(b"") | st.binary(max_size=3) | st.sampled_from([127, 128, 300, 16_384]).map(bytes)
HEADERS = st.lists(
    st.builds(Header, key=st.sampled_from(["", "a", "source", "trace-id"]), value=st.none() | st.binary(max_size=5)),
    max_size=3,
)
U64 = st.one_of(st.integers(0, 300), st.integers(0, 2**64 - 1))
I64 = st.one_of(st.just(0), st.integers(1_700_000_000_000, 1_700_000_100_000), st.integers(-(2**63), 2**63 - 1))
RECORDS = st.lists(
    st.one_of(
        st.sampled_from([Record(), Record(key=b""), Record(value=b""), Record(value=b"v"), Record(headers=[Header()])]),
        st.builds(Record, key=CONTENT, value=CONTENT),
        st.builds(Record, key=CONTENT, value=CONTENT, timestamp_ms=I64, headers=HEADERS),
        st.builds(
            Record,
            key=CONTENT,
            value=CONTENT,
            timestamp_ms=I64,
            headers=HEADERS,
            event_type=st.binary(max_size=3),
            schema_version=st.integers(0, 2**32 - 1),
            aggregate_version=U64,
            metadata=st.binary(max_size=3),
            sequence=st.none() | U64,
            epoch=st.none() | I64,
        ),
    ),
    max_size=40,
)
# Bodies of records that are sound, odd or bad, each with its length before it, so that only who looks inside notices.
ALL_BODIES = [
    b"",
    b"\x0a\x01k",
    b"\x12\x00",
    b"\x12\x01v",
    b"\x0a\x00\x12\x01v\x18\x05",
    b"\x12\x01v\x22\x03\x0a\x01h",
    b"\x12\x01v\x22\x05\x0a\x01h\x12\x00\x48\x07",
    b"\x18\x81\x80\x00",
    b"\x18" + b"\xff" * 9 + b"\x01",
    b"\x18" + b"\xff" * 7 + b"\x01",
    b"\x18\x05\x12\x05value",
    # A length or a number that goes on into the next record, or is not there.
    b"\x12\x02v",
    b"\x12\x03v",
    b"\x12\x04v",
    b"\x12\x80",
    b"\x12",
    b"\x18\x80",
    b"\x18",
    b"\x12\x81\x80\x80\x80\x00v",
    b"\x12\x81\x00v",
    b"\x18" + b"\xff" * 9 + b"\x7f",
    b"\x18" + b"\xff" * 10 + b"\x01",
    # Headers that are longer than their field, in another order, with more in them, or that are no text.
    b"\x22\x03\x0a\x02h\x12\x01v",
    b"\x22\x05\x12\x00\x0a\x01h",
    b"\x22\x07\x0a\x01h\x12\x00\x18\x01",
    b"\x22\x06\x0a\x01h\x0a\x01i",
    b"\x22\x05\x0a\x01h\x12\x02v",
    b"\x22\x03\x0a\x01\xff",
    b"\x22\x02\xc3\xa4",
    b"\x22\x09\x0a\x01h",
    # Another order, the same again, the unknown, and groups.
    b"\x12\x01v\x0a\x01k",
    b"\x12\x01v\x12\x01w",
    b"\x22\x00\x12\x01v\x22\x00",
    b"\x18\x01\x18\x02",
    b"\x12\x01v\x5a\x01u",
    b"\x13\x14",
    b"\x1a\x01z",
    b"\x00\x00",
]
BODIES = st.sampled_from(ALL_BODIES)


def framed(body: bytes) -> bytes:
    return b"\x0a" + varint(len(body)) + body


# The same bytes with a length that is longer than it need be, and things that are no records between them.
PARTS = st.one_of(
    *[BODIES.map(framed)] * 8,
    BODIES.map(lambda body: b"\x0a" + bytes((len(body) | 0x80, 0)) + body),
    st.sampled_from([b"\x12\x01x", b"\x08\x01", b"\x0a", b"\x0a\x05", b"\x00"]),
)
DAMAGE = st.lists(st.tuples(st.integers(0, 2**20), st.integers(0, 255)), min_size=1, max_size=3)


def as_records(found: Columns) -> list[Record]:
    """What the columns say, as records: equal to the parser's only if every field and every presence is."""
    headers = _headers(found)
    sequences, epochs = _optional(found, Record.SEQUENCE_FIELD_NUMBER), _optional(found, Record.EPOCH_FIELD_NUMBER)
    return [
        Record(
            key=key,
            value=value,
            timestamp_ms=int(found.timestamps_ms[at]),
            headers=headers[at],
            event_type=event_type,
            schema_version=int(found.schema_versions[at]),
            aggregate_version=int(found.aggregate_versions[at]),
            metadata=metadata,
            sequence=sequences[at],
            epoch=number if (number := epochs[at]) is None or number < 2**63 else number - 2**64,
        )
        for at, (key, value, event_type, metadata) in enumerate(
            zip(
                _contents(found, found.keys),
                _contents(found, found.values),
                found.event_types.of(found.data),
                found.metadata.of(found.data),
                strict=True,
            )
        )
    ]


def _contents(found: Columns, spans: Spans) -> list[bytes | None]:
    contents = zip(spans.of(found.data), spans.present.tolist(), strict=True)
    return [content if present else None for content, present in contents]


def _optional(found: Columns, field: int) -> list[int | None]:
    numbered = found.numbered.get(field, Numbered(np.zeros(found.count, np.uint64), np.ones(found.count, np.bool_)))
    absent = np.zeros(found.count, np.bool_) if numbered.absent is None else numbered.absent
    pairs = zip(numbered.numbers.tolist(), absent.tolist(), strict=True)
    return [None if missing else number for number, missing in pairs]


def _headers(found: Columns) -> list[list[Header]]:
    headers = found.headers
    if headers is None:
        return [[] for _ in range(found.count)]
    values = _contents(found, headers.values)
    every = [
        Header(key=name.decode(), value=value) for name, value in zip(headers.names.of(found.data), values, strict=True)
    ]
    assert headers.offsets[0] == 0
    assert headers.offsets[-1] == len(every)
    return [
        every[begin:end] for begin, end in zip(headers.offsets[:-1].tolist(), headers.offsets[1:].tolist(), strict=True)
    ]


def without_unknown(records: list[Record]) -> list[Record]:
    for record in records:
        record.DiscardUnknownFields()
    return records


def assert_read_alike(packed: bytes) -> None:
    """Read as columns and by the parser, and compare; also what only the columns can do."""
    found_without_parser = [one for one in (find_mixed(packed), _from_table(packed)) if one is not None]
    try:
        expected = without_unknown(list(unpack(packed)))
    except MalformedRecordSet as refusal:
        with pytest.raises(MalformedRecordSet, match=f"^{re.escape(str(refusal))}$"):
            columns.read(packed)
        assert not found_without_parser
        return
    for found in [columns.read(packed), columns.parse(packed), *found_without_parser]:
        assert as_records(found) == expected
        every = [*found.spans.values(), *([] if found.headers is None else [found.headers.names, found.headers.values])]
        for spans in every:
            assert (np.diff(spans.begins) >= 0).all()
            assert (spans.ends <= len(found.data)).all()
            assert not spans.sizes[~spans.present].any()


def _from_table(packed: bytes) -> Columns | None:
    table = Table.of_set(packed)
    return None if table is None else table.columns()


@given(RECORDS)
def test_any_records_are_found(records: list[Record]) -> None:
    assert_read_alike(pack(records))


@given(RECORDS.filter(bool))
def test_what_writers_write_is_not_parsed(records: list[Record]) -> None:
    assert find_mixed(pack(records)) is not None


@given(shapes())
def test_records_of_one_shape_are_found(records: list[Record]) -> None:
    assert_read_alike(pack(records))


@pytest.mark.parametrize("value", [None, b"", b"v" * 200])
@pytest.mark.parametrize("key", [None, b"", b"key"])
@pytest.mark.parametrize("headers", [[], [Header(key="null"), Header(key="empty", value=b""), Header(value=b"v")]])
@pytest.mark.parametrize("timestamp_ms", [0, 5, 1_700_000_000_000, 2**50])
def test_records_of_one_shape_are_a_table(
    value: bytes | None, key: bytes | None, headers: list[Header], timestamp_ms: int
) -> None:
    records = [Record(key=key, value=value, headers=headers, timestamp_ms=timestamp_ms, sequence=2**60)] * 30
    assert _from_table(pack(records)) is not None
    assert_read_alike(pack(records))


@given(RECORDS.filter(bool) | shapes(), DAMAGE, st.integers(-3, 3))
def test_a_damaged_set_is_read_as_protobuf_reads_it_or_refused(
    records: list[Record], damage: list[tuple[int, int]], lengthen: int
) -> None:
    packed = bytearray(pack(records))
    for place, byte in damage:
        packed[place % len(packed)] = byte
    assert_read_alike(bytes(packed[:lengthen] if lengthen < 0 else packed + b"\0" * lengthen))


@given(contrived(), RECORDS)
def test_a_contrived_set_is_read_as_it_is_parsed(found: tuple[bytes, int], others: list[Record]) -> None:
    assert_read_alike(found[0])
    assert_read_alike(found[0] + pack(others))


@given(st.lists(PARTS, max_size=6))
def test_records_that_are_odd_in_their_own_way_are_read_as_they_are_parsed(parts: list[bytes]) -> None:
    assert_read_alike(b"".join(parts))


@pytest.mark.parametrize("body", ALL_BODIES)
def test_one_record_that_is_odd_among_many_that_are_alike(body: bytes) -> None:
    for other in ALL_BODIES:
        if len(other) == len(body):  # else they are no table, and that is all there is to it
            assert_read_alike(b"".join([framed(body)] * 20 + [framed(other)] + [framed(body)] * 9))


def test_what_is_no_record_is_not_taken_for_one() -> None:
    """Something unknown that holds what would be a record if it stood two bytes further on."""
    assert_read_alike(b"\x12\x03\x12\x01x" + framed(b"\x12\x01v"))


@given(st.binary(max_size=300))
def test_bytes_that_are_no_set_are_refused_as_the_parser_refuses_them(packed: bytes) -> None:
    assert_read_alike(packed)


@pytest.mark.parametrize("name", ["ascii", "größe", "\U0001f600"])
def test_names_of_any_script_are_read_and_what_is_no_text_is_refused(name: str) -> None:
    packed = pack([Record(value=bytes([n]), headers=[Header(key=name)]) for n in range(100, 200)])
    assert_read_alike(packed)
    assert_read_alike(packed.replace(name.encode()[:2], b"\xc3\x28"))


def test_many_headers_cost_no_more_than_the_parser() -> None:
    records = [Record(value=b"v", headers=[Header(key="h")] * count) for count in (1, 200)]
    assert find_mixed(pack(records)) is None
    assert_read_alike(pack(records))


def test_the_value_of_records_is_what_their_writer_said() -> None:
    found = columns.read(pack([Record(value=value) for value in (None, b"", b"some")] * 20))
    assert found.values.present.tolist() == [False, True, True] * 20
    assert [value_of(record) for record in as_records(found)] == [None, b"", b"some"] * 20
