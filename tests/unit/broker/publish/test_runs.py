"""Sets of sequence numbers. What they hold against a set is in tests/property/test_producers.py."""

from __future__ import annotations

import pytest

from cursus_broker.publish import runs as module
from cursus_broker.publish.runs import Runs


def test_touching_runs_become_one() -> None:
    runs = Runs()
    runs.add(1, 3)
    runs.add(5, 7)
    runs.add(3, 5)
    assert list(runs) == [(1, 7)]


def test_a_run_swallows_all_it_covers() -> None:
    runs = Runs([(1, 2), (4, 5), (7, 8), (20, 21)])
    runs.add(0, 10)
    assert list(runs) == [(0, 10), (20, 21)]


def test_beyond_the_window_the_lowest_gap_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_RUNS", 3)
    runs = Runs()
    for number in (1, 3, 5, 7):
        runs.add(number, number + 1)
    assert list(runs) == [(1, 4), (5, 6), (7, 8)]
    assert 2 in runs
    assert 4 not in runs


def test_they_are_the_same_when_they_were_packed() -> None:
    for some in ([], [(0, 1)], [(1, 3), (7, 2**62 + 1)]):
        assert list(Runs.unpack(Runs(some).pack())) == some
