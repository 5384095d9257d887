"""Consume: one reader of one partition, from the tail in memory and from disk."""

from __future__ import annotations

from bench import batches, floor
from bench.compare import Round, Series, Side, Stopwatch, take_turns
from bench.jobs.consume import Consume, Consumed
from bench.jobs.publish import Publish
from bench.processes import Service, Worker
from bench.processes import broker as start_broker
from bench.processes import floor as start_floor
from bench.processes import worker as start_worker
from bench.report import Bound, Result, ratio
from bench.setting import Setting, topics

BAR_TAIL = 0.80
BAR_DISK = 0.70
GATHERED_BYTES = 1024 * 1024
"""What the broker puts into one message by default."""

TOPIC = "consume"


async def measure(setting: Setting) -> Result:
    count = setting.scale.consumed_batches
    data_dir = setting.scratch / "broker"
    # A tail that holds all of the data, so that nothing is read from files.
    whole_tail = (
        "--consume-tail-bytes",
        str(2 * count * len(batches.record_set())),
        "--consume-tail-records",
        "100000000",
    )
    async with start_floor(setting.scratch) as bare, start_worker(setting.scratch) as client:
        async with start_broker(data_dir, *whole_tail) as broker, topics(broker.address) as admin:
            await admin.create(TOPIC)
            await client.run(Publish(broker.address, TOPIC, count))
            from_tail = await _compare("consume tail", "broker, tail", client, bare, broker, setting)
        # Started again, the tail is empty.
        async with start_broker(data_dir) as broker:
            from_disk = await _compare("consume disk", "broker, disk", client, bare, broker, setting)
    return Result(
        "consume",
        "Consume, the same records, one reader",
        [
            ratio("consume from tail", from_tail[1], from_tail[0], Bound.AT_LEAST, BAR_TAIL),
            ratio("consume from tail", from_tail[1], from_tail[2]),
            ratio("consume from disk", from_disk[1], from_disk[0], Bound.AT_LEAST, BAR_DISK),
            ratio("consume from disk", from_disk[1], from_disk[2]),
        ],
        [*from_tail, *from_disk],
        [
            "tail: the broker holds all of the data in its tail cache; disk: a restarted broker, files in page cache.",
            "floor: a bare service that sends one prebuilt batch a message; gathered: 1 MiB of batches a message, as"
            " the broker does.",
        ],
    )


async def _compare(
    name: str, side: str, client: Worker, bare: Service, broker: Service, setting: Setting
) -> list[Series]:
    count = setting.scale.consumed_batches

    async def from_floor(_: int) -> Round:
        return await consume_round(client, bare, Consume(bare.address, TOPIC, count, method=floor.SOURCE))

    async def from_broker(_: int) -> Round:
        return await consume_round(client, broker, Consume(broker.address, TOPIC, count))

    async def gathered(_: int) -> Round:
        job = Consume(bare.address, TOPIC, count, method=floor.SOURCE, max_response_bytes=GATHERED_BYTES)
        return await consume_round(client, bare, job)

    sides = [Side("floor", from_floor), Side(side, from_broker), Side("floor, gathered", gathered)]
    return await take_turns(name, sides, setting, "records/s")


async def consume_round(client: Worker, service: Service, job: Consume) -> Round:
    watch = Stopwatch(service)
    done = Consumed(**await client.run(job))
    return watch.round(job.batches * batches.RECORDS_PER_BATCH, done.seconds, done.client_cpu_seconds)
