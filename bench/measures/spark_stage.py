"""What every measure of Spark needs around it: a session, our broker, and Kafka where it can be had."""

from __future__ import annotations

import importlib.util
import shutil
import statistics
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bench.compare import Round, Stopwatch, progress
from bench.jobs.spark import Ran, StartSpark
from bench.peers import KAFKA_JARS
from bench.peers import kafka as start_kafka
from bench.processes import BenchSkipped, Service, Worker, spark_driver
from bench.processes import broker as start_broker
from bench.report import Figure
from bench.setting import Setting, Topics, topics

PARTITIONS: Final = 4
ROWS_S: Final = "rows/s"
OURS: Final = "cursus"
KAFKA: Final = "Spark's Kafka"
FLOOR: Final = "floor"

CONNECTOR_JARS: Final = Path(__file__).parent.parent.parent / "build" / "spark-kafka"
_MICRO: Final = 1e6


@dataclass(frozen=True, slots=True)
class Stage:
    spark: Worker
    broker: Service
    admin: Topics
    """The broker's."""
    kafka: Service | None
    notes: Sequence[str]
    """What is not compared and why, or with what it is."""


@asynccontextmanager
async def stage(setting: Setting, *, with_kafka: bool = True) -> AsyncIterator[Stage]:
    """Raises BenchSkipped where Spark cannot run."""
    if importlib.util.find_spec("pyspark") is None:
        raise BenchSkipped("pyspark is not installed; `make setup` does that")
    if shutil.which("java") is None:
        raise BenchSkipped("Java is not installed, and Spark needs it")
    absent = _kafka_is_missing() if with_kafka else None
    notes: list[str] = []
    if absent is not None:
        notes.append(f"{KAFKA} source and sink are not compared: {absent}.")
        progress(notes[-1])
    compared = with_kafka and absent is None
    if compared:
        notes.append(f"{KAFKA} source and sink: {_connector()}.")
    async with AsyncExitStack() as running:
        kafka = None
        if compared:
            directory = setting.scratch / "kafka"
            directory.mkdir()
            kafka = await running.enter_async_context(start_kafka(directory, PARTITIONS))
        broker = await running.enter_async_context(start_broker(setting.scratch / "broker"))
        spark = await running.enter_async_context(spark_driver(setting.scratch))
        admin = await running.enter_async_context(topics(broker.address))
        jars = [str(jar) for jar in sorted(CONNECTOR_JARS.glob("*.jar"))] if compared else []
        await spark.run(StartSpark(str(setting.scratch), jars))
        yield Stage(spark, broker, admin, kafka, notes)


def _kafka_is_missing() -> str | None:
    for directory in (KAFKA_JARS, CONNECTOR_JARS):
        if not any(directory.glob("*.jar")):
            return f"there is nothing in build/{directory.name}"
    return None


def _connector() -> str:
    return ", ".join(sorted(jar.stem for jar in CONNECTOR_JARS.glob("*kafka*.jar")))


@dataclass(frozen=True, slots=True)
class _Cost:
    jvm: float
    python: float
    server: float

    @property
    def total(self) -> float:
        return self.jvm + self.python + self.server


@dataclass(slots=True)
class Costs:
    """Processor time a row. It says more than the clock where others share the machine."""

    rows: int
    _sides: dict[str, list[_Cost]] = field(default_factory=dict)

    async def round(self, number: int, side: str, spark: Worker, job: Any, service: Service | None) -> Round:
        """Have a job done, a round of a side whose broker is `service`."""
        services = () if service is None else (service,)
        watch, before = Stopwatch(*services), sum(one.cpu_seconds() for one in services)
        ran = Ran(**await spark.run(job))
        server = sum(one.cpu_seconds() for one in services) - before
        if number >= 0:
            a_row = _MICRO / self.rows
            cost = _Cost(ran.jvm_cpu_seconds * a_row, ran.python_cpu_seconds * a_row, server * a_row)
            self._sides.setdefault(side, []).append(cost)
        used = ran.driver_cpu_seconds + ran.jvm_cpu_seconds + ran.python_cpu_seconds
        return watch.round(self.rows, ran.seconds, used)

    def total(self, side: str) -> float:
        return statistics.median(one.total for one in self._sides[side])

    def figures(self) -> list[Figure]:
        return [
            Figure(f"{side}, processor time a row: {part}", statistics.median(times), "µs")
            for side, costs in self._sides.items()
            for part, times in (
                ("JVM", [one.jvm for one in costs]),
                ("Python", [one.python for one in costs]),
                ("broker", [one.server for one in costs]),
            )
            if any(times)
        ]

    def ratios(self, name: str, side: str, *others: str) -> list[Figure]:
        """How many times the processor time of a side others use; 0.6 of the floor's speed is 0.6 here too."""
        return [
            Figure(f"{name}, in processor time: {side} / {other}", self.total(other) / self.total(side), "×")
            for other in others
            if other in self._sides
        ]
