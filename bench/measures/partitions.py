"""The same load on one partition and spread over a thousand."""

from __future__ import annotations

from typing import Final

from bench.compare import Round, Side, take_turns
from bench.jobs.publish import Publish
from bench.measures.publish import publish_round
from bench.processes import broker as start_broker
from bench.processes import worker as start_worker
from bench.report import Bound, Result, ratio
from bench.setting import Setting, topics

BAR: Final = 0.70
MANY: Final = 1_000


async def measure(setting: Setting) -> Result:
    async with (
        start_broker(setting.scratch / "broker") as broker,
        start_worker(setting.scratch) as client,
        topics(broker.address) as admin,
    ):

        async def publish_to(partitions: int, number: int) -> Round:
            async with admin.temporary(f"spread-{partitions}-{number}", partitions) as topic:
                job = Publish(broker.address, topic, setting.scale.batches, partitions=partitions)
                return await publish_round(client, broker, job)

        sides = [
            Side("1 partition", lambda number: publish_to(1, number)),
            Side(f"{MANY:,} partitions", lambda number: publish_to(MANY, number)),
        ]
        one, many = await take_turns("partitions", sides, setting, "records/s")
    return Result(
        "partitions",
        f"1 partition against {MANY:,} partitions, same total load",
        [ratio("partitions", many, one, Bound.AT_LEAST, BAR)],
        [one, many],
        ["One stream with acks 1; batches of 500 records of 100 B go to the partitions in turn."],
    )
