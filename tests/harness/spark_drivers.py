"""Spark drivers as processes of their own, to be killed and started again.

    with DriverProcess((sys.executable, "copy.py"), tmp_path / "driver") as driver:
        driver.start(broker.address, checkpoint)
        driver.wait_for(stored, 10_000)
        driver.kill()
        driver.start(broker.address, checkpoint, conf={"spark.master": "local[4,3]"})

A driver is given its configuration in `spark-defaults.conf`, so the command may be a script, `spark-submit` or a
pipeline job: whatever makes its session with `SparkSession.builder.getOrCreate()`. Waits are bounded by progress: they
fail when the driver ends, or when nothing at all has moved for very long.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from cursus_grpc import CursusError
from tests.harness import spark
from tests.harness.waiting import eventually

STALLED_S: Final = 600.0
"""Without any progress for so long a driver hangs: far above what a start takes on a slow and busy machine."""
MASTER: Final = "local[2,4]"
"""Two tasks at once, each tried up to four times."""

_SHORT_LIVED: Final = dict.fromkeys(
    # What a JVM compiles well, or collects beside its work, would only pay in a longer life on more cores.
    ("spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions"),
    "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
)
_CHECKOUT: Final = Path(__file__).resolve().parents[2]
_SHOWN_LOG_BYTES: Final = 16 * 1024
_WORKERS: Final = ("pyspark.daemon", "pyspark.worker")
"""In the command line of a process that runs tasks, and of the daemon that forks them."""


class DriverFailed(AssertionError):
    """The driver did not do what a test may rely on; the end of its log is in the message."""


class DriverEnded(DriverFailed):
    """It ended by itself while something was waited for."""


@dataclass(frozen=True, slots=True)
class _Process:
    pid: int
    parent: int
    session: int
    command: tuple[str, ...]


class DriverProcess:
    """One driver and its successors. Leaving the block kills what is left of all of them."""

    def __init__(self, command: Sequence[str], directory: Path, conf: Mapping[str, str] | None = None) -> None:
        """`conf` is added to what every driver of a test has. The directory is for its log and scratch files."""
        self._command = tuple(command)
        self._directory = directory
        self._conf = {**spark.CONFIGURATION, **_SHORT_LIVED, "spark.master": MASTER, **(conf or {})}
        self._log_path = directory / "driver.log"
        self._log_start = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._sessions: set[int] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        if kind is not None:
            sys.stderr.write(self._tail() + "\n")

    def start(self, *arguments: str, conf: Mapping[str, str] | None = None) -> None:
        """Start it, with these arguments behind its command and this configuration for this life."""
        assert not self.running, "started twice"
        configured = self._directory / "conf"
        configured.mkdir(parents=True, exist_ok=True)
        settings = {**self._conf, **(conf or {})}
        lines = [f"{name} {value}\n" for name, value in settings.items()]
        (configured / "spark-defaults.conf").write_text("".join(lines), encoding="utf-8")
        env = spark.environment(self._directory) | {
            "SPARK_CONF_DIR": str(configured),
            "PYTHONPATH": os.pathsep.join(filter(None, (str(_CHECKOUT), os.environ.get("PYTHONPATH")))),
            "PYTHONUNBUFFERED": "1",
        }
        self._log_start = self._log_path.stat().st_size if self._log_path.exists() else 0
        with self._log_path.open("ab") as log:
            # A session of its own: whatever it starts can be found by it, also what outlives it.
            self._process = subprocess.Popen(
                (*self._command, *arguments),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=env,
                cwd=self._directory,
                start_new_session=True,
            )
        self._sessions.add(self._process.pid)

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def returncode(self) -> int | None:
        """Of the last life, None while it runs."""
        return None if self._process is None else self._process.poll()

    @property
    def log(self) -> str:
        """What the last life has written so far."""
        if not self._log_path.exists():
            return ""
        return self._log_path.read_bytes()[self._log_start :].decode("utf-8", "replace")

    def wait_for(self, progress: Callable[[], int], goal: int) -> int:
        """Wait until there is so much progress; answers how much there is. Raises DriverEnded, DriverFailed."""
        reached = _settled(progress, -1)
        while reached < goal:
            last = reached

            def moved(last: int = last) -> bool:
                nonlocal reached
                # Asked before: what it stored until it ended is counted.
                ended = not self.running
                reached = _settled(progress, last)
                if reached <= last and ended:
                    raise DriverEnded(f"the driver ended with {self.returncode} at {reached} of {goal}\n{self._tail()}")
                return reached > last

            try:
                asyncio.run(eventually(moved, STALLED_S, ignoring=()))
            except DriverEnded:
                raise
            except AssertionError as stalled:
                raise DriverFailed(f"nothing moves at {reached} of {goal}\n{self._tail()}") from stalled
        return reached

    def wait(self) -> int:
        """Its exit status, once it has ended by itself. Raises DriverFailed for one that does not."""
        assert self._process is not None, "not started"
        try:
            return self._process.wait(STALLED_S)
        except subprocess.TimeoutExpired as error:
            raise DriverFailed(f"the driver does not end\n{self._tail()}") from error

    def kill(self) -> None:
        """SIGKILL for the driver and its JVM at once. Its Python workers find out by themselves, as they would when a
        machine kills a driver; nobody waits for them. Harmless if it is gone."""
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def task_workers(self) -> list[int]:
        """The Python processes that run its tasks, busy or waiting for the next."""
        assert self._process is not None, "not started"
        found = {one.pid: one for one in _processes() if one.session == self._process.pid}
        return sorted(one.pid for one in found.values() if _is_worker(one) and _is_worker(found.get(one.parent)))

    def kill_task_worker(self, chooser: random.Random) -> int | None:
        """SIGKILL for one of them; None if there is none at the moment."""
        workers = self.task_workers()
        if not workers:
            return None
        pid = chooser.choice(workers)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        return pid

    def close(self) -> None:
        """End everything that any of its lives has started."""
        self.kill()

        def gone() -> bool:
            left = [one.pid for one in _processes() if one.session in self._sessions]
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return not left

        asyncio.run(eventually(gone))

    def _tail(self) -> str:
        return f"--- end of {self._log_path.name}:\n{self.log[-_SHOWN_LOG_BYTES:]}"


def _settled(progress: Callable[[], int], last: int) -> int:
    """How far it is; as before while nobody can tell, because the broker is away."""
    try:
        return max(progress(), last)
    except CursusError as error:
        if not error.retriable:
            raise
        return last


def _is_worker(process: _Process | None) -> bool:
    return process is not None and process.command[-2:] == _WORKERS


def _processes() -> list[_Process]:
    """All that run here. Linux only, as everything that starts services in these tests."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with suppress(OSError):
            # The name in parentheses may hold anything, so fields are counted behind it.
            fields = (entry / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            if fields[0] == "Z":
                continue
            command = (entry / "cmdline").read_bytes().decode("utf-8", "replace").rstrip("\0").split("\0")
            found.append(_Process(int(entry.name), int(fields[1]), int(fields[3]), tuple(command)))
    return found
