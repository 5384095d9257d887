"""Compression of record sets, the same on every end. Decompression is bounded: a few hostile bytes must not become
gigabytes of memory.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from types import MappingProxyType

import cramjam

from cursus_proto.bounds import MAX_UNPACKED_BYTES
from cursus_proto.v1.records_pb2 import Codec

_GZIP_WINDOW = 16 + zlib.MAX_WBITS

# How cramjam says that the target is full, with every codec: the one failure that more room can cure.
_TARGET_FULL = "failed to write whole buffer"


class CodecError(ValueError):
    """The codec is unknown, or the bytes are not what it produces."""


class UnpacksTooLarge(CodecError):
    """The bytes unpack to more than the limit."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"unpacks to more than {limit} bytes")
        self.limit = limit


def _gunzip(data: bytes, limit: int) -> bytes:
    inflater = zlib.decompressobj(_GZIP_WINDOW)
    plain = inflater.decompress(data, limit + 1)
    if len(plain) > limit:
        raise UnpacksTooLarge(limit)
    if not inflater.eof or inflater.unused_data:
        raise CodecError("gzip member is cut short or followed by other bytes")
    return plain


def _bounded(decompress_into: Callable[[bytes, bytearray], int]) -> Callable[[bytes, int], bytes]:
    """Bounds a decompressor that writes into a buffer of the caller's, by growing that buffer up to the limit.

    These formats do not state their size reliably, so the first guess may be short; each retry has four times the
    room, which wastes at most a third of the work.
    """

    def decompress(data: bytes, limit: int) -> bytes:
        room = min(limit, max(64 * 1024, 4 * len(data)))
        while True:
            target = bytearray(room)
            try:
                return bytes(memoryview(target)[: decompress_into(data, target)])
            except cramjam.DecompressionError as error:
                if str(error) != _TARGET_FULL:
                    raise
                if room == limit:
                    raise UnpacksTooLarge(limit) from error
                room = min(limit, 4 * room)

    return decompress


_COMPRESS: Mapping[int, Callable[[bytes], bytes]] = MappingProxyType(
    {
        Codec.CODEC_GZIP: lambda data: bytes(cramjam.gzip.compress(data)),
        Codec.CODEC_ZSTD: lambda data: bytes(cramjam.zstd.compress(data)),
        Codec.CODEC_LZ4: lambda data: bytes(cramjam.lz4.compress(data)),
        Codec.CODEC_SNAPPY: lambda data: bytes(cramjam.snappy.compress(data)),
    }
)

_DECOMPRESS: Mapping[int, Callable[[bytes, int], bytes]] = MappingProxyType(
    {
        Codec.CODEC_GZIP: _gunzip,
        Codec.CODEC_ZSTD: _bounded(cramjam.zstd.decompress_into),
        Codec.CODEC_LZ4: _bounded(cramjam.lz4.decompress_into),
        Codec.CODEC_SNAPPY: _bounded(cramjam.snappy.decompress_into),
    }
)

_PLAIN = frozenset({int(Codec.CODEC_UNSPECIFIED), int(Codec.CODEC_NONE)})


def is_known(codec: int) -> bool:
    """Whether this version knows the codec number."""
    return codec in _PLAIN or codec in _COMPRESS


def is_plain(codec: int) -> bool:
    """Whether sets with this codec are not compressed."""
    return codec in _PLAIN


def compress(codec: int, data: bytes) -> bytes:
    """The data in the codec's format; unchanged for no codec. Raises CodecError for an unknown one."""
    if codec in _PLAIN:
        return data
    if codec not in _COMPRESS:
        raise CodecError(f"codec {codec} is unknown")
    return _COMPRESS[codec](data)


def decompress(codec: int, data: bytes, limit: int = MAX_UNPACKED_BYTES) -> bytes:
    """The plain bytes, at most `limit` of them. Raises CodecError, and UnpacksTooLarge for more.

    >>> decompress(Codec.CODEC_ZSTD, compress(Codec.CODEC_ZSTD, b"abc" * 1000)) == b"abc" * 1000
    True
    """
    if codec in _PLAIN:
        return data
    if codec not in _DECOMPRESS:
        raise CodecError(f"codec {codec} is unknown")
    try:
        return _DECOMPRESS[codec](data, limit)
    except (zlib.error, cramjam.DecompressionError) as error:
        raise CodecError(f"undecodable {Codec.Name(Codec.ValueType(codec))}: {error}") from error
