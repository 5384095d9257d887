"""What publish reads: lines and JSON, and what it says about the rest."""

from __future__ import annotations

import io

import pytest

from cursus_grpc.cli.failures import Failed
from cursus_grpc.cli.records_in import BadLine, Outgoing, empty_as_null, from_json, keyed, parsed, plain


def test_lines_lose_their_end_and_nothing_else() -> None:
    stream = io.BytesIO(b"a\n\n b \r\n\xff\nlast")
    assert [one.value for one in parsed(stream, plain, "stdin")] == [b"a", b"", b" b \r", b"\xff", b"last"]


def test_the_first_delimiter_ends_the_key() -> None:
    assert keyed(b":")(b"ann:tea:hot") == Outgoing(b"tea:hot", b"ann")
    assert keyed(b"::")(b"::") == Outgoing(b"", b"")


def test_a_line_without_delimiter_is_named() -> None:
    with pytest.raises(Failed, match=r"orders\.txt, line 2: there is no ':'"):
        list(parsed(io.BytesIO(b"a:1\nb\n"), keyed(b":"), "orders.txt"))


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
