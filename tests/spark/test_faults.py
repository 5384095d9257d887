"""Streams from topic to topic and to a lake, while drivers, their workers and the broker are killed at random: every
record is stored once. `make test-spark-faults` runs the long form; a failure names its seed.
"""

from __future__ import annotations

import os
import random
import re
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import pyspark
import pytest
from pyarrow import dataset, parquet

from cursus_grpc import END, Admin, Consumer, CursusError, Producer
from cursus_grpc.testing import Broker
from tests.harness.spark_drivers import MASTER, DriverProcess

FIRST_SEED: Final = int(os.environ.get("FAULTS_SEED", "0"))
ROUNDS: Final = int(os.environ.get("FAULTS_ROUNDS", "1"))
KILLS: Final = int(os.environ.get("FAULTS_KILLS", "2"))

TIMEOUT_S: Final = 2_400 + 1_200 * KILLS
"""A net for what hangs, above the nets that waits have themselves."""
long_form: Final = pytest.mark.skipif(KILLS <= 2, reason="in the long form only: make test-spark-faults")

MOST: Final = 1_000
"""Records in a micro-batch."""
AHEAD: Final = 5 * MOST
"""How far the producer may be ahead of the stream: so there is always work to interrupt, and an end to it."""
SOURCE, TARGET = "source", "target"
COPY_STREAM: Final = Path(__file__).with_name("drivers") / "copy_stream.py"


class Producing:
    """Publishes numbers in the background, as fast as the stream takes them, until the block is left."""

    def __init__(self, broker: Broker, stored: Callable[[], int]) -> None:
        self._broker = broker
        self._stored = stored
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="producing")
        self.sent = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            with Producer(self._broker.address, acks="all") as producer:
                while not self._stop.is_set():
                    if self.sent - self._seen() < AHEAD:
                        publish(producer, range(self.sent, self.sent + 100))
                        self.sent += 100
                    else:
                        self._stop.wait(0.05)
        except BaseException as error:
            self._failure = error

    def _seen(self) -> int:
        try:
            return self._stored()
        except CursusError:
            return 0  # the broker is away; the next one to ask may be luckier


def publish(producer: Producer, numbers: range) -> None:
    sent = [producer.send(SOURCE, b"%d" % one, key=b"%d" % (one % 97), partition=one % 2) for one in numbers]
    for one in sent:
        one.result()


class Pipeline:
    """A broker, and a driver that copies one of its topics into another."""

    def __init__(self, broker: Broker, admin: Admin, driver: DriverProcess, directory: Path) -> None:
        self.broker = broker
        self.admin = admin
        self.driver = driver
        self.seen = directory / "seen"
        self.seen.mkdir()
        self._checkpoint = directory / "checkpoint"

    def stream(self, conf: Mapping[str, str] | None = None) -> None:
        """Start a driver that goes on until it is killed."""
        self.start(f"--most={MOST}", conf=conf)

    def start(self, *flags: str, tasks: int = 4, conf: Mapping[str, str] | None = None) -> None:
        given = {"source": SOURCE, "target": TARGET, "checkpoint": self._checkpoint, "tasks": tasks}
        named = [f"--{name}={value}" for name, value in {"broker": self.broker.address, **given}.items()]
        self.driver.start(*named, *flags, conf=conf)

    def publish(self, numbers: range) -> None:
        with Producer(self.broker.address, acks="all") as producer:
            publish(producer, numbers)

    def stored(self) -> int:
        return sum(one.next_offset for one in self.admin.list_offsets(TARGET, END).values())

    def wait_for(self, count: int) -> int:
        """Until so many records are stored; answers how many are."""
        return self.driver.wait_for(self.stored, count)

    def values(self) -> Counter[int]:
        with Consumer(self.broker.address, reset="earliest") as consumer:
            return Counter(
                int(record.value or b"")
                for partition in self.admin.list_offsets(TARGET, END)
                for record in consumer.range(TARGET, partition)
            )

    def finish(self, sent: int) -> Counter[int]:
        """Let a driver copy what is there and end; answers what is stored."""
        self.driver.kill()
        self._start_to_the_end()
        assert self.driver.wait() == 0, self.driver.log
        found = self.values()
        assert set(found) == set(range(sent))
        return found

    def _start_to_the_end(self) -> None:
        self.start("--once", f"--most={MOST}")


