"""Commands whose arguments are `key=value` words: generations two and three.

Words without `=` are ignored, the last of repeated keys wins, and keys are case-sensitive. `message=` at the start of a
word ends the arguments: the rest of the text, trimmed, is the message.

A key that a command does not know is refused by its name: brokers of old ignored it, and let their clients believe that
they did what it asks for. `tests/unit/gateway/test_keys.py` has what becomes of each, and who sends it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from cursus_gateway.batch import ACKS
from cursus_gateway.dialect import commands as c
from cursus_gateway.dialect import policies, replies
from cursus_gateway.dialect.commands import Command, Malformed
from cursus_gateway.dialect.pairs import read_pairs
from cursus_gateway.dialect.texts import is_clean, is_pattern, to_bytes, words_of

_MESSAGE: Final = re.compile(r"(?:^|[ \t\r\n])message=")
_SIGNED_63: Final = 2**63

_MEMBER: Final = frozenset({"topic", "group", "member", "generation"})
_COMMIT: Final = _MEMBER | {"partition", "offset"}
_READ: Final = _COMMIT | {"batch", "autoOffsetReset", "isolation", "isolation_level"}

KEYS: Final[Mapping[str, frozenset[str]]] = {
    "BATCH_COMMIT": _MEMBER,
    "COMMIT": _COMMIT,
    "COMMIT_OFFSET": _COMMIT,
    "CONSUME": _READ | {"wait_ms"},
    "CREATE": frozenset({"topic", "partitions"}) | policies.KEYS,
    "DELETE": frozenset({"topic"}),
    "DESCRIBE": frozenset({"topic"}),
    "FETCH_OFFSET": frozenset({"topic", "partition", "group", "member"}),
    "FIND_COORDINATOR": frozenset({"group", "transactional_id", "txn", "transaction"}),
    "GROUP_STATUS": frozenset({"group"}),
    "HEARTBEAT": _MEMBER,
    "JOIN_GROUP": _MEMBER,
    "LEAVE_GROUP": _MEMBER,
    "LIST": frozenset({"topic"}),
    "LIST_OFFSETS": frozenset({"topic", "partition"}),
    "METADATA": frozenset({"topic"}),
    "NEGOTIATE": frozenset({"version", "features", "require_features"}),
    "PUBLISH": frozenset({"topic", "acks", "producerId", "seqNum", "epoch", "isIdempotent", "key", "partition"}),
    "REGISTER_GROUP": frozenset({"topic", "group"}),
    "SETGROUP": frozenset({"group"}),
    "STREAM": _READ,
    "SUBSCRIBE": frozenset({"topic", "group"}),
    "SYNC_GROUP": _MEMBER,
}
"""What each command knows, beside a message. One of these makes the first word of its arguments an assignment."""

CREDENTIALS: Final = frozenset({"principal", "auth_token"})
"""Taken with every command: who sends it. There is no access control, so everybody may, whoever they are."""

_THIRD_GENERATION_KEYS: Final = CREDENTIALS | {"isolation", "isolation_level", "cleanup_policy"}
_SPELT: Final = {"producerId": "producer_id"}
"""Keys that error codes spell in another way, as the brokers of old did."""
_TRUE: Final = ("true", "1")
_FALSE: Final = ("", "false", "0")


class Fields:
    """The assignments of one command, asked for by name. A missing or bad one is Malformed in the command's name."""

    def __init__(self, command: str, arguments: str) -> None:
        self._command = command
        self.message = b""
        if match := _MESSAGE.search(arguments):
            self.message = to_bytes(arguments[match.end() :].strip(" \t\r\n"))
            arguments = arguments[: match.start()]
        if not is_clean(arguments):
            raise Malformed(replies.error("invalid_encoding", command=command))
        self.words = words_of(arguments)
        self._values = {key: value for key, is_set, value in [word.partition("=") for word in self.words] if is_set}
        self.keys = list(self._values)
        for key in self.keys:
            if key not in KEYS[command] and key not in CREDENTIALS:
                raise Malformed(replies.refusal("not_supported", retryable=False, command=command, key=key))

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def has_all(self, *keys: str) -> bool:
        """Whether each of them is there, and not empty."""
        return all(map(self._values.get, keys))

    def text(self, key: str, default: str = "") -> str:
        return self._values.get(key, "") or default

    def required(self, key: str) -> str:
        if not (value := self._values.get(key, "")):
            raise Malformed(replies.error(f"missing_{_SPELT.get(key, key)}", command=self._command))
        return value

    def integer(self, key: str, default: int, low: int = 0, high: int = _SIGNED_63 - 1) -> int:
        return default if not self._values.get(key) else self.required_integer(key, low, high)

    def optional_integer(self, key: str) -> int | None:
        return self.required_integer(key) if self._values.get(key) else None

    def required_integer(self, key: str, low: int = 0, high: int = _SIGNED_63 - 1) -> int:
        text = self.required(key)
        digits = text.removeprefix("-")
        if not digits.isascii() or not digits.isdecimal() or len(digits) > 20 or not low <= int(text) <= high:
            raise Malformed(replies.error(f"invalid_{key}", command=self._command, value=text))
        return int(text)

    def flag(self, key: str) -> bool:
        return self.choice(key, *_TRUE, *_FALSE) in _TRUE

    def choice(self, key: str, *known: str) -> str:
        """The value, one of those known, whatever its case; empty if it is not there or not set."""
        value = self._values.get(key, "").lower()
        if value and value not in known:
            raise Malformed(replies.error(f"invalid_{key}", command=self._command, value=value))
        return value


