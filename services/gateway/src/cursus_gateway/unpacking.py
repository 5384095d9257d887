"""What compressed frames and stored record sets may unpack to: each of them, and those of all connections together.

Two kilobytes can unpack to 64 MiB, and that into many objects. So what something may take is set aside first, in the
order of asking, and what it did not need is given back as soon as that is known. Something small is tried on the event
loop, within small bounds; the rest is done in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from cursus_gateway import body as bodies
from cursus_gateway.body import Body
from cursus_gateway.compression import TooLarge
from cursus_gateway.delivery import Written, read_payloads, write_messages
from cursus_gateway.framing import MAX_ANSWER_BYTES, MAX_BODY_BYTES
from cursus_gateway.refusals import Refused
from cursus_gateway.settings import UnpackingSettings
from cursus_proto import records as record_sets
from cursus_proto.bounds import Bounds
from cursus_proto.cutting import StoredBatch
from cursus_service.budget import Budget, Share

# What takes about a millisecond to unpack and read, or to read if it is plain.
INLINE_BYTES: Final = 256 * 1024
_INLINE_PLAIN_BYTES: Final = 1024 * 1024
_INLINE_RECORDS: Final = 5_000

# A frame's plain bytes, its messages one by one, and the record sets that are made of them; then only these.
_FRAME_COPIES: Final = 7
_HELD_COPIES: Final = 2
# A set, the same cut into records, and the messages that are made of them; and each record, parsed.
_SET_COPIES: Final = 3
_RECORD_BYTES: Final = 200

UNREADABLE: Final = frozenset({"RECORD_SET_TOO_LARGE", "CORRUPT_RECORD_SET"})
"""Why a stored batch cannot be delivered."""

Work = Callable[[Sequence[StoredBatch]], bool]
"""Does something with plain batches. True if it wants no more of them."""


class Unpacking:
    """For all connections of a gateway."""

    def __init__(self, settings: UnpackingSettings) -> None:
        self._within = Bounds(settings.max_bytes, settings.max_records)
        self._max_frame_bytes = min(MAX_BODY_BYTES, settings.max_bytes)
        self.budget = Budget(settings.shared_bytes)

    # Frames

    def read_now(self, body: bytes) -> tuple[Body, Share | None] | None:
        """The meaning of a frame, and what it holds if it was compressed; None if it has to be waited for."""
        if not bodies.is_compressed(body):
            if len(body) > _INLINE_PLAIN_BYTES:
                return None
            try:
                return bodies.read(body, INLINE_BYTES), None
            except TooLarge:
                return None
        if len(body) > INLINE_BYTES:
            return None
        share = self.budget.take_now(_FRAME_COPIES * INLINE_BYTES)
        if share is None:
            return None
        try:
            meaning = bodies.read(body, INLINE_BYTES)
        except TooLarge:
            share.give_back()
            return None
        share.shrink(_HELD_COPIES * bodies.size_of(meaning))
        return meaning, share

    async def read(self, body: bytes) -> tuple[Body, Share]:
        """The meaning of a frame, read in a thread as soon as there is room for it, and what it holds."""
        plain_bytes = self._max_frame_bytes if bodies.may_unpack(body) else len(body)
        share = await self.budget.take(_FRAME_COPIES * plain_bytes)
        try:
            meaning = await asyncio.to_thread(bodies.read, body, self._max_frame_bytes)
        except TooLarge as error:
            meaning = bodies.too_large(error)
        except BaseException:
            share.give_back()
            raise
        share.shrink(_HELD_COPIES * bodies.size_of(meaning))
        return meaning, share

    # Stored record sets

    async def write(
        self,
        batches: Sequence[StoredBatch],
        from_offset: int,
        place: tuple[str, int],
        *,
        max_count: int,
        max_bytes: int,
        after: Written | None = None,
    ) -> Written:
        """As `write_messages`, of batches that may be compressed. Raises Refused for one that cannot be delivered, but
        only if it is the first: what comes before it is delivered before that is said.
        """
        written = after or Written([])
        written.next_offset = from_offset
        before = written.count

        def work(run: Sequence[StoredBatch]) -> bool:
            write_messages(run, written.next_offset, max_count=max_count, max_bytes=max_bytes, after=written)
            return written.full or written.count >= max_count

        try:
            await self._each(batches, from_offset, place, work)
        except Refused:
            if written.count == before:
                raise
        return written

    async def payloads(
        self, batches: Sequence[StoredBatch], from_offset: int, place: tuple[str, int], max_count: int
    ) -> tuple[list[bytes], int]:
        """As `read_payloads`, of batches that may be compressed, until there is enough for an answer. Raises Refused as
        `write` does."""
        payloads: list[bytes] = []
        next_offset, size = from_offset, 0

        def work(run: Sequence[StoredBatch]) -> bool:
            nonlocal next_offset, size
            found, next_offset = read_payloads(run, next_offset, max_count - len(payloads))
            payloads.extend(found)
            size += sum(map(len, found))
            return len(payloads) >= max_count or size >= MAX_ANSWER_BYTES

        try:
            await self._each(batches, from_offset, place, work)
        except Refused:
            if not payloads:
                raise
        return payloads, next_offset

    async def _each(self, batches: Sequence[StoredBatch], from_offset: int, place: tuple[str, int], work: Work) -> None:
        """Hands over batches in order: plain ones as they are and as many as follow each other, compressed ones one by
        one and unpacked, unless they end before the offset. Raises Refused for one that cannot be read.
        """
        for run in _runs(batches):
            if not run[0].is_plain:
                (packed,) = run
                if packed.next_offset > from_offset and await self._opened(packed, place, work):
                    return
                continue
            try:
                if work(run):
                    return
            except record_sets.MalformedRecordSet:
                if _one_by_one(run, place, work):
                    return

    async def _opened(self, packed: StoredBatch, place: tuple[str, int], work: Work) -> bool:
        count = packed.fields.record_count
        if packed.payload_bytes <= INLINE_BYTES and count <= _INLINE_RECORDS:
            share = self.budget.take_now(_cost(INLINE_BYTES, count))
            if share is not None:
                try:
                    return work([self._open(packed, INLINE_BYTES)])
                except record_sets.RecordSetTooLarge:
                    pass  # Not for the event loop.
                except record_sets.MalformedRecordSet as error:
                    raise _unreadable("CORRUPT_RECORD_SET", packed, place, str(error)) from error
                finally:
                    share.give_back()
        share = await self.budget.take(_cost(self._within.max_bytes, count))
        try:
            return await asyncio.to_thread(lambda: work([self._open(packed, self._within.max_bytes)]))
        except record_sets.RecordSetTooLarge as error:
            raise _unreadable("RECORD_SET_TOO_LARGE", packed, place, str(error)) from error
        except record_sets.MalformedRecordSet as error:
            raise _unreadable("CORRUPT_RECORD_SET", packed, place, str(error)) from error
        finally:
            share.give_back()

    def _open(self, packed: StoredBatch, max_bytes: int) -> StoredBatch:
        """The batch with its set unpacked, and its records counted before any of them is made."""
        fields = packed.fields
        plain = record_sets.decompress(fields.compressed_records, fields.codec, max_bytes)
        count = record_sets.count(plain, self._within.max_records)
        if count != fields.record_count:
            raise record_sets.MalformedRecordSet(f"it holds {count} records and claims {fields.record_count}")
        record_sets.check(plain, self._within.max_records)
        return packed.with_plain(plain)


def _one_by_one(run: Sequence[StoredBatch], place: tuple[str, int], work: Work) -> bool:
    """Finds the batch that cannot be read. Raises Refused."""
    for one in run:
        try:
            if work([one]):
                return True
        except record_sets.MalformedRecordSet as error:
            raise _unreadable("CORRUPT_RECORD_SET", one, place, str(error)) from error
    return False


def _cost(plain_bytes: int, records: int) -> int:
    return _SET_COPIES * plain_bytes + _RECORD_BYTES * records


def _runs(batches: Sequence[StoredBatch]) -> Iterator[Sequence[StoredBatch]]:
    """Plain batches that follow each other; each compressed one by itself."""
    begin = 0
    for index, one in enumerate(batches):
        if not one.is_plain:
            if begin < index:
                yield batches[begin:index]
            yield batches[index : index + 1]
            begin = index + 1
    if begin < len(batches):
        yield batches[begin:]


def _unreadable(reason: str, packed: StoredBatch, place: tuple[str, int], cause: str) -> Refused:
    topic, partition = place
    offset, next_offset = packed.fields.base_offset, packed.next_offset
    return Refused(
        reason,
        f"the batch at offset {offset} of partition {partition} of {topic!r} cannot be delivered: it {cause};"
        f" go on from offset {next_offset}",
        {
            "topic": topic,
            "partition": str(partition),
            "offset": str(offset),
            "next_offset": str(next_offset),
        },
    )
