"""Carries out the rebalances of large groups: one after the other, in slices, so that nobody else waits for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from cursus_broker.groups.entry import GroupEntry
from cursus_broker.groups.plan import Plan, Tempo
from cursus_broker.pace import Pace

MAX_TRIES: Final = 3
"""Plans in a row that may be given up because the group changed meanwhile. One more is applied as far as it holds, so
that a group in which somebody joins all the time is rebalanced all the same."""


class Rebalancer:
    """Plans and applies. Counts what it does: tests and measurements look at that, not at clocks."""

    def __init__(self, tempo: Tempo, now_ms: Callable[[], int], applied: Callable[[GroupEntry], None]) -> None:
        self.plans_begun = 0
        self.plans_applied = 0
        self.members_told = 0
        self.longest_planned = 0
        """The most steps of planning that were taken in one piece."""
        self.most_moved = 0
        """The most partitions that were given to another member in one piece, which is the step that applies a plan."""
        self._tempo = tempo
        self._now_ms = now_ms
        self._applied = applied
        self._due: dict[str, GroupEntry] = {}

    @property
    def is_due(self) -> bool:
        return bool(self._due)

    def note(self, entry: GroupEntry, now_ms: int) -> None:
        """Take the group into the next run if it is due."""
        if entry.group.due_ms is not None and entry.group.due_ms <= now_ms:
            self._due[entry.group.name] = entry

    async def run(self, topics: Callable[[], Mapping[str, int]]) -> None:
        """Rebalance every group that was noted."""
        while self._due:
            name, entry = next(iter(self._due.items()))
            await self._rebalance(entry, topics)
            # Only now: a run that is cancelled has not forgotten it.
            self._due.pop(name, None)

    async def _rebalance(self, entry: GroupEntry, topics: Callable[[], Mapping[str, int]]) -> None:
        group = entry.group
        plan: Plan | None = None
        for tries in range(MAX_TRIES + 1):
            if group.due_ms is None:
                return  # it has become so small that the change itself has settled it
            plan = group.plan(topics())
            await self._work(entry, plan, to_the_end=tries == MAX_TRIES)
            if plan.version == group.version:
                break
        if plan is None or group.due_ms is None:
            return
        effects = group.apply(plan, topics(), self._now_ms())
        self.plans_applied += 1
        self.most_moved = max(self.most_moved, len(plan.moves))
        self._applied(entry)
        pace = Pace(self._tempo.told_together)
        for member_id in effects.woken:
            entry.wake(member_id)
            self.members_told += 1
            await pace.took()

    async def _work(self, entry: GroupEntry, plan: Plan, *, to_the_end: bool) -> None:
        self.plans_begun += 1
        pace = Pace(self._tempo.slice_steps)
        for steps in plan.work():
            self.longest_planned = max(self.longest_planned, steps)
            await pace.took(steps)
            if plan.version != entry.group.version and not to_the_end:
                return