def parse(name: str, arguments: str) -> tuple[Command, bool]:
    """The command, and whether its wording shows a client of the third generation. Raises Malformed."""
    fields = Fields(name, arguments)
    command = _PARSERS[name](fields)
    return command, not _THIRD_GENERATION_KEYS.isdisjoint(fields.keys) or _is_third_generation(command, fields)


def _is_third_generation(command: Command, fields: Fields) -> bool:
    match command:
        case c.JoinGroup() | c.LeaveGroup():
            return "generation" in fields
        case c.BatchCommit():
            in_order = [key for key in fields.keys if key in ("member", "generation")]
            return in_order == ["member", "generation"] and fields.words[-1][:1] in "Pp"
        case _:
            return False


def _create(fields: Fields) -> Command:
    asked = policies.read_policies(fields.text)
    return c.CreateTopic(
        fields.required("topic"),
        fields.required_integer("partitions", 1, 2**31 - 1) if "partitions" in fields else None,
        asked.idempotent,
        asked.retention_ms,
        asked.retention_bytes,
    )


def _publish(fields: Fields) -> Command:
    topic, producer_id = fields.required("topic"), fields.required("producerId")
    if not fields.message:
        raise Malformed(replies.error("missing_message", command="PUBLISH"))
    acks = ACKS.get(fields.text("acks").lower())
    if acks is None:
        raise Malformed(replies.refusal("invalid_acks", retryable=False, acks=fields.text("acks")))
    return c.Publish(
        topic,
        fields.message,
        acks,
        producer_id.encode(),
        fields.integer("seqNum", 0, high=2**64 - 1),
        fields.integer("epoch", 0, low=-_SIGNED_63),
        fields.flag("isIdempotent"),
        fields.text("key").encode(),
        fields.integer("partition", 0, low=-1, high=2**31 - 1) if fields.text("partition", "-1") != "-1" else None,
    )


def _set_group(fields: Fields) -> Command:
    if not fields.text("group"):
        raise Malformed(replies.EMPTY_GROUP)
    return c.SetGroup(fields.text("group"))


def _group(fields: Fields) -> str:
    group = fields.text("group")
    return c.DEFAULT_GROUP if group in ("", "-") else group


def _latest(fields: Fields) -> bool:
    return fields.choice("autoOffsetReset", "earliest", "latest") == "latest"


def _limit(fields: Fields) -> int:
    return min(fields.integer("batch", c.MAX_MESSAGES), c.MAX_MESSAGES) or c.MAX_MESSAGES


def _consume(fields: Fields) -> Command:
    if not fields.has_all("topic", "partition", "offset", "member"):
        raise Malformed(replies.error("invalid_consume_syntax"))
    topic = fields.required("topic")
    # Where a group stands is asked of one topic; a pattern is read from a place that is named.
    first = 0 if is_pattern(topic) else -1
    return c.ConsumeBatch(
        topic,
        fields.required_integer("partition", high=2**31 - 1),
        fields.required_integer("offset", low=first),
        fields.required("member"),
        _group(fields),
        fields.integer("generation", 0),
        _limit(fields),
        fields.integer("wait_ms", 0),
        _latest(fields),
    )


