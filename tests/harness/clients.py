"""A thin client for tests: the generated stubs, and the few calls that nearly every test makes.

It retries nothing and hides no status, so that a test sees what the broker said. Errors are read by `error_info`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

import grpc
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status
from grpc_status import rpc_status

from cursus_proto import records as record_sets
from cursus_proto.v1 import cluster_service_pb2_grpc as cluster_grpc
from cursus_proto.v1 import consume_service_pb2 as consume_pb
from cursus_proto.v1 import consume_service_pb2_grpc as consume_grpc
from cursus_proto.v1 import group_service_pb2_grpc as group_grpc
from cursus_proto.v1 import publish_service_pb2 as publish_pb
from cursus_proto.v1 import publish_service_pb2_grpc as publish_grpc
from cursus_proto.v1 import topic_service_pb2 as topic_pb
from cursus_proto.v1 import topic_service_pb2_grpc as topic_grpc
from cursus_proto.v1.records_pb2 import Record, RecordBatch, RecordSet

if TYPE_CHECKING:
    # The asynchronous stubs exist for type checkers only.
    from cursus_proto.v1.cluster_service_pb2_grpc import ClusterServiceAsyncStub
    from cursus_proto.v1.consume_service_pb2_grpc import ConsumeServiceAsyncStub
    from cursus_proto.v1.group_service_pb2_grpc import GroupServiceAsyncStub
    from cursus_proto.v1.publish_service_pb2_grpc import PublishServiceAsyncStub
    from cursus_proto.v1.topic_service_pb2_grpc import TopicServiceAsyncStub

    PublishCall = grpc.aio.StreamStreamCall[publish_pb.PublishStreamRequest, publish_pb.PublishStreamResponse]

# Local to a channel: brokers of one test must not share a connection that outlived one of them.
_OPTIONS: Final = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
)


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A record as a reader meets it."""

    offset: int
    record: Record

    @property
    def value(self) -> bytes:
        return self.record.value


class Client:
    """All services of one broker over one channel. `async with Client.connect(broker.grpc) as client: …`"""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.topics: TopicServiceAsyncStub = topic_grpc.TopicServiceStub(channel)
        self.publishing: PublishServiceAsyncStub = publish_grpc.PublishServiceStub(channel)
        self.consuming: ConsumeServiceAsyncStub = consume_grpc.ConsumeServiceStub(channel)
        self.groups: GroupServiceAsyncStub = group_grpc.GroupServiceStub(channel)
        self.cluster: ClusterServiceAsyncStub = cluster_grpc.ClusterServiceStub(channel)

    @classmethod
    @asynccontextmanager
    async def connect(cls, address: str) -> AsyncIterator[Client]:
        """A client with a connection of its own, so that two clients never share one."""
        async with grpc.aio.insecure_channel(address, options=_OPTIONS) as channel:
            yield cls(channel)

    async def create_topic(
        self, name: str, partitions: int = 1, config: topic_pb.TopicConfig | None = None
    ) -> topic_pb.Topic:
        request = topic_pb.CreateTopicRequest(name=name, partition_count=partitions, config=config)
        return (await self.topics.CreateTopic(request)).topic

    async def publish(
        self,
        topic: str,
        values: Iterable[bytes | Record],
        partition: int | None = 0,
        acks: publish_pb.Acks.ValueType = publish_pb.ACKS_WRITTEN,
        producer: publish_pb.ProducerIdentity | None = None,
    ) -> publish_pb.AppendedBatch:
        """Publish one batch and answer where it, or the first part of it, lies."""
        request = publish_request(topic, values, partition, acks, producer)
        return (await self.publishing.Publish(request)).appended[0]

    @asynccontextmanager
    async def publish_stream(self) -> AsyncIterator[PublishStream]:
        """A pipelined publish stream, ended without ceremony when the block is left."""
        call = self.publishing.PublishStream()
        await call.write(publish_pb.PublishStreamRequest(open=publish_pb.PublishStreamOpen(client_id="test")))
        stream = PublishStream(call, await _read(call))
        answers = asyncio.create_task(stream.read_outcomes(), name="publish-outcomes")
        try:
            yield stream
        finally:
            call.cancel()
            await answers

    async def fetch(
        self,
        topic: str,
        partition: int,
        offset: int,
        max_bytes: int = 0,
        max_wait_ms: int = 0,
        leader_epoch: int | None = None,
    ) -> consume_pb.FetchedPartition:
        """One Fetch of one partition; its error, if there is one, is in the answer."""
        wanted = consume_pb.FetchPartition(topic=topic, partition=partition, offset=offset, leader_epoch=leader_epoch)
        request = consume_pb.FetchRequest(partitions=[wanted], max_bytes=max_bytes, max_wait_ms=max_wait_ms)
        return (await self.consuming.Fetch(request)).partitions[0]

    async def read_all(self, topic: str, partition: int = 0, offset: int | None = None) -> list[StoredRecord]:
        """Every record from `offset` (None: the earliest) to the end as it is when the end is reached."""
        if offset is None:
            described = await self.topics.DescribeTopic(topic_pb.DescribeTopicRequest(name=topic))
            offset = described.partitions[partition].earliest_offset
        found: list[StoredRecord] = []
        while True:
            fetched = await self.fetch(topic, partition, offset, max_bytes=8 * 1024 * 1024)
            assert not fetched.HasField("error"), fetched.error
            if not fetched.batches:
                return found
            for batch in fetched.batches:
                found.extend(one for one in stored_records(batch) if one.offset >= offset)
            offset = fetched.batches[-1].base_offset + fetched.batches[-1].record_count

    async def read_values(self, topic: str, partition: int = 0) -> list[bytes]:
        """The values of a partition, which has to have no holes: value i has offset i above the earliest."""
        found = await self.read_all(topic, partition)
        first = found[0].offset if found else 0
        assert [one.offset for one in found] == list(range(first, first + len(found)))
        return [one.value for one in found]


