"""Data that a stream or a batch was to read and that is not there any more: expired, cut off or deleted. What becomes
of it is the user's choice, `failOnDataLoss`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

log: Final = logging.getLogger("cursus_spark")

_SHOWN: Final = 5


class DataLost(RuntimeError):
    """Some of what was to be read is gone, and the query was not told to go on without it."""

    def __init__(self, losses: Sequence[str]) -> None:
        super().__init__(
            f"{shown(losses)}. Set the option `failOnDataLoss` to false to go on with what there is; what was lost is"
            " then logged and skipped."
        )


def shown(losses: Sequence[str]) -> str:
    """The first few, for a message that people read."""
    more = f"; and {len(losses) - _SHOWN} more" if len(losses) > _SHOWN else ""
    return "; ".join(losses[:_SHOWN]) + more


def report(losses: Sequence[str], *, fail: bool) -> None:
    """Raises DataLost if the query is to fail, else says what was lost."""
    if not losses:
        return
    if fail:
        raise DataLost(losses)
    log.warning("data was lost: %s", shown(losses))
