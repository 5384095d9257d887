"""Compressed bodies: recognised by their first bytes, unpacked once, within a limit. Answers are never compressed.

1F 8B 08                   gzip, RFC 1952
04 22 4D 18                LZ4 frame
28 B5 2F FD                zstd, RFC 8878
82 53 4E 41 50 50 59 00    snappy as xerial frames it: 8 bytes of versions, then (u32 BE size, raw block) repeated
no magic                   raw snappy block, as the Go SDKs send it: a varint with the unpacked length comes first
"""

from __future__ import annotations

from enum import Enum
from struct import Struct
from typing import Final

import cramjam

from cursus_gateway.batch import SMALLEST_BYTES
from cursus_gateway.framing import MAX_BODY_BYTES
from cursus_proto import codecs
from cursus_proto.v1 import records_pb2

_XERIAL_HEAD_BYTES: Final = 16
_SIZE: Final = Struct(">I")


class Compression(Enum):
    """What a body announces by its first bytes."""

    GZIP = b"\x1f\x8b\x08"
    LZ4 = b"\x04\x22\x4d\x18"
    ZSTD = b"\x28\xb5\x2f\xfd"
    XERIAL_SNAPPY = b"\x82SNAPPY\0"


_BY_FIRST_BYTE: Final = {compression.value[:1]: compression for compression in Compression}


class Undecodable(ValueError):
    """The bytes are not what they announce."""


class TooLarge(Undecodable):
    """They unpack to more than they may."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"unpacks to more than {limit} bytes")


_CODECS: Final = {
    Compression.GZIP: records_pb2.CODEC_GZIP,
    Compression.LZ4: records_pb2.CODEC_LZ4,
    Compression.ZSTD: records_pb2.CODEC_ZSTD,
}


def recognise(body: bytes) -> Compression | None:
    compression = _BY_FIRST_BYTE.get(body[:1])
    return compression if compression is not None and body.startswith(compression.value) else None


def decompress(body: bytes, compression: Compression, limit: int = MAX_BODY_BYTES) -> bytes:
    """The plain body. Raises Undecodable, and TooLarge for more bytes than the limit."""
    try:
        if compression is Compression.XERIAL_SNAPPY:
            return _decompress_xerial(body, limit)
        return codecs.decompress(_CODECS[compression], body, limit)
    except codecs.UnpacksTooLarge as error:
        raise TooLarge(limit) from error
    except codecs.CodecError as error:
        raise Undecodable(str(error)) from error


def _decompress_xerial(body: bytes, limit: int) -> bytes:
    blocks: list[bytes] = []
    room, position = limit, _XERIAL_HEAD_BYTES
    while position < len(body):
        if position + _SIZE.size > len(body):
            raise Undecodable("cut short before a block")
        (size,) = _SIZE.unpack_from(body, position)
        position += _SIZE.size
        if position + size > len(body):
            raise Undecodable("cut short inside a block")
        block = _decompress_block(body[position : position + size], room)
        room -= len(block)
        blocks.append(block)
        position += size
    return b"".join(blocks)


def decompress_raw_snappy(body: bytes, limit: int = MAX_BODY_BYTES) -> bytes | None:
    """The plain bytes of a raw block that could hold a batch; None if this is no such block. Raises TooLarge for one of
    more bytes than the limit, if a frame may hold as many.
    """
    announced = _announced(body)
    if announced is None or not SMALLEST_BYTES <= announced <= MAX_BODY_BYTES:
        return None
    try:
        return _decompress_block(body, limit)
    except TooLarge:
        raise
    except Undecodable:
        return None


def _decompress_block(block: bytes, limit: int) -> bytes:
    announced = _announced(block)
    # A block of n bytes cannot hold more than 64 bytes for each 3 of them: checked before room is made for them.
    if announced is None or announced > 22 * len(block) + 64:
        raise Undecodable("not a snappy block")
    if announced > limit:
        raise TooLarge(limit)
    try:
        plain = bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as error:
        raise Undecodable(str(error)) from error
    if len(plain) != announced:
        raise Undecodable("a snappy block of another length than it announces")
    return plain


def _announced(block: bytes) -> int | None:
    """The unpacked length a raw block begins with."""
    number = 0
    for index, byte in enumerate(block[:5]):
        number |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return number
    return None
