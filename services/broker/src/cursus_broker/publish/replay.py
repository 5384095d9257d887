"""Rebuilding what a partition knows of its producers, from what was saved and from the headers of its log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import structlog

from cursus_broker.log.api import NO_SEQUENCE, EntryHeader, Log, Offset
from cursus_broker.metadata.model import StoredLedger
from cursus_broker.pace import Pace
from cursus_broker.publish.producers import EXPLICIT_SEQUENCES, WINDOWED, ProducerLedger
from cursus_proto import records as record_sets
from cursus_proto.bounds import MAX_UNPACKED_RECORDS, Bounds

_log = structlog.get_logger(__name__)

# Steps of a slice that restoring one producer takes, and bytes of what a windowed one has seen that take one more.
_RESTORE_STEPS: Final = 12
_SEEN_BYTES_A_STEP: Final = 64


def is_usable(stored: StoredLedger, log: Log) -> bool:
    """Whether the log still holds, or held, everything that was saved. A ledger that reaches beyond the end of the log
    describes batches that are lost; it must be dropped before anything is appended, or it would look right again."""
    return stored.reach.described_offset <= log.next_offset


async def rebuild_ledger(log: Log, stored: StoredLedger | None) -> ProducerLedger:
    """The ledger as it was after the log's last entry, starting from `stored`, which is usable.

    Producers that were forgotten after the last save are known again, from what was saved and the headers behind it:
    their numbers are true, and they will be forgotten again when they have been idle. Raises PartitionDamaged.
    """
    ledger = ProducerLedger()
    upto = Offset(0)
    if stored is not None:
        upto = Offset(stored.reach.upto_offset)
        await _restore(ledger, stored, is_incomplete=upto < log.earliest_offset)
    if upto < log.earliest_offset:
        ledger.is_whole = False  # headers went that nobody had counted
    async for header in log.headers(max(upto, log.earliest_offset)):
        if header.base_offset < upto or header.first_sequence == NO_SEQUENCE:
            continue
        if header.base_offset < ledger.noted_upto(header.producer_id):
            continue  # a producer is saved as it was when its turn came, which may be behind `upto`
        windowed = bool(header.flags & WINDOWED)
        ledger.record(header, windowed=windowed, sequences=await _explicit_sequences(log, header))
    ledger.forgotten.clear()
    return ledger


async def _restore(ledger: ProducerLedger, stored: StoredLedger, *, is_incomplete: bool) -> None:
    ledger.is_whole = stored.reach.is_whole
    pace = Pace()
    for row in stored.producers:
        is_cut = is_incomplete and not row.released
        ledger.restore(row._replace(incomplete=True) if is_cut else row)
        if is_cut:
            ledger.put_back((row.id,))  # to be saved so, or the next start would take it for complete
        await pace.took(_RESTORE_STEPS + len(row.seen) // _SEEN_BYTES_A_STEP)


async def _explicit_sequences(log: Log, header: EntryHeader) -> Sequence[int]:
    if not header.flags & EXPLICIT_SEQUENCES:
        return ()
    (entry, *_) = await log.read(header.base_offset, 1)
    # By the log's own count: the broker may have been told to take larger sets than others unpack by default.
    within = Bounds(max_records=max(MAX_UNPACKED_RECORDS, header.record_count))
    try:
        records = record_sets.unpack(entry.payload, header.codec, within)
    except record_sets.MalformedRecordSet as error:
        # An earlier version may have stored it without looking: its numbers are then taken to follow each other.
        _log.warning("ledger.batch_unreadable", base_offset=header.base_offset, cause=str(error))
        return ()
    return [
        record.sequence if record.HasField("sequence") else header.first_sequence + index
        for index, record in enumerate(records)
    ]
