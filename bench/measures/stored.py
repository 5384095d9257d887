"""Publishing to a log that already holds much, against an empty one."""

from __future__ import annotations

from typing import Final

from bench import batches
from bench.compare import Round, Side, progress, take_turns
from bench.jobs.publish import Publish
from bench.measures.publish import publish_round
from bench.processes import broker as start_broker
from bench.processes import worker as start_worker
from bench.report import Bound, Result, ratio
from bench.setting import Setting, topics

BAR: Final = 0.90
FULL_TOPIC: Final = "full"


async def measure(setting: Setting) -> Result:
    count, stored_bytes = setting.scale.batches, setting.scale.stored_bytes
    async with (
        start_broker(setting.scratch / "full") as full,
        start_broker(setting.scratch / "empty") as empty,
        start_worker(setting.scratch) as client,
        topics(full.address) as full_admin,
        topics(empty.address) as empty_admin,
    ):
        progress(f"stored: filling a log with {stored_bytes / 1e9:.1f} GB")
        await full_admin.create(FULL_TOPIC)
        await client.run(Publish(full.address, FULL_TOPIC, stored_bytes // len(batches.record_set()) + 1))

        async def to_full(_: int) -> Round:
            return await publish_round(client, full, Publish(full.address, FULL_TOPIC, count))

        async def to_empty(number: int) -> Round:
            async with empty_admin.temporary(f"empty-{number}") as topic:
                return await publish_round(client, empty, Publish(empty.address, topic, count))

        sides = [Side("empty log", to_empty), Side("full log", to_full)]
        series = await take_turns("stored", sides, setting, "records/s")
    return Result(
        "stored",
        f"Publish speed after {stored_bytes / 1e9:g} GB stored against an empty log",
        [ratio("stored data", series[1], series[0], Bound.AT_LEAST, BAR)],
        series,
        ["Two brokers, of which one is idle at a time; one partition, one stream, acks 1."],
    )
