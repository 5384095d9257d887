"""Room for messages is used again, but never while somebody has the message, or a part of it."""

from __future__ import annotations

import threading

from cursus_transport.buffers import Buffers

SIZE = 100_000


def take_marked(buffers: Buffers, size: int = SIZE) -> tuple[bytearray, bool]:
    """Room, and whether it was used before: then it was marked. New room is all zeros."""
    room = buffers.room(size)
    assert room is not None
    used = b"\xff" in room
    room[:] = b"\xff" * size
    return room, used


def test_room_is_used_again_as_soon_as_nobody_has_the_message() -> None:
    buffers = Buffers()
    assert [take_marked(buffers)[1] for _ in range(3)] == [False, True, True]


def test_room_is_as_large_as_the_message_whatever_was_in_it_before() -> None:
    buffers = Buffers()
    sizes = [SIZE, 3 * SIZE, SIZE - 1, 2 * SIZE, 2 * SIZE]
    assert [len(take_marked(buffers, size)[0]) for size in sizes] == sizes


def test_a_message_that_somebody_has_keeps_its_room() -> None:
    buffers = Buffers()
    had = [take_marked(buffers) for _ in range(3)]
    assert [used for _, used in had] == [False, False, False]
    assert len({id(room) for room, _ in had}) == 3


def test_a_part_of_a_message_keeps_all_of_its_room() -> None:
    buffers = Buffers()
    part = memoryview(take_marked(buffers)[0])[10:20]
    other = buffers.room(SIZE)
    assert other is not None
    other[:] = bytes(SIZE)
    assert bytes(part) == b"\xff" * 10
    part.release()
    assert take_marked(buffers)[1]


def test_there_is_room_for_so_many_at_once_and_no_more() -> None:
    buffers = Buffers()
    rooms = [buffers.room(SIZE) for _ in range(50)]
    assert [room is not None for room in rooms] == [True] * 8 + [False] * 42
    assert buffers.room(SIZE) is None
    rooms.clear()
    assert buffers.room(SIZE) is not None


def test_there_is_none_for_messages_that_are_small_or_very_large() -> None:
    buffers = Buffers()
    assert [buffers.room(size) for size in (0, 1, 1000, 5_000_000)] == [None] * 4


def test_threads_share_nothing() -> None:
    buffers = Buffers()
    assert not take_marked(buffers)[1]
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(take_marked(buffers)[1]))
    thread.start()
    thread.join()
    assert found == [False]
    assert take_marked(buffers)[1]
