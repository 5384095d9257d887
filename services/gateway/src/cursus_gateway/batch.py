"""The binary batch 0xBA7C: its header in both layouts, and whole batches in both directions.

    layout S, what every SDK writes            layout D, what seed 002 documents
      magic       u16  0xBA7C                    magic       u16  0xBA7C
      topic       u16 + bytes                    topic       u16 + bytes
      partition   i32                            partition   u16 + decimal digits
      acks        u8 + bytes                     acks        u16 + bytes
      idempotent  u8                             idempotent  u8
      seqStart    u64                            seqStart    i64
      seqEnd      u64                            seqEnd      i64
      count       i32                            count       i32
      messages    records.py                     messages    records.py

The two bytes after the topic tell them apart: 0 in S for every partition below 65,536; in D the length of the
partition's digits, 1 to 5. Answers are always in layout S. The sequences of the header are not compared with the
messages': Java computes them from the first message alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from struct import Struct
from struct import error as StructError  # noqa: N812 - a class, whatever its name
from typing import Final

from cursus_gateway.delivery import Written
from cursus_gateway.framing import Parts, length_of
from cursus_gateway.records import MalformedMessages, Messages, read_messages

MAGIC: Final = b"\xba\x7c"

# One message, no text but a topic of one byte, in layout S with acks left empty.
SMALLEST_BYTES: Final = 31

MAX_PARTITION_DIGITS: Final = 5

_U16: Final = Struct(">H")
_PARTITION: Final = Struct(">i")
_NUMBERS: Final = Struct(">QQi")

ACKS: Final = {"": "1", "0": "0", "1": "1", "-1": "-1", "all": "-1"}
"""What clients write → what it means."""


class MalformedBatch(ValueError):
    """The body starts with the magic, or was unpacked as if it would, and is no batch. `code` is the wire's word."""

    def __init__(self, reason: str, code: str = "batch_decode_failed") -> None:
        super().__init__(reason)
        self.code = code


@dataclass(frozen=True, slots=True)
class LegacyBatch:
    topic: str
    partition: int
    acks: str
    """`0`, `1` or `-1`."""
    idempotent: bool
    count: int
    messages: Messages
    unread: memoryview | None = None
    """The bytes of the messages, while it is open whether their sequences are to be judged."""

    def decided(self, *, judged: bool) -> LegacyBatch:
        """The batch without the flag, after its topic was asked. If that wants sequences judged, the messages are read
        again, since their numbers go elsewhere then: few producers leave the flag out on such a topic.
        """
        if not judged or self.unread is None:
            return replace(self, unread=None)
        messages = read_messages(bytes(self.unread), 0, self.count, judged=True)
        return replace(self, idempotent=True, messages=messages, unread=None)


def decode(body: bytes) -> LegacyBatch:
    """The batch, its messages already as record sets. Raises MalformedBatch."""
    try:
        return _decode(body)
    except StructError as error:
        raise MalformedBatch("cut short inside the header") from error
    except UnicodeDecodeError as error:
        raise MalformedBatch("topic or acks is not UTF-8") from error
    except MalformedMessages as error:
        raise MalformedBatch(str(error)) from error


def _decode(body: bytes) -> LegacyBatch:
    if body[:2] != MAGIC:
        raise MalformedBatch("no batch magic")
    topic, position = _text(body, 2)
    if not topic:
        raise MalformedBatch("the topic is empty")
    (digits,) = _U16.unpack_from(body, position)
    if digits == 0:
        (partition,) = _PARTITION.unpack_from(body, position)
        size = body[position + 4] if len(body) > position + 4 else 0
        acks = body[position + 5 : position + 5 + size].decode()
        position += 5 + size
    elif digits <= MAX_PARTITION_DIGITS and body[position + 2 : position + 2 + digits].isdigit():
        partition = int(body[position + 2 : position + 2 + digits])
        acks, position = _text(body, position + 2 + digits)
    else:
        raise MalformedBatch("neither of the two header layouts")
    if position >= len(body):
        raise MalformedBatch("cut short inside the header")
    idempotent = body[position] != 0
    _, _, count = _NUMBERS.unpack_from(body, position + 1)
    if count < 0:
        raise MalformedBatch(f"a message count of {count}")
    known_acks = ACKS.get(acks.lower())
    if known_acks is None:
        raise MalformedBatch(f"acks must be 0, 1, -1 or all, not {acks[:20]!r}", code="invalid_acks")
    start = position + 21
    messages = read_messages(body, start, count, judged=idempotent)
    unread = None if idempotent else memoryview(body)[start:]
    return LegacyBatch(topic, partition, known_acks, idempotent, count, messages, unread)


def _text(body: bytes, position: int) -> tuple[str, int]:
    (size,) = _U16.unpack_from(body, position)
    position += 2
    if position + size > len(body):
        raise MalformedBatch("cut short inside the header")
    return body[position : position + size].decode(), position + size


def encode_answer(topic: str, partition: int, written: Written) -> Parts:
    """A whole frame, in parts."""
    return frame_of(topic.encode()[:0xFFFF], partition, written)


def head_bytes(topic: str) -> int:
    """What stands before the messages of an answer."""
    return 31 + len(topic.encode()[:0xFFFF])


def empty_answer(topic: str, partition: int) -> bytes:
    """A frame without messages: an answer when there is nothing, and what keeps a Java stream alive."""
    return b"".join(frame_of(topic.encode()[:0xFFFF], partition, Written([])))


def frame_of(name: bytes, partition: int, written: Written) -> Parts:
    head = b"".join(
        (
            MAGIC,
            _U16.pack(len(name)),
            name,
            _PARTITION.pack(partition),
            b"\x011\0",  # acks "1", not idempotent
            _NUMBERS.pack(written.first_sequence, written.last_sequence, written.count),
        )
    )
    return [length_of(len(head) + written.size), head, *written.parts]
