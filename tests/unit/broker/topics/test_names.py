"""Topic names: everything that may become a directory, and nothing that could leave it."""

from __future__ import annotations

import pytest

from cursus_broker.errors import InvalidTopicName
from cursus_broker.topics.names import check_topic_name


@pytest.mark.parametrize(
    "name", ["a", "orders.v1_eu-west", "0", "...", "._-", "x" * 249, "bestellungen-münchen", "注文"]
)
def test_sound_names_pass_unchanged(name: str) -> None:
    assert check_topic_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "a/b",
        "../x",
        "a b",
        "a\x00b",
        "a\nb",
        "x" * 250,
        "ü" * 125,
        "a:b",
        "a*",
        "\\",
        "~",
        "mu\u0308nchen",
        "a\u200bb",
    ],
)
def test_everything_else_is_refused_with_a_sentence(name: str) -> None:
    with pytest.raises(InvalidTopicName, match="topic name"):
        check_topic_name(name)
