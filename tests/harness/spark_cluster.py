"""A standalone Spark cluster for tests, on loopback: a master, two workers and what they start, each its own process.

Workers have one core each, so that two tasks at a time run in two executors.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self, TypeVar

import psutil
import pyspark

from tests.harness.waiting import eventually

T = TypeVar("T")

WORKERS: Final = 2
STOP_DEADLINE_S: Final = 60.0
START_DEADLINE_S: Final = 600.0
_SHOWN_LOG_CHARS: Final = 8_000

SPARK_HOME: Final = Path(pyspark.__file__).parent

# A short life on few cores: what a JVM compiles well, or collects beside its work, would only pay later.
JAVA_OPTIONS: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"

CONFIGURATION: Final[Mapping[str, str]] = {
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": JAVA_OPTIONS,
    "spark.driver.extraJavaOptions": JAVA_OPTIONS,
    # Tasks wait for both executors: whichever comes first would run all of them.
    "spark.cores.max": str(WORKERS),
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "600s",
    "spark.locality.wait": "0s",
}
"""For jobs on this cluster, beside what every session of a test is started with."""


@dataclass(frozen=True, slots=True)
class Executor:
    pid: int
    directory: Path
    """Where it works: `APPLICATION/ID` in the directory of its worker."""


class JvmProcess:
    """One JVM. Everything it says goes to a file."""

    def __init__(self, command: Sequence[str], log_path: Path, env: Mapping[str, str], directory: Path) -> None:
        self._log_path = log_path
        with log_path.open("wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=dict(env), cwd=directory
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def log(self) -> str:
        return self._log_path.read_text(encoding="utf-8", errors="replace")

    def said(self, pattern: str) -> re.Match[str]:
        """Waits for a line. The process must not end before."""
        return self.until(lambda: re.search(pattern, self.log))

    def until(self, condition: Callable[[], T | None]) -> T:
        """Waits for something to hold, and answers it. The process must not end before."""

        def found() -> T | None:
            held = condition()
            if not held and self._process.poll() is not None:
                raise RuntimeError(f"it ended with status {self._process.returncode}:\n{self._tail()}")
            return held

        result = asyncio.run(eventually(found, START_DEADLINE_S, ignoring=()))
        assert result is not None
        return result

    def ended(self) -> int:
        """Waits for its end by itself, however long it takes: a test has a time limit of its own."""
        return self._process.wait()

    def stop(self) -> None:
        """SIGTERM; SIGKILL if it does not go."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(STOP_DEADLINE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def _tail(self) -> str:
        return self.log[-_SHOWN_LOG_CHARS:]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class Cluster:
    """A master and its workers that are registered."""

    def __init__(self, url: str, workers: Sequence[JvmProcess]) -> None:
        self.url = url
        self._workers = workers

    def executors(self) -> list[Executor]:
        """Those that run now, in the order of their workers."""
        return [
            found
            for worker in self._workers
            for child in psutil.Process(worker.pid).children()
            if (found := _executor(child)) is not None
        ]


def _executor(process: psutil.Process) -> Executor | None:
    """None for whatever else a worker starts."""
    try:
        if any("CoarseGrainedExecutorBackend" in word for word in process.cmdline()):
            return Executor(process.pid, Path(process.cwd()))
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        pass  # it has just ended
    return None


def environment(directory: Path) -> dict[str, str]:
    """Of everything on the cluster, drivers too: nothing of ours but Java, and so nothing of ours in the executors."""
    kept = {name: os.environ[name] for name in ("PATH", "JAVA_HOME", "HOME", "LANG") if name in os.environ}
    return {
        **kept,
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(directory / "spark-local"),
        # A JVM of its own works out how to start every other one.
        "SPARK_LAUNCHER_OPTS": JAVA_OPTIONS,
    }


@contextmanager
def running(directory: Path, path: str) -> Iterator[Cluster]:
    """A cluster whose executors look for programs in `path`, as PATH."""
    env = environment(directory) | {
        "PATH": path,
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": JAVA_OPTIONS,
        # It would listen on a fixed port.
        "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",
    }

    def start(name: str, kind: str, *arguments: str) -> JvmProcess:
        command = [str(SPARK_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}"]
        command += ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0", *arguments]
        return stack.enter_context(JvmProcess(command, directory / f"{name}.log", env, directory))

    with ExitStack() as stack:
        master = start("master", "master.Master")
        url = master.said(r"Starting Spark master at (spark://\S+)")[1]
        workers = [
            start(
                f"worker-{number}",
                "worker.Worker",
                *("--cores", "1", "--memory", "1g", "--work-dir", str(directory / f"worker-{number}"), url),
            )
            for number in range(WORKERS)
        ]
        for worker in workers:
            worker.said("Successfully registered with master")
        yield Cluster(url, workers)
