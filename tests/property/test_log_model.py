"""The log against a list: whatever is done to both in whatever order, they agree."""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from cursus_broker.errors import OffsetOutOfRange
from cursus_broker.log.api import Offset, RetentionPolicy, TimedOffset
from cursus_broker.log.engine import SegmentEngine
from cursus_broker.log.epochs import Epochs
from cursus_broker.log.forgetful import ForgetfulFiles
from cursus_broker.log.log import SegmentLog
from cursus_broker.log.settings import LogSettings
from tests.unit.broker.log.support import Stored, append, batch_of, read_all, retained, stored

T = TypeVar("T")

SETTINGS = LogSettings(
    segment_bytes=1024, segment_ms=10_000, index_interval_bytes=200, open_files=8, linger_ms=60_000, flush_records=10**6
)


class LogAgainstModel(RuleBasedStateMachine):
    """`model` is what was appended and not retired, with the time of each batch in `times`."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.directory = tempfile.TemporaryDirectory(prefix="log-model-")
        self.root = Path(self.directory.name)
        self.files = ForgetfulFiles(self.root)
        self.engine: SegmentEngine
        self.log: SegmentLog
        self.model: list[Stored] = []
        self.times: dict[int, int] = {}
        self.earliest = 0
        self.next_offset = 0
        self.synced = 0
        self.now_ms = 0
        self.epochs: Epochs | None = None
        self.openings = 0
        # Where the log ended at openings without a clean close, by the epoch that began there; and readers, each with
        # the epoch it was in and the offset it was at.
        self.ends: dict[int, int] = {}
        self.readers: set[tuple[int, int]] = set()

    def run(self, work: Coroutine[object, object, T]) -> T:
        return self.runner.run(work)

    async def open(self) -> None:
        self.engine = SegmentEngine(self.root, SETTINGS, files=self.files, now_ms=lambda: self.now_ms)
        self.openings += 1
        self.log, recovered = await self.engine.open("orders", 0, self.epochs, self.openings)
        await self.engine.secure("orders", [0])
        self.engine.all_opened()
        if recovered.epochs != self.epochs:
            self.ends[self.openings] = recovered.next_offset
        self.epochs = recovered.epochs

    @initialize()
    def start(self) -> None:
        self.run(self.open())

    @rule(payload=st.binary(max_size=300) | st.binary(min_size=1000, max_size=1500), count=st.integers(1, 4))
    def append(self, payload: bytes, count: int) -> None:
        async def work() -> Stored:
            return append(self.log, batch_of(payload, count), self.now_ms)

        entry = self.run(work())
        assert entry == Stored(self.next_offset, count, payload)
        self.model.append(entry)
        self.times[entry.base_offset] = self.now_ms
        self.next_offset = entry.next_offset

    @rule(step_ms=st.integers(-500, 4000))
    def time_passes(self, step_ms: int) -> None:
        """Clocks step back, too."""
        self.now_ms = max(self.now_ms + step_ms, 0)

    @rule(fraction=st.floats(0, 1), max_bytes=st.integers(0, 3000))
    def read_somewhere(self, fraction: float, max_bytes: int) -> None:
        offset = self.earliest + round(fraction * (self.next_offset - self.earliest))
        found = [stored(entry) for entry in self.run(self.log.read(Offset(offset), max_bytes))]
        expected = retained(self.model, offset, self.next_offset)
        assert found == expected[: len(found)]
        assert bool(found) == bool(expected)

    @rule(beyond=st.integers(1, 1000))
    def read_outside(self, beyond: int) -> None:
        for offset in (self.earliest - beyond, self.next_offset + beyond):
            with pytest.raises(OffsetOutOfRange):
                self.run(self.log.read(Offset(offset), 100))

    @rule(fraction=st.floats(0, 1))
    def walk_headers(self, fraction: float) -> None:
        offset = self.earliest + round(fraction * (self.next_offset - self.earliest))

        async def work() -> list[tuple[int, int]]:
            return [(header.base_offset, header.record_count) async for header in self.log.headers(Offset(offset))]

        expected = retained(self.model, offset, self.next_offset)
        assert self.run(work()) == [(entry.base_offset, entry.record_count) for entry in expected]

    @rule(time_ms=st.integers(0, 20_000))
    def find_time(self, time_ms: int) -> None:
        matches = (entry for entry in self.retained() if self.times[entry.base_offset] >= time_ms)
        first = next(matches, None)
        expected = None
        if first is not None:
            expected = TimedOffset(Offset(max(first.base_offset, self.earliest)), self.times[first.base_offset])
        assert self.run(self.log.find_time(time_ms)) == expected

    @rule(fraction=st.floats(0, 1))
    def sync(self, fraction: float) -> None:
        upto = self.synced + round(fraction * (self.next_offset - self.synced))
        self.run(self.log.sync(Offset(upto)))
        assert upto <= self.log.synced_offset <= self.next_offset
        self.synced = self.log.synced_offset

    @rule(fraction=st.floats(0, 1))
    def trim(self, fraction: float) -> None:
        before = self.earliest + round(fraction * (self.next_offset - self.earliest))
        assert self.run(self.log.trim(Offset(before))) == before
        self.earliest = before
        self.synced = self.log.synced_offset

    @rule(max_age_ms=st.none() | st.integers(0, 20_000), max_bytes=st.none() | st.integers(0, 5000))
    def retain(self, max_age_ms: int | None, max_bytes: int | None) -> None:
        before_bytes = self.log.size_bytes
        report = self.run(self.log.retain(RetentionPolicy(max_age_ms, max_bytes), self.now_ms))
        assert self.earliest <= report.earliest_offset <= self.next_offset
        if max_bytes is None:
            # Age alone takes nothing that is young enough.
            for entry in self.retained():
                if entry.next_offset <= report.earliest_offset:
                    assert max_age_ms is not None
                    assert self.times[entry.base_offset] + max_age_ms <= self.now_ms
        if max_age_ms is None and max_bytes is not None:
            assert self.log.size_bytes >= min(max_bytes, before_bytes)
        self.earliest = report.earliest_offset
        self.synced = self.log.synced_offset

    @rule()
    def roll(self) -> None:
        async def work() -> None:
            self.log.roll_if_old(self.now_ms + SETTINGS.segment_ms)

        self.run(work())

    @rule(fraction=st.floats(0, 1))
    def a_reader_stops(self, fraction: float) -> None:
        offset = self.earliest + round(fraction * (self.next_offset - self.earliest))
        self.readers.add((self.log.leader_epoch, offset))

    @rule()
    def readers_are_told_of_cuts_below_them_and_of_nothing_else(self) -> None:
        for epoch, offset in self.readers:
            cut = min((end for begun, end in self.ends.items() if begun > epoch), default=offset)
            expected = max(cut, self.earliest) if cut < offset else None
            assert self.log.truncated(offset, epoch) == expected

    @rule()
    def reopen(self) -> None:
        epoch = self.log.leader_epoch
        self.run(self.engine.close())
        self.run(self.open())
        self.synced = self.next_offset
        assert self.log.leader_epoch == epoch

    @rule()
    def killed(self) -> None:
        """The process dies; the operating system keeps what was written."""
        self.run(self.log.abandon())
        self.run(self.engine.close())
        self.run(self.open())
        self.synced = self.next_offset
        assert self.log.leader_epoch == self.openings

    @rule(seed=st.integers(0, 2**32))
    def power_lost(self, seed: int) -> None:
        self.run(self.log.abandon())
        self.run(self.engine.close())
        self.files.power_loss(random.Random(seed))
        self.run(self.open())
        assert self.log.leader_epoch == self.openings
        assert self.synced <= self.log.next_offset <= self.next_offset
        self.model = retained(self.model, self.earliest, self.log.next_offset)
        self.next_offset = self.synced = self.log.next_offset

    @invariant()
    def bounds_agree(self) -> None:
        if hasattr(self, "log"):
            assert (self.log.earliest_offset, self.log.next_offset) == (self.earliest, self.next_offset)
            assert self.log.synced_offset <= self.log.next_offset

    def retained(self) -> list[Stored]:
        return retained(self.model, self.earliest, self.next_offset)

    def teardown(self) -> None:
        if hasattr(self, "log"):
            assert self.run(read_all(self.log)) == self.retained()
            self.run(self.engine.close())
        self.runner.close()
        self.directory.cleanup()


def test_the_log_agrees_with_a_list() -> None:
    run_state_machine_as_test(LogAgainstModel, settings=settings(max_examples=60, stateful_step_count=30))
