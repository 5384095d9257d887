from __future__ import annotations

import itertools

import pytest

from cursus_gateway.framing import MAX_BODY_BYTES, FrameReader, frame

LIST_IN_AN_EMPTY_ENVELOPE = bytes.fromhex("00 00 00 06 00 00 4C 49 53 54")
OK_ANSWER = bytes.fromhex("00 00 00 02 4F 4B")


def feed(reader: FrameReader, *pieces: bytes) -> list[bytes]:
    bodies: list[bytes] = []
    for piece in pieces:
        found, bad = reader.feed(memoryview(piece))
        assert bad is None
        bodies += found
    return bodies


def test_an_answer_is_its_length_and_its_bytes() -> None:
    assert frame(b"OK") == OK_ANSWER


def test_a_frame_is_read_whole() -> None:
    assert feed(FrameReader(), LIST_IN_AN_EMPTY_ENVELOPE) == [b"\0\0LIST"]


@pytest.mark.parametrize("cuts", list(itertools.combinations(range(1, 16), 2)))
def test_frames_survive_being_cut_anywhere(cuts: tuple[int, int]) -> None:
    stream = LIST_IN_AN_EMPTY_ENVELOPE + OK_ANSWER + b"\0\0\0\0"
    pieces = stream[: cuts[0]], stream[cuts[0] : cuts[1]], stream[cuts[1] :]
    assert feed(FrameReader(), *pieces) == [b"\0\0LIST", b"OK", b""]


def test_pipelined_frames_come_out_in_order() -> None:
    assert feed(FrameReader(), b"".join(frame(b"%d" % n) for n in range(100))) == [b"%d" % n for n in range(100)]


@pytest.mark.parametrize("cut", range(5))
def test_a_length_above_the_limit_is_told_without_keeping_anything(cut: int) -> None:
    reader = FrameReader()
    feed(reader, OK_ANSWER)
    bad_prefix = (MAX_BODY_BYTES + 1).to_bytes(4, "big")
    feed(reader, bad_prefix[:cut][:3])
    _, bad = reader.feed(memoryview(bad_prefix[min(cut, 3) :] + b"x" * 1000))
    assert bad is not None
    assert bad.size == MAX_BODY_BYTES + 1
    assert reader.pending_bytes <= 4


def test_frames_before_a_bad_length_are_served() -> None:
    bodies, bad = FrameReader().feed(memoryview(OK_ANSWER + b"\xff\xff\xff\xff"))
    assert bodies == [b"OK"]
    assert bad is not None


def test_the_largest_allowed_length_is_waited_for() -> None:
    reader = FrameReader()
    assert reader.feed(memoryview(MAX_BODY_BYTES.to_bytes(4, "big"))) == ([], None)
    assert reader.inside_frame
    assert reader.feed(memoryview(b"x"))[1] is None
    assert reader.wanted_bytes == MAX_BODY_BYTES + 4
