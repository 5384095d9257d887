"""One partition: its log, the tail of it in memory, and what is known of its producers, kept in step."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from cursus_broker.consume.tail import Tail
from cursus_broker.errors import CursusError, LogTruncated, OffsetOutOfRange
from cursus_broker.log.api import MANY_RECORDS, Batch, Cut, Entry, EntryHeader, Log, Offset
from cursus_broker.publish.producers import ProducerLedger
from cursus_broker.publish.remembered import Remembered


class Partition:
    """The unit of order. All methods run on the event loop; an append is one step without an await, so concurrent
    publishers see one order and readers never see half of it.
    """

    __slots__ = (
        "_last_append_ms",
        "_ledger_at_bytes",
        "_retired_by",
        "cut",
        "id",
        "ledger_upto",
        "log",
        "producers",
        "read_bytes",
        "read_records",
        "tail",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        partition_id: int,
        log: Log,
        tail: Tail,
        producers: ProducerLedger,
        ledger_upto: Offset = Offset(0),  # noqa: B008  # a number
        cut: Cut | None = None,
    ) -> None:
        self.topic = topic
        self.id = partition_id
        self.log = log
        self.tail = tail
        self.producers = producers
        self.ledger_upto = ledger_upto
        """Up to here the producers are saved, apart from the log."""
        self.cut = cut
        """What opening the log cut off."""
        # Plain counters for metrics.
        self.read_records = 0
        self.read_bytes = 0
        self._last_append_ms = 0
        self._ledger_at_bytes = 0
        self._retired_by: CursusError | None = None

    @property
    def earliest_offset(self) -> Offset:
        return self.log.earliest_offset

    @property
    def next_offset(self) -> Offset:
        return self.log.next_offset

    @property
    def leader_epoch(self) -> int:
        return self.log.leader_epoch

    def check_epoch(self, offset: int, epoch: int | None) -> None:
        """Raises LogTruncated if the log was cut below `offset` since it was reached in `epoch`. None: not checked."""
        if epoch is None:
            return
        goes_on = self.log.truncated(offset, epoch)
        if goes_on is not None:
            raise LogTruncated(
                offset,
                epoch,
                offset=goes_on,
                leader_epoch=self.log.leader_epoch,
                earliest=self.log.earliest_offset,
                next_offset=self.log.next_offset,
            )

    def sync_soon(self, upto: Offset) -> asyncio.Future[None] | None:
        """As in `log/api.py`. Raises StorageFailed."""
        return self.log.sync_soon(upto)

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
        if self._retired_by is not None:
            raise self._retired_by
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
        entries = self.tail.read(offset, 1)
        header = entries[0].header if entries else await self.log.header_at(offset)
        return None if header is None else header.append_time_ms

    def count_read(self, entries: Sequence[Entry]) -> None:
        """These entries go to a reader."""
        for header, payload in entries:
            self.read_records += header.record_count
            self.read_bytes += len(payload)

    def retire(self, reason: CursusError) -> None:
        """Another object takes this one's place: refuse everybody who still has it, for this reason."""
        self._retired_by = reason
        self.tail.close(reason)

    # Producers

    async def describe_producers(self, producer_ids: Sequence[bytes]) -> list[Remembered | None]:
        """What is known of them, each as it was at some moment of this call. What is told survives power loss.

        Raises StorageFailed.
        """
        found = [self.producers.get(producer_id) for producer_id in producer_ids]
        described = [None if one is None else replace(one) for one in found]
        upto = max((one.next_offset for one in described if one is not None), default=Offset(0))
        await self.log.sync(upto)
        return described

    @property
    def is_ledger_behind(self) -> bool:
        """Whether a start would have to read headers, or would know producers that were forgotten."""
        return self.producers.has_changes or self.ledger_upto < self.log.next_offset

    def is_ledger_due(self, min_appended_bytes: int, min_forgotten: int) -> bool:
        """Whether so much was appended, or so many were forgotten, since the producers were last drafted for saving."""
        appended = self.log.appended_bytes - self._ledger_at_bytes
        return appended >= min_appended_bytes or self.producers.unsaved_removals >= min_forgotten

    def ledger_drafted(self) -> None:
        self._ledger_at_bytes = self.log.appended_bytes
