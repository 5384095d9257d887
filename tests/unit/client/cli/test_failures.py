"""One line and a next step for everything that can go wrong."""

from __future__ import annotations

import json

import click
import pytest

from cursus_grpc.cli.connection import BadConfiguration
from cursus_grpc.cli.failures import HINTS, Failed, explain
from cursus_grpc.errors import REASONS, ClientError, CursusError, DeliveryTimeout, TopicNotFound


def client_reasons(parent: type[CursusError] = ClientError) -> set[str]:
    found = {parent.reason} if parent.reason else set()
    return found.union(*(client_reasons(child) for child in parent.__subclasses__()))


def test_every_reason_has_a_hint_and_no_hint_is_for_nothing() -> None:
    assert set(HINTS) == set(REASONS) | client_reasons()
    assert all(HINTS.values())


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (
            TopicNotFound("topic 'a' does not exist"),
            1,
            "topic 'a' does not exist (TOPIC_NOT_FOUND); `cursus topic list`",
        ),
        (DeliveryTimeout("late", maybe_stored=True), 1, "late (DELIVERY_TIMEOUT)"),
        (Failed("no", "do so"), 1, "no (FAILED); do so"),
        (BadConfiguration("timeout is"), 2, "timeout is; `cursus --help` lists"),
        (click.UsageError("No such option: --x"), 2, "no such option: --x; see `cursus --help`"),
        (FileNotFoundError(2, "No such file or directory", "a.txt"), 1, "a.txt: No such file or directory"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (KeyError("x"), 1, "this is a bug: KeyError: 'x' (BUG); run it again with --debug"),
    ],
)
def test_a_failure_is_one_line_with_a_status(error: BaseException, status: int, words: str) -> None:
    failure = explain(error)
    assert failure.status == status
    assert failure.line().startswith(words)


def test_a_message_cannot_break_the_line_or_the_terminal() -> None:
    line = explain(Failed("a\nb\x1b[31m")).line()
    assert "\n" not in line
    assert "\x1b" not in line


def test_programs_get_the_failure_as_json() -> None:
    told = json.loads(explain(TopicNotFound("gone")).json())["error"]
    assert (told["reason"], told["message"]) == ("TOPIC_NOT_FOUND", "gone")
    assert told["hint"]
