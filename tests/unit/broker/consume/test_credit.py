"""Credit: grants add up, sending counts down, and only what was granted limits."""

from __future__ import annotations

import asyncio

import pytest

from cursus_broker.consume.credit import Credit
from cursus_broker.errors import InvalidRequest
from cursus_broker.log.api import Entry, EntryHeader, Offset


def entries(record_count: int, size: int) -> list[Entry]:
    return [Entry(EntryHeader(Offset(0), record_count, 0, size, 0, 1, 0, b"", 0, -1), b"x" * size)]


def test_without_a_grant_nothing_limits() -> None:
    credit = Credit()
    credit.spend(entries(10**6, 10**6))
    assert credit.is_available()


def test_either_measure_stops_the_stream_when_it_is_spent() -> None:
    credit = Credit()
    credit.grant(10, 1_000)
    credit.spend(entries(10, 1))
    assert not credit.is_available()
    credit.grant(5, 0)
    assert credit.is_available()
    credit.spend(entries(1, 2_000))
    assert not credit.is_available()


def test_an_overdrawn_measure_has_to_be_made_up_first() -> None:
    credit = Credit()
    credit.grant(10, 0)
    credit.spend(entries(25, 1))
    credit.grant(10, 0)
    assert not credit.is_available()
    credit.grant(6, 0)
    assert credit.is_available()
    assert credit.records_left() == 1


async def test_a_grant_wakes_the_stream_that_waits_for_it() -> None:
    credit = Credit()
    credit.grant(1, 0)
    credit.spend(entries(1, 1))
    waiting = asyncio.create_task(credit.available())
    await asyncio.sleep(0)
    assert not waiting.done()
    credit.grant(1, 0)
    await waiting


def test_what_is_left_bounds_the_next_response() -> None:
    credit = Credit()
    assert credit.bytes_left() == credit.records_left() > 10**12
    credit.grant(7, 1_000)
    credit.spend(entries(3, 400))
    assert (credit.records_left(), credit.bytes_left()) == (4, 600)


def test_negative_grants_are_refused() -> None:
    with pytest.raises(InvalidRequest):
        Credit().grant(-1, 0)
