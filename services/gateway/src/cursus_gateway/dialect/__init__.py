"""The two ways commands are written, and how answers are spelt. Text in, values out; nothing here meets a socket."""

from __future__ import annotations

import re
from typing import Final

from cursus_gateway.dialect import commands as c
from cursus_gateway.dialect import keyed, positional, replies
from cursus_gateway.dialect.commands import (
    KEYWORDS,
    NOT_SERVED,
    THIRD_GENERATION,
    Command,
    Dialect,
    Malformed,
    NotServed,
    Request,
)
from cursus_gateway.dialect.texts import first_word, is_clean, is_pattern, to_text, words_of

__all__ = ["Dialect", "Malformed", "Request", "parse"]

_KEY: Final = re.compile(r"([A-Za-z_]+)=")
_TOPIC_THEN_MESSAGE: Final = re.compile(r"(?:^|.*?[ \t\r\n])topic=[^ \t\r\n]+.*?[ \t\r\n]message=", re.DOTALL)


def parse(raw: bytes) -> Request:
    """The request in a command's trimmed bytes. Raises Malformed with the answer."""
    text = to_text(raw)
    word = first_word(text)
    name, arguments = word.upper(), text[len(word) :].strip(" \t\r\n")
    assert name in KEYWORDS, "body.py hands over nothing else"
    if not is_clean(arguments if name != "PUBLISH" else word):
        raise Malformed(replies.error("invalid_encoding", command=name))
    if name in NOT_SERVED:
        return Request(name, NotServed(name), Dialect.KEYED, third_generation=name in THIRD_GENERATION)
    dialect = _dialect(name, arguments)
    if dialect is Dialect.POSITIONAL:
        command, modern = positional.parse(name, arguments), False
    else:
        command, modern = keyed.parse(name, arguments)
    _require_one_topic(name, command)
    return Request(name, command, dialect, modern or name in THIRD_GENERATION)


def _require_one_topic(name: str, command: Command) -> None:
    """A pattern is read from a place that is named, and that is all: one offset for topics of different lengths would,
    once it is committed, skip what the shorter ones get later. Raises Malformed."""
    match command:
        case (
            c.BatchCommit(topic=topic)
            | c.CommitOffset(topic=topic)
            | c.FetchOffset(topic=topic)
            | c.JoinGroup(topic=topic)
            | c.RegisterGroup(topic=topic)
            | c.Stream(topic=topic)
            | c.Subscribe(topic=topic)
            | c.SyncGroup(topic=topic)
        ) if is_pattern(topic):
            raise Malformed(replies.pattern_not_served(name, topic))


def _dialect(name: str, arguments: str) -> Dialect:
    """RULE 10. A topic may be called `a=b`, so only a key the command knows makes its first word an assignment."""
    if name == "PUBLISH":
        return Dialect.KEYED if _TOPIC_THEN_MESSAGE.match(arguments) else _publish_dialect(arguments)
    words = words_of(arguments)
    if name == "CONSUME" and len(words) == 3 and all(word.removeprefix("-").isdecimal() for word in words[1:]):
        return Dialect.POSITIONAL
    match = _KEY.match(words[0]) if words else None
    return Dialect.KEYED if match and match[1] in keyed.KEYS.get(name, ()) else Dialect.POSITIONAL


def _publish_dialect(arguments: str) -> Dialect:
    """`topic=t acks=1` is a key=value request that lacks its message, not a message for the topic `topic=t`."""
    words = words_of(arguments)
    complete = bool(words) and words[0].startswith("topic=") and all(_KEY.match(word) for word in words)
    return Dialect.KEYED if complete else Dialect.POSITIONAL
