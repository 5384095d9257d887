from __future__ import annotations

from dataclasses import dataclass

from cursus_broker.log.api import RetentionPolicy
from cursus_broker.log.retention import expired


@dataclass(frozen=True)
class Aged:
    next_offset: int
    size_bytes: int
    max_append_ms: int


SEGMENTS = [Aged(10, 100, 1000), Aged(20, 100, 2000), Aged(30, 100, 1500), Aged(40, 100, 3000), Aged(50, 50, 3500)]


def test_without_a_limit_nothing_expires() -> None:
    assert expired(SEGMENTS, RetentionPolicy(), 10**9) == 0


def test_age_stops_at_the_first_segment_that_is_young() -> None:
    assert expired(SEGMENTS, RetentionPolicy(max_age_ms=1000), 2000) == 1
    # The third is old enough, the second is not: a log has no holes.
    assert expired(SEGMENTS, RetentionPolicy(max_age_ms=1000), 2700) == 1
    assert expired(SEGMENTS, RetentionPolicy(max_age_ms=1000), 3000) == 3


def test_the_active_segment_never_expires() -> None:
    assert expired(SEGMENTS, RetentionPolicy(max_age_ms=0, max_bytes=0), 10**9) == 4


def test_size_keeps_at_least_its_limit() -> None:
    assert expired(SEGMENTS, RetentionPolicy(max_bytes=450), 0) == 0
    assert expired(SEGMENTS, RetentionPolicy(max_bytes=350), 0) == 1
    assert expired(SEGMENTS, RetentionPolicy(max_bytes=349), 0) == 1
    assert expired(SEGMENTS, RetentionPolicy(max_bytes=250), 0) == 2


def test_the_stricter_limit_counts() -> None:
    assert expired(SEGMENTS, RetentionPolicy(max_age_ms=1000, max_bytes=150), 2000) == 3
