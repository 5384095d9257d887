"""What a peer sends, cut into frames: DATA handed on piece by piece as it arrives, all others as a whole."""

from __future__ import annotations

from typing import Final

from cursus_transport import frames
from cursus_transport.errors import ConnectionFailed
from cursus_transport.frames import ErrorCode
from cursus_transport.headers import MAX_HEADER_BYTES

MAX_FRAME_BYTES: Final = 1024 * 1024
"""Of the DATA frames we let a peer send: fewer heads to look at."""

_HEAD_BYTES: Final = frames.HEAD.size


class FrameParser:
    """A base class: whoever inherits from it says what becomes of frames."""

    def __init__(self) -> None:
        self.data_left = 0
        """What is still to come of a DATA frame. Set by `data_begins`, counted down by `data_continues`."""
        self._partial = bytearray()

    def data_begins(self, flags: int, stream_id: int, length: int) -> None:
        """The head of a DATA frame without padding. Raises ConnectionFailed."""
        raise NotImplementedError

    def data_continues(self, size: int, piece: memoryview | None) -> None:
        """A part of the frame's data; None if it is already where it belongs. Raises ConnectionFailed."""
        raise NotImplementedError

    def frame_arrived(self, kind: int, flags: int, stream_id: int, body: memoryview) -> None:
        """Any other frame. Raises ConnectionFailed."""
        raise NotImplementedError

    def receive(self, view: memoryview) -> None:
        """Take what the peer has sent, cut anywhere. Raises ConnectionFailed."""
        at, end = 0, len(view)
        while at < end:
            if self.data_left:
                taken = min(self.data_left, end - at)
                self.data_continues(taken, view[at : at + taken])
                at += taken
            elif self._partial or end - at < _HEAD_BYTES:
                at += self._complete(view[at:])
            else:
                high, low, kind, flags, stream_id = frames.HEAD.unpack_from(view, at)
                length = high << 8 | low
                stream_id &= frames.LARGEST_ID
                if kind == frames.DATA and not flags & frames.PADDED:
                    self.data_begins(flags, stream_id, length)
                    at += _HEAD_BYTES
                elif end - at - _HEAD_BYTES < length:
                    at += self._complete(view[at:])
                else:
                    check_length(kind, length)
                    at += _HEAD_BYTES + length
                    self.frame_arrived(kind, flags, stream_id, view[at - length : at])

    def _complete(self, view: memoryview) -> int:
        """Add to the frame that is not whole, and deal with it if it is now. Answers how much was taken."""
        partial, taken = self._partial, 0
        if len(partial) < _HEAD_BYTES:
            taken = min(_HEAD_BYTES - len(partial), len(view))
            partial += view[:taken]
            if len(partial) < _HEAD_BYTES:
                return taken
        high, low, kind, flags, stream_id = frames.HEAD.unpack_from(partial)
        length = high << 8 | low
        stream_id &= frames.LARGEST_ID
        if kind == frames.DATA and not flags & frames.PADDED:
            partial.clear()
            self.data_begins(flags, stream_id, length)
            return taken
        check_length(kind, length)
        more: int = min(_HEAD_BYTES + length - len(partial), len(view) - taken)
        partial += view[taken : taken + more]
        if len(partial) == _HEAD_BYTES + length:
            self._partial = bytearray()
            self.frame_arrived(kind, flags, stream_id, memoryview(partial)[_HEAD_BYTES:])
        return taken + more


def check_length(kind: int, length: int) -> None:
    """Raises ConnectionFailed."""
    if length > (MAX_FRAME_BYTES if kind == frames.DATA else MAX_HEADER_BYTES):
        raise ConnectionFailed(ErrorCode.FRAME_SIZE_ERROR, f"a frame of {length} bytes")


def without_padding(body: memoryview) -> memoryview:
    """Raises ConnectionFailed."""
    padding = body[0]
    if padding >= len(body):
        raise ConnectionFailed(ErrorCode.PROTOCOL_ERROR, "more padding than frame")
    return body[1 : len(body) - padding]
