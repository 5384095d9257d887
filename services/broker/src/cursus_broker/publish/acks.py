"""When a publish may be answered, and waiting for that moment."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from cursus_broker.log.api import Log, Offset


class Acks(IntEnum):
    """What an answer promises; the numbers are the contract's."""

    ACCEPTED = 1  # Nothing. The segment engine has usually written by then; nobody may rely on it.
    WRITTEN = 2  # Survives the death of the process.
    ALL = 3  # Survives power loss.


class Placed(NamedTuple):
    """Where one part of a published set lies."""

    partition: int
    base_offset: int
    record_count: int
    duplicate: bool
    append_time_ms: int
    fresh_record_count: int


@dataclass(slots=True)
class Receipt:
    """An appended set on its way to being acknowledged."""

    placed: Sequence[Placed]
    synced: asyncio.Future[None] | None = None
    """Ends when everything placed is synced, or fails with StorageFailed; None if nobody asked for that."""


def start_sync(places: Sequence[tuple[Log, Offset]]) -> asyncio.Future[None]:
    """Begin to wait for the disk now, so that the answers of a stream wait together and not one after another."""
    synced: asyncio.Future[None] = asyncio.ensure_future(_sync_all(places))
    synced.add_done_callback(_retrieve)
    return synced


async def _sync_all(places: Sequence[tuple[Log, Offset]]) -> None:
    if len(places) == 1:
        log, upto = places[0]
        await log.sync(upto)
    else:
        await asyncio.gather(*(log.sync(upto) for log, upto in places))


def _retrieve(synced: asyncio.Future[None]) -> None:
    """Mark a failure as seen: a client that left before its answer is the only one whom it concerned."""
    if not synced.cancelled():
        synced.exception()
