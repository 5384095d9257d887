"""The window in which equal anonymous messages are recognised."""

from __future__ import annotations

from cursus_broker.log.api import Offset
from cursus_broker.publish.dedup import ContentWindow, Fingerprint
from cursus_proto.partitioner import key_hash

HELLO = Fingerprint.of(b"hello", b"encoded hello")
WORLD = Fingerprint.of(b"world", b"encoded world")


def test_a_message_is_found_with_its_place_until_the_window_is_over() -> None:
    window = ContentWindow(window_ms=100, max_entries=10)
    window.remember(HELLO, 2, Offset(17), now_ms=1_000)
    found = window.find(HELLO, now_ms=1_099)
    assert found is not None
    assert (found.partition, found.offset, found.time_ms) == (2, 17, 1_000)
    assert window.find(HELLO, now_ms=1_100) is None
    assert window.find(WORLD, now_ms=1_000) is None


def test_the_message_id_is_the_hash_legacy_clients_know() -> None:
    assert HELLO.message_id == key_hash(b"hello") == 0xA430D84680AABD0B


def test_a_colliding_message_id_alone_makes_no_duplicate() -> None:
    window = ContentWindow(window_ms=100, max_entries=10)
    window.remember(HELLO, 0, Offset(0), now_ms=0)
    same_value = Fingerprint.of(b"hello", b"encoded hello with another key")
    assert same_value.message_id == HELLO.message_id
    assert window.find(same_value, now_ms=1) is None
    assert window.find(Fingerprint(HELLO.message_id, HELLO.record_hash, HELLO.record_bytes + 1), now_ms=1) is None


def test_of_colliding_messages_the_newer_is_remembered() -> None:
    window = ContentWindow(window_ms=100, max_entries=10)
    other = Fingerprint(HELLO.message_id, 1, 1)
    window.remember(HELLO, 0, Offset(0), now_ms=0)
    window.remember(other, 0, Offset(1), now_ms=50)
    assert window.find(HELLO, now_ms=60) is None
    assert window.find(other, now_ms=140) is not None
    assert len(window) == 1


def test_cleaning_forgets_what_fell_out_and_counts_it() -> None:
    window = ContentWindow(window_ms=100, max_entries=10)
    window.remember(HELLO, 0, Offset(0), now_ms=0)
    window.remember(WORLD, 0, Offset(1), now_ms=60)
    assert window.clean(now_ms=99) == 0
    assert window.clean(now_ms=100) == 1
    assert len(window) == 1
    assert window.find(WORLD, now_ms=100) is not None
    assert window.clean(now_ms=1_000) == 1
    assert window.clean(now_ms=1_000) == 0


def test_the_window_is_bounded_and_counts_what_went_early() -> None:
    window = ContentWindow(window_ms=100, max_entries=2)
    for number in range(3):
        window.remember(Fingerprint(number, number, number), 0, Offset(number), now_ms=number)
    assert len(window) == 2
    assert window.evicted_early == 1
    assert window.find(Fingerprint(0, 0, 0), now_ms=3) is None
