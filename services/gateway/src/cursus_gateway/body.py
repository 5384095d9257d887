"""What a frame's body is: a batch, a command, a direct message, or none of these. The decision procedure of RULE 7.

The first bytes decide. An envelope begins with the length of its topic, at most 1024; an ASCII letter read as such a
length is at least 16,640, so envelope and raw text cannot be mistaken for each other.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, TypeAlias

from cursus_gateway import batch, compression
from cursus_gateway.batch import LegacyBatch, MalformedBatch
from cursus_gateway.compression import Compression, TooLarge
from cursus_gateway.dialect import replies
from cursus_gateway.dialect.commands import KEYWORDS
from cursus_gateway.framing import MAX_BODY_BYTES

MAX_ENVELOPE_TOPIC_BYTES: Final = 1024

_FIRST_WORD: Final = re.compile(rb"([A-Za-z_]+)(?:[ \t\r\n]|\Z)")
_TRIMMED: Final = b"\0 \t\r\n"
_LONGEST_KEYWORD: Final = max(map(len, KEYWORDS))


@dataclass(frozen=True, slots=True)
class CommandText:
    """A command, trimmed. `raw` if it came without an envelope, as only Java clients send it."""

    text: bytes
    raw: bool


@dataclass(frozen=True, slots=True)
class DirectMessage:
    topic: bytes
    payload: bytes


@dataclass(frozen=True, slots=True)
class BarSeparated:
    """`topic|payload`, as seed 004 words it: a direct message if the topic exists, garbage otherwise."""

    topic: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Answered with `reply`. `close` if the frame boundary cannot be trusted any more."""

    reply: str
    close: bool


Body: TypeAlias = LegacyBatch | CommandText | DirectMessage | BarSeparated | Unreadable | None
"""None: an empty frame, which is ignored."""


def is_compressed(body: bytes) -> bool:
    """Whether `read` will unpack the body, which takes long enough to be done elsewhere if it is large."""
    return compression.recognise(body) is not None


def is_gzip(body: bytes) -> bool:
    return compression.recognise(body) is Compression.GZIP


def may_unpack(body: bytes) -> bool:
    """Whether `read` may make more of the body than there is of it: a raw snappy block begins with anything."""
    return body[:2] != batch.MAGIC


def size_of(meaning: Body) -> int:
    """What is kept of a body as long as its meaning is, in bytes."""
    match meaning:
        case LegacyBatch(messages=messages, unread=unread):
            return sum(len(run.record_set) for run in messages.runs) + (len(unread) if unread is not None else 0)
        case CommandText(text):
            return len(text)
        case DirectMessage(_, payload) | BarSeparated(_, payload):
            return len(payload)
        case _:
            return 0


def read(body: bytes, max_bytes: int = MAX_BODY_BYTES) -> Body:
    """The meaning of a body. Unpacks at most one level of compression; raises TooLarge for more than `max_bytes`."""
    if body[:2] == batch.MAGIC:
        return _read_batch(body, max_bytes)
    kind = compression.recognise(body)
    if kind is None:
        return _read_plain(body, max_bytes)
    try:
        plain = compression.decompress(body, kind, max_bytes)
    except TooLarge:
        raise
    except compression.Undecodable as error:
        return Unreadable(replies.error("decode_failed", reason=f"{kind.name.lower()}: {error}"), close=False)
    return _read_batch(plain, max_bytes) if plain[:2] == batch.MAGIC else _read_plain(plain, max_bytes)


def too_large(error: TooLarge) -> Unreadable:
    """The answer to a body that unpacks to more than it may."""
    return Unreadable(replies.error("decode_failed", reason=str(error)), close=False)


def _read_batch(body: bytes, max_bytes: int) -> Body:
    try:
        return batch.decode(body)
    except MalformedBatch as error:
        # A raw snappy block of exactly 15,930 unpacked bytes begins with the magic too.
        return _read_raw_snappy(body, max_bytes) or Unreadable(_batch_refusal(error), close=False)


def _batch_refusal(error: MalformedBatch) -> str:
    if error.code == "batch_decode_failed":
        return replies.error(error.code, reason=str(error))
    return replies.refusal(error.code, retryable=False, reason=str(error))


def _read_plain(body: bytes, max_bytes: int) -> Body:
    if not body:
        return None
    size = int.from_bytes(body[:2], "big")
    if len(body) >= 2 and size <= MAX_ENVELOPE_TOPIC_BYTES and size + 2 <= len(body):
        return _read_envelope(body[2 : 2 + size], body[2 + size :])
    text = body.strip(_TRIMMED)
    if _is_command(text):
        return CommandText(text, raw=True)
    return _read_raw_snappy(body, max_bytes) or _read_bar(body) or _unknown()


def _read_envelope(topic: bytes, payload: bytes) -> Body:
    text = payload.strip(_TRIMMED)
    if _is_command(text):
        return CommandText(text, raw=False)
    if not text:
        return Unreadable(replies.error("empty_command"), close=False)
    if topic:
        return DirectMessage(topic, payload)
    return Unreadable(replies.unknown_command(text.decode(errors="replace")), close=False)


def _is_command(text: bytes) -> bool:
    """By the whole first word: a message such as `LISTEN to me` is not one (RULE 8)."""
    match = _FIRST_WORD.match(text, 0, _LONGEST_KEYWORD + 1)
    return match is not None and match[1].decode().upper() in KEYWORDS


def _read_raw_snappy(body: bytes, max_bytes: int) -> LegacyBatch | None:
    plain = compression.decompress_raw_snappy(body, max_bytes)
    if plain is None or plain[:2] != batch.MAGIC:
        return None
    try:
        return batch.decode(plain)
    except MalformedBatch:
        return None


def _read_bar(body: bytes) -> BarSeparated | None:
    head, bar, payload = body.partition(b"|")
    if not bar or not 0 < len(head) <= MAX_ENVELOPE_TOPIC_BYTES or not payload:
        return None
    try:
        body.decode()
        return BarSeparated(head.decode(), payload)
    except UnicodeDecodeError:
        return None


def _unknown() -> Unreadable:
    return Unreadable(replies.NOT_UNDERSTOOD, close=True)
