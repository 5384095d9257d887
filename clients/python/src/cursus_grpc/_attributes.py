"""What few records have besides key and value: checked once, and encoded together with them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypedDict

from cursus_grpc._serializing import as_bytes
from cursus_grpc.types import Headers
from cursus_proto.records import encode_record


@dataclass(frozen=True, slots=True)
class Attributes:
    """What a record may have besides key and value."""

    timestamp_ms: int = 0
    headers: Sequence[tuple[str, bytes | None]] = ()
    event_type: bytes = b""
    schema_version: int = 0
    aggregate_version: int = 0
    metadata: bytes = b""


NOTHING_MORE: Final = Attributes()


class RecordOptions(TypedDict, total=False):
    """What a record may have besides key and value. `AsyncProducer.send` has their meaning."""

    headers: Headers | None
    timestamp_ms: int | None
    partition: int | None
    event_type: bytes | str | None
    schema_version: int | None
    aggregate_version: int | None
    metadata: bytes | str | None


NOTHING_RARE: Final = (None,) * 6
"""The arguments of `record_attributes` for most records, which are spared it."""


def record_attributes(
    headers: Headers | None,
    timestamp_ms: int | None,
    event_type: bytes | str | None,
    schema_version: int | None,
    aggregate_version: int | None,
    metadata: bytes | str | None,
) -> Attributes:
    """What few records have, checked. Raises TypeError, ValueError."""
    for name, number in (("schema_version", schema_version), ("aggregate_version", aggregate_version)):
        if number is not None and number < 0:
            raise ValueError(f"{name} must not be negative, but is {number}")
    return Attributes(
        timestamp_ms or 0,
        () if headers is None else _header_pairs(headers),
        as_bytes("event_type", event_type or b""),
        schema_version or 0,
        aggregate_version or 0,
        as_bytes("metadata", metadata or b""),
    )


def _header_pairs(headers: Headers) -> tuple[tuple[str, bytes | None], ...]:
    """Raises TypeError for what is neither a mapping nor pairs, above all for text: its letters would do as either."""
    found = list[tuple[str, bytes | None]]()
    pairs: Iterable[object] = headers.items() if isinstance(headers, Mapping) else headers
    if isinstance(pairs, (str, bytes, bytearray, memoryview)) or not isinstance(pairs, Iterable):
        raise TypeError(f"headers must be a mapping or pairs of name and value, not {type(headers).__name__}")
    for pair in pairs:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise TypeError(f"a header must be a pair of name and value, not {pair!r}")
        name, content = pair
        if not isinstance(name, str):
            raise TypeError(f"a header's name must be str, not {type(name).__name__}")
        found.append((name, None if content is None else as_bytes(f"header {name!r}", content)))
    return tuple(found)


def encode(value: object, key: bytes | None, attributes: Attributes) -> bytes:
    return encode_record(
        None if value is None else as_bytes("value", value),
        key=key,
        timestamp_ms=attributes.timestamp_ms,
        headers=attributes.headers,
        event_type=attributes.event_type,
        schema_version=attributes.schema_version,
        aggregate_version=attributes.aggregate_version,
        metadata=attributes.metadata,
    )
