from __future__ import annotations

import pytest

from cursus_gateway.batch import MalformedBatch, decode, empty_answer, encode_answer, head_bytes
from cursus_gateway.delivery import write_messages
from cursus_proto import cutting
from cursus_proto.internal.v1 import opaque_pb2
from cursus_proto.v1 import records_pb2
from tests.harness.legacy_wire import EMPTY_ANSWER, LAYOUT_D, LAYOUT_S, Message, batch_body


def test_layout_s_decodes_to_its_fields() -> None:
    batch = decode(LAYOUT_S)
    assert (batch.topic, batch.partition, batch.acks, batch.idempotent, batch.count) == ("orders", 3, "1", False, 1)
    (run,) = batch.messages.runs
    (record,) = records_pb2.RecordSet.FromString(run.record_set).records
    assert (run.producer_id, run.epoch, record.key, record.value, record.sequence) == (b"p1", 0, b"k1", b"hello", 1)


def test_layouts_s_and_d_decode_to_the_same_records() -> None:
    assert decode(LAYOUT_S) == decode(LAYOUT_D)


def test_the_empty_answer_is_byte_exact() -> None:
    assert empty_answer("orders", 3) == EMPTY_ANSWER


def test_an_answer_is_byte_exact() -> None:
    message = Message(sequence=1, producer_id=b"p1", key=b"k1", payload=b"hello", offset=7)
    packed = records_pb2.RecordSet(records=[records_pb2.Record(key=b"k1", value=b"hello", sequence=1)])
    stored = opaque_pb2.RecordBatch(
        base_offset=7,
        record_count=1,
        codec=records_pb2.CODEC_NONE,
        producer_id=b"p1",
        first_sequence=-1,
        records=packed.SerializeToString(),
    )
    written = write_messages(cutting.stored([stored]), 7, max_count=10, max_bytes=1000)
    parts = encode_answer("orders", 3, written)
    assert len(b"".join(parts)) == 4 + head_bytes("orders") + written.size
    body = batch_body([message], partition=3)
    assert b"".join(parts) == len(body).to_bytes(4, "big") + body
    assert (written.count, written.next_offset) == (1, 8)


@pytest.mark.parametrize(
    ("written", "meant"), [("0", "0"), ("1", "1"), ("-1", "-1"), ("all", "-1"), ("ALL", "-1"), ("", "1")]
)
def test_acks_are_taken_as_clients_write_them(written: str, meant: str) -> None:
    assert decode(batch_body([Message(payload=b"x")], acks=written)).acks == meant


def test_unknown_acks_are_named() -> None:
    with pytest.raises(MalformedBatch) as caught:
        decode(batch_body([Message(payload=b"x")], acks="7"))
    assert caught.value.code == "invalid_acks"


@pytest.mark.parametrize("size", range(len(LAYOUT_S)))
@pytest.mark.parametrize("body", [LAYOUT_S, LAYOUT_D], ids="SD")
def test_a_batch_cut_anywhere_is_refused(body: bytes, size: int) -> None:
    with pytest.raises(MalformedBatch):
        decode(body[:size])


@pytest.mark.parametrize(
    "body",
    [
        LAYOUT_S + b"\0",
        LAYOUT_S[:2] + b"\0\0" + LAYOUT_S[10:],
        LAYOUT_S[:10] + b"\x00\x06" + LAYOUT_S[12:],
        LAYOUT_D[:10] + b"\x00\x01x" + LAYOUT_D[13:],
        LAYOUT_S.replace(b"orders", b"orde\xff\xfe"),
        LAYOUT_S[:33] + b"\xff\xff\xff\xff" + LAYOUT_S[37:],
        LAYOUT_S[:33] + b"\x7f\xff\xff\xff" + LAYOUT_S[37:],
    ],
    ids=["trailing byte", "no topic", "six digits", "no digit", "topic not UTF-8", "negative count", "absurd count"],
)
def test_what_is_no_batch_is_refused(body: bytes) -> None:
    with pytest.raises(MalformedBatch):
        decode(body)


def test_a_batch_without_messages_is_a_batch() -> None:
    assert decode(batch_body([])).count == 0


def test_numbers_of_the_header_need_not_match_the_messages() -> None:
    body = bytearray(batch_body([Message(sequence=5, payload=b"x"), Message(sequence=3, payload=b"y")]))
    messages = decode(bytes(body)).messages
    assert (messages.first_sequence, messages.last_sequence) == (5, 3)
