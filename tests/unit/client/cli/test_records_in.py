"""What publish reads: lines and JSON, and what it says about the rest."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cursus_grpc.cli.failures import Failed
from cursus_grpc.cli.records_in import BadLine, Outgoing, empty_as_null, from_json, keyed, lines, parsed, plain


def test_lines_lose_their_end_and_nothing_else() -> None:
    stream = io.BytesIO(b"a\n\n b \r\n\xff\nlast")
    assert [one.value for one in parsed(lines(stream), plain, "stdin")] == [b"a", b"", b" b \r", b"\xff", b"last"]


def test_the_first_delimiter_ends_the_key() -> None:
    assert keyed(b":")(b"ann:tea:hot") == Outgoing(b"tea:hot", b"ann")
    assert keyed(b"::")(b"::") == Outgoing(b"", b"")


def test_a_line_without_delimiter_is_named() -> None:
    with pytest.raises(Failed, match=r"orders\.txt, line 2: there is no ':'"):
        list(parsed(lines(io.BytesIO(b"a:1\nb\n")), keyed(b":"), "orders.txt"))


def test_values_that_are_no_text_are_published_as_json() -> None:
    assert from_json(b'{"value": {"n": [1, null, "\xc3\xa9"]}}').value == '{"n":[1,null,"é"]}'.encode()
    assert from_json(b'{"value": 7, "key": 1}')[:2] == (b"7", b"1")


@pytest.mark.parametrize("line", [b'{"value": null}', b'{"value_base64": null}'])
def test_null_is_null_and_neither_text_nor_empty(line: bytes) -> None:
    assert from_json(line).value is None
    assert from_json(b'{"value": ""}').value == b""
    assert from_json(b'{"value": "null"}').value == b"null"


def test_only_where_it_is_asked_for_is_an_empty_value_null() -> None:
    assert [keyed(b":")(line).value for line in (b"ann:", b"ann:tea")] == [b"", b"tea"]
    tombstones = empty_as_null(keyed(b":"))
    assert [tombstones(line)[:2] for line in (b"ann:", b"ann:tea")] == [(None, b"ann"), (b"tea", b"ann")]
    assert [empty_as_null(plain)(line).value for line in (b"", b" ")] == [None, b" "]


def test_headers_may_be_null() -> None:
    headers = b'[{"name": "a", "value": null}, {"name": "b", "value": ""}, {"name": "c"}]'
    assert from_json(b'{"value": "", "headers": %s}' % headers).headers == (("a", None), ("b", b""), ("c", None))


def test_headers_may_be_a_list_or_an_object() -> None:
    pairs = (("a", b"1"), ("b", b"\xff"))
    assert from_json(b'{"value": "", "headers": {"a": "1"}}').headers == pairs[:1]
    line = b'{"value": "", "headers": [{"name": "a", "value": "1"}, {"name": "b", "value_base64": "/w=="}]}'
    assert from_json(line).headers == pairs


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{",
        b"[1]",
        b"{}",
        b"\xff",
        b'{"value_base64": "%"}',
        b'{"value": "", "headers": 1}',
        b'{"value": "", "headers": [{}]}',
        b'{"value": "", "timestamp_ms": "now"}',
        b'{"value": "", "timestamp_ms": -1}',
        b'{"value": "", "schema_version": true}',
        b"[" * 100_000,
    ],
)
def test_what_is_no_record_is_refused(line: bytes) -> None:
    with pytest.raises(BadLine):
        from_json(line)


@pytest.mark.parametrize(
    ("line", "match"),
    [
        (b'{"value": "a", "kee": "b"}', "'kee' is no field of a record; did you mean 'key'"),
        (b'{"valu": "a"}', "'valu' is no field of a record; did you mean 'value'"),
        (b'{"value": "a", "zzz": 1}', "'zzz' is no field of a record: they are aggregate_version, "),
        (
            b'{"value": "a", "headers": [{"name": "a", "val": "b"}]}',
            "'val' is no field of a header; did you mean 'value'",
        ),
        (b'{"value": "a", "value_base64": "YQ=="}', "both value and value_base64"),
        (b'{"value": "", "key": "a", "key_base64": "YQ=="}', "both key and key_base64"),
    ],
)
def test_a_field_that_means_nothing_is_not_dropped(line: bytes, match: str) -> None:
    with pytest.raises(BadLine, match=match):
        from_json(line)


def test_where_a_record_was_may_be_said() -> None:
    assert from_json(b'{"topic": "a", "partition": 1, "offset": 7, "timestamp_ms": 5, "value": "v"}').value == b"v"


class Dripping(io.RawIOBase):
    """A stream that gives what it holds in these pieces."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = [piece for piece in pieces if piece]

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        return self._pieces.pop(0) if self._pieces else b""


@given(
    st.lists(st.binary(max_size=4) | st.text("ab|", max_size=6).map(str.encode), max_size=8),
    st.sampled_from([b"|", b"||", b"|a|", b"\0", b"aab"]),
)
def test_lines_end_where_the_delimiter_is_wherever_the_pieces_end(pieces: list[bytes], delimiter: bytes) -> None:
    whole = b"".join(pieces)
    expected = whole.split(delimiter)
    if not expected[-1]:
        expected.pop()
    assert list(lines(Dripping(pieces), delimiter)) == expected  # type: ignore[arg-type]  # reads are all that is used
    assert list(lines(io.BytesIO(whole), delimiter)) == expected
