"""What a frame may leave in the log, read from the wire document alone and independently of the gateway's own code.

Used to hold a fuzzer's frames against what was stored. Of bodies that can be read in several ways all ways are allowed;
within one way every byte counts.
"""

from __future__ import annotations

import contextlib
import re
import zlib
from collections.abc import Iterator
from typing import NamedTuple

import cramjam

_WHITE = b"\0 \t\r\n"
_ACKS = (b"", b"0", b"1", b"-1", b"all")


class Storable(NamedTuple):
    """A message and where it belongs. Of a text publish only topic and payload are compared, so the rest is empty."""

    topic: bytes
    payload: bytes
    partition: int | None = None
    sequence: int = 0
    producer_id: bytes = b""
    key: bytes = b""
    epoch: int = 0
    event_type: bytes = b""
    schema_version: int = 0
    aggregate_version: int = 0
    metadata: bytes = b""


class _Unreadable(Exception):
    pass


class _Cursor:
    """Takes fields off a body and never beyond its end."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.place = 0

    def take(self, size: int) -> bytes:
        if size < 0 or self.place + size > len(self.body):
            raise _Unreadable
        self.place += size
        return self.body[self.place - size : self.place]

    def number(self, size: int, *, signed: bool = False) -> int:
        return int.from_bytes(self.take(size), "big", signed=signed)

    def text(self, size_bytes: int = 2) -> bytes:
        return self.take(self.number(size_bytes))


def storable(body: bytes) -> Iterator[Storable]:
    """Every message that storing this body may leave behind."""
    for plain in _plain(body):
        with contextlib.suppress(_Unreadable):
            yield from _batch(plain)
        yield from _texts(plain)


def _plain(body: bytes) -> Iterator[bytes]:
    yield body
    if body.startswith(b"\x1f\x8b\x08"):
        unpacking = zlib.decompressobj(31)
        with contextlib.suppress(zlib.error):
            plain = unpacking.decompress(body)
            if unpacking.eof:
                yield plain
    if body.startswith(b"\x04\x22\x4d\x18"):
        with contextlib.suppress(cramjam.DecompressionError):
            yield bytes(cramjam.lz4.decompress(body))
    with contextlib.suppress(cramjam.DecompressionError):
        yield bytes(cramjam.snappy.decompress_raw(body))


def _batch(body: bytes) -> list[Storable]:
    cursor = _Cursor(body)
    if cursor.take(2) != b"\xba\x7c":
        raise _Unreadable
    topic = cursor.text()
    layout = cursor.number(2)
    if layout == 0:
        partition = cursor.number(2)
        acks = cursor.text(1)
    else:
        digits = cursor.take(layout)
        if layout > 5 or not digits.isdigit():
            raise _Unreadable
        partition = int(digits)
        acks = cursor.text()
    if acks.lower() not in _ACKS:
        raise _Unreadable
    cursor.take(1 + 8 + 8)
    count = cursor.number(4, signed=True)
    found: list[Storable] = []
    for _ in range(count):
        cursor.take(8)
        sequence, producer_id, key = cursor.number(8), cursor.text(), cursor.text()
        epoch, payload, event_type = cursor.number(8, signed=True), cursor.text(4), cursor.text()
        schema_version, aggregate_version, metadata = cursor.number(4), cursor.number(8), cursor.text()
        found.append(
            Storable(
                topic,
                payload,
                partition,
                sequence,
                producer_id,
                key,
                epoch,
                event_type,
                schema_version,
                aggregate_version,
                metadata,
            )
        )
    if cursor.place != len(body):
        raise _Unreadable
    return found


def _texts(body: bytes) -> Iterator[Storable]:
    size = int.from_bytes(body[:2], "big")
    if len(body) >= 2 and size <= 1024 and size + 2 <= len(body):
        topic, payload = body[2 : 2 + size], body[2 + size :]
        if topic:
            yield Storable(topic, payload)
        yield from _publishes(payload)
    yield from _publishes(body)
    topic, bar, payload = body.partition(b"|")
    if bar:
        yield Storable(topic, payload)


def _publishes(text: bytes) -> Iterator[Storable]:
    match = re.match(rb"publish[ \t\r\n]+(.*)", text.strip(_WHITE), re.DOTALL | re.IGNORECASE)
    if match is None:
        return
    arguments = match[1]
    topic, *message = re.split(rb"[ \t\r\n]", arguments, maxsplit=1)
    if message:
        yield Storable(topic, message[0])
    keyed = re.search(rb"(?:^|[ \t\r\n])message=", arguments)
    if keyed is not None:
        topics = re.findall(rb"(?:^|[ \t\r\n])topic=([^ \t\r\n]*)", arguments[: keyed.start()])
        if topics:
            yield Storable(topics[-1], arguments[keyed.end() :].strip(b" \t\r\n"))
