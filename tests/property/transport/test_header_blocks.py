"""Header blocks, timeouts and texts: what one end writes, the other reads, and so does a library that knows neither."""

from __future__ import annotations

import math
from urllib.parse import unquote

import pytest
from hpack import Decoder, Encoder
from hypothesis import example, given
from hypothesis import strategies as st

from cursus_transport.errors import ConnectionFailed
from cursus_transport.headers import (
    Reader,
    decode_metadata,
    decode_text,
    decode_timeout,
    encode_metadata,
    encode_text,
    encode_timeout,
    literal,
)

NAMES = st.text("abcdefghijklmnopqrstuvwxyz0123456789-_.", min_size=1, max_size=30)
VALUES = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=300)
HEADERS = st.lists(st.tuples(NAMES.map(str.encode), VALUES.map(str.encode)), max_size=8)
METADATA = st.lists(
    st.one_of(
        st.tuples(NAMES.filter(lambda name: not name.endswith("-bin")), VALUES),
        st.tuples(NAMES.map(lambda name: name + "-bin"), st.binary(max_size=300)),
    ),
    max_size=6,
).filter(lambda pairs: not {name for name, _ in pairs} & {"grpc-status", "grpc-message", "content-type", "te"})


@given(HEADERS)
@example([(b"x" * length, b"y" * length) for length in (126, 127, 128, 254, 255, 16_510)])
def test_what_we_write_is_read_by_hpack(headers: list[tuple[bytes, bytes]]) -> None:
    decoder = Decoder()
    block = b"".join(literal(name, value) for name, value in headers)
    assert [tuple(one) for one in decoder.decode(block, raw=True)] == headers
    assert not decoder.header_table.dynamic_entries


@given(st.lists(st.tuples(HEADERS, st.booleans(), st.sampled_from([None, None, 0, 64, 4096])), max_size=12), st.data())
def test_what_hpack_writes_we_read(
    blocks: list[tuple[list[tuple[bytes, bytes]], bool, int | None]], data: st.DataObject
) -> None:
    """One connection's blocks: with and without a table, whose size changes, and with blocks that come again."""
    encoder, reader = Encoder(), Reader()
    for headers, huffman, table in blocks:
        if table is not None:
            encoder.header_table_size = table
        again = data.draw(st.integers(1, 3), label="how often")
        for _ in range(again):
            assert list(reader.read(encoder.encode(headers, huffman=huffman))) == headers


@given(METADATA)
def test_metadata_is_read_as_it_was_written(metadata: list[tuple[str, str | bytes]]) -> None:
    assert list(decode_metadata(Reader().read(encode_metadata(metadata)))) == metadata


@given(st.binary(max_size=200))
def test_a_block_that_is_none_is_a_failure_of_the_connection_and_of_nothing_else(block: bytes) -> None:
    reader = Reader()
    try:
        reader.read(block)
    except ConnectionFailed:
        with pytest.raises(ConnectionFailed):
            Reader().read(block)


@given(st.floats(0, 99_999_999, allow_nan=False))
@example(0.001)
@example(99_999.999)
@example(99_999.9991)
@example(100_000.0)
def test_a_timeout_is_never_shorter_than_it_was(seconds: float) -> None:
    decoded = decode_timeout(encode_timeout(seconds))
    assert decoded >= seconds or math.isclose(decoded, seconds, rel_tol=1e-12)
    assert decoded <= seconds + (0.0011 if seconds < 99_000 else 2)


@given(st.integers(0, 99_999_999), st.sampled_from("HMSmun"))
def test_every_timeout_of_grpc_is_read(number: int, unit: str) -> None:
    seconds = {"H": 3600, "M": 60, "S": 1, "m": 1e-3, "u": 1e-6, "n": 1e-9}[unit]
    assert decode_timeout(f"{number}{unit}".encode()) == pytest.approx(number * seconds)


@given(st.text(max_size=200))
def test_a_text_is_read_as_it_was_written(text: str) -> None:
    encoded = encode_text(text)
    assert all(0x20 <= byte < 0x7F for byte in encoded)
    assert decode_text(encoded) == text
    assert unquote(encoded.decode()) == text


@given(st.binary(max_size=100))
def test_any_bytes_are_some_text(value: bytes) -> None:
    assert isinstance(decode_text(value), str)
