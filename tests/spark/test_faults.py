"""Streams from topic to topic while drivers, their workers and the broker are killed at random: every record is stored
once. `make test-spark-faults` runs the long form; a failure names its seed.
"""

from __future__ import annotations

import os
import random
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import pytest

from cursus_grpc import END, Admin, Consumer, CursusError, Producer
from cursus_grpc.testing import Broker
from tests.harness.spark_drivers import DriverProcess

FIRST_SEED: Final = int(os.environ.get("FAULTS_SEED", "0"))
ROUNDS: Final = int(os.environ.get("FAULTS_ROUNDS", "1"))
KILLS: Final = int(os.environ.get("FAULTS_KILLS", "2"))

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

    def __init__(self, broker: Broker, admin: Admin, driver: DriverProcess, checkpoint: Path) -> None:
        self.broker = broker
        self.admin = admin
        self.driver = driver
        self._checkpoint = checkpoint

    def start(self, tasks: int = 4, conf: dict[str, str] | None = None) -> None:
        given = {"source": SOURCE, "target": TARGET, "checkpoint": self._checkpoint, "tasks": tasks, "most": MOST}
        named = [f"--{name}={value}" for name, value in {"broker": self.broker.address, **given}.items()]
        self.driver.start(*named, conf=conf)

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

    def check(self, sent: int) -> None:
        """Wait until everything is copied, and one batch more: then the one before it is done for good."""
        self.wait_for(sent)
        with Producer(self.broker.address, acks="all") as producer:
            publish(producer, range(sent, sent + 10))
        self.wait_for(sent + 10)
        self.driver.kill()
        assert self.values() == Counter(range(sent + 10))


@pytest.fixture
def pipeline(tmp_path: Path) -> Iterator[Pipeline]:
    with Broker() as broker, Admin(broker.address) as admin:
        admin.create_topic(SOURCE, 2)
        admin.create_topic(TARGET, 3)
        with DriverProcess((sys.executable, str(COPY_STREAM)), tmp_path / "driver") as driver:
            yield Pipeline(broker, admin, driver, tmp_path / "checkpoint")


@pytest.mark.slow
@pytest.mark.timeout(600 + 600 * KILLS)
@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + ROUNDS))
def test_a_stream_that_is_killed_again_and_again_stores_every_record_once(pipeline: Pipeline, seed: int) -> None:
    chooser = random.Random(seed)
    faults = ["driver", "worker", "broker"] * KILLS
    chooser.shuffle(faults)
    try:
        with Producing(pipeline.broker, pipeline.stored) as producing:
            pipeline.start()
            reached = 0
            for fault in faults:
                reached = pipeline.wait_for(reached + chooser.randint(1, 2 * MOST))
                match fault:
                    case "driver":
                        pipeline.driver.kill()
                        pipeline.start()
                    case "worker":
                        assert pipeline.driver.kill_task_worker(chooser) is not None
                    case _:
                        pipeline.broker.kill()
                        pipeline.broker.restart()
        pipeline.check(producing.sent)
    except BaseException as error:
        error.add_note(f"repeat with: make test-spark-faults FAULTS_SEED={seed} SEEDS=1 FAULTS={KILLS}")
        raise
