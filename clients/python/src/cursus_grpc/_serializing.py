"""What an application sends, made into bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from typing_extensions import TypeVar

Value = TypeVar("Value", default=bytes | str)
"""What a producer takes as values: what its serializer takes."""
Key = TypeVar("Key", default=bytes | str)

Serializer = Callable[[Any], bytes | str | None]


class Column(Protocol):
    """A column of an Arrow library, such as pyarrow's Array and ChunkedArray."""

    def __len__(self) -> int: ...
    def __getitem__(self, rows: slice, /) -> Any: ...
    def to_pylist(self) -> list[Any]: ...


def as_bytes(name: str, value: object) -> bytes:
    """Raises TypeError for what is neither bytes-like nor text."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise TypeError(f"{name} must be bytes or str, not {type(value).__name__}")


@dataclass(frozen=True, slots=True)
class Serializers:
    """How values and keys become bytes; None: they are bytes or text. Null stays null."""

    of_value: Serializer | None = None
    of_key: Serializer | None = None

    @property
    def any(self) -> bool:
        return self.of_value is not None or self.of_key is not None

    def value(self, value: object) -> bytes | None:
        """Raises TypeError, ValueError, and what the serializer raises."""
        return _serialized("value", value, self.of_value)

    def key(self, key: object) -> bytes | None:
        return _serialized("key", key, self.of_key)


def _serialized(name: str, one: object, serializer: Serializer | None) -> bytes | None:
    if one is not None and serializer is not None:
        one = serializer(one)
        name = f"what the serializer makes of a {name}"
    return None if one is None else as_bytes(name, one)
