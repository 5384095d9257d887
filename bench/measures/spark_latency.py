"""From sending a record to its arrival in a micro-batch of Spark, beside Spark's own Kafka source and the floor of
sources in Python."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from bench.compare import Round, Side, progress, take_turns
from bench.jobs.client import Prepare, Received, Remove, SendOnSchedule
from bench.jobs.spark import FLOOR_SOURCE, SparkFollow
from bench.measures.latency import RATE, percentile
from bench.measures.spark_stage import FLOOR, KAFKA, OURS, Stage, stage
from bench.processes import Service, Worker
from bench.processes import worker as start_worker
from bench.report import Bound, Figure, Result, ratio
from bench.setting import Setting

BAR: Final = 1.0
UNIT: Final = "ms"
_WRITTEN: Final = ", what is written"


@dataclass(frozen=True, slots=True)
class _Sending:
    """How records get into a topic."""

    client: str
    """A module of bench.clients."""
    service: Service
    sender: Worker

    @asynccontextmanager
    async def ready(self, topic: str, count: int) -> AsyncIterator[None]:
        """A topic with its first record; the others wait for `resume`."""
        place = self.client, self.service.address, topic
        await self.sender.run(Prepare(*place))
        await self.sender.stall(SendOnSchedule(*place, count, RATE))
        yield
        await self.sender.run(Remove(*place))


@dataclass(frozen=True, slots=True)
class _Stream:
    """One way from a sender to Spark."""

    name: str
    source: str
    options: dict[str, str]
    sending: _Sending | None
    """None: the source makes its rows itself."""
    p99: list[float] = field(default_factory=list)

    async def round(self, number: int, on: Stage, setting: Setting) -> Round:
        count = setting.scale.spark_count
        topic = f"{self.name.replace(',', '').replace(' ', '-').replace(chr(39), '')}-{number + 1}"
        checkpoint = str(setting.scratch / "checkpoints" / topic)
        options = self.options | {"subscribe": topic, "startingOffsets": "earliest"}
        cpu_seconds = 0.0
        async with self.sending.ready(topic, count) if self.sending is not None else nullcontext():
            await on.spark.stall(SparkFollow(self.source, options, checkpoint, count))
            receiving = asyncio.create_task(on.spark.resume())
            if self.sending is not None:
                cpu_started = self.sending.service.cpu_seconds()
                await self.sending.sender.resume()
            found = Received(**await receiving)
            if self.sending is not None:
                cpu_seconds = self.sending.service.cpu_seconds() - cpu_started
        if number >= 0:
            self.p99.append(percentile(found.since_due, 99) / 1e3)
        seconds = count / RATE
        return Round(median(found.since_due) / 1e3, cpu_seconds / seconds, found.client_cpu_seconds / seconds)

    def side(self, on: Stage, setting: Setting) -> Side:
        return Side(f"{self.name}, p50", lambda number: self.round(number, on, setting))

    def worst(self) -> Figure:
        return Figure(f"{self.name}, p99", median(self.p99), UNIT)


async def measure(setting: Setting) -> Result:
    async with stage(setting) as on, _streams(setting, on) as (streams, absent):
        sides = [stream.side(on, setting) for stream in streams]
        series = await take_turns("spark-latency", sides, setting, UNIT, setting.scale.spark_rounds)
    figures = [ratio("micro-batches", series[0], series[2])]
    if len(streams) > 3:
        ours, written, floor, kafka = streams
        figures += [
            ratio("micro-batches", series[0], series[3], Bound.AT_MOST, BAR),
            _ratio(ours, kafka, Bound.AT_MOST, BAR),
            ratio("micro-batches", series[1], series[3]),
            _ratio(written, kafka),
            ratio("micro-batches", series[2], series[3]),
            _ratio(floor, kafka),
        ]
    return Result(
        "spark-latency",
        f"Spark: from sending a record to its being in the driver's hands, {RATE:,}/s, trigger 0",
        [*figures, *(stream.worst() for stream in streams)],
        series,
        [
            "One partition; every micro-batch is collected by `foreachBatch`. The time counts from the moment a record"
            " is due. Medians over rounds.",
            f"{OURS}: with its defaults; records are sent with acks 1 and not read before the broker has synced them."
            f" {_WRITTEN.strip(', ').capitalize()}: `readUpTo` = written. Kafka has no such difference: what its source"
            " reads may be lost with the power.",
            f"{FLOOR}: a source in Python that asks nobody and makes its rows itself when they are due.",
            *absent,
            *on.notes,
        ],
    )


def _ratio(ours: _Stream, kafka: _Stream, bound: Bound | None = None, bar: float | None = None) -> Figure:
    name = f"micro-batches: {ours.name}, p99 / {kafka.name}, p99"
    return Figure(name, median(ours.p99) / median(kafka.p99), "×", bound, bar)


@asynccontextmanager
async def _streams(setting: Setting, on: Stage) -> AsyncIterator[tuple[list[_Stream], list[str]]]:
    async with AsyncExitStack() as running:
        sender = await running.enter_async_context(start_worker(setting.scratch, "sender", plain=True))
        ours = {"bootstrap.servers": on.broker.address}
        sending = _Sending("ours", on.broker, sender)
        streams = [
            _Stream(OURS, OURS, ours, sending),
            _Stream(OURS + _WRITTEN, OURS, ours | {"readUpTo": "written"}, sending),
            _Stream(FLOOR, FLOOR_SOURCE, {"rate": str(RATE)}, None),
        ]
        absent: list[str] = []
        if on.kafka is not None and importlib.util.find_spec("confluent_kafka") is None:
            absent.append(f"{KAFKA} source is not compared: confluent_kafka, which sends to it, is not installed.")
            progress(absent[-1])
        elif on.kafka is not None:
            kafka_sender = await running.enter_async_context(start_worker(setting.scratch, "kafka-sender", plain=True))
            options = {"kafka.bootstrap.servers": on.kafka.address}
            streams.append(_Stream(KAFKA, "kafka", options, _Sending("confluent", on.kafka, kafka_sender)))
        yield streams, absent
