"""Sending at a fixed rate, whatever becomes of what was sent before."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from typing import Final, NamedTuple

SECOND_NS: Final = 1_000_000_000


class Tick(NamedTuple):
    """When something is to be sent at a fixed rate."""

    number: int
    """From 0 on."""
    due: int
    """The moment it could have been sent, had the sends before it taken no time: when it was due, or when the sender
    awoke if that was later. In nanoseconds of `time.perf_counter_ns`."""


class Pace:
    """When each of a series is due at a fixed rate."""

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._started = self._awake = time.perf_counter_ns()

    def wait_s(self, number: int) -> float:
        """How long to sleep before it is due; not at all if that is not positive. Say `awake` afterwards."""
        return (self._due(number) - time.perf_counter_ns()) / SECOND_NS

    def awake(self) -> None:
        self._awake = time.perf_counter_ns()

    def tick(self, number: int) -> Tick:
        return Tick(number, max(self._due(number), self._awake))

    def _due(self, number: int) -> int:
        return self._started + number * SECOND_NS // self._rate


async def schedule(count: int, rate: int) -> AsyncIterator[Tick]:
    """Like `ticks`, for one that must not block the loop. Timers of the loop are a millisecond coarse, its clock as
    well: what became due together comes together."""
    pace = Pace(rate)
    for number in range(count):
        if (wait_s := pace.wait_s(number)) > 0:
            await asyncio.sleep(wait_s)
            pace.awake()
        yield pace.tick(number)


def ticks(count: int, rate: int) -> Iterator[Tick]:
    """Each when it is due, for a client that may block its thread."""
    pace = Pace(rate)
    for number in range(count):
        if (wait_s := pace.wait_s(number)) > 0:
            time.sleep(wait_s)
            pace.awake()
        yield pace.tick(number)
