"""Options as Spark hands them over: names without regard to case, every value a string. Here they become typed values
once, and what is unknown, contradictory or malformed is refused by its name.

What reading and writing take is declared in `read_options.py` and `write_options.py`.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from cursus_grpc import TLS

T = TypeVar("T")

PREFIX: Final = "cursus."
"""Every option may be written with it, so that options of several sources in one place do not collide."""

ENDPOINT_OPTIONS: Final = ("bootstrap.servers", "tls", "tls.ca", "tls.cert", "tls.key", "tls.serverName")

# Spark passes these along whatever the format; they are its own.
SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname"})

_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION: Final = re.compile(r"(\d+)\s*(ms|s|m|h|d)")


class OptionRefused(ValueError):
    """An option that cannot be taken. The message begins with its name."""

    def __init__(self, option: str, why: str) -> None:
        super().__init__(f"option `{option}`: {why}")
        self.option = option


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where the brokers are and how to speak to them. Goes to the executors with every task."""

    bootstrap: str
    tls: TLS | None = None


class Options:
    """The options that were given, by their canonical names. Each is asked for with the meaning it must have.

    >>> Options({"CURSUS.minpartitions": "4"}, ["minPartitions"]).integer("minPartitions", least=1)
    4
    """

    def __init__(self, given: Mapping[str, str], known: Iterable[str]) -> None:
        """Raises OptionRefused for a name that is not among those known, or given twice with different values."""
        names = {name.lower(): name for name in known}
        self._values: dict[str, str] = {}
        for key, value in given.items():
            bare = key.lower().removeprefix(PREFIX)
            if bare in SPARKS_OWN:
                continue
            name = names.get(bare)
            if name is None:
                raise OptionRefused(key, _unknown(bare, names))
            if self._values.setdefault(name, value) != value:
                raise OptionRefused(name, f"given twice, as {self._values[name]!r} and {value!r}")

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def text(self, name: str) -> str | None:
        value = self._values.get(name)
        if value is not None and not value.strip():
            raise OptionRefused(name, "is empty")
        return value

    def required(self, name: str, example: str) -> str:
        value = self.text(name)
        if value is None:
            raise OptionRefused(name, f"is missing; for example {example}")
        return value

    def integer(self, name: str, *, least: int) -> int | None:
        value = self.text(name)
        if value is None:
            return None
        try:
            number = int(value)
        except ValueError:
            raise OptionRefused(name, f"{value!r} is not a whole number") from None
        if number < least:
            raise OptionRefused(name, f"{number} is below {least}")
        return number

    def boolean(self, name: str, default: bool) -> bool:
        value = self.text(name)
        if value is None:
            return default
        if value.lower() not in ("true", "false"):
            raise OptionRefused(name, f"{value!r} is neither true nor false")
        return value.lower() == "true"

    def choice(self, name: str, choices: Mapping[str, T], default: T) -> T:
        value = self.text(name)
        if value is None:
            return default
        found = {key.lower(): meant for key, meant in choices.items()}
        if value.lower() not in found:
            raise OptionRefused(name, f"{value!r} is not one of {', '.join(choices)}")
        return found[value.lower()]

    def duration_ms(self, name: str) -> int | None:
        """`15m`, `30 s`, `500ms`; a bare number counts milliseconds."""
        value = self.text(name)
        if value is None:
            return None
        if value.strip().isdigit():
            return int(value)
        if (found := _DURATION.fullmatch(value.strip().lower())) is None:
            raise OptionRefused(name, f"{value!r} is not a duration; for example 15m, 30s or 500ms")
        return int(found[1]) * _UNITS_MS[found[2]]

    def names(self, name: str) -> tuple[str, ...] | None:
        """A comma-separated list."""
        value = self.text(name)
        if value is None:
            return None
        found = tuple(part.strip() for part in value.split(","))
        if not all(found):
            raise OptionRefused(name, f"{value!r} has an empty name")
        return found

    def json(self, name: str) -> object:
        value = self.text(name)
        if value is None:
            return None
        try:
            found: object = json.loads(value)
        except ValueError as error:
            raise OptionRefused(name, f"is not JSON: {error}") from None
        return found

    def at_most_one(self, *names: str) -> str | None:
        """The one of these that was given."""
        given = [name for name in names if name in self]
        if len(given) > 1:
            raise OptionRefused(given[0], f"contradicts `{given[1]}`: give one of them")
        return given[0] if given else None

    def refuse(self, names: Collection[str], why: str) -> None:
        for name in names:
            if name in self:
                raise OptionRefused(name, why)

    def endpoint(self) -> Endpoint:
        bootstrap = self.required("bootstrap.servers", "localhost:50051")
        wanted = [name for name in ENDPOINT_OPTIONS if name.startswith("tls.") and name in self]
        if not self.boolean("tls", bool(wanted)):
            self.refuse(wanted, "contradicts `tls` = false")
            return Endpoint(bootstrap)
        if ("tls.cert" in self) != ("tls.key" in self):
            missing = "tls.key" if "tls.cert" in self else "tls.cert"
            raise OptionRefused(missing, "is missing: mutual TLS needs both `tls.cert` and `tls.key`")
        tls = TLS(
            ca=_pem(self.text("tls.ca")),
            cert=_pem(self.text("tls.cert")),
            key=_pem(self.text("tls.key")),
            server_name=self.text("tls.serverName"),
        )
        return Endpoint(bootstrap, tls)


def _pem(value: str | None) -> bytes | str | None:
    """PEM text itself, which goes to executors that have no such file, or the path of a file."""
    return value.encode() if value is not None and "-----BEGIN" in value else value


def _unknown(bare: str, names: Mapping[str, str]) -> str:
    without_kafka = bare.removeprefix("kafka.")
    if without_kafka != bare and without_kafka in names:
        return f"unknown; the name is `{names[without_kafka]}`"
    close = difflib.get_close_matches(without_kafka, names, n=1)
    if close:
        return f"unknown; did you mean `{names[close[0]]}`?"
    return "unknown; docs/spark.md lists the options"
