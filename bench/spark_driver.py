"""A Spark driver as a client process, asked as `bench.worker` is: `python -m bench.spark_driver`. A process of its own
kind, so that the others need not load Spark. Its session lives as long as it; Spark's own processes end with it."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession

from bench import spark_floor
from bench.batches import RECORDS_PER_BATCH
from bench.clients import Age, age, check
from bench.jobs.client import Done, Received
from bench.jobs.spark import (
    FLOOR_SOURCE,
    Cache,
    Fill,
    FillKafka,
    Ran,
    SparkFollow,
    SparkPlan,
    SparkRead,
    SparkWrite,
    StartSpark,
)
from bench.spark_rows import Kind, packed_sets, value_bytes
from bench.worker import pause, serve
from cursus_grpc import Admin, TopicPartition
from cursus_grpc.batches import BatchPublisher, NumberedSet
from cursus_service.process import run

CORES: Final = 2
_ROOT: Final = Path(__file__).parent.parent
_KAFKA_BATCH_BYTES: Final = 64 * 1024
_FOLLOW_DEADLINE_S: Final = 300.0
_SAMPLE_S: Final = 0.05


async def work(_: asyncio.Event) -> None:
    try:
        await serve(_do)
    finally:
        if (session := SparkSession.getActiveSession()) is not None:
            session.stop()


async def _do(job: str, arguments: dict[str, Any]) -> Any:
    match job:
        case "StartSpark":
            return _start(StartSpark(**arguments))
        case "Fill":
            return _fill(Fill(**arguments))
        case "FillKafka":
            return _fill_kafka(FillKafka(**arguments))
        case "Cache":
            return _cache(Cache(**arguments))
        case "SparkRead":
            return _read(SparkRead(**arguments))
        case "SparkWrite":
            return _write(SparkWrite(**arguments))
        case "SparkPlan":
            return _plan(SparkPlan(**arguments))
        case "SparkFollow":
            return await _follow(SparkFollow(**arguments))
        case _:
            raise ValueError(f"no such job: {job}")


_frames: dict[str, DataFrame] = {}


def _start(job: StartSpark) -> Done:
    directory = Path(job.directory)
    os.environ.update(
        # For the Python workers to find what this one has.
        PYTHONPATH=str(_ROOT),
        PYSPARK_PYTHON=sys.executable,
        PYSPARK_DRIVER_PYTHON=sys.executable,
        SPARK_LOCAL_IP="127.0.0.1",
        SPARK_LOCAL_DIRS=str(directory / "spark-local"),
    )
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "3g",
        "spark.sql.shuffle.partitions": str(CORES),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
    }
    if job.jars:
        settings["spark.jars"] = ",".join(job.jars)
    builder = SparkSession.builder.master(f"local[{CORES}]").appName("cursus-bench")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    session.dataSource.register(spark_floor.Floor)
    return Done()


def _active() -> SparkSession:
    session = SparkSession.getActiveSession()
    assert session is not None, "the session is started first"
    return session


def _fill(job: Fill) -> Done:
    sets = packed_sets(Kind(job.kind))
    with Admin(job.address) as admin, BatchPublisher(job.address) as publisher:
        admin.create_topic(job.topic, partitions=job.partitions)
        for number in range(job.rows // RECORDS_PER_BATCH):
            turn, partition = divmod(number, job.partitions)
            place = TopicPartition(job.topic, partition)
            sequence = turn * RECORDS_PER_BATCH
            # Each partition has the pool's sets in turn, so that together they have whole pools.
            payload = sets[turn % len(sets)]
            publisher.publish([NumberedSet.of(place, b"bench", 0, sequence, payload, RECORDS_PER_BATCH)])
        publisher.flush()
    return Done()


def _fill_kafka(job: FillKafka) -> Done:
    options = {"kafka.bootstrap.servers": job.address, "topic": job.topic, "kafka.batch.size": str(_KAFKA_BATCH_BYTES)}
    _ready_rows(job.kind, job.rows, job.partitions).write.format("kafka").options(**options).save()
    return Done()


def _cache(job: Cache) -> Done:
    rows = _ready_rows(job.kind, job.rows, job.partitions).persist(StorageLevel.MEMORY_ONLY)
    check(rows.count(), job.rows)
    if (before := _frames.get(job.kind)) is not None:
        before.unpersist(blocking=True)
    _frames[job.kind] = rows
    return Done()


def _ready_rows(kind: str, rows: int, partitions: int) -> DataFrame:
    schema = "key binary, value binary" if Kind(kind) is Kind.MIXED else "value binary"
    reader = _active().read.format(FLOOR_SOURCE).schema(schema)
    return reader.options(kind=kind, rows=str(rows), partitions=str(partitions)).load()


def _read(job: SparkRead) -> Ran:
    with _measured(memory=job.memory) as measured:
        reader = _active().read.format(job.source).options(**job.options)
        frame = (reader.schema(job.schema) if job.schema else reader).load()
        (found,) = frame.selectExpr("sum(length(value))").collect()
    check(found[0], value_bytes(Kind(job.kind), job.rows))
    return measured.ran()


def _write(job: SparkWrite) -> Ran:
    frame = _frames[job.kind]
    with _measured(memory=job.memory) as measured:
        frame.write.format(job.sink).options(**job.options).mode("append").save()
    return measured.ran()


def _plan(job: SparkPlan) -> Ran:
    with _measured() as measured:
        options = {"bootstrap.servers": job.address, "subscribe": job.topic}
        frame: Any = _active().read.format("cursus").options(**options).load()
        partitions = frame._jdf.queryExecution().toRdd().getNumPartitions()
    check(partitions, job.partitions)
    return measured.ran()


async def _follow(job: SparkFollow) -> Received:
    ages: list[Age] = []
    arrived = threading.Condition()
    count = 0

    def take(batch: DataFrame, _: int) -> None:
        nonlocal count
        found = [age(row.value) for row in batch.select("value").collect()]
        with arrived:
            # The first record is not stamped.
            ages.extend(found[1:] if count == 0 else found)
            count += len(found)
            arrived.notify_all()

    rows = _active().readStream.format(job.source).options(**job.options).load()
    writer = rows.writeStream.foreachBatch(take).option("checkpointLocation", job.checkpoint)
    query = writer.trigger(processingTime="0 seconds").start()

    def wait_for(wanted: int) -> None:
        deadline = time.monotonic() + _FOLLOW_DEADLINE_S
        with arrived:
            while count < wanted:
                if not query.isActive:
                    raise RuntimeError(f"the stream failed: {query.exception()}")
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{count:,} of {wanted:,} records came in {_FOLLOW_DEADLINE_S:.0f} s")
                arrived.wait(1.0)

    try:
        await asyncio.to_thread(wait_for, 1)
        await pause()
        before = _Processes.now()
        await asyncio.to_thread(wait_for, 1 + job.count)
        used = _Processes.now().since(before)
    finally:
        query.stop()
    return Received([one.since_due for one in ages], [one.since_handed for one in ages], used.total)


@dataclass(frozen=True, slots=True)
class _Processes:
    """Processor seconds of the driver, of its JVM, and of the Python processes below that."""

    driver: float
    jvm: float
    python: float

    @classmethod
    def now(cls) -> _Processes:
        jvm, python = 0.0, 0.0
        for process, is_jvm in _started_by_us():
            try:
                times = process.cpu_times()
            except psutil.NoSuchProcess:
                continue
            own, ended = times.user + times.system, times.children_user + times.children_system
            if is_jvm:
                jvm, python = jvm + own, python + ended
            else:
                python += own + ended
        return cls(time.process_time(), jvm, python)

    def since(self, before: _Processes) -> _Processes:
        return _Processes(self.driver - before.driver, self.jvm - before.jvm, self.python - before.python)

    @property
    def total(self) -> float:
        return self.driver + self.jvm + self.python


def _started_by_us() -> Iterator[tuple[psutil.Process, bool]]:
    """Spark's processes, and whether it is the JVM."""
    for child in psutil.Process().children():
        yield child, True
        for process in child.children(recursive=True):
            yield process, False


@dataclass
class _Measured:
    started: float = field(default_factory=time.perf_counter)
    before: _Processes = field(default_factory=_Processes.now)
    seconds: float = 0.0
    used: _Processes | None = None
    worker_bytes: int = 0

    def ran(self) -> Ran:
        assert self.used is not None
        return Ran(self.seconds, self.used.driver, self.used.jvm, self.used.python, self.worker_bytes)

    def watch(self, done: threading.Event) -> None:
        while not done.wait(_SAMPLE_S):
            for process, is_jvm in _started_by_us():
                try:
                    resident = 0 if is_jvm else process.memory_info().rss
                except psutil.NoSuchProcess:
                    continue
                self.worker_bytes = max(self.worker_bytes, resident)


@contextmanager
def _measured(*, memory: bool = False) -> Iterator[_Measured]:
    measured, done = _Measured(), threading.Event()
    watching = threading.Thread(target=measured.watch, args=(done,))
    if memory:
        watching.start()
    try:
        measured.started = time.perf_counter()
        yield measured
        measured.seconds = time.perf_counter() - measured.started
        measured.used = _Processes.now().since(measured.before)
    finally:
        done.set()
        if memory:
            watching.join()


if __name__ == "__main__":
    run(work)
