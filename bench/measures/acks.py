"""Publish with acks all: what waiting for the disk costs when many producers share each sync."""

from __future__ import annotations

from typing import Final

from bench.compare import Round, Side, take_turns
from bench.jobs.publish import MIB, Publish
from bench.measures.publish import publish_round
from bench.processes import broker as start_broker
from bench.processes import worker as start_worker
from bench.report import Bound, Result, ratio
from bench.setting import Setting, topics
from cursus_proto.v1 import publish_service_pb2

BAR: Final = 0.50
PRODUCERS: Final = 32
PARTITIONS: Final = 4
"""The broker's default for a new topic; every producer takes all of them in turn."""


async def measure(setting: Setting) -> Result:
    async with (
        start_broker(setting.scratch / "broker") as broker,
        start_worker(setting.scratch) as client,
        topics(broker.address) as admin,
    ):

        async def publish_with(acks: int, number: int) -> Round:
            async with admin.temporary(f"acks-{acks}-{number}", PARTITIONS) as topic:
                job = Publish(
                    broker.address,
                    topic,
                    setting.scale.batches // PRODUCERS * PRODUCERS,
                    partitions=PARTITIONS,
                    producers=PRODUCERS,
                    acks=acks,
                    window_bytes=MIB,
                )
                return await publish_round(client, broker, job)

        sides = [
            Side("acks 1", lambda number: publish_with(publish_service_pb2.ACKS_WRITTEN, number)),
            Side("acks all", lambda number: publish_with(publish_service_pb2.ACKS_ALL, number)),
        ]
        written, synced = await take_turns("acks", sides, setting, "records/s")
    return Result(
        "acks",
        f"Publish with acks all, {PRODUCERS} concurrent producers",
        [ratio("32 producers", synced, written, Bound.AT_LEAST, BAR)],
        [written, synced],
        [
            f"{PRODUCERS} streams on connections of their own in one client process, {PARTITIONS} partitions, 1 MiB"
            " unanswered at most on each stream, 500 records of 100 B a batch.",
        ],
    )
