"""Waiting for a condition with a deadline: the one place in the tests that polls."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
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
