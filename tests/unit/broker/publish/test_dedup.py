"""The window in which equal anonymous messages are recognised, and the memory all windows share."""

from __future__ import annotations

import asyncio

import pytest

from cursus_broker.log.api import Offset
from cursus_broker.pace import Pace
from cursus_broker.publish.dedup import ContentLimits, ContentMemory, ContentWindow, Fingerprint
from cursus_proto.partitioner import key_hash
from cursus_proto.v1.records_pb2 import Record

HELLO = Fingerprint.of(Record(value=b"hello"))
WORLD = Fingerprint.of(Record(value=b"world"))
MANY = 10_000


def memory(window_ms: int = 100, topic_entries: int = MANY, total_entries: int = 10 * MANY) -> ContentMemory:
    return ContentMemory(ContentLimits(window_ms, topic_entries, total_entries))


def content(number: int) -> Fingerprint:
    # Spread like a hash, so that the numbers do not all fall into one part of the memory.
    return Fingerprint(number, number * 0x9E3779B97F4A7C15 % 2**64, number)


def fill(window: ContentWindow, count: int, now_ms: int = 0, first: int = 0) -> None:
    for number in range(first, first + count):
        window.remember(content(number), 0, Offset(number), now_ms)


def held(shared: ContentMemory) -> int:
    """Marks that the dictionaries hold."""
    return sum(map(len, shared.shards))


def test_a_message_is_found_with_its_place_until_the_window_is_over() -> None:
    window = memory().open()
    window.remember(HELLO, 2, Offset(17), now_ms=1_000)
    assert window.find(HELLO, now_ms=1_099) == (2, 17, 1_000)
    assert window.find(HELLO, now_ms=1_100) is None
    assert window.find(WORLD, now_ms=1_000) is None


def test_the_message_id_is_the_hash_legacy_clients_know() -> None:
    assert HELLO.message_id == key_hash(b"hello") == 0xA430D84680AABD0B


def test_a_colliding_hash_alone_makes_no_duplicate() -> None:
    window = memory().open()
    window.remember(HELLO, 0, Offset(0), now_ms=0)
    assert window.find(HELLO, now_ms=1) is not None
    assert window.find(HELLO._replace(record_hash=1), now_ms=1) is None
    assert window.find(HELLO._replace(message_id=1), now_ms=1) is None
    assert window.find(HELLO._replace(record_bytes=HELLO.record_bytes + 1), now_ms=1) is None


def test_equal_values_under_different_keys_are_remembered_side_by_side() -> None:
    """They have the same message id, and displaced each other while that was what they were looked up by."""
    window = memory().open()
    keyed = [Fingerprint.of(Record(key=b"%d" % number, value=b"hello")) for number in range(5)]
    for number, fingerprint in enumerate(keyed):
        window.remember(fingerprint, 0, Offset(number), now_ms=0)
    assert [found and found.offset for found in (window.find(one, now_ms=1) for one in keyed)] == [0, 1, 2, 3, 4]


async def test_of_colliding_messages_the_newer_is_remembered_and_the_older_counts_as_forgotten_early() -> None:
    shared = memory()
    window = shared.open()
    other = Fingerprint(1, HELLO.record_hash, 1)
    window.remember(HELLO, 0, Offset(0), now_ms=0)
    window.remember(other, 0, Offset(1), now_ms=50)
    assert window.find(HELLO, now_ms=60) is None
    assert window.find(other, now_ms=140) is not None
    assert window.forgotten_early == 1
    assert held(shared) == 1
    await shared.clean(100, Pace())
    assert window.find(other, now_ms=140) is not None, "the older one's time is not the newer one's"
    assert len(window) == 1


def test_topics_do_not_know_each_others_contents() -> None:
    shared = memory()
    one, other = shared.open(), shared.open()
    one.remember(HELLO, 0, Offset(0), now_ms=0)
    assert other.find(HELLO, now_ms=1) is None
    other.remember(HELLO, 1, Offset(5), now_ms=1)
    assert one.find(HELLO, now_ms=2) == (0, 0, 0)
    assert other.find(HELLO, now_ms=2) == (1, 5, 1)


