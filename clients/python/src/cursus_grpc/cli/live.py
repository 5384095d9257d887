"""Views that refresh until Ctrl-C, or a number of times."""

from __future__ import annotations

import time
from collections.abc import Iterator

from cursus_grpc.cli.interrupt import Interrupt, Interrupted


def refreshed(interval_s: float, times: int | None = None) -> Iterator[int]:
    """Counts up, once at once and then every interval. Ctrl-C ends it, and is the ordinary way to."""
    with Interrupt.watched() as interrupt:
        next_at = time.monotonic()
        at = 0
        while times is None or at < times:
            yield at
            at += 1
            next_at = max(next_at + interval_s, time.monotonic())
            try:
                with interrupt.waiting():
                    if times is None or at < times:
                        time.sleep(max(0.0, next_at - time.monotonic()))
            except Interrupted:
                return
