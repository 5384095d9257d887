"""Tables, numbers and the examples in the docstrings of the command line."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import cursus_grpc.cli
from cursus_grpc.cli import measured
from cursus_grpc.cli.output import column, number, plain_lines
from cursus_grpc.cli.top import Sample, rows

MODULES = sorted(one.name for one in pkgutil.iter_modules(cursus_grpc.cli.__path__) if one.name != "__main__")


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_in_the_docstrings_hold(name: str) -> None:
    assert doctest.testmod(importlib.import_module(f"cursus_grpc.cli.{name}")).failed == 0


def test_a_plain_table_is_never_cut_and_cannot_steer_a_terminal() -> None:
    lines = plain_lines([column("NAME"), number("N")], [["x" * 300, 1_234_567], ["\x1b[2J", None]])
    assert lines[1] == "x" * 300 + "  1,234,567"
    assert lines[2].startswith("\\x1b[2J ")


def test_percentiles_and_buckets_cover_all_values() -> None:
    values = [float(one) for one in range(1, 1001)]
    told = measured.summary(values)
    assert (told["p50_ms"], told["p99_ms"], told["p99.9_ms"], told["max_ms"]) == (500.0, 990.0, 999.0, 1000.0)
    assert sum(count for _, _, count in measured.histogram(values)) == 1000
    assert measured.summary([]) == {"count": 0}
    assert measured.report([], "acks") == ["acks: nothing was measured"]
    assert measured.histogram([0.0, 1.0])[0][2] == 1


def sample(next_sum: int, size_bytes: int, committed: int = 0) -> Sample:
    return Sample(1, 10, size_bytes, next_sum, committed, 0, "")


def test_rates_are_what_happened_between_two_looks() -> None:
    [row] = rows({"a": sample(100, 1_000, 40)}, {"a": sample(300, 5_000, 100)}, 2.0)
    assert (row.in_per_s, row.in_bytes_per_s, row.out_per_s) == (100.0, 2_000.0, 30.0)


def test_a_topic_seen_for_the_first_time_or_made_again_has_no_rates() -> None:
    [new] = rows({}, {"a": sample(300, 5_000)}, 2.0)
    [again] = rows({"a": sample(300, 5_000)}, {"a": sample(5, 100)}, 2.0)
    assert new.in_per_s is None
    assert again.in_per_s is None


def test_retention_and_resets_make_no_rate_negative() -> None:
    [row] = rows({"a": sample(100, 9_000, 90)}, {"a": sample(120, 1_000, 10)}, 2.0)
    assert row.in_bytes_per_s == 10 * 100.0
    assert row.out_per_s == 0.0
