"""HTTP/2 frames (RFC 9113) as far as gRPC uses them: their names and numbers, and how they are written."""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

HEAD: Final = struct.Struct("!HBBBL")
"""Of every frame: its length in 16 + 8 bits, kind, flags, stream."""

MESSAGE_HEAD: Final = struct.Struct("!HBBBLBL")
"""A DATA frame that begins with a message: the frame's head, then gRPC's flag and length."""

PREFIX: Final = struct.Struct("!BL")
"""Before every gRPC message: whether it is compressed, and its length."""

_UINT32: Final = struct.Struct("!L")
_SETTING: Final = struct.Struct("!HL")
_GOAWAY: Final = struct.Struct("!LL")

LARGEST_WINDOW: Final = 2**31 - 1
LARGEST_ID: Final = 2**31 - 1
DEFAULT_WINDOW: Final = 65_535
SMALLEST_MAX_FRAME: Final = 16_384
LARGEST_MAX_FRAME: Final = 2**24 - 1


class Kind(IntEnum):
    DATA = 0
    HEADERS = 1
    PRIORITY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PUSH_PROMISE = 5
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    CONTINUATION = 9


# Plain numbers: comparing with a member of an enum costs a hot path more than parsing a frame's head does.
DATA: Final = int(Kind.DATA)
HEADERS: Final = int(Kind.HEADERS)

END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
PRIORITY: Final = 0x20


class Setting(IntEnum):
    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


class ErrorCode(IntEnum):
    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    ENHANCE_YOUR_CALM = 11
    INADEQUATE_SECURITY = 12


def head(length: int, kind: int, flags: int, stream_id: int) -> bytes:
    return HEAD.pack(length >> 8, length & 0xFF, kind, flags, stream_id)


def headers(block: bytes, stream_id: int, *, end: bool = False) -> bytes:
    """A HEADERS frame, and CONTINUATION frames for what does not fit into the smallest one a peer may allow."""
    ends = END_STREAM if end else 0
    if len(block) <= SMALLEST_MAX_FRAME:
        return head(len(block), Kind.HEADERS, END_HEADERS | ends, stream_id) + block
    parts = [block[at : at + SMALLEST_MAX_FRAME] for at in range(0, len(block), SMALLEST_MAX_FRAME)]
    written = [head(len(parts[0]), Kind.HEADERS, ends, stream_id), parts[0]]
    for part in parts[1:]:
        written += head(len(part), Kind.CONTINUATION, END_HEADERS if part is parts[-1] else 0, stream_id), part
    return b"".join(written)


def settings(values: dict[Setting, int]) -> bytes:
    body = b"".join(_SETTING.pack(key, value) for key, value in values.items())
    return head(len(body), Kind.SETTINGS, 0, 0) + body


SETTINGS_ACK: Final = head(0, Kind.SETTINGS, ACK, 0)


def parse_settings(body: memoryview) -> list[tuple[int, int]]:
    return list(_SETTING.iter_unpack(body))


def ping(data: bytes, *, ack: bool = False) -> bytes:
    return head(8, Kind.PING, ACK if ack else 0, 0) + data


def window_update(stream_id: int, increment: int) -> bytes:
    return head(4, Kind.WINDOW_UPDATE, 0, stream_id) + _UINT32.pack(increment)


def rst_stream(stream_id: int, code: ErrorCode) -> bytes:
    return head(4, Kind.RST_STREAM, 0, stream_id) + _UINT32.pack(code)


def goaway(last_stream_id: int, code: ErrorCode, text: str = "") -> bytes:
    body = _GOAWAY.pack(last_stream_id, code) + text.encode()
    return head(len(body), Kind.GOAWAY, 0, 0) + body


def parse_goaway(body: memoryview) -> tuple[int, int, str]:
    """The last stream that was looked at, the error code, and the text."""
    last, code = _GOAWAY.unpack_from(body)
    return last & LARGEST_ID, code, bytes(body[_GOAWAY.size :]).decode(errors="replace")


def parse_uint32(body: memoryview) -> int:
    value: int = _UINT32.unpack(body)[0]
    return value