def _stream(fields: Fields) -> Command:
    if not fields.has_all("topic", "partition", "group"):
        raise Malformed(replies.error("invalid_stream_syntax"))
    return c.Stream(
        fields.required("topic"),
        fields.required_integer("partition", high=2**31 - 1),
        _group(fields),
        fields.text("member"),
        fields.integer("generation", 0),
        fields.optional_integer("offset") if fields.text("offset") != "-1" else None,
        _limit(fields),
        _latest(fields),
    )


def _sync(fields: Fields) -> Command:
    fields.optional_integer("generation")
    return c.SyncGroup(fields.required("topic"), fields.required("group"), fields.required("member"))


def _commit(fields: Fields) -> Command:
    return c.CommitOffset(
        fields.required("topic"),
        fields.required_integer("partition", high=2**31 - 1),
        fields.required_integer("offset"),
        fields.required("group"),
        fields.text("member"),
        fields.optional_integer("generation"),
    )


def _batch_commit(fields: Fields) -> Command:
    pairs = fields.words[-1] if "=" not in fields.words[-1] else ""
    if not pairs:
        raise Malformed(replies.error("missing_offsets", command="BATCH_COMMIT"))
    return c.BatchCommit(
        fields.required("topic"),
        fields.required("group"),
        fields.text("member"),
        fields.integer("generation", 0),
        read_pairs(pairs),
    )


def _find_coordinator(fields: Fields) -> Command:
    if any(fields.text(key) for key in ("transactional_id", "txn", "transaction")):
        return c.FindCoordinator("", transactional=True)
    return c.FindCoordinator(fields.required("group"))


def _negotiate(fields: Fields) -> Command:
    if not fields.text("version"):
        raise Malformed(replies.refusal("missing_protocol_version", retryable=False, command="NEGOTIATE"))
    if not fields.text("version").isdecimal():
        raise Malformed(
            replies.refusal(
                "invalid_protocol_version", retryable=False, command="NEGOTIATE", value=fields.text("version")
            )
        )
    features = tuple(dict.fromkeys(name for name in fields.text("features").split(",") if name))
    return c.Negotiate(
        fields.required_integer("version"),
        () if features == ("*",) else features,
        features == ("*",),
        fields.flag("require_features"),
    )


_PARSERS: Final[Mapping[str, Callable[[Fields], Command]]] = {
    "BATCH_COMMIT": _batch_commit,
    "COMMIT": _commit,
    "COMMIT_OFFSET": _commit,
    "CONSUME": _consume,
    "CREATE": _create,
    "DELETE": lambda f: c.DeleteTopic(f.required("topic")),
    "DESCRIBE": lambda f: c.DescribeTopic(f.required("topic")),
    "FETCH_OFFSET": lambda f: c.FetchOffset(
        f.required("topic"), f.required_integer("partition", high=2**31 - 1), f.required("group"), f.text("member")
    ),
    "FIND_COORDINATOR": _find_coordinator,
    "GROUP_STATUS": lambda f: c.GroupStatus(f.required("group")),
    "HEARTBEAT": lambda f: c.Heartbeat(f.required("group"), f.required("member"), f.optional_integer("generation")),
    "JOIN_GROUP": lambda f: c.JoinGroup(
        f.required("topic"), f.required("group"), f.required("member"), f.optional_integer("generation")
    ),
    "LEAVE_GROUP": lambda f: c.LeaveGroup(f.required("group"), f.required("member")),
    "LIST": lambda f: c.CountPartitions(f.required("topic")),
    "LIST_OFFSETS": lambda f: c.ListOffsets(f.required("topic"), f.optional_integer("partition")),
    "METADATA": lambda f: c.Metadata(f.required("topic")),
    "NEGOTIATE": _negotiate,
    "PUBLISH": _publish,
    "REGISTER_GROUP": lambda f: c.RegisterGroup(f.required("topic"), f.required("group")),
    "SETGROUP": _set_group,
    "STREAM": _stream,
    "SUBSCRIBE": lambda f: c.Subscribe(f.required("topic"), f.text("group", c.SUBSCRIBE_GROUP)),
    "SYNC_GROUP": _sync,
}