class Archive(Pipeline):
    """The job `archive`, from the same topic to a lake, which is read with pyarrow."""

    def __init__(self, broker: Broker, admin: Admin, driver: DriverProcess, directory: Path) -> None:
        super().__init__(broker, admin, driver, directory)
        self._lake = directory / "lake"

    def stream(self, conf: Mapping[str, str] | None = None) -> None:
        self.start("--interval=0s", conf=conf)

    def start(self, *flags: str, tasks: int = 4, conf: Mapping[str, str] | None = None) -> None:
        given = {"topics": SOURCE, "lake": self._lake, "checkpoint": self._checkpoint, "max-records": MOST}
        named = [f"--{name}={value}" for name, value in {"broker": self.broker.address, **given}.items()]
        master = (conf or {}).get("spark.master", MASTER)
        self.driver.start("archive", *named, f"--master={master}", *flags, conf=conf)

    def stored(self) -> int:
        return sum(parquet.read_metadata(one).num_rows for one in self._lake.rglob("*.parquet"))

    def values(self) -> Counter[int]:
        found = dataset.dataset(self._lake, format="parquet", partitioning="hive").to_table(columns=["value"])
        return Counter(int(value) for value in found.column("value").to_pylist())

    def _start_to_the_end(self) -> None:
        self.start("--available-now")


@pytest.fixture
def archive(tmp_path: Path) -> Iterator[Archive]:
    with Broker() as broker, Admin(broker.address) as admin:
        admin.create_topic(SOURCE, 2)
        admin.create_topic(TARGET, 3)
        with DriverProcess((sys.executable, "-m", "cursus_spark.pipeline"), tmp_path / "driver") as driver:
            yield Archive(broker, admin, driver, tmp_path)


@pytest.fixture
def pipeline(tmp_path: Path) -> Iterator[Pipeline]:
    with Broker() as broker, Admin(broker.address) as admin:
        admin.create_topic(SOURCE, 2)
        admin.create_topic(TARGET, 3)
        # Rows move on in small portions, so that what a task has handed over is soon stored.
        conf = {"spark.sql.execution.arrow.maxRecordsPerBatch": "1000"}
        with DriverProcess((sys.executable, str(COPY_STREAM)), tmp_path / "driver", conf) as driver:
            yield Pipeline(broker, admin, driver, tmp_path)


@contextmanager
def repeatable(seed: int) -> Iterator[random.Random]:
    try:
        yield random.Random(seed)
    except BaseException as error:
        error.add_note(f"repeat with: make test-spark-faults FAULTS_SEED={seed} SEEDS=1 FAULTS={KILLS}")
        raise


def seeds() -> range:
    return range(FIRST_SEED, FIRST_SEED + ROUNDS)


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("seed", seeds())
def test_a_stream_that_is_killed_again_and_again_stores_every_record_once(pipeline: Pipeline, seed: int) -> None:
    with repeatable(seed) as chooser:
        torment(pipeline, chooser)


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("seed", seeds())
def test_an_archive_that_is_killed_again_and_again_holds_every_record_once(archive: Archive, seed: int) -> None:
    with repeatable(seed) as chooser:
        torment(archive, chooser)


def torment(pipeline: Pipeline, chooser: random.Random) -> None:
    """Each driver has another number of cores than the one before, and finds partitions that were added meanwhile."""
    faults = ["driver", "worker", "broker"] * KILLS
    chooser.shuffle(faults)
    partitions = 3
    with Producing(pipeline.broker, pipeline.stored) as producing:
        pipeline.stream()
        reached = 0
        for fault in faults:
            reached = pipeline.wait_for(reached + chooser.randint(1, 2 * MOST))
            match fault:
                case "driver":
                    pipeline.driver.kill()
                    partitions += 1
                    pipeline.admin.add_partitions(TARGET, partitions)
                    pipeline.stream(conf={"spark.master": f"local[{chooser.choice((1, 3))},4]"})
                case "worker":
                    assert pipeline.driver.kill_task_worker(chooser) is not None
                case _:
                    pipeline.broker.kill()
                    pipeline.broker.restart()
        pipeline.wait_for(reached + 1)
    assert pipeline.finish(producing.sent) == Counter(range(producing.sent))


