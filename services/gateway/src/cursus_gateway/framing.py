"""Frames: a length and a body, the same in both directions. No sockets here: bytes in, bodies out.

length   u32 BE  bytes of the body; nothing else is counted
body     bytes   up to 64 MiB
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final, TypeAlias

MIB: Final = 1024 * 1024

# Checked before anything is kept: a wrong length costs four bytes of reading, not 4 GiB of memory.
MAX_BODY_BYTES: Final = 64 * MIB

# What clients of the third generation take. Only a single message that is larger may exceed it.
MAX_ANSWER_BYTES: Final = 16 * MIB

KEEPALIVE: Final = b"\0\0\0\0"

Parts: TypeAlias = Sequence[bytes | bytearray | memoryview]
"""Whole frames, cut wherever that spared a copy. Whoever writes a bytearray does not change it any more."""

_LENGTH: Final = Struct(">I")
_LENGTH_BYTES: Final = 4


class FrameTooLarge(Exception):
    """A length above the limit: the frame's end cannot be waited for, so nothing after it can be read."""

    def __init__(self, size: int) -> None:
        super().__init__(f"a frame of {size} bytes")
        self.size = size


def frame(body: bytes) -> bytes:
    """The body with its length.

    >>> frame(b"OK")
    b'\\x00\\x00\\x00\\x02OK'
    """
    return _LENGTH.pack(len(body)) + body


def length_of(size: int) -> bytes:
    """The length alone, for a body that is written in parts."""
    return _LENGTH.pack(size)


class FrameReader:
    """Cuts a byte stream into bodies. Bytes of a frame that is not complete survive until the rest arrives."""

    __slots__ = ("_pending", "_wanted")

    def __init__(self) -> None:
        self._pending = bytearray()
        # Bytes of prefix and body of the frame in `_pending`; 0 while its length is not known.
        self._wanted = 0

    @property
    def inside_frame(self) -> bool:
        return bool(self._pending)

    @property
    def pending_bytes(self) -> int:
        """Bytes kept of a frame that is not complete."""
        return len(self._pending)

    @property
    def wanted_bytes(self) -> int:
        """Size of the incomplete frame as far as it is known, its prefix included; 0 between frames."""
        return self._wanted

    def feed(self, data: memoryview) -> tuple[list[bytes], FrameTooLarge | None]:
        """The bodies that `data` completes, in order, and the bad length that follows them, if any: nothing can be read
        after it, but what came before it is served. `data` is not kept."""
        bodies: list[bytes] = []
        position, size = 0, len(data)
        if self._pending:
            position, bad = self._continue_pending(data, bodies)
            if bad is not None:
                return bodies, bad
        while size - position >= _LENGTH_BYTES:
            (length,) = _LENGTH.unpack_from(data, position)
            if length > MAX_BODY_BYTES:
                return bodies, FrameTooLarge(length)
            start = position + _LENGTH_BYTES
            if start + length > size:
                self._wanted = _LENGTH_BYTES + length
                break
            bodies.append(bytes(data[start : start + length]))
            position = start + length
        self._pending += data[position:]
        return bodies, None

    def _continue_pending(self, data: memoryview, bodies: list[bytes]) -> tuple[int, FrameTooLarge | None]:
        """Completes the kept frame as far as `data` goes. Answers how much of `data` it took."""
        pending, taken = self._pending, 0
        if not self._wanted:
            taken = min(_LENGTH_BYTES - len(pending), len(data))
            pending += data[:taken]
            if len(pending) < _LENGTH_BYTES:
                return taken, None
            (length,) = _LENGTH.unpack_from(pending, 0)
            if length > MAX_BODY_BYTES:
                return taken, FrameTooLarge(length)
            self._wanted = _LENGTH_BYTES + length
        more = min(self._wanted - len(pending), len(data) - taken)
        pending += data[taken : taken + more]
        if len(pending) == self._wanted:
            bodies.append(bytes(memoryview(pending)[_LENGTH_BYTES:]))
            self._pending, self._wanted = bytearray(), 0
        return taken + more, None
