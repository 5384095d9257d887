"""The leader epochs of one partition: since which offset its log has been in which epoch.

An epoch begins where the log ended when it was opened without having been closed cleanly: what had been read above that
offset may be gone, and other records may take its place. A reader that was at offset `x` in epoch `e` was truncated if
a later epoch begins below `x`; one number for the end of the log could not tell it from a reader that never was there.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Final, NamedTuple

MAX_EPOCHS: Final = 128
"""Kept for a partition. Only a reader that slept while a growing log was this often not closed cleanly is told of a cut
that did not concern it."""


class EpochStart(NamedTuple):
    epoch: int
    first_offset: int


@dataclass(frozen=True, slots=True)
class Epochs:
    """Epochs and their first offsets, both strictly rising."""

    starts: tuple[EpochStart, ...] = ()

    @property
    def current(self) -> int:
        """The epoch the log is in; 0 before the first."""
        return self.starts[-1].epoch if self.starts else 0

    @property
    def first_offset(self) -> int:
        """Where the current epoch begins."""
        return self.starts[-1].first_offset if self.starts else 0

    def begin(self, epoch: int, first_offset: int) -> Epochs:
        """With a new epoch, which goes on from `first_offset`: what began there or above is no part of the log."""
        assert epoch > self.current, f"epoch {epoch} is not later than {self.current}"
        kept = [start for start in self.starts if start.first_offset < first_offset]
        kept.append(EpochStart(epoch, first_offset))
        if len(kept) > MAX_EPOCHS:
            # The oldest two as one, with the lower offset: may tell a reader of a cut that was none, hides none.
            kept[:2] = [EpochStart(kept[1].epoch, kept[0].first_offset)]
        return Epochs(tuple(kept))

    def truncated(self, offset: int, epoch: int) -> int | None:
        """Where a reader that was at `offset` in `epoch` has to go on; None if nothing was cut below it."""
        at = bisect_right(self.starts, epoch, key=_epoch_of)
        if at == len(self.starts) or self.starts[at].first_offset >= offset:
            return None
        return self.starts[at].first_offset


def _epoch_of(start: EpochStart) -> int:
    return start.epoch