class PublishStream:
    """One open publish stream. `send` may be called again before earlier answers came."""

    def __init__(self, call: PublishCall, first: publish_pb.PublishStreamResponse) -> None:
        assert first.WhichOneof("response") == "opened", first
        self.opened = first.opened
        self._call = call
        self._waiting: deque[asyncio.Future[publish_pb.PublishOutcome | None]] = deque()
        self._broken = False

    async def send(self, request: publish_pb.PublishRequest) -> asyncio.Future[publish_pb.PublishOutcome | None]:
        """Send a batch; waits only for the transport's flow control. The future holds the outcome, or None if the
        stream ended before: then the batch may be stored or not."""
        outcome: asyncio.Future[publish_pb.PublishOutcome | None] = asyncio.get_running_loop().create_future()
        if self._broken:
            outcome.set_result(None)
            return outcome
        self._waiting.append(outcome)
        try:
            await self._call.write(publish_pb.PublishStreamRequest(publish=request))
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            # The reader of outcomes meets the same end and settles everything that waits.
            self._broken = True
        return outcome

    async def publish(self, request: publish_pb.PublishRequest) -> publish_pb.PublishOutcome | None:
        """Send a batch and wait for its outcome."""
        return await (await self.send(request))

    async def read_outcomes(self) -> None:
        """Settle futures in request order until the stream ends, then all that are left."""
        try:
            while (response := await self._call.read()) is not grpc.aio.EOF:
                assert isinstance(response, publish_pb.PublishStreamResponse)
                for outcome in response.outcomes.outcomes:
                    self._waiting.popleft().set_result(outcome)
        except (grpc.aio.AioRpcError, asyncio.CancelledError):
            # The broker died, or the test left the stream: the call is over and that is all there is to know.
            pass
        finally:
            self._broken = True
            for waiting in self._waiting:
                if not waiting.done():
                    waiting.set_result(None)
            self._waiting.clear()


def publish_request(
    topic: str,
    values: Iterable[bytes | Record],
    partition: int | None = 0,
    acks: publish_pb.Acks.ValueType = publish_pb.ACKS_WRITTEN,
    producer: publish_pb.ProducerIdentity | None = None,
) -> publish_pb.PublishRequest:
    """A plain batch of values, or of records where a value alone is not enough."""
    records = [value if isinstance(value, Record) else Record(value=value) for value in values]
    return publish_pb.PublishRequest(
        topic=topic, partition=partition, acks=acks, producer=producer, records=RecordSet(records=records)
    )


def stored_records(batch: RecordBatch) -> Sequence[StoredRecord]:
    """The records of a delivered batch, decompressed and checked against the batch's checksum and count."""
    packed = batch.compressed_records or batch.records.SerializeToString()
    assert record_sets.checksum(packed) == batch.records_crc32c
    records = record_sets.unpack(packed, batch.codec)
    assert len(records) == batch.record_count
    return [StoredRecord(batch.base_offset + index, record) for index, record in enumerate(records)]


def error_info(error: grpc.aio.AioRpcError | Status) -> ErrorInfo:
    """The ErrorInfo of a failed call, or of a status inside an answer. Fails if there is none."""
    status = error if isinstance(error, Status) else _status(error)
    info = ErrorInfo()
    assert any(detail.Unpack(info) for detail in status.details), f"no ErrorInfo in {status}"
    assert info.domain == "cursus"
    return info


def reason(error: grpc.aio.AioRpcError | Status) -> str:
    """Why the broker refused, as a program reads it."""
    found: str = error_info(error).reason
    return found


def _status(error: grpc.aio.AioRpcError) -> Status:
    # The error has the methods that are read of a call, and answers at once because its call is over.
    status = rpc_status.from_call(cast("grpc.Call", error))
    assert isinstance(status, Status), f"no details in {error!r}"
    return status


async def _read(call: PublishCall) -> publish_pb.PublishStreamResponse:
    response = await call.read()
    assert isinstance(response, publish_pb.PublishStreamResponse), "the stream ended at once"
    return response
