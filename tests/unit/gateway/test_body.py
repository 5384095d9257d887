from __future__ import annotations

import gzip
from collections.abc import Callable

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cursus_gateway import body
from cursus_gateway.batch import LegacyBatch
from cursus_gateway.body import BarSeparated, CommandText, DirectMessage, Unreadable
from cursus_gateway.compression import TooLarge
from tests.harness.legacy_wire import LAYOUT_S, Message, batch_body


def envelope(topic: bytes, payload: bytes) -> bytes:
    return len(topic).to_bytes(2, "big") + topic + payload


def xerial(plain: bytes) -> bytes:
    half = len(plain) // 2
    blocks = [bytes(cramjam.snappy.compress_raw(part)) for part in (plain[:half], plain[half:])]
    head = b"\x82SNAPPY\0" + b"\0\0\0\x01\0\0\0\x01"
    return head + b"".join(len(block).to_bytes(4, "big") + block for block in blocks)


COMPRESSED: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "lz4": lambda plain: bytes(cramjam.lz4.compress(plain)),
    "zstd": lambda plain: bytes(cramjam.zstd.compress(plain)),
    "xerial snappy": xerial,
    "raw snappy": lambda plain: bytes(cramjam.snappy.compress_raw(plain)),
}


@pytest.mark.parametrize("word", ["LIST", "list", "Create orders 4", "SETGROUP g", "EXIT"])
def test_a_command_is_known_by_its_whole_first_word_in_any_case(word: str) -> None:
    assert body.read(envelope(b"", word.encode())) == CommandText(word.encode(), raw=False)
    assert body.read(envelope(b"orders", word.encode())) == CommandText(word.encode(), raw=False)
    assert body.read(word.encode()) == CommandText(word.encode(), raw=True)


def test_white_space_and_nul_around_a_command_are_trimmed() -> None:
    assert body.read(envelope(b"", b"\0 \r\nLIST\n\0")) == CommandText(b"LIST", raw=False)
    assert body.read(b"\n LIST \r\n") == CommandText(b"LIST", raw=True)


@pytest.mark.parametrize("payload", [b"LISTEN to me", b" hello ", b"CREATED", b"\xff\xfe", b"CREATE\x0borders"])
def test_anything_else_in_an_envelope_is_a_direct_message_kept_as_it_is(payload: bytes) -> None:
    assert body.read(envelope(b"orders", payload)) == DirectMessage(b"orders", payload)


def test_an_empty_frame_means_nothing() -> None:
    assert body.read(b"") is None


def test_an_envelope_without_payload_is_an_empty_command() -> None:
    assert body.read(envelope(b"orders", b" \0")) == Unreadable("ERROR: empty_command", close=False)


def test_an_unknown_command_without_a_topic_is_named() -> None:
    found = body.read(envelope(b"", b"FROB x"))
    assert found == Unreadable('ERROR: unknown_command command="FROB x"', close=False)


@pytest.mark.parametrize("kind", COMPRESSED)
def test_a_compressed_batch_is_recognised(kind: str) -> None:
    plain = batch_body([Message(payload=b"x" * 100, sequence=n, producer_id=b"p") for n in range(20)])
    found = body.read(COMPRESSED[kind](plain))
    assert isinstance(found, LegacyBatch)
    assert found == body.read(plain)


@pytest.mark.parametrize("kind", [kind for kind in COMPRESSED if kind != "raw snappy"])
def test_a_compressed_command_is_a_command(kind: str) -> None:
    assert body.read(COMPRESSED[kind](envelope(b"", b"LIST"))) == CommandText(b"LIST", raw=False)


def test_only_one_level_of_compression_is_unpacked() -> None:
    found = body.read(gzip.compress(gzip.compress(LAYOUT_S)))
    assert isinstance(found, Unreadable)


def test_a_bomb_is_refused_without_being_unpacked() -> None:
    with pytest.raises(TooLarge) as error:
        body.read(gzip.compress(b"\0" * (65 * 1024 * 1024), compresslevel=1))
    assert body.too_large(error.value).reply.startswith("ERROR: decode_failed reason=")


@pytest.mark.parametrize("kind", COMPRESSED)
def test_a_body_is_unpacked_up_to_the_bytes_it_may_have(kind: str) -> None:
    plain = batch_body([Message(payload=bytes(n % 251 for n in range(5_000)))])
    packed = COMPRESSED[kind](plain)
    assert body.read(packed, len(plain)) == body.read(plain)
    with pytest.raises(TooLarge):
        body.read(packed, len(plain) - 1)


def test_a_raw_snappy_block_that_begins_like_a_batch_is_read_as_snappy() -> None:
    size = 15_930 - len(batch_body([Message()]))
    plain = batch_body([Message(payload=bytes(n % 251 for n in range(size)))])
    packed = bytes(cramjam.snappy.compress_raw(plain))
    assert packed[:2] == b"\xba\x7c"
    assert body.read(packed) == body.read(plain)


def test_a_batch_that_cannot_be_decoded_is_answered_and_the_connection_stays() -> None:
    found = body.read(LAYOUT_S[:-1])
    assert isinstance(found, Unreadable)
    assert found.reply.startswith('ERROR: batch_decode_failed reason="')
    assert not found.close


def test_bad_acks_are_a_permanent_refusal() -> None:
    found = body.read(batch_body([Message(payload=b"x")], acks="2"))
    assert isinstance(found, Unreadable)
    assert found.reply.startswith("ERROR: invalid_acks class=validation retryable=false ")


def test_a_bar_may_separate_topic_and_payload() -> None:
    assert body.read(b"orders|hello|you") == BarSeparated("orders", b"hello|you")


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x02\x00\x01", b"\xff" * 50])
def test_garbage_ends_the_connection(garbage: bytes) -> None:
    assert body.read(garbage) == Unreadable(
        'ERROR: decode_failed reason="not a command, envelope or batch"', close=True
    )


def test_a_raw_command_longer_than_its_letters_read_as_a_length_is_still_a_command() -> None:
    text = b"PUBLISH orders " + b"x" * 30_000
    assert body.read(text) == CommandText(text, raw=True)


@given(st.binary(max_size=400))
def test_any_bytes_have_a_meaning(garbage: bytes) -> None:
    body.read(garbage)
