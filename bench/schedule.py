"""Sending at a fixed rate, whatever becomes of what was sent before."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from typing import Final, NamedTuple

_SECOND_NS: Final = 1_000_000_000


class Tick(NamedTuple):
    """When something is to be sent at a fixed rate."""

    number: int
    """From 0 on."""
    due: int
    """The moment it could have been sent, had the sends before it taken no time: when it was due, or when the sender
    awoke if that was later. In nanoseconds of `time.perf_counter_ns`."""


async def schedule(count: int, rate: int) -> AsyncIterator[Tick]:
    """Like `ticks`, for one that must not block the loop. Timers of the loop are a millisecond coarse, its clock as
    well: what became due together comes together."""
    started = awake = time.perf_counter_ns()
    for number in range(count):
        due = started + number * _SECOND_NS // rate
        wait = due - time.perf_counter_ns()
        if wait > 0:
            await asyncio.sleep(wait / _SECOND_NS)
            awake = time.perf_counter_ns()
        yield Tick(number, max(due, awake))


def ticks(count: int, rate: int) -> Iterator[Tick]:
    """Each when it is due, for a client that may block its thread."""
    started = awake = time.perf_counter_ns()
    for number in range(count):
        due = started + number * _SECOND_NS // rate
        wait = due - time.perf_counter_ns()
        if wait > 0:
            time.sleep(wait / _SECOND_NS)
            awake = time.perf_counter_ns()
        yield Tick(number, max(due, awake))
