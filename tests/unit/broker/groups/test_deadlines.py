from __future__ import annotations

from cursus_broker.groups.deadlines import DeadlineQueue


def test_names_come_due_in_time_and_once() -> None:
    queue = DeadlineQueue()
    queue.require("late", 30)
    queue.require("early", 10)
    assert queue.next_ms() == 10
    assert queue.take_due(9) == []
    assert queue.take_due(30) == ["early", "late"]
    assert queue.take_due(99) == []
    assert queue.next_ms() is None


def test_an_earlier_deadline_replaces_a_later_one_and_not_the_reverse() -> None:
    queue = DeadlineQueue()
    queue.require("g", 30)
    queue.require("g", 20)
    queue.require("g", 40)
    assert queue.take_due(20) == ["g"]
    assert queue.next_ms() is None


def test_only_a_new_first_deadline_is_worth_waking_for() -> None:
    queue = DeadlineQueue()
    assert queue.require("a", 20)
    assert not queue.require("b", 30)
    assert not queue.require("a", 25)
    assert queue.require("b", 10)
