"""Record sets of all kinds: alike, odd, and contrived."""

from __future__ import annotations

import random

from hypothesis import strategies as st

from cursus_proto.v1.records_pb2 import Header, Record

COUNTS = st.integers(64, 200)


@st.composite
def shapes(draw: st.DrawFn) -> list[Record]:
    """Records of which each has the same fields, of mostly the same sizes."""
    chance = random.Random(draw(st.integers(0, 2**32)))
    key_bytes = draw(st.sampled_from([None, 0, 1, 8, 200]))
    value_bytes = draw(st.sampled_from([None, 0, 1, 100, 127, 128, 300]))
    numbers = draw(st.sampled_from([(0, 0), (1, 100), (1_700_000_000_000, 1_700_000_100_000), (-5, 5), (0, 2**40)]))
    headers = draw(
        st.sampled_from([[], [Header(key="source", value=b"shop")], [Header(key="null"), Header(value=b"")]])
    )
    metadata_bytes = draw(st.sampled_from([0, 0, 5]))
    odd_one = draw(st.none() | st.integers(0, 63))
    records = [
        Record(
            key=None if key_bytes is None else chance.randbytes(key_bytes),
            value=None if value_bytes is None else chance.randbytes(value_bytes),
            timestamp_ms=chance.randint(*numbers),
            headers=headers,
            metadata=chance.randbytes(metadata_bytes),
        )
        for _ in range(draw(COUNTS))
    ]
    if odd_one is not None:
        make_odd(records[odd_one], draw(st.integers(0, 6)))
    return records


def make_odd(record: Record, way: int) -> None:
    match way:
        case 0:
            record.ClearField("key")
        case 1:
            record.value += b"x"
        case 2:
            record.metadata = b"m" * 5
        case 3:
            record.schema_version = 3
        case 4:
            record.ClearField("value")
        case 5:
            record.value = b""
        case _:
            record.headers.add(key="other")


def value_of(message: Record | Header) -> bytes | None:
    return message.value if message.HasField("value") else None


# Pieces that a parser takes or refuses for reasons of its own: twice the same field, tags and lengths that are longer
# than they need be, groups, unknown fields, headers that are not text, numbers that are too long.
PIECES = st.sampled_from(
    [
        b"\x12\x01a",
        b"\x12\x01b",
        b"\x12\x81\x00c",
        b"\x92\x00\x01d",
        b"\x12\x00",
        b"\x0a\x01k",
        b"\x0a\x00",
        b"\x18\x01",
        b"\x18\x81\x80\x00",
        b"\x18" + b"\xff" * 9 + b"\x01",
        b"\x18" + b"\xff" * 9 + b"\x7f",
        b"\x18" + b"\xff" * 10 + b"\x01",
        b"\x1a\x01z",
        b"\x13\x14",
        b"\x22\x03\x0a\x01\xff",
        b"\x22\x03\x0a\x01h",
        b"\x22\x00",
        b"\x5a\x01u",
        b"\x00\x00",
        b"\x48\x05",
        b"\x50\x05",
        b"\x12",
        b"\x18",
    ]
)


@st.composite
def contrived(draw: st.DrawFn) -> tuple[bytes, int]:
    """A set of contrived records, all alike or of two kinds of the same size."""
    count = draw(COUNTS)
    bodies = [b"".join(draw(st.lists(PIECES, max_size=4))) for _ in range(draw(st.integers(1, 2)))]
    if len(bodies) == 2 and len(bodies[0]) != len(bodies[1]):
        bodies[1] = bytes(reversed(bodies[0]))
    return b"".join(b"\x0a" + bytes([len(body)]) + body for body in (bodies * count)[:count]), count
