"""The scrubber: what it verifies, where it goes on, and how fast it is."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cursus_broker.app import Broker
from cursus_broker.log.settings import LogSettings
from cursus_broker.settings import BrokerSettings
from cursus_broker.topics.config import TopicConfig
from cursus_broker.topics.partition import Partition
from cursus_broker.topics.scrubber import Scrubber
from tests.harness.waiting import eventually
from tests.unit.broker.log.support import batch_of

FAST = 10**12
HOUR_MS = 3_600_000


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    """Of three topics, each of one partition with several sealed segments."""
    settings = BrokerSettings(data_dir=tmp_path / "data", log=LogSettings(segment_bytes=1_024))
    async with Broker.open(settings) as opened:
        for name in ("apples", "pears", "plums"):
            topic = await opened.catalog.create(name, 1, TopicConfig())
            partition = topic.partition(0)
            for _ in range(20):
                partition.append(batch_of(bytes(200)), 0)
            await partition.log.sync(partition.next_offset)
        yield opened


def sealed_bytes(partition: Partition, from_offset: int = 0) -> int:
    segments = partition.log._extent.segments[:-1]  # type: ignore[attr-defined]  # the engine's own log
    return sum(segment.size_bytes for segment in segments if segment.next_offset > from_offset)


async def one_round(scrubber: Scrubber) -> None:
    running = asyncio.create_task(scrubber.run())
    await eventually(lambda: scrubber.rounds)
    running.cancel()
    await asyncio.wait([running])


async def test_a_round_verifies_every_sealed_segment_and_the_next_one_waits(broker: Broker, tmp_path: Path) -> None:
    partitions = [topic.partition(0) for topic in broker.catalog.topics()]
    scrubber = Scrubber(broker.catalog, FAST, HOUR_MS, tmp_path / "scrub.json", lambda: HOUR_MS)
    await one_round(scrubber)
    assert scrubber.verified_bytes == sum(map(sealed_bytes, partitions)) > 0
    assert scrubber.share_done == 1
    assert all(partition.log.damage is None for partition in partitions)
    # A new process finds the round over, and begins the next when it is time.
    later = Scrubber(broker.catalog, FAST, HOUR_MS, tmp_path / "scrub.json", lambda: HOUR_MS + 1)
    running = asyncio.create_task(later.run())
    await eventually(lambda: later.progress.began_ms == HOUR_MS)
    running.cancel()
    await asyncio.wait([running])
    assert (later.rounds, later.verified_bytes) == (0, 0)


async def test_a_restart_goes_on_where_the_last_process_was(broker: Broker, tmp_path: Path) -> None:
    file = tmp_path / "scrub.json"
    pears, plums = (broker.catalog.partition(name, 0) for name in ("pears", "plums"))
    file.write_text(json.dumps({"began_ms": 1, "topic": "pears", "partition": 0, "offset": 10}))
    scrubber = Scrubber(broker.catalog, FAST, HOUR_MS, file, lambda: 2)
    await one_round(scrubber)
    assert scrubber.verified_bytes == sealed_bytes(pears, 10) + sealed_bytes(plums)


async def test_a_file_that_makes_no_sense_begins_a_round(broker: Broker, tmp_path: Path) -> None:
    file = tmp_path / "scrub.json"
    for content in ("", "{", "[]", '{"began_ms": "x"}'):
        file.write_text(content)
        scrubber = Scrubber(broker.catalog, FAST, HOUR_MS, file)
        await one_round(scrubber)
        assert scrubber.verified_bytes > 0


async def test_the_rate_is_kept_by_pauses_and_a_stop_ends_them(broker: Broker, tmp_path: Path) -> None:
    waits: list[float] = []

    class Stop:
        def wait(self, seconds: float) -> bool:
            waits.append(seconds)
            return False

        def set(self) -> None: ...

    scrubber = Scrubber(broker.catalog, 1_000, HOUR_MS, tmp_path / "scrub.json")
    scrubber._stop = Stop()  # type: ignore[assignment]  # nobody is to wait for it
    await one_round(scrubber)
    assert sum(waits) == pytest.approx(scrubber.verified_bytes / 1_000)


async def test_damage_is_noted_passed_over_and_forgotten_when_it_is_mended(broker: Broker, tmp_path: Path) -> None:
    segment = broker.settings.segment_dir / "pears" / "partition_0_segment_1.log"
    sound = segment.read_bytes()
    segment.write_bytes(sound[:300] + b"\xff" + sound[301:])
    pears, plums = (broker.catalog.partition(name, 0) for name in ("pears", "plums"))
    scrubber = Scrubber(broker.catalog, FAST, HOUR_MS, tmp_path / "scrub.json")
    await one_round(scrubber)
    assert pears.log.damage is not None
    assert plums.log.damage is None
    with segment.open("r+b") as file:
        file.write(sound)
    await one_round(Scrubber(broker.catalog, FAST, HOUR_MS, tmp_path / "other.json"))
    assert pears.log.damage is None
