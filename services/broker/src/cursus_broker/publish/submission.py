"""A record set as a producer sent it, and everything that can be wrong with it by itself."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from cursus_broker.errors import (
    CorruptRecordSet,
    InvalidRequest,
    PartitionRequired,
    RecordSetTooLarge,
    RecordTooLarge,
    RecordTooSmall,
    UnknownCodec,
)
from cursus_broker.log.api import NO_SEQUENCE, Batch
from cursus_broker.publish.acks import Acks
from cursus_broker.publish.producers import EXPLICIT_SEQUENCES, WINDOWED
from cursus_broker.topics.config import TopicConfig
from cursus_proto import codecs
from cursus_proto import records as record_sets
from cursus_proto.v1 import records_pb2
from cursus_proto.v1.records_pb2 import Record

# A producer id has a 16-bit length on disk and on the legacy wire.
MAX_PRODUCER_ID_BYTES: Final = 65_535

# Sequences are 64 bits; this leaves room to add a batch's records without overflow.
MAX_SEQUENCE: Final = 2**62


class Deduplication(IntEnum):
    """What repetitions are recognised by; the numbers are the contract's."""

    BEST = 0
    NONE = 1
    CONTENT = 2


class Submission(NamedTuple):
    """A set as a producer sent it."""

    topic: str
    payload: bytes
    partition: int | None = None
    acks: Acks = Acks.WRITTEN
    codec: int = records_pb2.CODEC_NONE
    record_count: int = 0
    payload_crc: int | None = None
    deduplication: Deduplication = Deduplication.BEST
    producer_id: bytes = b""
    producer_epoch: int = 0
    first_sequence: int = NO_SEQUENCE
    windowed: bool = False
    sequences: Sequence[int] = ()

    @property
    def is_numbered(self) -> bool:
        return self.first_sequence != NO_SEQUENCE or bool(self.sequences)


def takes_long_to_count(submission: Submission, max_batch_records: int) -> bool:
    """Whether counting the records of a plain set may mean to walk through them. A record takes two bytes at least."""
    return len(submission.payload) > 2 * max_batch_records and codecs.is_plain(submission.codec)


def check(submission: Submission, max_batch_bytes: int, max_batch_records: int) -> Batch:
    """The batch to append, with its records counted and its checksum taken. Raises what is wrong with it."""
    payload = submission.payload
    if len(payload) > max_batch_bytes:
        raise RecordTooLarge(
            f"the record set has {len(payload)} bytes, this broker takes {max_batch_bytes}",
            size=len(payload),
            limit=max_batch_bytes,
        )
    if not codecs.is_known(submission.codec):
        raise UnknownCodec(f"codec {submission.codec} is unknown to this broker", codec=submission.codec)
    if submission.partition is not None and submission.partition < 0:
        raise InvalidRequest(f"partition {submission.partition} is negative", partition=submission.partition)
    _check_producer(submission)
    crc = record_sets.checksum(payload)
    if submission.payload_crc is not None and submission.payload_crc != crc:
        raise CorruptRecordSet(
            f"the record set has CRC32C {crc:#010x}, the request says {submission.payload_crc:#010x}"
        )
    count = _counted(submission, max_batch_records)
    sequences = submission.sequences
    if sequences and len(sequences) != count:
        raise InvalidRequest(f"{len(sequences)} sequences for {count} records")
    flags = 0
    if submission.windowed and submission.is_numbered:
        flags = WINDOWED | EXPLICIT_SEQUENCES if sequences else WINDOWED
    return Batch(
        payload,
        count,
        crc,
        submission.codec,
        flags,
        submission.producer_id,
        submission.producer_epoch,
        sequences[0] if sequences else submission.first_sequence,
    )


def repack(batch: Batch, records: Sequence[Record], sequences: Sequence[int] = ()) -> Batch:
    """The batch with only these records, packed the same way; `sequences` if they stand in the records now."""
    payload = record_sets.pack(records, batch.codec)
    return batch._replace(
        payload=payload,
        record_count=len(records),
        payload_crc=record_sets.checksum(payload),
        flags=batch.flags | EXPLICIT_SEQUENCES if sequences else batch.flags,
        first_sequence=sequences[0] if sequences else batch.first_sequence,
    )


def check_values(config: TopicConfig, records: Sequence[Record]) -> None:
    """Raises RecordTooSmall or RecordTooLarge by the topic's own limits. A null has no size to be judged."""
    low, high = config.min_value_bytes, config.max_value_bytes
    if low is None and high is None:
        return
    for index, record in enumerate(records):
        size = len(record.value)
        if low is not None and size < low and record.HasField("value"):
            raise RecordTooSmall(f"record {index} has a value of {size} bytes, this topic asks for {low}", index=index)
        if high is not None and size > high:
            raise RecordTooLarge(f"record {index} has a value of {size} bytes, this topic takes {high}", index=index)


def _check_producer(submission: Submission) -> None:
    if not submission.producer_id:
        if submission.is_numbered:
            raise InvalidRequest("a sequence needs a producer id")
        return
    if len(submission.producer_id) > MAX_PRODUCER_ID_BYTES:
        raise InvalidRequest(
            f"the producer id has {len(submission.producer_id)} bytes, at most {MAX_PRODUCER_ID_BYTES} fit"
        )
    if not submission.is_numbered:
        return
    if submission.partition is None:
        raise PartitionRequired("sequences are counted per partition: name the partition")
    if submission.deduplication is not Deduplication.BEST:
        raise InvalidRequest("a producer sequence already decides what a repetition is; leave deduplication unset")
    largest = max(submission.sequences, default=0)
    if not NO_SEQUENCE <= submission.first_sequence <= MAX_SEQUENCE or largest > MAX_SEQUENCE:
        raise InvalidRequest(f"sequences go from 0 to {MAX_SEQUENCE}")
    if submission.windowed:
        return
    if submission.sequences:
        raise InvalidRequest("explicit sequences need windowed sequencing")
    if submission.producer_epoch < 0:
        raise InvalidRequest(f"epoch {submission.producer_epoch} is negative")


def _counted(submission: Submission, most: int) -> int:
    claimed = submission.record_count
    if claimed < 0:
        raise InvalidRequest(f"a record count of {claimed} is negative", record_count=claimed)
    if claimed > most:
        raise RecordSetTooLarge(f"the record set has {claimed} records, this broker takes {most}", limit=most)
    if codecs.is_plain(submission.codec):
        try:
            count = record_sets.count(submission.payload, most)
        except record_sets.RecordSetTooLarge as error:
            raise RecordSetTooLarge(f"the record set has more than {most} records", limit=most) from error
        except record_sets.MalformedRecordSet as error:
            raise CorruptRecordSet(str(error)) from error
        if claimed not in (0, count):
            raise CorruptRecordSet(f"the record set holds {count} records, the request says {claimed}")
        if count == 0:
            raise InvalidRequest("a batch needs at least one record")
    else:
        count = claimed
        if count == 0:
            raise InvalidRequest("a compressed set has to state its record count")
        if not submission.payload:
            raise CorruptRecordSet("the compressed set is empty")
    if submission.deduplication is Deduplication.CONTENT and count != 1:
        raise InvalidRequest("content deduplication is for single records")
    return count
