"""One setting's value as text: how each type is read, checked and shown. Knows no flag, variable or file.

All sources hand over text, also the YAML file, so `1.10` for a string stays `1.10` and a size means the same
everywhere. `show()` is the inverse of `parse()`.
"""

from __future__ import annotations

import math
import re
import types
import typing
from decimal import Decimal
from enum import Enum, StrEnum
from pathlib import Path
from typing import Final, TypeAlias

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB

Text: TypeAlias = str | list[str] | None
"""What a source gives: a scalar, the items of a list, or YAML's explicit null."""


class Unit(StrEnum):
    """What a number counts. A value may carry any suffix of its unit's family: `64MiB`, `1.5s`, `7d`."""

    BYTES = "bytes"
    MILLISECONDS = "ms"
    SECONDS = "s"
    MINUTES = "min"
    HOURS = "h"
    NONE = ""


_SIZES: Final = {
    "B": 1,
    "kB": 1000,
    "KB": 1000,
    "MB": 1000**2,
    "GB": 1000**3,
    "TB": 1000**4,
    "KiB": KIB,
    "MiB": MIB,
    "GiB": GIB,
    "TiB": 1024 * GIB,
}
_MILLISECONDS: Final = {"ms": 1, "s": 1000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_BOOLEANS: Final = {
    "true": True,
    "yes": True,
    "on": True,
    "1": True,
    "false": False,
    "no": False,
    "off": False,
    "0": False,
}
_NUMBER: Final = re.compile(r"([+-]?\d[\d_]*(?:\.\d+)?(?:[eE][+-]?\d{1,3})?)\s*([A-Za-z]*)")
_NOTHING: Final = frozenset({"", "none", "null", "~"})
MAX_VALUE_CHARACTERS: Final = 64 * KIB


def parse(text: Text, annotation: object, unit: Unit = Unit.NONE) -> object:
    """The typed value. Raises ValueError with a phrase that follows "must be", such as "a whole number"."""
    inner = optional_of(annotation)
    if inner is not None:
        if text is None or (isinstance(text, str) and text.strip().lower() in _NOTHING):
            return None
        return parse(text, inner, unit)
    item = item_of(annotation)
    if item is not None:
        return tuple(parse(part, item, unit) for part in _items(text))
    if text is None:
        raise ValueError("given a value, or the line removed to keep the default")
    if isinstance(text, list):
        raise ValueError("a single value, not a list")
    if len(text) > MAX_VALUE_CHARACTERS:
        raise ValueError(f"shorter than {MAX_VALUE_CHARACTERS} characters")
    return _scalar(text, annotation, unit)


def show(value: object, unit: Unit = Unit.NONE) -> str:
    """A text that `parse` reads as this value again, with a unit where that is easier to read."""
    if value is None:
        return "none"
    if isinstance(value, tuple):
        return ",".join(show(item, unit) for item in value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, int) and value > 0 and unit is not Unit.NONE:
        return _show_amount(value, unit)
    return str(value)


def _show_amount(value: int, unit: Unit) -> str:
    """With the largest suffix that leaves a whole number. Not for 0 and below: -1 usually stands for "no limit"."""
    if unit is Unit.BYTES:
        own, suffixes = 1, {name: _SIZES[name] for name in ("GiB", "MiB", "KiB")}
    else:
        own, suffixes = _MILLISECONDS[unit], {name: _MILLISECONDS[name] for name in ("d", "h", "min", "s", "ms")}
    for suffix, size in suffixes.items():
        if value * own % size == 0:
            return f"{value * own // size}{suffix}"
    return str(value)


def describe(annotation: object, unit: Unit) -> str:
    """The type in a few words, for help texts and the reference."""
    if (inner := optional_of(annotation)) is not None:
        return f"{describe(inner, unit)} or none"
    if (item := item_of(annotation)) is not None:
        return f"list of {describe(item, unit)}"
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return " \\| ".join(str(member.value) for member in annotation)
    if unit is Unit.BYTES:
        return "size"
    if unit is not Unit.NONE:
        return f"duration ({unit})"
    names = {int: "integer", float: "number", bool: "boolean", str: "text", Path: "path"}
    return names[typing.cast("type", annotation)]


def optional_of(annotation: object) -> object | None:
    """T for `T | None`, else None."""
    if typing.get_origin(annotation) not in (typing.Union, types.UnionType):
        return None
    members = [member for member in typing.get_args(annotation) if member is not type(None)]
    assert len(members) == 1, f"a setting may be optional, but not a choice of types: {annotation}"
    return typing.cast("object", members[0])


def item_of(annotation: object) -> object | None:
    """T for `tuple[T, ...]`, else None."""
    if typing.get_origin(annotation) is not tuple:
        return None
    arguments = typing.get_args(annotation)
    assert len(arguments) == 2, f"a list setting is written tuple[T, ...]: {annotation}"
    assert arguments[1] is Ellipsis, f"a list setting is written tuple[T, ...]: {annotation}"
    return typing.cast("object", arguments[0])


def _items(text: Text) -> list[str]:
    if text is None:
        return []
    if isinstance(text, str):
        return [part.strip() for part in text.split(",") if part.strip()]
    return text


def _scalar(text: str, annotation: object, unit: Unit) -> object:
    assert isinstance(annotation, type), f"unsupported type of a setting: {annotation}"
    if issubclass(annotation, Enum):
        return _member(text, annotation)
    if annotation is bool:
        if (known := _BOOLEANS.get(text.strip().lower())) is None:
            raise ValueError("true or false")
        return known
    if annotation is int:
        amount = _amount(text, unit, "a whole number")
        if amount != amount.to_integral_value():
            raise ValueError(f"a whole number of {unit}" if unit else "a whole number")
        return int(amount)
    if annotation is float:
        return _finite(text, unit)
    if annotation is Path:
        if not text or "\0" in text:
            raise ValueError("a path")
        return Path(text)
    assert annotation is str, f"unsupported type of a setting: {annotation}"
    return text


def _member(text: str, choices: type[Enum]) -> Enum:
    for member in choices:
        if str(member.value).lower() == text.strip().lower():
            return member
    raise ValueError("one of " + ", ".join(str(member.value) for member in choices))


def _finite(text: str, unit: Unit) -> float:
    value = float(_amount(text, unit, "a number"))
    if not math.isfinite(value):
        raise ValueError("a finite number")
    return value


def _amount(text: str, unit: Unit, expected: str) -> Decimal:
    """The number in `unit`, exact: 1.5KiB is 1536 and 0.1s is 100 ms, without a float in between."""
    match = _NUMBER.fullmatch(text.strip())
    if match is None:
        raise ValueError(_expected(expected, unit))
    number, suffix = Decimal(match[1].replace("_", "")), match[2]
    if not suffix:
        return number
    if unit is Unit.BYTES and suffix in _SIZES:
        return number * _SIZES[suffix]
    if unit not in (Unit.BYTES, Unit.NONE) and suffix in _MILLISECONDS:
        return number * _MILLISECONDS[suffix] / _MILLISECONDS[unit]
    raise ValueError(_expected(expected, unit))


def _expected(expected: str, unit: Unit) -> str:
    if unit is Unit.BYTES:
        return "a size such as 1048576, 512KiB, 64MiB or 10GB"
    if unit is not Unit.NONE:
        return f"a duration: a number of {unit}, or one with a unit such as 500ms, 30s, 5min, 12h or 7d"
    return expected
