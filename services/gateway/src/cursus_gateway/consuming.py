"""CONSUME in both forms: one batch frame, or a frame a message and then the end of the connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from fnmatch import fnmatchcase
from typing import Final

from cursus_gateway import batch
from cursus_gateway.delivery import Written
from cursus_gateway.dialect.commands import MAX_MESSAGES, ConsumeAll, ConsumeBatch
from cursus_gateway.dialect.texts import is_pattern
from cursus_gateway.epochs import ReadEpochs, ReadUpTo
from cursus_gateway.framing import MAX_ANSWER_BYTES, MIB, Parts, frame
from cursus_gateway.membership import Membership
from cursus_gateway.refusals import NOT_THERE, Refused, where_to_go_on
from cursus_gateway.settings import GroupSettings
from cursus_gateway.statuses import refused_by_status
from cursus_gateway.unpacking import Unpacking
from cursus_gateway.upstream import FETCH, LIST_TOPICS, Upstream
from cursus_proto.bounds import MAX_NAMED, portions
from cursus_proto.cutting import Fetched
from cursus_proto.v1 import consume_service_pb2 as pb
from cursus_proto.v1 import topic_service_pb2

# What 8192 small records take: larger ones come in more answers, since all of this is in memory several times while an
# answer is written, for every connection that asks. As messages they take more, but less than an answer may.
_FETCH_BYTES: Final = MIB
_MAX_WAIT_MS: Final = 25_000


class Consuming:
    def __init__(
        self, upstream: Upstream, membership: Membership, unpacking: Unpacking, settings: GroupSettings
    ) -> None:
        self._upstream = upstream
        self._membership = membership
        self._unpacking = unpacking
        self._settings = settings

    async def consume_batch(
        self, command: ConsumeBatch, lane: int, epochs: ReadEpochs, *, third_generation: bool
    ) -> Parts | str:
        """A whole frame in parts, or a text to answer instead. `epochs` are those of the connection. Raises Refused."""
        if is_pattern(command.topic):
            return await self._consume_pattern(command, lane)
        if command.offset < 0 or self._settings.stream_autocommit:
            if (text := await self._obstacle(command)) is not None:
                return text
            offset = await self._start(command, epochs)
            found, batches = await self._fetch(command, offset, lane, epochs)
        elif self._membership.is_clear(command.group, command.member, command.generation):
            offset = command.offset
            found, batches = await self._fetch(command, offset, lane, epochs)
        else:
            offset = command.offset
            text, (found, batches) = await asyncio.gather(
                self._obstacle(command), self._fetch(command, offset, lane, epochs)
            )
            if text is not None:
                return text
        if found.HasField("error"):
            refused = refused_by_status(found.error)
            if refused.reason not in NOT_THERE:
                raise refused
            epochs.forget(command.topic, command.partition)
            if refused.reason == "OFFSET_OUT_OF_RANGE" and offset > int(refused.metadata["latest"]):
                return [batch.empty_answer(command.topic, command.partition)]
            if third_generation:
                raise refused
            # Clients of the second generation would ask for the same offset for ever.
            offset = where_to_go_on(refused)
            found, batches = await self._fetch(command, offset, lane, epochs)
        written = await self._unpacking.write(
            batches,
            offset,
            (command.topic, command.partition),
            max_count=command.limit,
            max_bytes=MAX_ANSWER_BYTES - batch.head_bytes(command.topic),
        )
        epochs.note(command.topic, command.partition, written.next_offset, found.leader_epoch)
        return batch.encode_answer(command.topic, command.partition, written)

    async def _obstacle(self, command: ConsumeBatch) -> str | None:
        return await self._membership.obstacle(
            command.topic, command.partition, command.group, command.member, command.generation
        )

    async def _start(self, command: ConsumeBatch, epochs: ReadEpochs) -> int:
        """Where to read: the offset given, else where the group stands, else one end of the log."""
        if command.offset >= 0:
            if command.member and command.offset > 0:
                await self._membership.commit(
                    command.topic,
                    command.group,
                    {command.partition: epochs.processed(command.topic, command.partition, command.offset)},
                    command.member,
                    command.generation,
                )
            return command.offset
        return await self.position(command.topic, command.partition, command.group, command.latest_without_commit)

    async def position(self, topic: str, partition: int, group: str, latest: bool) -> int:
        """Where the group stands in the partition; without a commit the end of the log if `latest`, else 0."""
        committed = await self._membership.committed(group, topic, partition)
        if committed is not None:
            return committed
        return (await self._bounds(topic, partition))[1] if latest else 0

    async def _bounds(self, topic: str, partition: int) -> tuple[int, int]:
        found, _ = await self._fetch_one(topic, partition, ReadUpTo(0), 1, 0, 1, 0)
        if found.HasField("error"):
            refused = refused_by_status(found.error)
            if refused.reason != "OFFSET_OUT_OF_RANGE":
                raise refused
            return int(refused.metadata["earliest"]), int(refused.metadata["latest"])
        return found.earliest_offset, found.next_offset

    async def _fetch(self, command: ConsumeBatch, offset: int, lane: int, epochs: ReadEpochs) -> Fetched:
        wait_ms = min(command.wait_ms, _MAX_WAIT_MS)
        start = ReadUpTo(offset, epochs.reading_on(command.topic, command.partition, offset))
        return await self._fetch_one(
            command.topic, command.partition, start, _FETCH_BYTES, wait_ms, command.limit, lane
        )

    async def _fetch_one(
        self, topic: str, partition: int, start: ReadUpTo, max_bytes: int, wait_ms: int, max_records: int, lane: int
    ) -> Fetched:
        request = pb.FetchRequest(max_wait_ms=wait_ms, max_bytes=max_bytes, max_records=max_records)
        request.partitions.add(topic=topic, partition=partition, offset=start.next_offset, leader_epoch=start.epoch)
        (fetched,) = await self._upstream.call(
            FETCH,
            request,
            timeout_s=self._upstream.timeout_s + wait_ms / 1000,
            lane=lane,
            place=(topic, partition),
        )
        found, _ = fetched
        if found.HasField("error") and refused_by_status(found.error).reason == "NOT_LEADER":
            await self._upstream.find_leader(topic, partition)
            (fetched,) = await self._upstream.call(FETCH, request, lane=lane, place=(topic, partition))
        return fetched

    async def _consume_pattern(self, command: ConsumeBatch, lane: int) -> Parts:
        """All topics that match, read from the same partition and offset into one batch named after the pattern."""
        topics = await self._upstream.call(LIST_TOPICS, topic_service_pb2.ListTopicsRequest())
        names = [
            topic.name
            for topic in topics.topics
            if fnmatchcase(topic.name, command.topic) and command.partition < topic.partition_count
        ]
        written = Written([])
        # Whoever matches more than one request may name is not made to wait for each of them.
        wait_ms = min(command.wait_ms, _MAX_WAIT_MS) if len(names) <= MAX_NAMED else 0
        timeout_s = self._upstream.timeout_s + wait_ms / 1000
        for part in portions(names):
            if not part or written.count >= command.limit or written.size >= MAX_ANSWER_BYTES // 2:
                break
            request = pb.FetchRequest(
                max_wait_ms=wait_ms, max_bytes=_FETCH_BYTES, max_records=command.limit - written.count
            )
            for name in part:
                request.partitions.add(topic=name, partition=command.partition, offset=command.offset)
            for found, batches in await self._upstream.call(FETCH, request, lane=lane, timeout_s=timeout_s):
                written = await self._unpacking.write(
                    batches,
                    command.offset,
                    (found.topic, command.partition),
                    max_count=command.limit,
                    max_bytes=MAX_ANSWER_BYTES - batch.head_bytes(command.topic),
                    after=written,
                )
                if written.full or written.count >= command.limit or written.size >= MAX_ANSWER_BYTES // 2:
                    break
        return batch.encode_answer(command.topic, command.partition, written)

    async def consume_all(self, command: ConsumeAll, group: str, lane: int) -> AsyncIterator[Parts]:
        """Frames of the messages from the offset on, at most 8192, in portions. The group's position is then moved.

        Raises Refused.
        """
        latest = command.offset < 0
        offset = await self.position(command.topic, command.partition, group, latest) if latest else command.offset
        read = ReadUpTo(offset)
        left = MAX_MESSAGES
        while left:
            found, batches = await self._fetch_one(command.topic, command.partition, read, MIB, 0, left, lane)
            if found.HasField("error"):
                refused = refused_by_status(found.error)
                if refused.reason not in NOT_THERE:
                    raise refused
                offset = where_to_go_on(refused)
                if refused.reason == "OFFSET_OUT_OF_RANGE" and read.next_offset >= offset:
                    break
                read = ReadUpTo(offset)
                continue
            place = (command.topic, command.partition)
            payloads, offset = await self._unpacking.payloads(batches, read.next_offset, place, left)
            read = ReadUpTo(offset, found.leader_epoch)
            if not payloads:
                break
            left -= len(payloads)
            yield [frame(payload) for payload in payloads]
        if left < MAX_MESSAGES:
            await self._move(command, group, read)

    async def _move(self, command: ConsumeAll, group: str, read: ReadUpTo) -> None:
        try:
            await self._membership.commit(command.topic, group, {command.partition: read})
        except Refused:
            # The messages are delivered; that the position was not moved costs a repetition at most.
            return
