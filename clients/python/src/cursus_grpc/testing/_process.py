"""A broker as a process of its own, started on a free port and known by its ready line."""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

START_S: Final = 60.0
STOP_S: Final = 30.0
_SHOWN_LOG_CHARS: Final = 8_000


class BrokerFailed(AssertionError):
    """The broker did not come up; the end of its log is in the message."""


class BrokerProcess:
    def __init__(self, data_dir: Path, flags: Sequence[str]) -> None:
        self._data_dir = data_dir
        self._flags = flags
        self._log_path = data_dir / "broker.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, port: int) -> str:
        """Start it, on a port of its choice if 0, and answer its address. Raises BrokerFailed."""
        deadline = time.monotonic() + START_S
        while True:
            address = self._launch(port, deadline)
            if address is not None:
                return address
            # Somebody's outgoing connection may have got the port that a killed broker left.
            if port == 0 or time.monotonic() > deadline:
                raise BrokerFailed(f"the broker did not start\n{self.log()[-_SHOWN_LOG_CHARS:]}")

    def _launch(self, port: int, deadline: float) -> str | None:
        assert self._process is None, "started twice"
        self._data_dir.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "cursus_broker", "--data-dir", str(self._data_dir / "data")]
        command += ["--grpc-port", str(port), "--health-port", "0", "--metrics-port", "0", *self._flags]
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, env=_environment()
            )
        line = _read_line(self._process, deadline)
        word, *parts = line.split() or [""]
        if word != "ready":
            self.kill()
            return None
        return dict(part.split("=", 1) for part in parts)["grpc"]

    def stop(self) -> None:
        """SIGTERM; SIGKILL if it does not go."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._reap()

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        if self._process is not None:
            self._process.kill()
            self._reap()

    def _reap(self) -> None:
        assert self._process is not None
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._process = None

    def log(self) -> str:
        return self._log_path.read_text(errors="replace") if self._log_path.exists() else ""


def _environment() -> dict[str, str]:
    """Ours without its CURSUS_* variables: a developer's settings must not decide a test."""
    return {name: value for name, value in os.environ.items() if not name.startswith("CURSUS_")}


def _read_line(process: subprocess.Popen[bytes], deadline: float) -> str:
    """Its first line; empty if it ends or stays silent until the deadline."""
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        if not selector.select(max(0.0, deadline - time.monotonic())):
            return ""
    # The line is written in one piece, so reading it does not wait for a second one.
    return process.stdout.readline().decode(errors="replace")
