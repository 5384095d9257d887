"""Rebuilding what a partition knows of its producers from the headers of its log."""

from __future__ import annotations

from collections.abc import Sequence

from cursus_broker.log.api import NO_SEQUENCE, EntryHeader, Log, Offset
from cursus_broker.metadata.model import StoredLedger
from cursus_broker.publish.producers import EXPLICIT_SEQUENCES, WINDOWED, ProducerLedger
from cursus_proto import records as record_sets


async def rebuild_ledger(log: Log, stored: StoredLedger | None) -> ProducerLedger:
    """The ledger as it was after the log's last entry, starting from `stored` where that is still true.

    A stored ledger that reaches beyond the end of the log describes batches that power loss took; it is not used, and
    the caller must replace it before it appends anything. Raises PartitionDamaged.
    """
    if stored is not None and stored.upto_offset <= log.next_offset:
        ledger, offset = ProducerLedger.restore(stored.ledger), Offset(stored.upto_offset)
    else:
        ledger, offset = ProducerLedger(), log.earliest_offset
    async for header in log.headers(max(offset, log.earliest_offset)):
        if header.base_offset < offset or header.first_sequence == NO_SEQUENCE:
            continue
        windowed = bool(header.flags & WINDOWED)
        ledger.record(header, windowed=windowed, sequences=await _explicit_sequences(log, header))
    return ledger


async def _explicit_sequences(log: Log, header: EntryHeader) -> Sequence[int]:
    if not header.flags & EXPLICIT_SEQUENCES:
        return ()
    (entry, *_) = await log.read(header.base_offset, 1)
    records = record_sets.unpack(entry.payload, header.codec)
    return [
        record.sequence if record.HasField("sequence") else header.first_sequence + index
        for index, record in enumerate(records)
    ]
