"""Which group has to be looked at next: a queue of deadlines that are set often and mostly move away unseen."""

from __future__ import annotations

import heapq


class DeadlineQueue:
    """One deadline for each name. A name comes due no later than its deadline; it may come early, since heartbeats move
    deadlines away without telling the queue. Whoever takes it looks, and sets the next one.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, str]] = []
        self._scheduled: dict[str, int] = {}

    def require(self, name: str, deadline_ms: int) -> bool:
        """Make the name come due by `deadline_ms`. True if that is now the first deadline of all."""
        if self._scheduled.get(name, deadline_ms + 1) <= deadline_ms:
            return False
        self._scheduled[name] = deadline_ms
        heapq.heappush(self._heap, (deadline_ms, name))
        return self._heap[0] == (deadline_ms, name)

    def next_ms(self) -> int | None:
        """The first deadline there is."""
        while self._heap and self._scheduled.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)  # was replaced by an earlier one
        return self._heap[0][0] if self._heap else None

    def take_due(self, now_ms: int) -> list[str]:
        """Names whose deadline has come; they have none from now on."""
        due: list[str] = []
        while (deadline_ms := self.next_ms()) is not None and deadline_ms <= now_ms:
            _, name = heapq.heappop(self._heap)
            del self._scheduled[name]
            due.append(name)
        return due
