"""Between messages and the values the broker works with. No decisions here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import Final

from cursus_broker.consume.fetch import AtOffset, AtTime, Edge, Fetched, FetchPart, Place
from cursus_broker.errors import InvalidRequest
from cursus_broker.log.api import NO_SEQUENCE
from cursus_broker.metadata.model import TopicPartition
from cursus_broker.publish.acks import Acks, Receipt
from cursus_broker.publish.remembered import Remembered
from cursus_broker.publish.submission import Deduplication, Submission
from cursus_broker.rpc.status import to_status
from cursus_broker.topics.config import TopicConfig
from cursus_broker.topics.topic import Topic
from cursus_proto.internal.v1 import opaque_pb2
from cursus_proto.v1 import (
    consume_service_pb2,
    publish_service_pb2,
    records_pb2,
    topic_service_pb2,
)

_ACKS = {
    publish_service_pb2.ACKS_UNSPECIFIED: Acks.WRITTEN,
    publish_service_pb2.ACKS_ACCEPTED: Acks.ACCEPTED,
    publish_service_pb2.ACKS_WRITTEN: Acks.WRITTEN,
    publish_service_pb2.ACKS_ALL: Acks.ALL,
}

_DEDUPLICATION: Final = {int(one): one for one in Deduplication}
_SEQUENCING_WINDOWED = publish_service_pb2.SEQUENCING_WINDOWED
_CODEC_NONE = records_pb2.CODEC_NONE
_PLAIN = frozenset({int(records_pb2.CODEC_UNSPECIFIED), int(_CODEC_NONE)})


def submission_from_proto(request: opaque_pb2.PublishRequest) -> Submission:
    """Raises InvalidRequest for numbers the contract does not know and fields that contradict each other."""
    acks = _ACKS.get(request.acks)
    if acks is None:
        raise InvalidRequest(f"acks {request.acks} is unknown", acks=request.acks)
    deduplication = _DEDUPLICATION.get(request.deduplication)
    if deduplication is None:
        raise InvalidRequest(f"deduplication {request.deduplication} is unknown")
    codec: int = request.codec
    if codec in _PLAIN:
        # Read once: every look at a bytes field makes a copy of it.
        codec, payload = _CODEC_NONE, request.records
        if not payload and request.compressed_records:
            raise InvalidRequest("compressed_records needs a codec")
    else:
        payload = request.compressed_records
        if not payload and request.records:
            raise InvalidRequest("with a codec the set belongs into compressed_records")
    submission = Submission(
        request.topic,
        payload,
        request.partition if request.HasField("partition") else None,
        acks,
        codec,
        request.record_count,
        request.records_crc32c if request.HasField("records_crc32c") else None,
        deduplication,
    )
    return _identified(submission, request.producer) if request.HasField("producer") else submission


def _identified(submission: Submission, producer: publish_service_pb2.ProducerIdentity) -> Submission:
    sequencing = producer.sequencing
    if not 0 <= sequencing <= _SEQUENCING_WINDOWED:
        raise InvalidRequest(f"sequencing {sequencing} is unknown")
    first_sequence = NO_SEQUENCE
    if producer.HasField("first_sequence"):
        first_sequence = producer.first_sequence
        if first_sequence < 0:
            raise InvalidRequest(f"first sequence {first_sequence} is negative")
    return submission._replace(
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        first_sequence=first_sequence,
        windowed=sequencing == _SEQUENCING_WINDOWED,
        sequences=producer.sequences,
    )


def fill_receipt(response: publish_service_pb2.PublishResponse, receipt: Receipt) -> None:
    """Into a message that is there already: handing over one that is ready would copy it, level by level."""
    for placed in receipt.placed:
        response.appended.add(
            partition=placed.partition,
            base_offset=placed.base_offset,
            record_count=placed.record_count,
            duplicate=placed.duplicate,
            append_time_ms=placed.append_time_ms,
            fresh_record_count=placed.fresh_record_count,
        )


def fill_producer(message: publish_service_pb2.DescribedProducer, producer: Remembered | None) -> None:
    """Into a message that has the producer's id."""
    if producer is None:
        return
    message.known = True
    message.epoch = producer.epoch
    message.next_sequence = producer.next_sequence
    message.last_append_time_ms = producer.last_ms
    message.incomplete = producer.incomplete
    if producer.checksum is not None and not producer.incomplete:
        message.checksum = producer.checksum


_EDGES = frozenset(int(edge) for edge in Edge)


def place_from_proto(spec: records_pb2.OffsetSpec) -> Place:
    """Raises InvalidRequest if no place is named."""
    match spec.WhichOneof("spec"):
        case "offset":
            return AtOffset(spec.offset)
        case "timestamp_ms":
            return AtTime(spec.timestamp_ms)
        case "edge" if spec.edge in _EDGES:
            return Edge(spec.edge)
    raise InvalidRequest("name a place: an offset, an edge or a timestamp")


def fetch_part_from_proto(part: consume_service_pb2.FetchPartition) -> FetchPart:
    epoch = part.leader_epoch if part.HasField("leader_epoch") else None
    return FetchPart(part.topic, part.partition, part.offset, part.max_bytes, epoch)


def fetched_to_proto(fetched: Fetched) -> opaque_pb2.FetchedPartition:
    """All of a fetched partition but its batches."""
    message = opaque_pb2.FetchedPartition(topic=fetched.part.topic, partition=fetched.part.partition)
    if fetched.partition is not None:
        message.earliest_offset = fetched.partition.earliest_offset
        message.next_offset = fetched.partition.next_offset
        message.leader_epoch = fetched.partition.leader_epoch
    if fetched.error is not None:
        message.error.CopyFrom(to_status(fetched.error))
    return message


def partitions_to_proto(partitions: Iterable[TopicPartition]) -> list[records_pb2.TopicPartition]:
    return [records_pb2.TopicPartition(topic=topic, partition=partition) for topic, partition in sorted(partitions)]


def topic_to_proto(topic: Topic) -> topic_service_pb2.Topic:
    return topic_service_pb2.Topic(
        name=topic.name,
        partition_count=len(topic.partitions),
        config=config_to_proto(topic.config),
        created_ms=topic.created_ms,
        topic_id=str(topic.id),
    )


_OPTIONAL_CONFIG: Final = tuple(entry.name for entry in fields(TopicConfig) if entry.name != "labels")


def config_to_proto(config: TopicConfig) -> topic_service_pb2.TopicConfig:
    values = {name: value for name in _OPTIONAL_CONFIG if (value := getattr(config, name)) is not None}
    return topic_service_pb2.TopicConfig(**values, labels=dict(config.labels))


def config_from_proto(config: topic_service_pb2.TopicConfig) -> TopicConfig:
    present = {field.name for field, _ in config.ListFields()}
    values = {name: getattr(config, name) for name in _OPTIONAL_CONFIG if name in present}
    return TopicConfig(**values, labels=dict(config.labels))
