"""ConsumeService on the wire. Reading is in consume/fetch.py, group membership in consume/subscription.py."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from cursus_broker.consume.credit import Credit
from cursus_broker.consume.fetch import LOOKED_UP_TOGETHER, Catalog, Edge, Fetcher, follow, resolve
from cursus_broker.errors import CursusError, InvalidRequest
from cursus_broker.log.api import Entry, Offset
from cursus_broker.pace import Pace
from cursus_broker.rpc.convert import fetch_part_from_proto, fetched_to_proto, place_from_proto
from cursus_broker.rpc.guard import Stream
from cursus_broker.rpc.shared import SharedResponses
from cursus_broker.rpc.streams import Stopping, read_first, read_next
from cursus_broker.rpc.wire import consume_response, fetched_partition
from cursus_broker.topics.partition import Partition
from cursus_proto.v1 import consume_service_pb2 as pb


class ConsumeServicer:
    def __init__(
        self,
        catalog: Catalog,
        response_bytes: int,
        observe_delivery: Callable[[Sequence[Entry]], None],
        refused: Callable[[CursusError], None],
        stopping: Stopping,
    ) -> None:
        self._stopping = stopping
        self._refused = refused
        self._catalog = catalog
        self._fetcher = Fetcher(catalog, response_bytes)
        self._response_bytes = response_bytes
        self._observe_delivery = observe_delivery
        self._responses = SharedResponses(_consume_response)

    async def fetch(self, request: pb.FetchRequest, _: str) -> bytes:
        pace, parts = Pace(LOOKED_UP_TOGETHER), []
        for part in request.partitions:
            await pace.took()
            parts.append(fetch_part_from_proto(part))
        fetched = await self._fetcher.fetch(
            parts,
            max_wait_ms=request.max_wait_ms,
            min_bytes=request.min_bytes,
            max_bytes=request.max_bytes,
            max_records=request.max_records,
        )
        encoded: list[bytes] = []
        for one in fetched:
            await pace.took()
            if one.partition is not None:
                one.partition.count_read(one.entries)
            if one.error is not None:
                self._refused(one.error)
            encoded += fetched_partition(fetched_to_proto(one), one.entries)
        return b"".join(encoded)

    async def consume(self, stream: Stream) -> None:
        first = await read_first(stream, pb.ConsumeRequest, "start")
        if first is None:
            return
        start = first.start
        partition = self._catalog.topic(start.topic).partition(start.partition)
        epoch = start.leader_epoch if start.HasField("leader_epoch") else None
        begin = (await resolve(partition, place_from_proto(start.start_at), epoch)).offset
        end: Offset | None = None
        match start.WhichOneof("until"):
            case "end_offset":
                end = Offset(start.end_offset)
                if end < 0:
                    raise InvalidRequest(f"end offset {end} is negative")
            case "stop_at_end" if start.stop_at_end:
                end = (await resolve(partition, Edge.LATEST)).offset
        if start.max_response_bytes < 0:
            raise InvalidRequest("max_response_bytes must not be negative")
        await stream.write(
            pb.ConsumeResponse(
                started=pb.ConsumeStarted(
                    start_offset=begin,
                    earliest_offset=partition.earliest_offset,
                    next_offset=partition.next_offset,
                    end_offset=end,
                    leader_epoch=partition.leader_epoch,
                )
            ).SerializeToString()
        )
        credit = Credit()
        if start.HasField("grant"):
            credit.grant(start.grant.records, start.grant.bytes)
        response_bytes = min(start.max_response_bytes or self._response_bytes, self._response_bytes * 8)
        async with asyncio.TaskGroup() as tasks:
            beside = (
                tasks.create_task(_take_grants(stream, credit), name="consume-grants"),
                tasks.create_task(self._stopping.refuse(), name="consume-stopping"),
            )
            sink = _StreamSink(stream, partition, self._responses)
            await follow(partition, begin, end, credit, response_bytes, self._observe_delivery, sink)
            for part in beside:
                part.cancel()


class _StreamSink:
    """A Consume stream, past its first answer."""

    def __init__(self, stream: Stream, partition: Partition, responses: SharedResponses) -> None:
        self._partition = partition
        self._responses = responses
        self.write = stream.write
        self.write_now = stream.write_now

    def encode(self, entries: Sequence[Entry]) -> bytes:
        return self._responses.of(self._partition, entries)


def _consume_response(partition: Partition, entries: Sequence[Entry]) -> bytes:
    return consume_response(entries, partition.next_offset)


async def _take_grants(stream: Stream, credit: Credit) -> None:
    while (request := await read_next(stream, pb.ConsumeRequest)) is not None:
        if request.WhichOneof("request") != "grant":
            raise InvalidRequest("after start, a consume stream takes only grants")
        credit.grant(request.grant.records, request.grant.bytes)
