"""What is remembered of clients across their connections: which of two answers to FETCH_OFFSET a peer understands.

Most clients open a connection for every command, so a connection alone cannot know. What is kept is a hint with an end:
entries are forgotten after five minutes and beyond a bound, and a gateway that has forgotten asks by trying (RULE 22).
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from cursus_gateway.settings import ReplyProfile

FORGET_AFTER_S: Final = 300.0
MAX_ENTRIES: Final = 20_000


@dataclass(slots=True)
class _Asked:
    bare: bool
    at: float
    moved_on: bool = False


class Peers:
    def __init__(self) -> None:
        self._forms: OrderedDict[tuple[str, str], tuple[bool, float]] = OrderedDict()
        self._asked: OrderedDict[tuple[str, str, str, int], _Asked] = OrderedDict()
        self._joined: OrderedDict[tuple[str, str], float] = OrderedDict()

    def answers_bare(
        self, profile: ReplyProfile, peer: str, group: str, topic: str, partition: int, now: float
    ) -> bool:
        """Whether this FETCH_OFFSET is answered with a bare number rather than `OK offset=`.

        A peer that asks the same again without having used the answer did not understand it, and gets the other one;
        unless it joined its group in between, for then it begins anew.
        """
        if profile is not ReplyProfile.AUTO:
            return profile is ReplyProfile.BARE
        known = self._forms.get((peer, group))
        bare = known[0] if known is not None and now - known[1] < FORGET_AFTER_S else False
        place = (peer, group, topic, partition)
        before = self._asked.get(place)
        began_anew = before is not None and self._joined.get((peer, group), 0.0) > before.at
        if before is not None and not before.moved_on and not began_anew and now - before.at < FORGET_AFTER_S:
            bare = not before.bare
            self.saw_form(peer, group, bare, now)
        self._asked[place] = _Asked(bare, now)
        self._asked.move_to_end(place)
        while len(self._asked) > MAX_ENTRIES:
            self._asked.popitem(last=False)
        return bare

    def moved_on(self, peer: str, group: str, topic: str, partition: int) -> None:
        """The peer consumes, streams or commits: whatever it was answered, it understood."""
        asked = self._asked.get((peer, group, topic, partition))
        if asked is not None:
            asked.moved_on = True

    def joined(self, peer: str, group: str, now: float) -> None:
        """The peer joins its group: what it asks next it asks because of that."""
        self._joined[(peer, group)] = now
        self._joined.move_to_end((peer, group))
        while len(self._joined) > MAX_ENTRIES:
            self._joined.popitem(last=False)

    def saw_form(self, peer: str, group: str, bare: bool, now: float) -> None:
        """The peer's wording shows its generation: the second takes the bare number, the third `OK`."""
        self._forms[(peer, group)] = (bare, now)
        self._forms.move_to_end((peer, group))
        while len(self._forms) > MAX_ENTRIES:
            self._forms.popitem(last=False)
