"""Engines for the tests of the log."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from cursus_broker.log.engine import SegmentEngine
from cursus_broker.log.files import Files
from cursus_broker.log.resources import Fault, no_fault
from cursus_broker.log.settings import LogSettings

OpenEngine = Callable[..., SegmentEngine]


@pytest.fixture
async def open_engine(tmp_path: Path) -> AsyncIterator[OpenEngine]:
    """Makes engines on the test's directory, small segments, no background syncs; closes them at the end."""
    engines: list[SegmentEngine] = []

    def make(*, files: Files | None = None, fault: Fault = no_fault, **settings: int) -> SegmentEngine:
        chosen = {"segment_bytes": 2048, "index_interval_bytes": 300, "linger_ms": 60_000, "flush_records": 10**9}
        engine = SegmentEngine(
            tmp_path, LogSettings(**{**chosen, **settings}), files=files, fault=fault, now_ms=lambda: 0
        )
        engines.append(engine)
        return engine

    yield make
    for engine in engines:
        await engine.close()


@pytest.fixture
async def engine(open_engine: OpenEngine) -> SegmentEngine:
    return open_engine()
