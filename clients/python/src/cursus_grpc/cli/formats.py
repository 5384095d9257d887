"""How a record is printed: as text, as a line of JSON, as a hex dump, or by a format string like kcat's.

    %t topic        %s value       %S its length in bytes, -1 for a null
    %p partition    %k key         %K its length in bytes, -1 without a key
    %o offset       %h headers     %T timestamp in milliseconds since 1970
    %% a percent sign; \\n \\r \\t \\0 \\\\ \\xHH as in C

Printers make bytes, because keys and values are bytes: what is not text arrives as it was sent. A null is printed as
nothing, or as the text the user has chosen for it; JSON has a null of its own. They take many records at a time: what
the records of a batch share is then said once.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from json.encoder import encode_basestring
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cursus_grpc import Record

Printer = Callable[[Sequence["Record"]], bytes]
"""Everything that is written for these records, their ends included."""

OnePrinter = Callable[["Record"], bytes]
"""Everything that is written for a record."""

Token = Callable[["Record", bytes], bytes]
"""What stands for a token, given what stands for a null."""

_TOKENS: Final[dict[str, Token]] = {
    "t": lambda record, _: record.topic.encode(),
    "p": lambda record, _: b"%d" % record.partition,
    "o": lambda record, _: b"%d" % record.offset,
    "k": lambda record, null: _or(record.key, null),
    "K": lambda record, _: b"%d" % _length(record.key),
    "s": lambda record, null: _or(record.value, null),
    "S": lambda record, _: b"%d" % _length(record.value),
    "h": lambda record, null: b",".join(name.encode() + b"=" + _or(value, null) for name, value in record.headers),
    "T": lambda record, _: b"%d" % record.timestamp_ms,
}
_ESCAPES: Final = {"n": b"\n", "r": b"\r", "t": b"\t", "0": b"\0", "\\": b"\\"}
_PIECE: Final = re.compile(r"%(?P<token>.?)|\\x(?P<hex>[0-9a-fA-F]{2})|\\(?P<escape>.?)|(?P<plain>[^%\\]+)", re.DOTALL)
_BYTE_ESCAPE: Final = re.compile(rb"\\x(?P<hex>[0-9a-fA-F]{2})|\\(?P<escape>.?)", re.DOTALL)
_DUMP_BYTES: Final = 16
_LINE_END: Final = b"\n"
# Made once: json.dumps makes one for every call that says anything about it, which takes longer than the record.
_JSON: Final = json.JSONEncoder(ensure_ascii=False)


def named(name: str, *, terminal: bool, null: bytes = b"", delimiter: bytes | None = None) -> Printer:
    """The printer called `text`, `json` or `hex`, or made of a format string. Raises ValueError.

    On a terminal text is shown so that it cannot harm it; anywhere else the bytes are passed on as they are. `null` is
    what text and format strings show for one, `delimiter` what ends a record of text instead of a line end.
    """
    if delimiter is not None and name != "text":
        raise ValueError(
            "a delimiter is for text: JSON is a line a record, and a format string says itself what ends one"
        )
    match name:
        case "text":
            end = _LINE_END if delimiter is None else delimiter
            return _shown(null, end) if terminal else _raw(null, end)
        case "json":
            return json_lines
        case "hex":
            return _each(hex_dump)
    if "%" not in name:
        raise ValueError(f"{name!r} is no format: it is text, json, hex or a string with %t %p %o %k %K %s %S %h %T")
    return _each(compiled(name, null))


def _each(one: OnePrinter) -> Printer:
    return lambda records: b"".join(map(one, records))


def unescaped(text: str) -> bytes:
    """An argument, also one that is not UTF-8, with the escapes of a format string. Raises ValueError.

    >>> unescaped(r"\\t|\\x1e")
    b'\\t|\\x1e'
    """

    def meant(escape: re.Match[bytes]) -> bytes:
        if escape["hex"] is not None:
            return bytes.fromhex(escape["hex"].decode())
        found = _ESCAPES.get(escape["escape"].decode(errors="replace"))
        if found is None:
            raise ValueError(f"{os.fsdecode(escape[0])}: the escapes are \\n \\r \\t \\0 \\\\ \\xHH")
        return found

    return _BYTE_ESCAPE.sub(meant, os.fsencode(text))


def compiled(text: str, null: bytes = b"") -> OnePrinter:
    """The printer a format string describes. Raises ValueError.

    >>> compiled("%q")
    Traceback (most recent call last):
    ValueError: '%q' in the format: the tokens are %t %p %o %k %K %s %S %h %T %%
    """
    parts: list[bytes | Token] = []
    for piece in _PIECE.finditer(text):
        token, code, escape, plain = piece["token"], piece["hex"], piece["escape"], piece["plain"]
        if plain is not None:
            parts.append(plain.encode())
        elif code is not None:
            parts.append(bytes.fromhex(code))
        elif token == "%":
            parts.append(b"%")
        elif token is not None:
            if token not in _TOKENS:
                known = " ".join(f"%{name}" for name in _TOKENS)
                raise ValueError(f"{piece[0]!r} in the format: the tokens are {known} %%")
            parts.append(_TOKENS[token])
        elif escape in _ESCAPES:
            parts.append(_ESCAPES[escape])
        else:
            raise ValueError(f"{piece[0]} in the format: the escapes are \\n \\r \\t \\0 \\\\ \\xHH")
    return lambda record: b"".join(part if isinstance(part, bytes) else part(record, null) for part in parts)


def _or(content: bytes | None, null: bytes) -> bytes:
    return null if content is None else content


def _length(content: bytes | None) -> int:
    return -1 if content is None else len(content)


def _raw(null: bytes, end: bytes) -> Printer:
    def print_values(records: Sequence[Record]) -> bytes:
        values = [null if (value := record.value) is None else value for record in records]
        return end.join((*values, b""))

    return print_values


def _shown(null: bytes, end: bytes) -> Printer:
    return _each(lambda record: printable(_or(record.value, null)).encode() + end)


def printable(value: bytes | str) -> str:
    """Text as a terminal may show it: what is not UTF-8 and what steers a terminal is escaped.

    >>> print(printable(b"caf\\xc3\\xa9 \\xff \\x1b[31m"))
    café \\xff \\x1b[31m
    """
    text = value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char == "\t" else _escaped(char) for char in text)


def _escaped(char: str) -> str:
    return char.encode("unicode_escape", "surrogatepass").decode("ascii")


def json_line(record: Record) -> bytes:
    """A record as `publish --format json` takes it back."""
    return _JSON.encode(json_fields(record)).encode() + b"\n"


def json_lines(records: Sequence[Record]) -> bytes:
    """The same for many, without a dictionary for each: a record of text is a few pieces of it put together. Others
    take the longer way. A test compares the two."""
    lines: list[str] = []
    quoted = encode_basestring
    batch = head = None
    for record in records:
        if record._batch is not batch:
            batch = record._batch
            head = f'{{"topic": {quoted(batch.topic)}, "partition": {batch.partition}, "offset": '
        offset, value = record.offset, record.value
        message = batch.message(offset)
        key = message.key
        try:
            # In the order in which they are rarely there, headers last: to look for them takes longest.
            if (
                value is None
                or message.event_type
                or message.schema_version
                or message.aggregate_version
                or message.metadata
                or message.headers
            ):
                lines.append(_JSON.encode(json_fields(record)))
                continue
            key_text = quoted(key.decode()) if key or message.HasField("key") else "null"
            time_ms = message.timestamp_ms or batch.append_time_ms
            lines.append(
                f'{head}{offset}, "timestamp_ms": {time_ms}, "key": {key_text}, "value": {quoted(value.decode())}}}'
            )
        except UnicodeDecodeError:
            lines.append(_JSON.encode(json_fields(record)))
    lines.append("")
    return "\n".join(lines).encode()


def json_fields(record: Record) -> dict[str, object]:
    """What is not UTF-8 is in `…_base64` instead; null is null."""
    fields: dict[str, object] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
    }
    fields.update(_text_or_base64("key", record.key))
    fields.update(_text_or_base64("value", record.value))
    if headers := record.headers:
        fields["headers"] = [{"name": name, **_text_or_base64("value", value)} for name, value in headers]
    if record.event_type:
        fields.update(_text_or_base64("event_type", record.event_type))
    if record.schema_version:
        fields["schema_version"] = record.schema_version
    if record.aggregate_version:
        fields["aggregate_version"] = record.aggregate_version
    if record.metadata:
        fields.update(_text_or_base64("metadata", record.metadata))
    return fields


def _text_or_base64(name: str, content: bytes | None) -> dict[str, str | None]:
    if content is None:
        return {name: None}
    try:
        return {name: content.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(content).decode("ascii")}


def hex_dump(record: Record) -> bytes:
    """A head line, then key and value in the form of `hexdump -C`; a null value is named."""
    lines = [f"{record.topic}[{record.partition}] offset {record.offset}, timestamp {record.timestamp_ms}"]
    for name, content in (("key", record.key), ("value", record.value)):
        if content is not None:
            lines.append(f"  {name}, {len(content)} bytes")
            lines.extend(f"  {line}" for line in _dump(content))
        elif name == "value":
            lines.append("  value, null")
    return "\n".join(lines).encode() + b"\n"


def _dump(content: bytes) -> Iterator[str]:
    for at in range(0, len(content), _DUMP_BYTES):
        row = content[at : at + _DUMP_BYTES]
        left, right = row[:8].hex(" "), row[8:].hex(" ")
        shown = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in row)
        yield f"{at:08x}  {left:<23}  {right:<23}  |{shown}|"
