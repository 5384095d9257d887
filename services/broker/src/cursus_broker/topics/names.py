"""What a topic may be called. Names become directory names, so nothing that could step out of the data directory, or
be two names for the same directory, gets through here.
"""

from __future__ import annotations

import unicodedata

from cursus_broker.errors import InvalidTopicName

MAX_NAME_BYTES = 249

_PUNCTUATION = frozenset("._-")


def check_topic_name(name: str) -> str:
    """The name itself, if it may be one: letters and digits of any script, `.`, `_` and `-`.

    Raises InvalidTopicName, saying what is wrong.
    """
    shown = name if len(name) <= 60 else f"{name[:60]}…"
    if not name:
        raise InvalidTopicName("a topic name must not be empty")
    size = len(name.encode("utf-8", "surrogatepass"))
    if size > MAX_NAME_BYTES:
        raise InvalidTopicName(f"topic name {shown!r} has {size} bytes, at most {MAX_NAME_BYTES} fit", topic=shown)
    if name in (".", ".."):
        raise InvalidTopicName(f"topic name {name!r} is reserved", topic=name)
    for character in name:
        if not (character.isalnum() or character in _PUNCTUATION):
            raise InvalidTopicName(
                f"topic name {shown!r} holds {character!r}; letters, digits, '.', '_' and '-' are allowed", topic=shown
            )
    if unicodedata.normalize("NFC", name) != name:
        raise InvalidTopicName(f"topic name {shown!r} is not in Unicode normal form C", topic=shown)
    return name