@long_form
@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_S)
def test_another_number_of_tasks_for_a_batch_that_had_begun_fails_until_told_otherwise(pipeline: Pipeline) -> None:
    """With other tasks a batch cannot be told from its repetition; between batches their number may change."""
    pipeline.publish(range(2_000))
    pipeline.start("--once", tasks=2)
    assert pipeline.driver.wait() == 0, pipeline.driver.log
    assert pipeline.values() == Counter(range(2_000))

    pipeline.publish(range(2_000, 32_000))
    blocked = pipeline.seen / "blocked"
    blocked.touch()
    # Two tasks with 15,000 rows each. A set has 5,000, and some rows are on their way to the writer when a task stops.
    pipeline.start("--once", f"--seen={pipeline.seen}", "--hold-after=12000", tasks=2)
    pipeline.wait_for(2_001)
    pipeline.driver.kill()
    blocked.unlink()
    pipeline.start("--once", tasks=8)
    assert pipeline.driver.wait() != 0
    assert "`delivery` = atLeastOnce" in pipeline.driver.log

    pipeline.start("--once", "--delivery=atLeastOnce", tasks=8)
    assert pipeline.driver.wait() == 0, pipeline.driver.log
    pipeline.publish(range(32_000, 34_000))
    found = pipeline.finish(34_000)
    assert {number for number, times in found.items() if times > 1} <= set(range(2_000, 32_000))


MANY: Final = 450_000
"""Rows of a task, in 90 sets: the broker remembers 64 of them."""


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("victim", ["worker", pytest.param("driver", marks=long_form)])
def test_a_task_of_more_sets_than_the_broker_remembers_is_repeated_after_a_kill(
    pipeline: Pipeline, victim: str
) -> None:
    with Producer(pipeline.broker.address, acks="all") as producer:
        for number in range(MANY):
            producer.send(SOURCE, b"%d" % number, partition=0)
    blocked = pipeline.seen / "blocked"
    blocked.touch()
    pipeline.start("--once", f"--seen={pipeline.seen}", "--hold-after=400000", tasks=1)
    pipeline.wait_for(70 * 5_000)
    if victim == "driver":
        pipeline.driver.kill()
        blocked.unlink()
        pipeline.start("--once", tasks=1)
    else:
        for pid in pipeline.driver.task_workers():
            os.kill(pid, signal.SIGKILL)
        blocked.unlink()
    assert pipeline.driver.wait() == 0, pipeline.driver.log
    if victim == "worker":
        assert (pipeline.seen / "0.1").exists(), "the task was not tried again"
    assert pipeline.values() == Counter(range(MANY))


def wait_for_word(process: DriverProcess, word: str) -> None:
    process.wait_for(lambda: process.log.count(word), 1)


@pytest.fixture
def two_hosts(tmp_path: Path) -> Iterator[str]:
    """The address of a cluster whose two workers are on hosts of their own, as far as Spark can tell: it has no
    speculation in local mode, and never runs a copy of a task on the host of its original."""
    spark_class = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
    conf = {"spark.master.rest.enabled": "false"}
    with ExitStack() as stack:

        def run(kind: str, name: str, host: str, *arguments: str) -> DriverProcess:
            command = (
                spark_class,
                f"org.apache.spark.deploy.{kind}",
                "--host",
                host,
                "--port",
                "0",
                "--webui-port",
                "0",
            )
            process = stack.enter_context(DriverProcess(command, tmp_path / name, conf))
            process.start(*arguments)
            return process

        master = run("master.Master", "master", "127.0.0.1")
        wait_for_word(master, "Starting Spark master at spark://")
        (url,) = re.findall(r"Starting Spark master at (spark://\S+)", master.log)
        for number in (1, 2):
            name, host = f"worker-{number}", f"127.0.0.{number}"
            worker = run("worker.Worker", name, host, "--cores", "1", "--memory", "1g", "-d", str(tmp_path / name), url)
            wait_for_word(worker, "Successfully registered with master")
        yield url


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_S)
def test_a_speculative_copy_and_its_original_store_once(pipeline: Pipeline, two_hosts: str) -> None:
    """The first attempt at a task stops until Spark has started a copy of it; then both write."""
    pipeline.publish(range(60_000))
    speculation = {
        "spark.master": two_hosts,
        "spark.executor.memory": "512m",
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.quantile": "0.5",
    }
    pipeline.start("--once", f"--seen={pipeline.seen}", "--hold-after=12000", "--until-copied", conf=speculation)
    assert pipeline.driver.wait() == 0, pipeline.driver.log
    assert (pipeline.seen / "0.1").exists()
    assert pipeline.values() == Counter(range(60_000))
