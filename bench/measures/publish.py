"""Publish with acks 1: one client process, one stream, one partition."""

from __future__ import annotations

from bench import batches, floor
from bench.compare import Round, Side, Stopwatch, take_turns
from bench.jobs.publish import Publish, Published
from bench.processes import Service, Worker
from bench.processes import broker as start_broker
from bench.processes import floor as start_floor
from bench.processes import worker as start_worker
from bench.report import Bound, Result, ratio
from bench.setting import Setting, topics

BAR = 0.75


async def measure(setting: Setting) -> Result:
    count = setting.scale.batches
    async with (
        start_floor(setting.scratch) as bare,
        start_broker(setting.scratch / "broker") as broker,
        start_worker(setting.scratch) as client,
        topics(broker.address) as admin,
    ):

        async def to_broker(number: int, *, numbered: bool) -> Round:
            async with admin.temporary(f"publish-{number}-{numbered}") as topic:
                return await publish_round(client, broker, Publish(broker.address, topic, count, numbered=numbered))

        async def to_floor(_: int) -> Round:
            return await publish_round(client, bare, Publish(bare.address, "bench", count, method=floor.ANSWERING))

        async def to_sink(_: int) -> Round:
            job = Publish(bare.address, "bench", count, method=floor.SINK, answered=False)
            return await publish_round(client, bare, job)

        sides = [
            Side("floor", to_floor),
            Side("broker", lambda number: to_broker(number, numbered=False)),
            Side("sink", to_sink),
            Side("broker, numbered", lambda number: to_broker(number, numbered=True)),
        ]
        series = await take_turns("publish", sides, setting, "records/s")
    floor_series, broker_series, sink_series, numbered_series = series
    return Result(
        "publish",
        "Publish, 100 B records, 500 a batch, acks 1, one client process, PublishStream",
        [
            ratio("publish, acks 1", broker_series, floor_series, Bound.AT_LEAST, BAR),
            ratio("publish, acks 1", broker_series, sink_series),
            ratio("publish, acks 1", numbered_series, floor_series),
        ],
        series,
        [
            "floor: a bare service that gives each batch one small answer; sink: one that answers nothing.",
            "numbered: batches carry a producer's identity and sequence, which the client encodes while it sends.",
        ],
    )


async def publish_round(client: Worker, service: Service, job: Publish) -> Round:
    watch = Stopwatch(service)
    done = Published(**await client.run(job))
    return watch.round(job.batches * batches.RECORDS_PER_BATCH, done.seconds, done.client_cpu_seconds)
