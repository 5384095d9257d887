"""Which groups a topic concerns: a new topic is told to those, and the others are not even looked at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cursus_broker.groups.members import Subscription, compile_pattern
from cursus_broker.groups.state import Group


@dataclass(frozen=True, slots=True)
class _Wish:
    """What the members of one group ask for, all together."""

    topics: frozenset[str]
    patterns: frozenset[str]


_NOTHING: Final = _Wish(frozenset(), frozenset())


class Interest:
    """What the groups subscribe to, by topic and by pattern."""

    def __init__(self) -> None:
        self._wishes: dict[str, _Wish] = {}
        self._by_topic: dict[str, set[str]] = {}
        self._by_pattern: dict[str, set[str]] = {}

    def update(self, group: Group) -> None:
        """The members of the group, or what they subscribe to, may have changed."""
        subscriptions = {member.request.subscription for member in group.members.values()}
        wish = _Wish(
            frozenset().union(*(one.topics for one in subscriptions)),
            frozenset(one.pattern for one in subscriptions if one.pattern),
        )
        self._put(group.name, wish)

    def add(self, group: str, subscription: Subscription) -> None:
        """A member joins, and may wait for the next rebalance: what it asks for counts from now on."""
        known = self._wishes.get(group, _NOTHING)
        patterns = {subscription.pattern} if subscription.pattern else frozenset()
        self._put(group, _Wish(known.topics | subscription.topics, known.patterns | patterns))

    def _put(self, group: str, wish: _Wish) -> None:
        known = self._wishes.get(group, _NOTHING)
        if wish == known:
            return
        _remove(self._by_topic, known.topics - wish.topics, group)
        _remove(self._by_pattern, known.patterns - wish.patterns, group)
        _add(self._by_topic, wish.topics - known.topics, group)
        _add(self._by_pattern, wish.patterns - known.patterns, group)
        if wish != _NOTHING:
            self._wishes[group] = wish
        else:
            self._wishes.pop(group, None)

    def in_topic(self, topic: str) -> set[str]:
        """The groups that subscribe to it, whether it exists or not."""
        found = set(self._by_topic.get(topic, ()))
        for pattern, groups in self._by_pattern.items():
            if compile_pattern(pattern).fullmatch(topic):
                found |= groups
        return found


def _add(table: dict[str, set[str]], keys: frozenset[str], group: str) -> None:
    for key in keys:
        table.setdefault(key, set()).add(group)


def _remove(table: dict[str, set[str]], keys: frozenset[str], group: str) -> None:
    for key in keys:
        groups = table[key]
        groups.discard(group)
        if not groups:
            del table[key]
