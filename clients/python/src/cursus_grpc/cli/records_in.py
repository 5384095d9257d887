"""What `cursus publish` reads: lines, `key:value` lines, JSON lines as `consume --format json` prints them, or files.

Everything is bytes, so that what is not text is published as it is.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterator
from typing import BinaryIO, NamedTuple

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


class BadLine(ValueError):
    """A line is not what it should be."""


Parse = Callable[[bytes], Outgoing]


def lines(stream: BinaryIO) -> Iterator[bytes]:
    """Lines without their ends. A last line without an end is one too."""
    for line in stream:
        yield line.removesuffix(b"\n")


def parsed(stream: BinaryIO, parse: Parse, name: str) -> Iterator[Outgoing]:
    """A record for each line. Raises Failed naming file and line."""
    for at, line in enumerate(lines(stream), 1):
        try:
            yield parse(line)
        except BadLine as error:
            raise Failed(f"{name}, line {at}: {error}", "what stands before it is published", "BAD_INPUT") from error


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
    published as JSON, but null as null; where the record was (topic, partition, offset) is ignored. Raises BadLine.

    >>> from_json(b'{"key": "a", "value": {"n": 1}}')[:2]
    (b'{"n":1}', b'a')
    >>> from_json(b'{"key": "a", "value": null}')[:2]
    (None, b'a')
    """
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadLine(f"not JSON: {error}") from error
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


def _content(fields: dict[str, object], name: str) -> bytes | None:
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
    return tuple((one["name"], _content(one, "value")) for one in found)
