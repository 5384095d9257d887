"""Which segments have served their time. Decides and touches nothing; `SegmentLog.retain` carries it out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from cursus_broker.log.api import RetentionPolicy


class Aging(Protocol):
    """What retention looks at in a segment."""

    @property
    def next_offset(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def max_append_ms(self) -> int: ...


def is_old(segment: Aging, policy: RetentionPolicy, now_ms: int) -> bool:
    """Whether every record of the segment is older than the policy allows."""
    return policy.max_age_ms is not None and segment.max_append_ms + policy.max_age_ms <= now_ms


def expired(segments: Sequence[Aging], policy: RetentionPolicy, now_ms: int) -> int:
    """How many of the leading segments may go. The last segment is the active one and always stays.

    By age a segment goes when its youngest record is too old and nothing before it stays. By size segments go as long
    as the rest still holds `max_bytes`: the log keeps at least that much, and less than a segment more.
    """
    sealed = segments[:-1]
    by_age = 0
    while by_age < len(sealed) and is_old(sealed[by_age], policy, now_ms):
        by_age += 1
    by_size = 0
    if policy.max_bytes is not None:
        rest = sum(segment.size_bytes for segment in segments)
        while by_size < len(sealed) and rest - sealed[by_size].size_bytes >= policy.max_bytes:
            rest -= sealed[by_size].size_bytes
            by_size += 1
    return max(by_age, by_size)
