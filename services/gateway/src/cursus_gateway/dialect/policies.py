"""What CREATE may ask of a topic. A policy is carried out, or refused by its name: one that is confirmed and not kept
is worse than none. Values that ask for what happens anyway are taken, because SDKs send them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from cursus_gateway.dialect import replies
from cursus_gateway.dialect.commands import Malformed

_HOUR_MS: Final = 3_600_000
_MAX_HOURS: Final = 10**6
_MAX_BYTES: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class _Choice:
    """A policy of which one way is what happens, and the others of the protocol are not to be had."""

    kept: frozenset[str]
    not_kept: frozenset[str]


_CHOICES: Final[Mapping[str, _Choice]] = {
    "auth_policy": _Choice(frozenset({"open"}), frozenset({"acl", "deny_read", "deny_write"})),
    "cleanup_policy": _Choice(frozenset({"delete"}), frozenset({"compact", "compact,delete", "delete,compact"})),
    "event_sourcing": _Choice(frozenset({"false", "0"}), frozenset({"true", "1"})),
    "partitioner": _Choice(frozenset({"hash_key"}), frozenset({"round_robin"})),
}
_ACCESS_LISTS: Final = frozenset({"read_acl", "write_acl"})

KEPT: Final[Mapping[str, str]] = {
    "cleanup_policy": "delete",
    "partitioner": "hash_key",
    "auth_policy": "open",
    "read_acl": "",
    "write_acl": "",
}
"""What every topic does, in the order answers tell it."""

KEYS: Final = frozenset(
    {*_CHOICES, *_ACCESS_LISTS, "idempotent", "replication_factor", "retention_bytes", "retention_hours"}
)


@dataclass(frozen=True, slots=True)
class Policies:
    """The policies that are carried out. None: as the broker does it by default."""

    idempotent: bool = False
    retention_ms: int | None = None
    retention_bytes: int | None = None


def read_policies(text: Callable[[str], str]) -> Policies:
    """What is asked for; `text` answers with the value of a key, empty if it is not there. Raises Malformed for a value
    that cannot be kept or makes no sense.
    """
    for key, choice in _CHOICES.items():
        value = text(key).lower()
        if value in choice.not_kept:
            raise _unsupported(key, value)
        if value and value not in choice.kept:
            raise _invalid(key, value)
    for key in sorted(_ACCESS_LISTS):
        if text(key):
            raise _unsupported(key, text(key))
    if (copies := _integer(text, "replication_factor", low=1)) is not None and copies != 1:
        raise _unsupported("replication_factor", copies)
    hours = _integer(text, "retention_hours", low=-1, high=_MAX_HOURS)
    size = _integer(text, "retention_bytes", low=-1)
    return Policies(
        _flag(text, "idempotent"),
        # 0 is how an SDK says that it has no wish of its own; -1 keeps records for ever, here as in the broker.
        hours * _HOUR_MS if hours is not None and hours > 0 else -1 if hours == -1 else None,
        size or None,
    )


def _flag(text: Callable[[str], str], key: str) -> bool:
    value = text(key).lower()
    if value not in ("", "true", "1", "false", "0"):
        raise _invalid(key, value)
    return value in ("true", "1")


def _integer(text: Callable[[str], str], key: str, low: int, high: int = _MAX_BYTES) -> int | None:
    value = text(key)
    if not value:
        return None
    digits = value.removeprefix("-")
    if not digits.isascii() or not digits.isdecimal() or len(digits) > 20 or not low <= int(value) <= high:
        raise _invalid(key, value)
    return int(value)


def _unsupported(key: str, value: object) -> Malformed:
    return Malformed(replies.refusal("unsupported_topic_policy", retryable=False, **{key: value}))


def _invalid(key: str, value: object) -> Malformed:
    return Malformed(replies.refusal("invalid_topic_policy", retryable=False, **{key: value}))
