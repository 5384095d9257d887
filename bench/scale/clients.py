"""What the curves say to a broker: raw messages over our own transport, since only the broker's time is counted."""

from __future__ import annotations

from typing import Final

from bench import batches
from bench.jobs.consume import CONSUME
from cursus_proto.internal.v1 import opaque_pb2
from cursus_proto.v1 import consume_service_pb2 as consume_pb
from cursus_proto.v1 import publish_service_pb2
from cursus_transport import Channel, StreamCall, UnaryMethod

FETCH: Final = "/cursus.v1.ConsumeService/Fetch"
SUBSCRIBE: Final = "/cursus.v1.ConsumeService/Subscribe"
PUBLISH: Final = "/cursus.v1.PublishService/Publish"

RECORDS: Final = 50
"""Of a batch, 100 bytes each: at 100 batches a second the 5,000 records a second of a busy topic."""


def publish_request(topic: str, partition: int = 0) -> bytes:
    """One batch, which is stored whatever was stored before."""
    return opaque_pb2.PublishRequest(
        topic=topic,
        partition=partition,
        acks=publish_service_pb2.ACKS_WRITTEN,
        deduplication=publish_service_pb2.DEDUPLICATION_NONE,
        record_count=RECORDS,
        records=batches.record_set(RECORDS),
    ).SerializeToString()


def caller(channel: Channel, method: str) -> UnaryMethod[bytes, bytes]:
    return channel.unary_unary(method)


async def follower(channel: Channel, topic: str) -> StreamCall[bytes, bytes]:
    """A Consume stream at the end of partition 0, past its first answer."""
    call: StreamCall[bytes, bytes] = channel.stream_stream(CONSUME)()
    await call.write(batches.consume_request(topic, None, 0))
    await call.read()
    return call


async def member(channel: Channel, group: str, topics: list[str]) -> StreamCall[bytes, bytes]:
    """A Subscribe stream that has been given all partitions of the topics, and has said so."""
    call: StreamCall[bytes, bytes] = channel.stream_stream(SUBSCRIBE)()
    start = consume_pb.SubscribeStart(group=group, topics=topics)
    await call.write(consume_pb.SubscribeRequest(start=start).SerializeToString())
    while True:
        answer = consume_pb.SubscribeResponse.FromString(bytes(await call.read()))
        if answer.WhichOneof("response") == "assignment":
            ack = consume_pb.AssignmentAck(generation=answer.assignment.generation)
            await call.write(consume_pb.SubscribeRequest(assignment_ack=ack).SerializeToString())
            return call


def fetch_request(topics: list[tuple[str, int]]) -> bytes:
    """Of all partitions from the beginning, without waiting."""
    parts = [
        consume_pb.FetchPartition(topic=topic, partition=partition, offset=0)
        for topic, partitions in topics
        for partition in range(partitions)
    ]
    return consume_pb.FetchRequest(partitions=parts).SerializeToString()