async def test_cleaning_forgets_what_fell_out_and_counts_it() -> None:
    shared = memory()
    window = shared.open()
    window.remember(HELLO, 0, Offset(0), now_ms=0)
    window.remember(WORLD, 0, Offset(1), now_ms=60)
    assert await shared.clean(99, Pace()) == 0
    assert await shared.clean(100, Pace()) == 1
    assert len(window) == shared.total == held(shared) == 1
    assert window.find(WORLD, now_ms=100) is not None
    assert await shared.clean(1_000, Pace()) == 1
    assert await shared.clean(1_000, Pace()) == 0
    assert window.forgotten_early == 0
    assert shared.total == held(shared) == 0


async def turns_meanwhile(shared: ContentMemory, pace: Pace, *, window: ContentWindow | None = None) -> list[int]:
    """What is held at every turn another task gets while the memory is cleaned, or a window of it dropped."""
    sizes: list[int] = []
    work = asyncio.create_task(shared.clean(1_000, pace) if window is None else shared.drop(window, pace))
    while not work.done():
        sizes.append(shared.total)
        await asyncio.sleep(0)
    return sizes


@pytest.mark.parametrize("topics", [1, MANY // 10, MANY], ids=["one topic", "topics of ten", "topics of one"])
async def test_cleaning_takes_a_step_for_each_content_and_topic_and_lets_others_in_between(topics: int) -> None:
    """A dictionary that is emptied from its front is walked from its first slot each time: 230,000 contents took 31 s
    of one step, in which nobody else was served."""
    shared = memory()
    for first in range(topics):
        fill(shared.open(), MANY // topics, first=first)
    pace = Pace(slice_steps=500)
    sizes = await turns_meanwhile(shared, pace)
    assert shared.total == held(shared) == 0
    assert max(before - after for before, after in zip(sizes, [*sizes[1:], 0], strict=True)) <= 500
    steps = MANY + topics
    assert steps // 500 <= pace.slices <= steps // 500 + 2


async def test_dropping_a_window_lets_others_in_between_and_leaves_the_other_windows_alone() -> None:
    shared = memory()
    doomed, other = shared.open(), shared.open()
    fill(doomed, MANY)
    fill(other, 7)
    sizes = await turns_meanwhile(shared, Pace(slice_steps=500), window=doomed)
    assert shared.total == held(shared) == 7
    assert len(sizes) >= MANY // 500
    assert other.find(content(3), now_ms=1) is not None


def test_the_window_is_bounded_and_counts_what_went_early() -> None:
    shared = memory(topic_entries=2)
    window = shared.open()
    fill(window, 3)
    assert len(window) == held(shared) == 2
    assert window.forgotten_early == 1
    assert window.find(content(0), now_ms=1) is None
    assert window.find(content(1), now_ms=1) is not None


def test_what_goes_at_the_bound_after_its_time_is_not_early() -> None:
    shared = memory(topic_entries=2)
    window = shared.open()
    fill(window, 2, now_ms=0)
    fill(window, 1, now_ms=100, first=2)
    assert len(window) == 2
    assert window.forgotten_early == 0


def test_the_memory_of_all_topics_is_bounded_and_a_large_topic_gives_way() -> None:
    shared = memory(total_entries=1_000)
    quiet, loud, louder = shared.open(), shared.open(), shared.open()
    fill(quiet, 10)
    for number in range(5_000):
        fill(loud if number % 3 else louder, 1, first=number)
    assert shared.total == held(shared) == 1_000
    assert len(quiet) == 10
    assert quiet.forgotten_early == 0
    assert loud.forgotten_early + louder.forgotten_early == 4_010
    assert max(len(loud), len(louder)) <= 2 * min(len(loud), len(louder)) + 1, "neither lives at the other's expense"
    assert loud.find(content(4_999), now_ms=1) is not None, "the newest stays"
