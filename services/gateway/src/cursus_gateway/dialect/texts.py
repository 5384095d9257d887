"""Bytes of a command to text and back. Commands are UTF-8; only a message may hold other bytes, and keeps them."""

from __future__ import annotations

import re
from typing import Final

_WORD: Final = re.compile(r"[^ \t\r\n]+")


def to_text(raw: bytes) -> str:
    """Text in which every byte that is not UTF-8 stands as a lone surrogate."""
    return raw.decode("utf-8", "surrogateescape")


def to_bytes(text: str) -> bytes:
    """The bytes `to_text` was given."""
    return text.encode("utf-8", "surrogateescape")


def is_clean(text: str) -> bool:
    """Whether the text was UTF-8 throughout."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_pattern(topic: str) -> bool:
    """Whether this is no topic's name and may match several."""
    return "*" in topic or "?" in topic


def first_word(text: str) -> str:
    """The first word of a trimmed text, which may go on for megabytes."""
    word = _WORD.match(text)
    return "" if word is None else word[0]


def words_of(text: str) -> list[str]:
    """The words of a text. Only ASCII white space separates them: a no-break space may be part of a name."""
    return _WORD.findall(text)
