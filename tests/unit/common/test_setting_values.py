"""Values as text: every type reads what it shows, and says what it wants when it cannot."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cursus_service.settings.values import GIB, MIB, Unit, parse, show


class Colour(StrEnum):
    RED = "red"
    DARK_BLUE = "dark-blue"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("64MiB", 64 * MIB),
        ("1.5 KiB", 1536),
        ("10GB", 10**10),
        ("4096", 4096),
        ("1_000", 1000),
        ("-1", -1),
        ("2GiB", 2 * GIB),
    ],
)
def test_a_size_may_carry_a_unit(text: str, expected: int) -> None:
    assert parse(text, int, Unit.BYTES) == expected


@pytest.mark.parametrize(
    ("text", "unit", "expected"),
    [
        ("100", Unit.MILLISECONDS, 100),
        ("0.1s", Unit.MILLISECONDS, 100),
        ("5min", Unit.SECONDS, 300),
        ("7d", Unit.HOURS, 168),
        ("90s", Unit.SECONDS, 90),
    ],
)
def test_a_duration_is_converted_to_the_unit_of_its_setting(text: str, unit: Unit, expected: int) -> None:
    assert parse(text, int, unit) == expected


@pytest.mark.parametrize(
    ("text", "annotation", "unit", "wanted"),
    [
        ("64 MiBs", int, Unit.BYTES, "a size such as"),
        ("64M", int, Unit.BYTES, "a size such as"),
        ("1ms", int, Unit.SECONDS, "a whole number of s"),
        ("5 parsecs", int, Unit.SECONDS, "a duration"),
        ("5s", int, Unit.NONE, "a whole number"),
        ("1.5", int, Unit.NONE, "a whole number"),
        ("nan", float, Unit.NONE, "a number"),
        ("1e999", float, Unit.NONE, "a finite number"),
        ("maybe", bool, Unit.NONE, "true or false"),
        ("green", Colour, Unit.NONE, "one of red, dark-blue"),
        ("", Path, Unit.NONE, "a path"),
        (["a", "b"], str, Unit.NONE, "a single value"),
        (None, str, Unit.NONE, "given a value"),
        ("x" * 100_000, str, Unit.NONE, "shorter than"),
    ],
)
def test_a_bad_value_is_told_what_it_should_be(
    text: str | list[str] | None, annotation: object, unit: Unit, wanted: str
) -> None:
    with pytest.raises(ValueError, match=wanted):
        parse(text, annotation, unit)


@pytest.mark.parametrize(
    ("text", "annotation", "expected"),
    [
        ("Yes", bool, True),
        ("off", bool, False),
        ("DARK-BLUE", Colour, Colour.DARK_BLUE),
        ("a, b,,c", tuple[str, ...], ("a", "b", "c")),
        (["a,b", "c"], tuple[str, ...], ("a,b", "c")),
        ("1,2", tuple[int, ...], (1, 2)),
        ("none", int | None, None),
        (None, str | None, None),
        ("7", int | None, 7),
        ("1.10", str, "1.10"),
    ],
)
def test_each_type_reads_its_text(text: str | list[str] | None, annotation: object, expected: object) -> None:
    assert parse(text, annotation) == expected


@given(st.integers(min_value=-(2**62), max_value=2**62), st.sampled_from(Unit))
def test_every_amount_reads_back_as_shown(value: int, unit: Unit) -> None:
    assert parse(show(value, unit), int, unit) == value


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (604_800_000, Unit.MILLISECONDS, "7d"),
        (1500, Unit.MILLISECONDS, "1500ms"),
        (90, Unit.SECONDS, "90s"),
        (0, Unit.SECONDS, "0"),
        (-1, Unit.BYTES, "-1"),
        (1536, Unit.BYTES, "1536"),
        (3 * MIB, Unit.BYTES, "3MiB"),
    ],
)
def test_an_amount_is_shown_in_the_largest_unit_that_keeps_it_whole(value: int, unit: Unit, shown: str) -> None:
    assert show(value, unit) == shown


@given(st.floats(allow_nan=False, allow_infinity=False), st.booleans(), st.sampled_from(Colour))
def test_every_scalar_reads_back_as_shown(number: float, flag: bool, colour: Colour) -> None:
    assert parse(show(number), float) == number
    assert parse(show(flag), bool) is flag
    assert parse(show(colour), Colour) is colour
