"""The memory of contents against the plainest model of it, and its bounds against any history."""

from __future__ import annotations

import asyncio
from typing import Final

from hypothesis import given
from hypothesis import strategies as st

from cursus_broker.log.api import Offset
from cursus_broker.pace import Pace
from cursus_broker.publish.dedup import ContentLimits, ContentMemory, Fingerprint

WINDOW_MS: Final = 10
TOPICS: Final = 3

# Time passes; a content is published to a topic: stored unless it is found. -1: a cleanup.
HISTORY = st.lists(st.tuples(st.integers(0, 4), st.integers(0, TOPICS - 1), st.integers(-1, 12)), max_size=120)


def fingerprint(content: int) -> Fingerprint:
    return Fingerprint(content, content * 256, content)  # all in one shard


@given(HISTORY, st.integers(1, 6))
def test_a_topic_knows_its_newest_contents_of_the_window_and_where_they_are(
    history: list[tuple[int, int, int]], topic_entries: int
) -> None:
    memory = ContentMemory(ContentLimits(WINDOW_MS, topic_entries, total_entries=1_000))
    windows = [memory.open() for _ in range(TOPICS)]
    stored: list[list[tuple[int, int, int]]] = [[] for _ in range(TOPICS)]  # content, offset and time of each mark
    now_ms = 0
    for offset, (passed_ms, topic, content) in enumerate(history):
        now_ms += passed_ms
        if content < 0:
            asyncio.run(memory.clean(now_ms, Pace(2)))
            stored = [[one for one in marks if one[2] > now_ms - WINDOW_MS] for marks in stored]
            continue
        known = {mark[0]: mark for mark in stored[topic] if mark[2] > now_ms - WINDOW_MS}.get(content)
        found = windows[topic].find(fingerprint(content), now_ms)
        assert (found and (found.offset, found.time_ms)) == (known and known[1:])
        if found is None:
            windows[topic].remember(fingerprint(content), 0, Offset(offset), now_ms)
            stored[topic] = [*stored[topic], (content, offset, now_ms)][-topic_entries:]
        assert [len(window) for window in windows] == [len(marks) for marks in stored]


@given(HISTORY, st.integers(1, 6), st.integers(1, 10))
def test_bounds_hold_and_every_content_is_there_cleaned_up_or_counted_as_forgotten_early(
    history: list[tuple[int, int, int]], topic_entries: int, total_entries: int
) -> None:
    memory = ContentMemory(ContentLimits(1_000, topic_entries, total_entries))
    windows = [memory.open() for _ in range(TOPICS)]
    now_ms = remembered = 0
    for number, (passed_ms, topic, _) in enumerate(history):
        now_ms += passed_ms
        windows[topic].remember(fingerprint(number), 0, Offset(number), now_ms)
        remembered += 1
        assert windows[topic].find(fingerprint(number), now_ms) is not None or total_entries < TOPICS * topic_entries
        assert max(map(len, windows)) <= topic_entries
        assert memory.total == sum(map(len, windows)) == sum(map(len, memory.shards)) <= total_entries
    forgotten = sum(window.forgotten_early for window in windows)
    assert remembered == memory.total + forgotten
    assert asyncio.run(memory.clean(now_ms + 1_000, Pace(3))) == remembered - forgotten
    assert memory.total == 0
