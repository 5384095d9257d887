"""Time: deadlines, and the pauses between attempts."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True)
class Backoff:
    """Pauses that double from `first_s` to `longest_s`, each drawn between half and all of it: clients that lost the
    same broker at the same time do not come back at the same time."""

    first_s: float = 0.02
    longest_s: float = 1.0
    draw: Callable[[float, float], float] = random.uniform
    failures: int = 0

    def next_s(self) -> float:
        """The pause before the next attempt."""
        # The exponent is bounded before it is used: a broker may be away for days.
        bound = min(self.longest_s, self.first_s * 2.0 ** min(self.failures, 32))
        self.failures += 1
        return self.draw(bound / 2, bound)

    def reset(self) -> None:
        """An attempt succeeded."""
        self.failures = 0


class Deadline:
    """A moment on the monotonic clock by which something has to be done. None: never."""

    __slots__ = ("at",)

    def __init__(self, timeout_s: float | None) -> None:
        self.at = None if timeout_s is None else time.monotonic() + timeout_s

    def left_s(self) -> float | None:
        """Seconds left, never negative; None without a deadline."""
        return None if self.at is None else max(0.0, self.at - time.monotonic())

    def within(self, pause_s: float) -> bool:
        """Whether a pause of this length ends before the deadline."""
        return self.at is None or time.monotonic() + pause_s < self.at
