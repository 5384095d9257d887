"""Views that refresh until Ctrl-C or `q`, or a number of times."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from cursus_grpc.cli.interrupt import Interrupt, Interrupted

_QUIT: Final = frozenset(b"qQ")
_KEYS: Final = 64


class Keyboard:
    """The keys somebody presses while a view is shown. Without a terminal nobody does."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor

    @classmethod
    @contextmanager
    def watched(cls) -> Iterator[Keyboard]:
        """Read keys as they are pressed, without showing them, until the block is left. Ctrl-C stays a signal."""
        descriptor = _terminal()
        if descriptor is None:
            yield cls(None)
            return
        before = termios.tcgetattr(descriptor)
        tty.setcbreak(descriptor, termios.TCSANOW)
        try:
            yield cls(descriptor)
        finally:
            termios.tcsetattr(descriptor, termios.TCSANOW, before)

    def quits_within(self, seconds: float) -> bool:
        """Wait so long, or until `q` is pressed: then True."""
        ends_at = time.monotonic() + seconds
        while True:
            left_s = max(0.0, ends_at - time.monotonic())
            if self._descriptor is None:
                time.sleep(left_s)
                return False
            if not select.select([self._descriptor], [], [], left_s)[0]:
                return False
            pressed = os.read(self._descriptor, _KEYS)
            if not pressed:  # the terminal is gone
                self._descriptor = None
            elif _QUIT.intersection(pressed):
                return True


def _terminal() -> int | None:
    """Where keys come from, if this process is the one that is typed to: one in the background that touched the
    terminal would be stopped."""
    if not sys.stdin.isatty() or not sys.stdout.isatty():
        return None
    descriptor = sys.stdin.fileno()
    return descriptor if os.tcgetpgrp(descriptor) == os.getpgrp() else None


def refreshed(interval_s: float, times: int | None = None) -> Iterator[int]:
    """Counts up, once at once and then every interval. Ctrl-C and `q` end it, and are the ordinary ways to."""
    with Interrupt.watched() as interrupt, Keyboard.watched() as keyboard:
        next_at = time.monotonic()
        at = 0
        while times is None or at < times:
            yield at
            at += 1
            next_at = max(next_at + interval_s, time.monotonic())
            try:
                with interrupt.waiting():
                    if (times is None or at < times) and keyboard.quits_within(max(0.0, next_at - time.monotonic())):
                        return
            except Interrupted:
                return
