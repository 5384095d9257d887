"""Packing and unpacking record sets."""

from __future__ import annotations

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cursus_proto import records as record_sets
from cursus_proto.bounds import Bounds
from cursus_proto.v1.records_pb2 import Codec, Record, RecordSet
from tests.unit.contract.messages import messages

RECORDS = st.lists(messages(Record.DESCRIPTOR), max_size=5)


@given(RECORDS, st.sampled_from(list(Codec.values())))
def test_what_was_packed_comes_back(records: list[Record], codec: int) -> None:
    assert list(record_sets.unpack(record_sets.pack(records, codec), codec)) == records


@given(RECORDS)
def test_records_are_counted_without_parsing_them(records: list[Record]) -> None:
    assert record_sets.count(record_sets.pack(records)) == len(records)


@pytest.mark.parametrize("number", [0, 127, 128, 2**14 - 1, 2**14, 2**21 - 1, 2**21, 2**32, 2**64 - 1, -1, -(2**63)])
def test_varints_are_protobufs(number: int) -> None:
    record = Record(epoch=number) if number < 2**63 else Record(sequence=number)
    assert record.SerializeToString()[1:] == record_sets.varint(number)


def test_a_packed_set_is_the_encoding_of_the_public_message() -> None:
    records = [Record(key=b"k", value=b"v"), Record()]
    assert record_sets.pack(records) == RecordSet(records=records).SerializeToString()


@pytest.mark.parametrize("garbage", [b"\x0a\x7fx", b"\xff" * 12, b"\x0a"])
def test_what_is_no_record_set_is_refused(garbage: bytes) -> None:
    with pytest.raises(record_sets.MalformedRecordSet):
        record_sets.count(garbage)
    with pytest.raises(record_sets.MalformedRecordSet):
        record_sets.unpack(garbage)


def test_what_a_codec_cannot_read_is_no_record_set() -> None:
    with pytest.raises(record_sets.MalformedRecordSet, match="undecodable"):
        record_sets.unpack(b"garbage", Codec.CODEC_ZSTD)
    with pytest.raises(record_sets.MalformedRecordSet, match="more than 10 bytes"):
        record_sets.unpack(record_sets.pack([Record(value=bytes(100))], Codec.CODEC_ZSTD), Codec.CODEC_ZSTD, Bounds(10))


def test_the_checksum_is_crc32c() -> None:
    # The check value of the CRC catalogue, for the digits 1 to 9.
    assert record_sets.checksum(b"123456789") == google_crc32c.value(b"123456789") == 0xE3069283
