"""The credit a reader grants a stream: records and bytes that may still be sent."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from cursus_broker.errors import InvalidRequest
from cursus_broker.log.api import Entry

_UNLIMITED = 2**62


class Credit:
    """Counts down by what was sent and up by grants. A measure that was never granted does not limit."""

    def __init__(self) -> None:
        self._records: int | None = None
        self._bytes: int | None = None
        self._granted = asyncio.Event()
        self._granted.set()

    def grant(self, records: int, size_bytes: int) -> None:
        """Add to the credit. Raises InvalidRequest for negative grants."""
        if records < 0 or size_bytes < 0:
            raise InvalidRequest("a grant must not be negative")
        if records:
            self._records = min((self._records or 0) + records, _UNLIMITED)
        if size_bytes:
            self._bytes = min((self._bytes or 0) + size_bytes, _UNLIMITED)
        self._update()

    def spend(self, entries: Sequence[Entry]) -> None:
        """Take off what is being sent. The last batch may overdraw, since batches are sent whole."""
        if self._records is not None or self._bytes is not None:
            self.charge(sum(entry.header.record_count for entry in entries), sum(len(one.payload) for one in entries))

    def charge(self, records: int, size_bytes: int) -> None:
        """The same for what was counted already."""
        if self._records is not None:
            self._records -= records
        if self._bytes is not None:
            self._bytes -= size_bytes
        self._update()

    def covers(self, entries: Sequence[Entry], records: int, size_bytes: int) -> bool:
        """Whether all of these may be sent now. One batch may, if there is any credit."""
        if self._records is None and self._bytes is None:
            return True
        if len(entries) > 1 and (records > self.records_left() or size_bytes > self.bytes_left()):
            return False
        return self._granted.is_set()

    async def available(self) -> None:
        """Wait until both measures have credit."""
        if not self._granted.is_set():
            await self._granted.wait()

    def is_available(self) -> bool:
        """Whether both measures have credit now."""
        return self._granted.is_set()

    def bytes_left(self) -> int:
        return _UNLIMITED if self._bytes is None else max(self._bytes, 1)

    def records_left(self) -> int:
        return _UNLIMITED if self._records is None else max(self._records, 1)

    def _update(self) -> None:
        if (self._records is not None and self._records <= 0) or (self._bytes is not None and self._bytes <= 0):
            self._granted.clear()
        else:
            self._granted.set()
