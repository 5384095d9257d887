"""The broker's memory while much is published past a consumer that stopped reading."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bench import batches
from bench.compare import progress
from bench.jobs.consume import Consumed, Stall
from bench.jobs.publish import Publish, Published
from bench.processes import Service
from bench.processes import broker as start_broker
from bench.processes import worker as start_worker
from bench.report import Bound, Figure, Result
from bench.setting import Setting, topics

BAR_MB: Final = 250.0
# Flat: the last quarter of the run may use this much of what the second quarter used; in the first, caches fill.
BAR_GROWTH: Final = 1.10
SAMPLE_S: Final = 0.1
TOPIC: Final = "stalled"
MB: Final = 1e6


@dataclass(frozen=True, slots=True)
class Sample:
    resident: int
    own: int
    """Without pages of mapped files, which the kernel takes back when it needs them."""


async def measure(setting: Setting) -> Result:
    count = setting.scale.stalled_bytes // len(batches.record_set()) + 1
    async with (
        start_broker(setting.scratch / "broker") as broker,
        start_worker(setting.scratch, "publisher") as publisher,
        start_worker(setting.scratch, "consumer") as consumer,
        topics(broker.address) as admin,
    ):
        await admin.create(TOPIC)
        # Something to begin with, so that the consumer is in the middle of a stream when it stops.
        await publisher.run(Publish(broker.address, TOPIC, 1_000))
        await consumer.stall(Stall(broker.address, TOPIC, 1_000 + count))
        before = Sample(*broker.memory())
        progress(
            f"memory: {before.resident / MB:.0f} MB resident, publishing {setting.scale.stalled_bytes / 1e9:.1f} GB"
        )
        publishing = asyncio.create_task(publisher.run(Publish(broker.address, TOPIC, count)))
        samples = await _sample(broker, publishing)
        published = Published(**await publishing)
        progress("memory: the consumer reads on")
        reading = asyncio.create_task(consumer.resume())
        reading_samples = await _sample(broker, reading)
        consumed = Consumed(**await reading)
    peak = max(sample.resident for sample in samples)
    return Result(
        "memory",
        f"Resident memory while {setting.scale.stalled_bytes / 1e9:g} GB are published with one stalled consumer",
        [
            Figure("resident memory, peak", peak / MB, "MB", Bound.AT_MOST, BAR_MB),
            Figure("resident memory, last quarter / second quarter", _growth(samples), "×", Bound.AT_MOST, BAR_GROWTH),
            Figure("before", before.resident / MB, "MB"),
            Figure("peak without mapped files", max(sample.own for sample in samples) / MB, "MB"),
            Figure("peak while the consumer catches up", max(one.resident for one in reading_samples) / MB, "MB"),
            Figure("the same without mapped files", max(one.own for one in reading_samples) / MB, "MB"),
            Figure("published meanwhile", count * batches.RECORDS_PER_BATCH / published.seconds, "records/s"),
            Figure("then consumed", count * batches.RECORDS_PER_BATCH / consumed.seconds, "records/s"),
        ],
        [],
        [
            "The consumer reads one message of a Consume stream without flow credit and then nothing, until everything"
            " is published; it then has to receive all of it.",
        ],
    )


async def _sample(broker: Service, until: asyncio.Task[object] | asyncio.Task[dict[str, object]]) -> list[Sample]:
    samples = [Sample(*broker.memory())]
    while not until.done():
        await asyncio.wait([until], timeout=SAMPLE_S)
        samples.append(Sample(*broker.memory()))
    return samples


def _growth(samples: Sequence[Sample]) -> float:
    quarter = max(1, len(samples) // 4)
    last = statistics.median(sample.resident for sample in samples[-quarter:])
    return last / statistics.median(sample.resident for sample in samples[quarter : 2 * quarter] or samples)
