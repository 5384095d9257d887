"""A bounded read of one partition, beside whatever else a consumer reads."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

from cursus_grpc._partition_stream import PartitionStream
from cursus_grpc._reading import Chunk, Failure, Inbox, hand_out, unfinished
from cursus_grpc._records import Record, StoredBatch, stored_batch
from cursus_grpc.errors import DeadlineExceeded


class RangeReader:
    """An inbox of its own, filled by a stream of its own. Lives on one event loop, but for `hand_out`."""

    def __init__(self, inbox: Inbox, arrived: asyncio.Event, stream: PartitionStream) -> None:
        """`arrived` is the inbox's signal."""
        self.inbox = inbox
        self.stream = stream
        self._arrived = arrived
        self._chunk: Chunk | None = None

    async def next_chunk(self, patience_s: float | None = None) -> Chunk | None:
        """None at the end. Raises what keeps the partition from being read, and DeadlineExceeded if nothing comes for
        so long: a broker that is away is waited for, but not for ever."""
        if self._chunk is not None and unfinished(self._chunk):
            self.inbox.put_back(self._chunk)
        try:
            async with asyncio.timeout(patience_s):
                while (found := self.inbox.take()) is None and not self.stream.ended.is_set():
                    await self._arrived.wait()
        except TimeoutError:
            topic, partition = self.stream.reading.place
            raise DeadlineExceeded(f"nothing came of {topic}[{partition}] for {patience_s:g} s") from None
        if isinstance(found, Failure):
            raise found.error
        self._chunk = found if isinstance(found, Chunk) else None
        return self._chunk

    def hand_out(self, chunk: Chunk) -> Iterator[Record[Any, Any]]:
        """The chunk's records within the range."""
        return hand_out(chunk, self.inbox, self.stream.end_offset)

    def hand_out_batches(self, chunk: Chunk) -> Iterator[StoredBatch]:
        """The chunk's batches, whole. Raises CorruptBatch."""
        while chunk.batches:
            yield stored_batch(chunk.batches.popleft(), self.stream.reading.place, self.inbox.within)
