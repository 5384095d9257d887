"""One partition: its log, the tail of it in memory, and what is known of its producers, kept in step."""

from __future__ import annotations

from collections.abc import Sequence

from cursus_broker.consume.tail import Tail
from cursus_broker.errors import OffsetOutOfRange
from cursus_broker.log.api import MANY_RECORDS, Batch, Entry, EntryHeader, Log, Offset
from cursus_broker.publish.producers import ProducerLedger


class Partition:
    """The unit of order. All methods run on the event loop; an append is one step without an await, so concurrent
    publishers see one order and readers never see half of it.
    """

    __slots__ = ("_last_append_ms", "_ledger_saved_at_bytes", "id", "log", "producers", "tail", "topic")

    def __init__(self, topic: str, partition_id: int, log: Log, tail: Tail, producers: ProducerLedger) -> None:
        self.topic = topic
        self.id = partition_id
        self.log = log
        self.tail = tail
        self.producers = producers
        self._last_append_ms = 0
        self._ledger_saved_at_bytes = 0

    @property
    def earliest_offset(self) -> Offset:
        return self.log.earliest_offset

    @property
    def next_offset(self) -> Offset:
        return self.log.next_offset

    def append(self, batch: Batch, now_ms: int) -> EntryHeader:
        """Write, then wake the readers. Raises StorageFailed, with nothing changed."""
        # The wall clock may step back; append times must not, because the time index is searched by bisection.
        self._last_append_ms = now_ms = max(now_ms, self._last_append_ms)
        header = self.log.append(batch, now_ms)
        self.tail.push(Entry(header, batch.payload))
        return header

    async def read(self, offset: Offset, max_bytes: int, max_records: int = MANY_RECORDS) -> Sequence[Entry]:
        """Whole entries from the one that holds `offset` on, from memory if they are there, else from the log.

        Raises OffsetOutOfRange, PartitionDamaged.
        """
        if not self.log.earliest_offset <= offset <= self.log.next_offset:
            raise OffsetOutOfRange(offset, self.log.earliest_offset, self.log.next_offset)
        entries = self.tail.read(offset, max_bytes, max_records)
        if entries is None:
            entries = await self.log.read(offset, max_bytes, max_records)
        return entries

    async def append_time_at(self, offset: Offset) -> int | None:
        """When the record at `offset` was appended; None if there is none."""
        if not self.log.earliest_offset <= offset < self.log.next_offset:
            return None
        return (await self.read(offset, 1))[0].header.append_time_ms

    def ledger_due(self, min_appended_bytes: int) -> Offset | None:
        """The offset up to which the producers should be remembered now; None if little was appended since the last
        time this answered with an offset.
        """
        if self.log.appended_bytes - self._ledger_saved_at_bytes < min_appended_bytes:
            return None
        self._ledger_saved_at_bytes = self.log.appended_bytes
        return self.log.next_offset
