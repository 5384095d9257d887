"""What `cursus publish` reads: lines, `key:value` lines, JSON lines as `consume --format json` prints them, or files.

Everything is bytes, so that what is not text is published as it is.
"""

from __future__ import annotations

import base64
import binascii
import difflib
import io
import json
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO, Final, NamedTuple

from cursus_grpc.cli.failures import Failed

Headers = tuple[tuple[str, bytes | None], ...]


class Outgoing(NamedTuple):
    """A record to publish. None: not said; of the value: null."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers | None = None
    partition: int | None = None
    timestamp_ms: int | None = None
    event_type: bytes | None = None
    schema_version: int | None = None
    aggregate_version: int | None = None
    metadata: bytes | None = None


_CONTENTS: Final = ("value", "key", "event_type", "metadata")
_PLACE: Final = ("topic", "partition", "offset")
_OTHERS: Final = ("timestamp_ms", "headers", "schema_version", "aggregate_version")
_KEYS: Final = frozenset((*_CONTENTS, *(f"{name}_base64" for name in _CONTENTS), *_PLACE, *_OTHERS))
_HEADER_KEYS: Final = frozenset(("name", "value", "value_base64"))


class BadLine(ValueError):
    """A line is not what it should be."""


Parse = Callable[[bytes], Outgoing]


_CHUNK_BYTES: Final = 64 * 1024


def lines(stream: BinaryIO, delimiter: bytes = b"\n") -> Iterator[bytes]:
    """Lines without their ends. A last line without an end is one too.

    >>> list(lines(io.BytesIO(b"a||b"), b"||"))
    [b'a', b'b']
    """
    if delimiter == b"\n":
        for line in stream:
            yield line.removesuffix(b"\n")
        return
    parts: list[bytes] = []  # of a line without its end yet, put together once
    seam = b""  # the last of them, where a delimiter may have begun
    while chunk := _read_some(stream):
        parts.append(chunk)
        if delimiter in seam + chunk:
            *whole, rest = b"".join(parts).split(delimiter)
            yield from whole
            parts, seam = [rest] if rest else [], b""
            chunk = rest
        seam = (seam + chunk)[-(len(delimiter) - 1) :] if len(delimiter) > 1 else b""
    if parts:
        yield b"".join(parts)


def _read_some(stream: BinaryIO) -> bytes:
    """What there is, at least a byte of it; nothing at the end."""
    return stream.read1(_CHUNK_BYTES) if isinstance(stream, io.BufferedIOBase) else stream.read(_CHUNK_BYTES)


def parsed(lines: Iterable[bytes], parse: Parse, name: str, what: str = "line") -> Iterator[Outgoing]:
    """A record for each line. Raises Failed naming file and line."""
    for at, line in enumerate(lines, 1):
        try:
            yield parse(line)
        except BadLine as error:
            raise Failed(f"{name}, {what} {at}: {error}", "what stands before it is published", "BAD_INPUT") from error


def plain(line: bytes) -> Outgoing:
    return Outgoing(line)


def keyed(delimiter: bytes) -> Parse:
    """Lines of KEY, delimiter, VALUE. The first delimiter counts."""

    def parse(line: bytes) -> Outgoing:
        key, found, value = line.partition(delimiter)
        if not found:
            raise BadLine(f"there is no {delimiter.decode(errors='replace')!r} between key and value")
        return Outgoing(value, key)

    return parse


def empty_as_null(parse: Parse) -> Parse:
    """The same, but that a record whose value is empty has none."""

    def parse_or_null(line: bytes) -> Outgoing:
        record = parse(line)
        return record if record.value else record._replace(value=None)

    return parse_or_null


def from_json(line: bytes) -> Outgoing:
    """An object with `value` and perhaps `key`, `headers`, `timestamp_ms` and more. A value that is no string is
    published as JSON, but null as null; where the record was (topic, partition, offset) is ignored. Raises BadLine,
    also for a key that means nothing: a misspelt one would be lost without a word.

    >>> from_json(b'{"key": "a", "value": {"n": 1}}')[:2]
    (b'{"n":1}', b'a')
    >>> from_json(b'{"key": "a", "value": null}')[:2]
    (None, b'a')
    """
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadLine(f"not JSON: {error}") from error
    if isinstance(fields, dict) and (unknown := fields.keys() - _KEYS):
        raise BadLine(_unknown(unknown, "a record", _KEYS))
    if not isinstance(fields, dict) or not ("value" in fields or "value_base64" in fields):
        raise BadLine('not an object with a "value"')
    return Outgoing(
        _content(fields, "value"),
        _content(fields, "key"),
        _headers(fields.get("headers")),
        None,
        _number(fields, "timestamp_ms"),
        _content(fields, "event_type"),
        _number(fields, "schema_version"),
        _number(fields, "aggregate_version"),
        _content(fields, "metadata"),
    )


def _unknown(found: Iterable[str], what: str, known: Iterable[str]) -> str:
    """What is wrong, with the name that was perhaps meant."""
    name = min(found)
    meant = difflib.get_close_matches(name, known, n=1)
    guess = f"; did you mean {meant[0]!r}?" if meant else f": they are {', '.join(sorted(known))}"
    return f"{name!r} is no field of {what}{guess}"


def _content(fields: dict[str, object], name: str) -> bytes | None:
    if fields.get(name) is not None and fields.get(f"{name}_base64") is not None:
        raise BadLine(f"there are both {name} and {name}_base64, and only one can be meant")
    if (packed := fields.get(f"{name}_base64")) is not None:
        try:
            return base64.b64decode(str(packed), validate=True)
        except (binascii.Error, ValueError) as error:
            raise BadLine(f"{name}_base64 is not base64") from error
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def _number(fields: dict[str, object], name: str) -> int | None:
    value = fields.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        raise BadLine(f"{name} is a whole number, not {value!r}")
    return value


def _headers(found: object) -> Headers | None:
    """A list of {name, value} objects, or an object of names and values."""
    if found is None:
        return None
    if isinstance(found, dict):
        found = [{"name": name, "value": value} for name, value in found.items()]
    if not isinstance(found, list) or not all(
        isinstance(one, dict) and isinstance(one.get("name"), str) for one in found
    ):
        raise BadLine("headers is a list of objects with name and value, or an object")
    for one in found:
        if unknown := one.keys() - _HEADER_KEYS:
            raise BadLine(_unknown(unknown, "a header", _HEADER_KEYS))
    return tuple((one["name"], _content(one, "value")) for one in found)
