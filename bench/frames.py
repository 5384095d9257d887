"""The bytes of the TCP protocol as its clients write them, batches and commands. Built before the clock runs."""

from __future__ import annotations

import random
from functools import lru_cache
from struct import Struct
from typing import Final

from bench import batches
from cursus_gateway.batch import decode

PRODUCER_ID: Final = b"6f1c2a9e-4d0b-4c57-9a51-0e7f3b2d8c64"
"""A UUID in text, as the Go client's."""
# Large enough for all sequences of a batch to take the same number of bytes, as they do for a producer that has been
# at work for a while.
FIRST_SEQUENCE: Final = 1_000_001

_LENGTH: Final = Struct(">I")
_SHORT_LENGTH: Final = Struct(">H")
_HEADER_NUMBERS: Final = Struct(">iB1sBQQi")  # partition, acks with its length, idempotent, sequences, count
_OFFSET_SEQUENCE: Final = Struct(">QQ")
_EPOCH_PAYLOAD_LENGTH: Final = Struct(">qI")
_NO_EVENT: Final = bytes(16)


@lru_cache(maxsize=16)
def batch_frame(topic: str, *, mixed_sizes: bool = False) -> bytes:
    """A framed 0xBA7C batch for partition 0 with acks 1 from a numbered producer that does not ask for idempotence, so
    that it may be sent again and again. Payloads have 100 bytes each, or that on average."""
    count, size = batches.RECORDS_PER_BATCH, batches.VALUE_BYTES
    chance = random.Random(count)
    name = topic.encode()
    last_sequence = FIRST_SEQUENCE + count - 1
    parts = [
        b"\xba\x7c",
        _SHORT_LENGTH.pack(len(name)) + name,
        _HEADER_NUMBERS.pack(0, 1, b"1", 0, FIRST_SEQUENCE, last_sequence, count),
    ]
    for index in range(count):
        payload = chance.randbytes(chance.randint(size // 2, size * 3 // 2) if mixed_sizes else size)
        parts += [
            _OFFSET_SEQUENCE.pack(0, FIRST_SEQUENCE + index),
            _SHORT_LENGTH.pack(len(PRODUCER_ID)) + PRODUCER_ID,
            _SHORT_LENGTH.pack(0),  # no key
            _EPOCH_PAYLOAD_LENGTH.pack(0, len(payload)),
            payload,
            _NO_EVENT,
        ]
    return _framed(b"".join(parts))


def stored_set_bytes(topic: str, *, mixed_sizes: bool = False) -> int:
    """How large the record set is that the broker stores of such a batch."""
    return len(decode(batch_frame(topic, mixed_sizes=mixed_sizes)[_LENGTH.size :]).messages.runs[0].record_set)


def publish_command(topic: str) -> bytes:
    """A framed PUBLISH of one message of 100 characters in the second generation's words."""
    text = random.Random(0).randbytes(batches.VALUE_BYTES // 2).hex()
    return _command(f"PUBLISH topic={topic} acks=1 producerId={PRODUCER_ID.decode()} message={text}")


def consume_command(topic: str, offset: int) -> bytes:
    """A framed CONSUME of partition 0, answered with one batch of at most 8192 messages."""
    return _command(f"CONSUME topic={topic} partition=0 offset={offset} member=bench")


def count_in(head: bytes) -> int | None:
    """How many messages the batch has whose first bytes these are; None if it is no batch."""
    if head[:2] != b"\xba\x7c":
        return None
    name_bytes = int.from_bytes(head[2:4], "big")
    return int(_HEADER_NUMBERS.unpack_from(head, 4 + name_bytes)[-1])


def _command(text: str) -> bytes:
    """In an envelope without a topic, as all clients but Java's send it."""
    return _framed(_SHORT_LENGTH.pack(0) + text.encode())


def _framed(body: bytes) -> bytes:
    return _LENGTH.pack(len(body)) + body
