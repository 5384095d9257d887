"""Bytes that everybody together may hold."""

from __future__ import annotations

import threading


class Budget:
    """A number of bytes for a whole process, whatever the number of its connections, event loops and threads.

    Whoever takes some gives as many back. Nobody waits: when too little is left, the asker is to refuse what it was
    about to do, because those who hold the rest may wait for each other.
    """

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self._held = 0
        self._lock = threading.Lock()

    @property
    def held(self) -> int:
        """What is taken and not given back."""
        return self._held

    def take(self, size: int) -> bool:
        """False, and nothing is taken, if that is more than what is left."""
        with self._lock:
            if self._held + size > self.total_bytes:
                return False
            self._held += size
            return True

    def give_back(self, size: int) -> None:
        with self._lock:
            assert size <= self._held, "given back what was not taken"
            self._held -= size
