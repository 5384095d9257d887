"""Compressed messages: kept as they arrived until somebody reads them, and inflated step by step then.

A few bytes can stand for very many, so a message that waits costs no more than what the peer has sent, and one that is
being inflated is measured while it grows.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Final

from grpc import StatusCode

from cursus_transport.errors import StreamLost

STEP_BYTES: Final = 256 * 1024
"""What one step inflates at most: about a millisecond's work."""

_TAKEN_BYTES: Final = 64 * 1024
"""What is inflated is handed to zlib in parts, because it copies what a step leaves over."""

COMPRESSIONS: Final = {b"gzip": 31, b"deflate": 15}
"""How zlib calls what gRPC calls so."""


class Packed:
    """A message that has arrived compressed."""

    __slots__ = ("_compression", "_content")

    def __init__(self, content: bytearray, compression: bytes) -> None:
        self._content = content
        self._compression = compression

    def steps(self, most: int) -> Iterator[bytes]:
        """The plain message in parts. Raises StreamLost if they are more than `most` bytes together, or no message."""
        inflating = zlib.decompressobj(COMPRESSIONS[self._compression])
        size = 0
        try:
            for at in range(0, len(self._content), _TAKEN_BYTES):
                rest: bytes | memoryview = memoryview(self._content)[at : at + _TAKEN_BYTES]
                full = True
                while (rest or full) and not inflating.eof:
                    part = inflating.decompress(rest, STEP_BYTES)
                    rest, full = inflating.unconsumed_tail, len(part) == STEP_BYTES
                    size += len(part)
                    if size > most:
                        text = f"a message decompresses to more than {most} bytes"
                        raise StreamLost(StatusCode.RESOURCE_EXHAUSTED, text)
                    yield part
        except zlib.error as error:
            raise StreamLost(StatusCode.INTERNAL, f"a message cannot be decompressed: {error}") from error
        if not inflating.eof:
            raise StreamLost(StatusCode.INTERNAL, "a compressed message is not whole")
