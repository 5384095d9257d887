"""Encoding publish requests. The small fields are encoded by protobuf, the record set is joined to them as it is: a set
would otherwise be copied into a message, into the message around it, and once more into the result."""

from __future__ import annotations

from typing import Final, Protocol

from cursus_grpc._batch import PackedSet
from cursus_grpc.types import Acks, Compression, TopicPartition
from cursus_proto import codecs, records
from cursus_proto.v1 import publish_service_pb2 as pb
from cursus_proto.v1 import records_pb2

ACKS: Final[dict[Acks, pb.Acks.ValueType]] = {0: pb.ACKS_ACCEPTED, 1: pb.ACKS_WRITTEN, "all": pb.ACKS_ALL}

CODECS: Final[dict[Compression, records_pb2.Codec.ValueType]] = {
    "none": records_pb2.CODEC_NONE,
    "gzip": records_pb2.CODEC_GZIP,
    "zstd": records_pb2.CODEC_ZSTD,
    "lz4": records_pb2.CODEC_LZ4,
    "snappy": records_pb2.CODEC_SNAPPY,
}

# Tags of length-delimited fields: field number, shifted, and wire type 2.
_PUBLISH: Final = bytes([pb.PublishStreamRequest.PUBLISH_FIELD_NUMBER << 3 | 2])
_RECORDS: Final = bytes([pb.PublishRequest.RECORDS_FIELD_NUMBER << 3 | 2])
_COMPRESSED_RECORDS: Final = bytes([pb.PublishRequest.COMPRESSED_RECORDS_FIELD_NUMBER << 3 | 2])


def pack(parts: list[bytes], count: int, codec: int) -> PackedSet:
    """The encoded records as a set, compressed and with its checksum. Takes long for a large compressed set."""
    payload = codecs.compress(codec, b"".join(parts))
    return PackedSet(payload, codec, count, records.checksum(payload))


class Numbered(Protocol):
    """A batch that has its numbers, and is packed when it is sent."""

    @property
    def place(self) -> TopicPartition: ...
    @property
    def epoch(self) -> int: ...
    @property
    def first_sequence(self) -> int: ...
    @property
    def packed(self) -> PackedSet | None: ...


def publish_message(batch: Numbered, acks: pb.Acks.ValueType, producer_id: bytes) -> bytes:
    """PublishStreamRequest.publish for a packed and numbered batch."""
    packed = batch.packed
    assert packed is not None
    fields = pb.PublishRequest(
        topic=batch.place.topic,
        partition=batch.place.partition,
        acks=acks,
        producer=pb.ProducerIdentity(id=producer_id, epoch=batch.epoch, first_sequence=batch.first_sequence),
        codec=packed.codec,  # type: ignore[arg-type]  # one of CODECS
        record_count=packed.count,
        records_crc32c=packed.crc32c,
    ).SerializeToString()
    tag = _RECORDS if codecs.is_plain(packed.codec) else _COMPRESSED_RECORDS
    head = tag + records.varint(len(packed.payload))
    size = len(fields) + len(head) + len(packed.payload)
    return b"".join((_PUBLISH, records.varint(size), fields, head, packed.payload))
