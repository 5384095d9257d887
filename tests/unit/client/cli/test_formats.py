"""Printing records, and reading back what was printed."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cursus_grpc import Record, TopicPartition
from cursus_grpc._records import BatchInfo, make_records
from cursus_grpc.cli import formats
from cursus_grpc.cli.records_in import from_json
from cursus_proto.v1 import records_pb2

CONTENT = st.binary(max_size=40) | st.text(max_size=20).map(str.encode)


def record(
    value: bytes | None,
    key: bytes | None = None,
    headers: tuple[tuple[str, bytes | None], ...] = (),
    **rest: int | bytes,
) -> Record:
    message = records_pb2.Record(value=value, key=key, timestamp_ms=1_700_000_000_123)
    for name, content in headers:
        message.headers.add(key=name, value=content)
    for name, one in rest.items():
        setattr(message, name, one)
    batch = BatchInfo(TopicPartition("orders", 3), 5, 42, b"", [message])
    return next(make_records([value], [42], batch))


def test_a_format_string_has_every_token() -> None:
    printer = formats.compiled(r"%t %p %o %k %s %h %T %K %S 100%%\n")
    shown = printer(record(b"tea", b"ann", (("a", b"1"), ("b", b"2"))))
    assert shown == b"orders 3 42 ann tea a=1,b=2 1700000000123 3 3 100%\n"


def test_no_key_is_told_from_an_empty_key_by_its_length() -> None:
    printer = formats.compiled("[%k]%K ")
    assert printer(record(b"", None)) + printer(record(b"", b"")) == b"[]-1 []0 "


def test_null_is_told_from_an_empty_value_by_its_length() -> None:
    printer = formats.compiled("[%s]%S ")
    assert printer(record(None)) + printer(record(b"")) == b"[]-1 []0 "


def test_a_null_is_printed_as_nothing_or_as_what_was_asked_for() -> None:
    for terminal in (False, True):
        assert formats.named("text", terminal=terminal)([record(None)]) == b"\n"
        assert formats.named("text", terminal=terminal, null=b"NULL")([record(None)]) == b"NULL\n"
        assert formats.named("text", terminal=terminal, null=b"NULL")([record(b"")]) == b"\n"
    shown = formats.named("%k %s %h", terminal=False, null=b"NULL")([record(None, None, (("a", None), ("b", b"")))])
    assert shown == b"NULL NULL a=NULL,b="


def test_json_has_a_null_of_its_own_and_a_dump_names_it() -> None:
    line = json.loads(formats.named("json", terminal=False, null=b"NULL")([record(None, None, (("a", None),))]))
    assert (line["key"], line["value"], line["headers"]) == (None, None, [{"name": "a", "value": None}])
    assert json.loads(formats.json_line(record(b"")))["value"] == ""
    assert formats.hex_dump(record(None)).splitlines()[1:] == [b"  value, null"]
    assert formats.hex_dump(record(b"")).splitlines()[1:] == [b"  value, 0 bytes"]


def test_escapes_are_those_of_c() -> None:
    assert formats.compiled(r"%s\t\x00\\n\r\0é")(record(b"v")) == b"v\t\x00\\n\r\0" + "é".encode()


@pytest.mark.parametrize("text", ["%q", "100%", "%", r"%s\q", "%s\\", r"%s\x4"])
def test_what_a_format_cannot_mean_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match="in the format"):
        formats.compiled(text)


def test_a_format_without_a_token_is_a_mistyped_name() -> None:
    with pytest.raises(ValueError, match="'jsn' is no format"):
        formats.named("jsn", terminal=False)


@given(CONTENT)
def test_values_pass_through_a_pipe_as_they_are(value: bytes) -> None:
    assert formats.named("text", terminal=False)([record(value)]) == value + b"\n"
    assert formats.compiled("%s")(record(value)) == value


@given(CONTENT)
def test_nothing_a_value_holds_can_steer_a_terminal(value: bytes) -> None:
    shown = formats.named("text", terminal=True)([record(value)]).decode()
    assert shown.endswith("\n")
    assert all(char.isprintable() or char == "\t" for char in shown[:-1])


@given(
    st.none() | CONTENT,
    st.none() | CONTENT,
    st.lists(st.tuples(st.text(st.characters(codec="utf-8"), max_size=5), st.none() | CONTENT), max_size=3),
    CONTENT,
    st.integers(0, 2**31 - 1),
)
def test_a_json_line_can_be_published_again(
    value: bytes | None, key: bytes | None, headers: list[tuple[str, bytes | None]], metadata: bytes, version: int
) -> None:
    printed = record(value, key, tuple(headers), metadata=metadata, event_type=metadata, schema_version=version)
    line = formats.json_line(printed)
    assert line.count(b"\n") == 1
    again = from_json(line)
    assert (again.value, again.key, again.timestamp_ms) == (value, key, printed.timestamp_ms)
    assert again.headers == (tuple(headers) or None)
    assert (again.metadata or b"", again.event_type or b"") == (metadata, metadata)
    assert (again.schema_version or 0) == version


@given(
    st.lists(
        st.tuples(
            st.none() | CONTENT,
            st.none() | CONTENT,
            st.lists(st.tuples(st.text(st.characters(codec="utf-8"), max_size=5), st.none() | CONTENT), max_size=1),
            st.sampled_from([{}, {"metadata": b"\xff"}, {"event_type": b"made"}, {"schema_version": 2}]),
        ),
        max_size=5,
    )
)
def test_many_records_are_the_lines_of_each(
    drawn: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]], dict[str, int | bytes]]],
) -> None:
    records = [record(value, key, tuple(headers), **rest) for value, key, headers, rest in drawn]
    assert formats.json_lines(records) == b"".join(map(formats.json_line, records))


def test_a_delimiter_ends_records_of_text() -> None:
    for terminal in (False, True):
        printer = formats.named("text", terminal=terminal, delimiter=b"|\0")
        assert printer([record(b"a"), record(b"")]) == b"a|\0|\0"
        assert printer([]) == b""
    for name in ("json", "hex", "%s"):
        with pytest.raises(ValueError, match="a delimiter is for text"):
            formats.named(name, terminal=False, delimiter=b"|")


def test_a_delimiter_is_any_bytes() -> None:
    assert formats.unescaped("\\n\\0\\x1e\\\\%|é\udcff") == b"\n\0\x1e\\%|\xc3\xa9\xff"
    for text in ("\\q", "\\x4", "\\"):
        with pytest.raises(ValueError, match="the escapes are"):
            formats.unescaped(text)


def test_json_says_where_the_record_lies() -> None:
    fields = json.loads(formats.json_line(record(b"\xff", b"k")))
    assert (fields["topic"], fields["partition"], fields["offset"]) == ("orders", 3, 42)
    assert (fields["key"], fields["value_base64"]) == ("k", "/w==")
    assert "value" not in fields


def test_a_hex_dump_shows_bytes_beside_text() -> None:
    lines = formats.hex_dump(record(bytes(range(0x3C, 0x50)), None)).decode().splitlines()
    assert lines == [
        "orders[3] offset 42, timestamp 1700000000123",
        "  value, 20 bytes",
        "  00000000  3c 3d 3e 3f 40 41 42 43  44 45 46 47 48 49 4a 4b  |<=>?@ABCDEFGHIJK|",
        "  00000010  4c 4d 4e 4f                                       |LMNO|",
    ]
