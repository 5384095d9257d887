"""A bounded read of one partition, beside whatever else a consumer reads."""

from __future__ import annotations

from collections.abc import Iterator

from cursus_grpc._partition_stream import PartitionStream
from cursus_grpc._reading import Chunk, Failure, Inbox, hand_out, unfinished
from cursus_grpc._records import Record
from cursus_grpc._retry import Deadline


class RangeReader:
    """An inbox of its own, filled by a stream of its own."""

    def __init__(self, inbox: Inbox, stream: PartitionStream) -> None:
        self.inbox = inbox
        self.stream = stream
        self._chunk: Chunk | None = None

    async def next_chunk(self) -> Chunk | None:
        """None at the end. Raises what keeps the partition from being read."""
        if self._chunk is not None and unfinished(self._chunk):
            self.inbox.put_back(self._chunk)
        found = await self.inbox.take(Deadline(None), self.stream.ended)
        if isinstance(found, Failure):
            raise found.error
        self._chunk = found if isinstance(found, Chunk) else None
        return self._chunk

    def hand_out(self, chunk: Chunk) -> Iterator[Record]:
        """The chunk's records within the range."""
        end_offset = self.stream.end_offset
        for record in hand_out(chunk, self.inbox):
            if end_offset is not None and record.offset >= end_offset:
                chunk.batches.clear()
                return
            yield record
