"""Byte layouts written down by hand from the wire document, and a plain writer of message records for larger cases."""

from __future__ import annotations

from dataclasses import dataclass

MESSAGE = """
  00 00 00 00 00 00 00 00
  00 00 00 00 00 00 00 01
  00 02 70 31
  00 02 6B 31
  00 00 00 00 00 00 00 00
  00 00 00 05 68 65 6C 6C 6F
  00 00
  00 00 00 00
  00 00 00 00 00 00 00 00
  00 00
"""
NUMBERS = "00 00 00 00 00 00 00 01  00 00 00 00 00 00 00 01  00 00 00 01"

LAYOUT_S = bytes.fromhex("BA 7C 00 06 6F 72 64 65 72 73 00 00 00 03 01 31 00" + NUMBERS + MESSAGE)
LAYOUT_D = bytes.fromhex("BA 7C 00 06 6F 72 64 65 72 73 00 01 33 00 01 31 00" + NUMBERS + MESSAGE)
EMPTY_ANSWER = bytes.fromhex(
    "00 00 00 25 BA 7C 00 06 6F 72 64 65 72 73 00 00 00 03 01 31 00"
    "00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00"
)


@dataclass(frozen=True)
class Message:
    sequence: int = 0
    producer_id: bytes = b""
    key: bytes = b""
    epoch: int = 0
    payload: bytes = b""
    event_type: bytes = b""
    schema_version: int = 0
    aggregate_version: int = 0
    metadata: bytes = b""
    offset: int = 0

    def encoded(self) -> bytes:
        return b"".join(
            (
                self.offset.to_bytes(8, "big"),
                self.sequence.to_bytes(8, "big"),
                len(self.producer_id).to_bytes(2, "big"),
                self.producer_id,
                len(self.key).to_bytes(2, "big"),
                self.key,
                self.epoch.to_bytes(8, "big", signed=True),
                len(self.payload).to_bytes(4, "big"),
                self.payload,
                len(self.event_type).to_bytes(2, "big"),
                self.event_type,
                self.schema_version.to_bytes(4, "big"),
                self.aggregate_version.to_bytes(8, "big"),
                len(self.metadata).to_bytes(2, "big"),
                self.metadata,
            )
        )


def batch_body(
    messages: list[Message], *, topic: str = "orders", partition: int = 0, acks: str = "1", idempotent: bool = False
) -> bytes:
    """A batch in layout S."""
    first, last = (messages[0].sequence, messages[-1].sequence) if messages else (0, 0)
    return b"".join(
        (
            b"\xba\x7c",
            len(topic.encode()).to_bytes(2, "big"),
            topic.encode(),
            partition.to_bytes(4, "big"),
            bytes([len(acks)]),
            acks.encode(),
            bytes([idempotent]),
            first.to_bytes(8, "big"),
            last.to_bytes(8, "big"),
            len(messages).to_bytes(4, "big"),
            *(message.encoded() for message in messages),
        )
    )
