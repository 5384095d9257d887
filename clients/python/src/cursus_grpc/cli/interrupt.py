"""Ctrl-C and SIGTERM for commands that print records: at once while they wait, else when what they have is printed.

Half a record on stdout helps nobody, and what was not printed must not be committed.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupted(Exception):
    """Somebody wants the command to end."""


class Interrupt:
    """Whether the command was asked to end. The second time is not a request: KeyboardInterrupt."""

    def __init__(self) -> None:
        self.requested = False
        self._waiting = False

    @classmethod
    @contextmanager
    def watched(cls) -> Iterator[Interrupt]:
        """Take the signals over until the block is left. Other threads than the main one cannot, and see none."""
        interrupt = cls()
        if threading.current_thread() is not threading.main_thread():
            yield interrupt
            return
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = [signal.signal(number, interrupt._on_signal) for number in numbers]
        try:
            yield interrupt
        finally:
            for number, handler in zip(numbers, before, strict=True):
                signal.signal(number, handler)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Around a call that may take long and leaves nothing half done. Raises Interrupted."""
        self.begin_waiting()
        try:
            yield
        finally:
            self.end_waiting()

    def begin_waiting(self) -> None:
        """The same for a loop that goes round a million times, where a context manager would cost more than the rest.
        Raises Interrupted."""
        if self.requested:
            raise Interrupted
        self._waiting = True

    def end_waiting(self) -> None:
        self._waiting = False

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        if self._waiting:
            raise Interrupted
