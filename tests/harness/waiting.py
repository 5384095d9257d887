"""Waiting for a condition with a deadline, or for work as long as it gets on: the one place in the tests that polls."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, TypeVar

T = TypeVar("T")

DEADLINE_S: Final = 60.0
"""Far above what anything takes: it decides how long a failure takes to show, never whether a slow machine passes."""

_FIRST_PAUSE_S: Final = 0.002
_LONGEST_PAUSE_S: Final = 0.1


async def eventually(
    condition: Callable[[], T | Awaitable[T]],
    deadline_s: float = DEADLINE_S,
    *,
    ignoring: tuple[type[Exception], ...] = (AssertionError,),
) -> T:
    """The condition's first truthy result. `condition` may be plain or async.

    An exception in `ignoring` counts as "not yet"; if time runs out it is the cause of the AssertionError, so a
    condition may be written with assert statements that say what was missing.
    """
    ends_at = time.monotonic() + deadline_s
    pause_s = _FIRST_PAUSE_S
    while True:
        last: Exception | None = None
        try:
            outcome = condition()
            result = await outcome if inspect.isawaitable(outcome) else outcome
            if result:
                return result
        except ignoring as error:
            last = error
        if time.monotonic() >= ends_at:
            name = getattr(condition, "__name__", repr(condition))
            raise AssertionError(f"{name} did not hold within {deadline_s} s: {last or 'it was false'}") from last
        await asyncio.sleep(pause_s)
        pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)


async def while_it_works(work: Awaitable[T], progress: Callable[[], object], quiet_s: float = DEADLINE_S) -> T:
    """The result of `work`, however long it takes: given up, with TimeoutError, only once `progress` has told the same
    for `quiet_s`. A slow machine gets on slowly, and what hangs does not get on at all."""
    task = asyncio.ensure_future(work)
    try:
        seen, seen_at = progress(), time.monotonic()
        while not (await asyncio.wait({task}, timeout=min(1.0, quiet_s / 4)))[0]:
            if (now := progress()) != seen:
                seen, seen_at = now, time.monotonic()
            elif time.monotonic() - seen_at > quiet_s:
                raise TimeoutError(f"no progress within {quiet_s} s")
        return task.result()
    finally:
        task.cancel()


def processor_ticks(session: int) -> int:
    """Processor time of all processes of a session, those that have ended and were waited for included."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name, which may hold anything, ends with the last bracket; state, ppid, pgrp and session follow.
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # It has ended meanwhile.
        if int(fields[3]) == session:
            ticks += sum(map(int, fields[11:15]))
    return ticks
