"""How people write places: every form, and what is refused."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cursus_grpc import BEGINNING, END, Timestamp
from cursus_grpc.cli.places import Last, WrittenPlace, parse

NOW_MS = 1_777_636_800_000
MINUTE_MS = 60_000


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("beginning", BEGINNING),
        ("START", BEGINNING),
        ("earliest", BEGINNING),
        ("end", END),
        ("latest", END),
        ("0", 0),
        ("42", 42),
        ("-5", Last(5)),
        ("-0", Last(0)),
        ("@-10m", Timestamp(NOW_MS - 10 * MINUTE_MS)),
        ("@-1h30m", Timestamp(NOW_MS - 90 * MINUTE_MS)),
        ("@-2d", Timestamp(NOW_MS - 2 * 24 * 60 * MINUTE_MS)),
        ("@-250ms", Timestamp(NOW_MS - 250)),
        ("@-90000d", Timestamp(0)),
        ("@1777636800000", Timestamp(1_777_636_800_000)),
        ("@2026-05-01T12:00:00Z", Timestamp(1_777_636_800_000)),
        ("@2026-05-01T14:00:00+02:00", Timestamp(1_777_636_800_000)),
    ],
)
def test_a_place_means_what_it_says(text: str, place: WrittenPlace) -> None:
    assert parse(text, NOW_MS) == place


def test_a_time_without_a_zone_is_the_users_own() -> None:
    assert parse("@2026-05-01", NOW_MS) == Timestamp(int(datetime(2026, 5, 1).astimezone(UTC).timestamp() * 1000))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "1.5",
        "--5",
        "@",
        "@-",
        "@-10",
        "@-10y",
        "@10m",
        "@yesterday",
        "@2026-13-01",
        "9" * 20,
        "@" + "9" * 16,
        "٣",
    ],
)
def test_anything_else_is_refused_with_a_sentence(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no place|is no time|is not between|is larger"):
        parse(text, NOW_MS)


@given(st.text(max_size=20), st.sampled_from(["", "@", "-", "@-"]))
def test_nothing_a_user_can_type_ends_in_another_error(text: str, prefix: str) -> None:
    with suppress(ValueError):
        parse(prefix + text, NOW_MS)
