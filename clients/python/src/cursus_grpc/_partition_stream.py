"""One partition over one Consume stream after another: followed, resumed where it broke, within its credit."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from typing import Final

from cursus_grpc import _tasks
from cursus_grpc._channel import Connections, exchange, read, write
from cursus_grpc._convert import place_to_proto
from cursus_grpc._metadata import ClusterView
from cursus_grpc._reading import UNKNOWN, Chunk, Failure, Inbox, Reading, Truncated
from cursus_grpc._records import next_offset, payload_bytes
from cursus_grpc._retry import Backoff
from cursus_grpc._rpcs import CONSUME
from cursus_grpc.errors import BrokerUnreachable, CursusError, LogTruncated, NotFound, OffsetOutOfRange
from cursus_grpc.types import BEGINNING, END, Place, Reset
from cursus_proto.internal.v1.opaque_pb2 import ConsumedBatches, ConsumeResponse
from cursus_proto.v1 import consume_service_pb2 as pb
from cursus_proto.v1.records_pb2 import FlowGrant
from cursus_transport import StreamCall

_log = logging.getLogger("cursus_grpc")

# Credit is given back in portions of this part of the window: often enough that the broker need not wait for it.
_PORTIONS: Final = 4

ConsumeCall = StreamCall[bytes, ConsumeResponse]


class Credit:
    """Collects credit that was given back and grants it on a stream in portions."""

    def __init__(self, window_bytes: int) -> None:
        self.window_bytes = window_bytes
        self._portion_bytes = max(1, window_bytes // _PORTIONS)
        self._returned_bytes = 0
        self._lock = threading.Lock()
        self._enough = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def initial(self) -> FlowGrant:
        """The grant that opens a stream. What was received on earlier ones and is still held counts against it only
        when it is given back: the bound is soft by one window after a broken connection."""
        with self._lock:
            self._returned_bytes = 0
        return FlowGrant(bytes=self.window_bytes)

    def give_back(self, size: int) -> None:
        """For any thread. The event loop hears of it only once there is enough for a grant."""
        with self._lock:
            had_enough = self._returned_bytes >= self._portion_bytes
            self._returned_bytes += size
            has_enough = self._returned_bytes >= self._portion_bytes
        if has_enough and not had_enough:
            self._loop.call_soon_threadsafe(self._enough.set)

    async def next_grant(self) -> FlowGrant:
        while (size := self._collect()) == 0:
            await self._enough.wait()
        return FlowGrant(bytes=size)

    def _collect(self) -> int:
        """Everything that was given back, if it is enough for a grant."""
        with self._lock:
            self._enough.clear()
            if self._returned_bytes < self._portion_bytes:
                return 0
            size, self._returned_bytes = self._returned_bytes, 0
            return size


class PartitionStream:
    """Reads one partition into an inbox until it is closed, fails for good, or reaches its end."""

    def __init__(
        self,
        reading: Reading,
        start: Place,
        inbox: Inbox,
        connections: Connections,
        cluster: ClusterView,
        *,
        window_bytes: int,
        reset: Reset,
        end_offset: int | None = None,
        in_group: bool = False,
    ) -> None:
        """`in_group`: the group tells when the topic is gone, and it is not told here."""
        self.reading = reading
        self.ended = asyncio.Event()
        """Set when nothing more will come."""
        self.started = asyncio.Event()
        """Set once the reading's position is known, or will never be."""
        self._start = start
        self._inbox = inbox
        self._connections = connections
        self._cluster = cluster
        self._credit = Credit(window_bytes)
        self._reset: Reset = reset
        self.end_offset = end_offset
        self._in_group = in_group
        self._version = reading.version
        self._call: ConsumeCall | None = None
        self._task = _tasks.start(self._run(), f"cursus-read-{reading.place}")

    def give_back(self, size: int) -> None:
        self._credit.give_back(size)

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def reopen(self) -> None:
        """Ask the broker again whether we can go on where we are."""
        if self._call is not None:
            self._call.cancel()

    async def _run(self) -> None:
        backoff = Backoff()
        try:
            while not self._at_end():
                try:
                    await self._session(backoff)
                except LogTruncated as error:
                    self._cut(error.offset, error.leader_epoch)
                    if self._reset == "error" or not await self._is_worth_another_try(backoff):
                        raise
                except OffsetOutOfRange as error:
                    if self._reset == "error":
                        raise
                    self._look_elsewhere(error)
                    if not await self._is_worth_another_try(backoff):
                        raise
                except CursusError as error:
                    if not error.retriable:
                        raise
                    _log.warning("%s[%d]: %s; trying again", *self.reading.place, error)
                    await asyncio.sleep(backoff.next_s())
                    await self._ask_for_leader()
        except CursusError as error:
            if not (self._in_group and isinstance(error, NotFound)):
                self._inbox.put_event(Failure(error))
        finally:
            self.started.set()
            self.ended.set()
            self._inbox.look_again()

    def _cut(self, offset: int, epoch: int) -> None:
        """Go back to where the log was cut, and tell the application if it has been further."""
        reading = self.reading
        position = reading.cut(offset, epoch)
        self._version = reading.version
        self._inbox.drop_void()
        if position <= offset:
            _log.warning("%s[%d]: the log was cut at offset %d, and only %d was read", *reading.place, offset, position)
        elif self._reset != "error":  # else the exception tells it
            tell_truncation(self._inbox, Truncated(reading, position, offset))

    def _look_elsewhere(self, error: OffsetOutOfRange) -> None:
        """The offset is not in the log. If it is above the end, records are gone that somebody has read, though the
        broker does not know of a cut, as after a backup was restored: what comes next is at the end, not at the
        beginning."""
        reading = self.reading
        if reading.fetched != UNKNOWN and reading.epoch is not None and reading.fetched > error.latest >= 0:
            self._cut(error.latest, reading.epoch)
            return
        self._start = BEGINNING if self._reset == "earliest" else END
        reading.fetched = UNKNOWN

    @staticmethod
    async def _is_worth_another_try(backoff: Backoff) -> bool:
        # Retention may move on between the question and the answer, but not for ever.
        if backoff.failures > 10:
            return False
        await asyncio.sleep(backoff.next_s())
        return True

    async def _ask_for_leader(self) -> None:
        try:
            await self._cluster.refresh([self.reading.place.topic], patient=self._connections.reached)
        except CursusError as error:
            if not error.retriable:
                raise

    def _at_end(self) -> bool:
        return self.end_offset is not None and self.reading.fetched >= self.end_offset

    async def _session(self, backoff: Backoff) -> None:
        """One stream from its opening to its end. Raises what ends it before its time."""
        topic, partition = self.reading.place
        address = await self._find_leader(topic, partition)
        call = CONSUME.call(self._connections.channel(address))
        granting: asyncio.Task[None] | None = None
        try:
            await self._open(call)
            self._call = call
            backoff.reset()
            granting = asyncio.create_task(grant(call, self._credit), name="cursus-grant")
            while (response := await read(call)) is not None:
                self._receive(response.batches)
            if not self._at_end():
                raise BrokerUnreachable(f"{address} ended the stream")
        finally:
            self._call = None
            call.cancel()
            if granting is not None:
                granting.cancel()
                await asyncio.gather(granting, return_exceptions=True)

    async def _find_leader(self, topic: str, partition: int) -> str:
        # Without patience as long as there was none: the address may be wrong, which is told at once. Later on the
        # broker is waited for.
        try:
            return await self._cluster.leader(topic, partition, patient=self._connections.reached)
        except CursusError as error:
            if not self._connections.reached and error.retriable:
                self._inbox.tell_trouble(error)
            raise

    async def _open(self, call: ConsumeCall) -> None:
        reading = self.reading
        topic, partition = reading.place
        start = pb.ConsumeStart(
            topic=topic,
            partition=partition,
            start_at=place_to_proto(self._start if reading.fetched == UNKNOWN else reading.fetched),
            grant=self._credit.initial(),
            leader_epoch=None if reading.fetched == UNKNOWN else reading.epoch,
        )
        if self.end_offset is not None:
            start.end_offset = self.end_offset
        response = await exchange(call, pb.ConsumeRequest(start=start), self._connections.settings.request_timeout_s)
        started = response.started
        if reading.version != self._version:
            return
        if reading.fetched == UNKNOWN:
            reading.start_at(started.start_offset)
        # What was read before stands in this epoch too: the broker would have told of a cut.
        reading.epoch = started.leader_epoch
        self.started.set()

    def _receive(self, message: ConsumedBatches) -> None:
        reading = self.reading
        batches = deque(batch for batch in message.batches if next_offset(batch) > reading.fetched)
        size = sum(map(payload_bytes, message.batches))
        if not batches or reading.version != self._version:
            self.give_back(size)
            return
        if self._reset == "error" and batches[0].base_offset > reading.fetched:
            raise skipped(reading.fetched, batches[0].base_offset, message.next_offset)
        reading.fetched = next_offset(batches[-1])
        reading.end_offset = message.next_offset
        self._inbox.put(Chunk(reading, batches, size, self))


def skipped(wanted: int, found: int, end: int) -> OffsetOutOfRange:
    """Records were deleted under a reader that does not put up with it."""
    return OffsetOutOfRange(
        f"offset {wanted} is outside [{found}, {end}]",
        {"requested": str(wanted), "earliest": str(found), "latest": str(end)},
    )


def tell_truncation(inbox: Inbox, truncated: Truncated) -> None:
    """Records were read that are not in the log any more."""
    _log.warning(
        "%s[%d]: the log was cut at offset %d, by power loss or damage, after %d was reached; going on from there",
        *truncated.reading.place,
        truncated.offset,
        truncated.position,
    )
    inbox.put_event(truncated)


async def grant(call: ConsumeCall, credit: Credit) -> None:
    """Pass on credit that was given back, until the stream ends or the task is cancelled."""
    try:
        while True:
            await write(call, pb.ConsumeRequest(grant=await credit.next_grant()))
    except BrokerUnreachable:
        return  # whoever reads the stream learns why it ended
