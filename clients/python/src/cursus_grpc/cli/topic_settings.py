"""The settings of a topic as people write them: `retention_ms=7d`, `segment_bytes=64MiB`."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, Final

import click

from cursus_grpc.types import TopicConfig

SETTINGS: Final = tuple(field.name for field in fields(TopicConfig) if field.name != "labels")
"""The settings of a topic, by the names the client and the broker have for them."""

_TRUE: Final = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
_UNITS: Final = {
    "_ms": {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000},
    "_bytes": {"b": 1, "k": 2**10, "kib": 2**10, "m": 2**20, "mib": 2**20, "g": 2**30, "gib": 2**30},
}


class Assignment(click.ParamType[tuple[str, str]]):
    """NAME=VALUE."""

    name = "NAME=VALUE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        name, equals, rest = value.partition("=")
        if not equals or not name:
            self.fail(f"{value!r} is not NAME=VALUE", param, ctx)
        return name, rest


def config_of(settings: tuple[tuple[str, str], ...], labels: tuple[tuple[str, str], ...]) -> TopicConfig:
    """What `--set` and `--label` say. Raises click.UsageError."""
    config = TopicConfig(labels=dict(labels))
    for name, text in settings:
        if name not in SETTINGS:
            raise click.UsageError(f"there is no topic setting {name!r}; there are {', '.join(SETTINGS)}")
        value: Any = _switch(name, text) if name == "content_deduplication" else quantity(name, text)
        config = replace(config, **{name: value})
    return config


def quantity(name: str, text: str) -> int:
    """A number, with a unit that suits the setting's name: 7d for `…_ms`, 64MiB for `…_bytes`. Raises UsageError.

    >>> quantity("retention_ms", "7d"), quantity("segment_bytes", "64MiB"), quantity("retention_bytes", "-1")
    (604800000, 67108864, -1)
    """
    units = next((units for suffix, units in _UNITS.items() if name.endswith(suffix)), {})
    digits = text.rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
    unit = text[len(digits) :].lower()
    try:
        return int(digits) * (units[unit] if unit else 1)
    except (ValueError, KeyError):
        known = f", perhaps with one of {', '.join(units)}" if units else ""
        raise click.UsageError(f"{name} is a whole number{known}, not {text!r}") from None


def _switch(name: str, text: str) -> bool:
    found = _TRUE.get(text.lower())
    if found is None:
        raise click.UsageError(f"{name} is true or false, not {text!r}")
    return found
