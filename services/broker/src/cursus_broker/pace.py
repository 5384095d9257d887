"""Long work on the event loop in short slices, with everybody else's turn between them."""

from __future__ import annotations

import asyncio
from typing import Final

SLICE_STEPS: Final = 1_000
"""Steps between two turns of the others. A step is an entry forgotten, a topic looked at, a header read: about a
microsecond each, so that a slice is a millisecond or two."""


class Pace:
    """Counts the steps of one long piece of work."""

    def __init__(self, slice_steps: int = SLICE_STEPS) -> None:
        self._slice_steps = slice_steps
        self._left = slice_steps
        self.slices = 1

    @property
    def left(self) -> int:
        """Steps that still belong to this slice, at least 1."""
        return self._left

    async def took(self, steps: int = 1) -> None:
        """Count steps that were done. Lets the others have their turn when the slice is over."""
        self._left -= steps
        if self._left <= 0:
            self._left = self._slice_steps
            self.slices += 1
            await asyncio.sleep(0)
