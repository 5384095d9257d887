"""Packing records into sets and back: what happens once in the producer and once in the consumer.

`count` is the one look a broker takes at a plain set: it proves the outer structure and costs the same whatever the
records hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import google_crc32c
from google.protobuf.message import DecodeError

from cursus_proto import codecs
from cursus_proto.internal.v1 import opaque_pb2
from cursus_proto.v1 import records_pb2
from cursus_proto.v1.records_pb2 import Record


class MalformedRecordSet(ValueError):
    """The bytes are not a record set."""


def pack(records: Iterable[Record], codec: int = records_pb2.CODEC_NONE) -> bytes:
    """The bytes of a record set, compressed with `codec`."""
    return codecs.compress(codec, records_pb2.RecordSet(records=records).SerializeToString())


def unpack(
    packed: bytes, codec: int = records_pb2.CODEC_NONE, limit: int = codecs.MAX_UNPACKED_BYTES
) -> Sequence[Record]:
    """The records of a set. Raises MalformedRecordSet.

    >>> [record.value for record in unpack(pack([Record(value=b"a"), Record(value=b"b")]))]
    [b'a', b'b']
    """
    try:
        return records_pb2.RecordSet.FromString(codecs.decompress(codec, packed, limit)).records
    except (codecs.CodecError, DecodeError) as error:
        raise MalformedRecordSet(str(error)) from error


def count(packed: bytes) -> int:
    """The number of records in a plain set, without parsing them. Raises MalformedRecordSet."""
    try:
        return len(opaque_pb2.RecordSet.FromString(packed).records)
    except DecodeError as error:
        raise MalformedRecordSet(f"not a record set: {error}") from error


def checksum(packed: bytes) -> int:
    """CRC32C of a packed set, as it travels in `records_crc32c`."""
    return int(google_crc32c.value(packed))
