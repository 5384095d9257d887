"""Between messages and the values the broker works with. No decisions here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import Final

from cursus_broker.consume.fetch import AtOffset, AtTime, Edge, Fetched, FetchPart, Place
from cursus_broker.errors import InvalidRequest
from cursus_broker.log.api import NO_SEQUENCE, Entry
from cursus_broker.metadata.model import TopicPartition
from cursus_broker.publish.acks import Acks, Receipt
from cursus_broker.publish.publisher import Deduplication, Submission
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

_SEQUENCING_WINDOWED = publish_service_pb2.SEQUENCING_WINDOWED
_CODEC_NONE = records_pb2.CODEC_NONE
_PLAIN = frozenset({int(records_pb2.CODEC_UNSPECIFIED), int(_CODEC_NONE)})


def submission_from_proto(request: opaque_pb2.PublishRequest) -> Submission:
    """Raises InvalidRequest for numbers the contract does not know and fields that contradict each other."""
    acks = _ACKS.get(request.acks)
    if acks is None:
        raise InvalidRequest(f"acks {request.acks} is unknown", acks=request.acks)
    codec = request.codec
    if codec in _PLAIN:
        codec, payload = _CODEC_NONE, request.records
        if not payload and request.compressed_records:
            raise InvalidRequest("compressed_records needs a codec")
    else:
        payload = request.compressed_records
        if not payload and request.records:
            raise InvalidRequest("with a codec the set belongs into compressed_records")
    identity: dict[str, object] = {}
    if request.HasField("producer"):
        producer = request.producer
        if not 0 <= producer.sequencing <= _SEQUENCING_WINDOWED:
            raise InvalidRequest(f"sequencing {producer.sequencing} is unknown")
        identity = {
            "producer_id": producer.id,
            "producer_epoch": producer.epoch,
            "first_sequence": _first_sequence(producer),
            "windowed": producer.sequencing == _SEQUENCING_WINDOWED,
            "sequences": tuple(producer.sequences),
        }
    if request.deduplication not in (0, 1, 2):
        raise InvalidRequest(f"deduplication {request.deduplication} is unknown")
    return Submission(
        topic=request.topic,
        payload=payload,
        partition=request.partition if request.HasField("partition") else None,
        acks=acks,
        codec=codec,
        record_count=request.record_count,
        payload_crc=request.records_crc32c if request.HasField("records_crc32c") else None,
        deduplication=Deduplication(request.deduplication),
        **identity,  # type: ignore[arg-type]  # the keys above are fields of these very types
    )


def _first_sequence(producer: publish_service_pb2.ProducerIdentity) -> int:
    if not producer.HasField("first_sequence"):
        return NO_SEQUENCE
    if producer.first_sequence < 0:
        raise InvalidRequest(f"first sequence {producer.first_sequence} is negative")
    return producer.first_sequence


def receipt_to_proto(receipt: Receipt) -> publish_service_pb2.PublishResponse:
    return publish_service_pb2.PublishResponse(
        appended=[
            publish_service_pb2.AppendedBatch(
                partition=placed.partition,
                base_offset=placed.base_offset,
                record_count=placed.record_count,
                duplicate=placed.duplicate,
                append_time_ms=placed.append_time_ms,
            )
            for placed in receipt.placed
        ]
    )


def batches_to_proto(entries: Iterable[Entry]) -> list[opaque_pb2.RecordBatch]:
    """Stored entries as delivered batches; the sets stay bytes."""
    return [_batch_to_proto(entry) for entry in entries]


def _batch_to_proto(entry: Entry) -> opaque_pb2.RecordBatch:
    header = entry.header
    batch = opaque_pb2.RecordBatch(
        base_offset=header.base_offset,
        record_count=header.record_count,
        append_time_ms=header.append_time_ms,
        codec=header.codec,  # type: ignore[arg-type]  # stored numbers were checked when they came in
        first_sequence=header.first_sequence,
        records_crc32c=header.payload_crc,
    )
    if header.producer_id:
        batch.producer_id = header.producer_id
        batch.producer_epoch = header.producer_epoch
    if header.codec == _CODEC_NONE:
        batch.records = entry.payload
    else:
        batch.compressed_records = entry.payload
    return batch


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
    return FetchPart(part.topic, part.partition, part.offset, part.max_bytes)


def fetched_to_proto(fetched: Fetched) -> opaque_pb2.FetchedPartition:
    message = opaque_pb2.FetchedPartition(topic=fetched.part.topic, partition=fetched.part.partition)
    if fetched.partition is not None:
        message.earliest_offset = fetched.partition.earliest_offset
        message.next_offset = fetched.partition.next_offset
    if fetched.entries:
        message.batches.extend(batches_to_proto(fetched.entries))
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
