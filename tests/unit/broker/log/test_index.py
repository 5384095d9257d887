from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cursus_broker.log.index import NO_TIME, IndexCache, SparseIndex, Summary, unpack_index

ENTRIES = st.lists(st.tuples(st.integers(1, 9), st.integers(60, 500), st.integers(0, 1000)), min_size=1, max_size=60)
"""Records, bytes and append time of consecutive entries."""


def build(entries: list[tuple[int, int, int]], interval_bytes: int) -> tuple[SparseIndex, Summary]:
    index, offset, position, highest = SparseIndex(), 100, 62, NO_TIME
    for count, size, time_ms in entries:
        index.note(offset, position, highest, interval_bytes)
        offset, position, highest = offset + count, position + size, max(highest, time_ms)
    return index, Summary(position, 100, offset, 5, highest)


@given(ENTRIES, st.integers(1, 2000))
def test_an_index_is_read_as_it_was_written(entries: list[tuple[int, int, int]], interval_bytes: int) -> None:
    index, summary = build(entries, interval_bytes)
    found = unpack_index(index.pack(summary))
    assert found is not None
    assert found[1] == summary
    for column in ("offsets", "positions", "times"):
        assert getattr(found[0], column) == getattr(index, column)


@given(ENTRIES, st.integers(1, 2000), st.data())
def test_a_search_begins_at_or_before_its_goal(
    entries: list[tuple[int, int, int]], interval_bytes: int, data: st.DataObject
) -> None:
    index, summary = build(entries, interval_bytes)
    wanted = data.draw(st.integers(100, summary.next_offset - 1))
    assert index.find_offset(wanted)[0] <= wanted
    time_ms = data.draw(st.integers(0, 1001))
    begin, offset = index.find_time(time_ms)[0], 100
    for count, _, appended_ms in entries:
        if offset < begin:
            assert appended_ms < time_ms
        offset += count


@given(ENTRIES, st.data())
def test_any_damage_makes_an_index_worthless(entries: list[tuple[int, int, int]], data: st.DataObject) -> None:
    index, summary = build(entries, 300)
    content = bytearray(index.pack(summary))
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert unpack_index(bytes(content)) is None
    assert unpack_index(bytes(content[: data.draw(st.integers(0, len(content) - 1))])) is None


def test_the_cache_is_bounded_by_items_and_drops_the_least_recently_used() -> None:
    cache = IndexCache(max_items=25)
    index, _ = build([(1, 100, 0)] * 9, 1)
    for path in ("a", "b"):
        cache.put(path, index)
    assert cache.get("a") is index
    cache.put("c", index)
    assert cache.get("b") is None
    assert len(cache) == 2
    cache.forget("a")
    assert cache.get("a") is None
