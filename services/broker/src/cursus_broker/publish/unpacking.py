"""Looking into record sets, within bounds: what one of them may unpack to, and what all publishers hold together.

Only a set for no partition, one of a topic with limits for values, and a single record that may be a repetition are
looked into. A few bytes can unpack to very many, so what they may take is set aside first, and what they did not need
is given back when that is known.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol, TypeVar

from cursus_broker.errors import CorruptRecordSet, RecordSetTooLarge
from cursus_broker.log.api import Batch
from cursus_proto import codecs
from cursus_proto import records as record_sets
from cursus_proto.bounds import Bounds
from cursus_proto.v1.records_pb2 import Record
from cursus_service.budget import Budget, Share

T = TypeVar("T")

# What takes less than handing it to a thread and back: this much to unpack to, or so many records to go through.
_INLINE_BYTES: Final = 256 * 1024
MANY_RECORDS: Final = 5_000

# A parsed record with what Python makes of it, and a set while it is copied from one form into another.
_RECORD_BYTES: Final = 200
_COPIES: Final = 2


class InThread(Protocol):
    """The door to threads."""

    def __call__(self, work: Callable[[], T]) -> Awaitable[T]: ...


class Opened:
    """The records of a set, as long as they are needed. `close` it."""

    __slots__ = ("_share", "records")

    def __init__(self, records: Sequence[Record], share: Share) -> None:
        self.records = records
        self._share = share

    def close(self) -> None:
        self.records = ()
        self._share.give_back()


class Unpacker:
    """Opens sets for all publishers."""

    def __init__(self, within: Bounds, budget: Budget, in_thread: InThread) -> None:
        self._within = within
        self._budget = budget
        self._in_thread = in_thread

    async def open(self, batch: Batch) -> Opened:
        """The records of the batch, whose number is checked before any is made. Waits while others hold too much.
        Raises CorruptRecordSet, RecordSetTooLarge.
        """
        plain = codecs.is_plain(batch.codec)
        size = len(batch.payload) if plain else min(_INLINE_BYTES, self._within.max_bytes)
        if size > _INLINE_BYTES or batch.record_count > MANY_RECORDS:
            return await self._open_within(self._within.max_bytes if not plain else size, batch, inline=False)
        try:
            return await self._open_within(size, batch, inline=True)
        except RecordSetTooLarge:
            if plain or size >= self._within.max_bytes:
                raise
        return await self._open_within(self._within.max_bytes, batch, inline=False)

    async def _open_within(self, max_bytes: int, batch: Batch, *, inline: bool) -> Opened:
        share = await self._budget.take(_cost(max_bytes, batch.record_count))
        try:

            def unpack() -> tuple[Sequence[Record], int]:
                return self._unpack(batch, max_bytes)

            records, size = unpack() if inline else await self._in_thread(unpack)
        except BaseException:
            share.give_back()
            raise
        share.shrink(_cost(size, batch.record_count))
        return Opened(records, share)

    def _unpack(self, batch: Batch, max_bytes: int) -> tuple[Sequence[Record], int]:
        """The records, and the size of the plain set."""
        try:
            plain = record_sets.decompress(batch.payload, batch.codec, max_bytes)
            count = record_sets.count(plain, self._within.max_records)
            if count != batch.record_count:
                raise CorruptRecordSet(f"the record set holds {count} records, the request says {batch.record_count}")
            record_sets.check(plain, self._within.max_records)
            return record_sets.parse(plain), len(plain)
        except record_sets.RecordSetTooLarge as error:
            raise RecordSetTooLarge(f"the record set {error}", limit=error.limit) from error
        except record_sets.MalformedRecordSet as error:
            raise CorruptRecordSet(f"the record set cannot be unpacked: {error}") from error


def _cost(plain_bytes: int, records: int) -> int:
    return _COPIES * plain_bytes + _RECORD_BYTES * records
