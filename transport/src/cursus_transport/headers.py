"""Header blocks: HPACK (RFC 7541), and how gRPC writes timeouts, texts and binary values into headers.

What we write never refers to the table that both ends of a connection would have to keep alike, so a block is the same
bytes each time and is made once. What we read may, until the peer has seen that we keep no table; from then on equal
blocks mean equal headers, and a call's headers are looked up instead of parsed.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Iterable
from typing import Final
from urllib.parse import unquote_to_bytes

from hpack import Decoder, HPACKError

from cursus_transport.errors import ConnectionFailed
from cursus_transport.frames import ErrorCode

Headers = tuple[tuple[bytes, bytes], ...]
Metadata = tuple[tuple[str, str | bytes], ...]

MAX_HEADER_BYTES: Final = 64 * 1024
_MOST_FIELDS: Final = 256
"""Of one block: a field may take a single byte of it, and takes some sixty once it is read."""

_KNOWN_BYTES: Final = 64 * 1024
"""What the blocks that are looked up may hold together, by `size_of`."""

_KNOWN_BLOCK_BYTES: Final = 2 * 1024
_FIELD_BYTES: Final = 32
"""What HPACK counts for a field beside its name and its value."""

# Places in HPACK's static table.
METHOD_POST: Final = b"\x83"
SCHEME_HTTP: Final = b"\x86"
SCHEME_HTTPS: Final = b"\x87"
STATUS_200: Final = b"\x88"

_REQUIRED: Final = frozenset((b":method", b":scheme", b":path"))
_REQUEST_SPECIALS: Final = _REQUIRED | {b":authority", b":protocol"}
_HOP_BY_HOP: Final = frozenset((b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"))

_TIMEOUT: Final = re.compile(rb"([0-9]{1,8})([HMSmun])")
_UNIT_S: Final = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
# What a grpc-message may hold as it is.
_PLAIN_TEXT: Final = frozenset(range(0x20, 0x7F)) - {ord("%")}


class Reader:
    """Reads one connection's header blocks, which depend on those before them as long as the peer uses a table."""

    def __init__(self) -> None:
        self._decoder = Decoder(max_header_list_size=MAX_HEADER_BYTES)
        self._known: dict[bytes, Headers] = {}
        self._known_bytes = 0

    def read(self, block: bytes) -> Headers:
        """Raises ConnectionFailed: a connection whose headers cannot be read is lost as a whole."""
        known = self._known.get(block)
        if known is not None:
            return known
        table = self._decoder.header_table
        independent, size = not table.dynamic_entries, table.maxsize
        try:
            found = tuple((bytes(name), bytes(value)) for name, value in self._decoder.decode(block, raw=True))
        except HPACKError as error:
            raise ConnectionFailed(ErrorCode.COMPRESSION_ERROR, f"headers cannot be read: {error}") from error
        if len(found) > _MOST_FIELDS:
            raise ConnectionFailed(ErrorCode.ENHANCE_YOUR_CALM, f"more than {_MOST_FIELDS} header fields")
        if not independent or table.dynamic_entries or table.maxsize != size:
            self._forget()
        elif (taken := len(block) + size_of(found)) <= _KNOWN_BLOCK_BYTES:
            if self._known_bytes + taken > _KNOWN_BYTES:
                self._forget()
            self._known[block] = found
            self._known_bytes += taken
        return found

    def _forget(self) -> None:
        self._known.clear()
        self._known_bytes = 0


def size_of(headers: Headers) -> int:
    """As HPACK counts it."""
    return sum(len(name) + len(value) + _FIELD_BYTES for name, value in headers)


def fault_in_request(headers: Headers) -> str | None:
    """What makes a request malformed as HTTP/2 has it; None if nothing does."""
    special: set[bytes] = set()
    regular = False
    for name, value in headers:
        if name.startswith(b":"):
            if regular or name in special or name not in _REQUEST_SPECIALS:
                return f"{name.decode('latin-1')} is unknown, repeated or out of place"
            special.add(name)
            continue
        regular = True
        if name != name.lower() or name in _HOP_BY_HOP or (name == b"te" and value != b"trailers"):
            return f"the header {name.decode('latin-1')} is not for HTTP/2"
    if not special >= _REQUIRED or (b":path", b"") in headers:
        return "method, scheme or path is missing"
    return None


def literal(name: bytes, value: bytes) -> bytes:
    """A header that leaves no trace in any table."""
    return b"\x00" + _length(len(name)) + name + _length(len(value)) + value


def _length(number: int) -> bytes:
    """HPACK's integer in seven bits and what it needs beyond them; text as it is, not Huffman coded."""
    if number < 127:
        return bytes((number,))
    rest, encoded = number - 127, bytearray(b"\x7f")
    while rest > 127:
        encoded.append(rest & 127 | 128)
        rest >>= 7
    encoded.append(rest)
    return bytes(encoded)


def encode_metadata(metadata: Iterable[tuple[str, str | bytes]]) -> bytes:
    return b"".join(literal(name.encode(), _metadata_value(name, value)) for name, value in metadata)


def _metadata_value(name: str, value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return binascii.b2a_base64(raw, newline=False).rstrip(b"=") if name.endswith("-bin") else raw


def decode_metadata(headers: Headers) -> Metadata:
    """All but HTTP's own and gRPC's, which the transport has dealt with; binary values decoded.

    Raises ValueError for a binary value that is not base64.
    """
    return tuple(
        (name.decode("ascii", "replace"), _decode_binary(value) if name.endswith(b"-bin") else value.decode("latin-1"))
        for name, value in headers
        if not name.startswith(b":") and name not in (b"grpc-status", b"grpc-message", b"content-type", b"te")
    )


def _decode_binary(value: bytes) -> bytes:
    return binascii.a2b_base64(value + b"=" * (-len(value) % 4))


def encode_timeout(seconds: float) -> bytes:
    """Rounded up, so that the server does not give up before the client does.

    >>> encode_timeout(1.5), encode_timeout(200_000.0), encode_timeout(0.0)
    (b'1500m', b'200000S', b'1m')
    """
    milliseconds = max(1, -int(-seconds * 1000 // 1))
    return b"%dm" % milliseconds if milliseconds < 10**8 else b"%dS" % min(10**8 - 1, milliseconds // 1000 + 1)


def decode_timeout(value: bytes) -> float:
    """Seconds. Raises ValueError.

    >>> decode_timeout(b"1500m")
    1.5
    """
    found = _TIMEOUT.fullmatch(value)
    if found is None:
        raise ValueError(f"{value!r} is not a timeout")
    return int(found[1]) * _UNIT_S[found[2]]


def encode_text(text: str) -> bytes:
    """A grpc-message.

    >>> encode_text("50 % für alle")
    b'50 %25 f%C3%BCr alle'
    """
    raw = text.encode(errors="replace")
    if _PLAIN_TEXT.issuperset(raw):
        return raw
    return b"".join(bytes((byte,)) if byte in _PLAIN_TEXT else b"%%%02X" % byte for byte in raw)


def decode_text(value: bytes) -> str:
    return unquote_to_bytes(value).decode(errors="replace")
