"""Real service processes for tests: started on port 0, known by their ready line, always brought to an end."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests.harness.waiting import while_it_works

QUIET_S: Final = 60.0
"""A process that starts or stops is given up once it has neither used its processor nor logged for so long."""
_SHOWN_LOG_BYTES: Final = 16 * 1024
_MAX_LINE_BYTES: Final = 64 * 1024


class ProcessFailed(AssertionError):
    """The process did not do what a test may rely on; the end of its log is in the message."""


class ServiceProcess:
    """One service process and its successors on the same arguments.

    Its stderr goes to a file that all its lives share. `async with` starts it and stops it: with SIGTERM, and if it
    does not go, with SIGKILL and a failure. After a failed test the end of the log is printed, which pytest shows.
    """

    def __init__(self, command: tuple[str, ...], log_path: Path, env: Mapping[str, str]) -> None:
        self._command = command
        self._log_path = log_path
        self._env = dict(env)
        self._process: asyncio.subprocess.Process | None = None
        self._stdout_drain: asyncio.Task[None] | None = None
        self._addresses: dict[str, str] = {}

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    @property
    def returncode(self) -> int | None:
        """Status of the last life that ended, None while one runs. Negative: the signal that ended it."""
        return None if self._process is None else self._process.returncode

    @property
    def log(self) -> str:
        """Everything it wrote to stderr so far, in all its lives."""
        return self._log_path.read_text(encoding="utf-8", errors="replace") if self._log_path.exists() else ""

    def address(self, name: str) -> str:
        """HOST:PORT as the ready line gave it."""
        return self._addresses[name]

    async def launch(self) -> Self:
        """Starts it and waits for its ready line. Raises ProcessFailed if it ends or stays silent instead."""
        assert not self.running, "launched twice"
        self._log_path.parent.mkdir(parents=True, exist_ok=True)
        with self._log_path.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env={**_inherited_environment(), **self._env},
                limit=_MAX_LINE_BYTES,
            )
        try:
            ready = self._read_ready_line(self._process)
            self._addresses = await while_it_works(ready, self._progress(self._process), QUIET_S)
        except BaseException as error:
            await self.kill()
            if isinstance(error, TimeoutError):
                raise self._failed(f"was not ready, and did nothing for {QUIET_S} s") from error
            raise
        self._stdout_drain = asyncio.create_task(_drain(self._process), name="drain-stdout")
        return self

    async def expect_refusal(self) -> int:
        """Starts it and waits for it to end by itself before it is ready; returns its exit status."""
        try:
            await self.launch()
        except ProcessFailed:
            assert self._process is not None
            assert self._process.returncode is not None
            return self._process.returncode
        await self.kill()
        raise self._failed("started although it should have refused")

    def send_signal(self, number: signal.Signals) -> None:
        """SIGSTOP and SIGCONT make a process that is there and does not answer."""
        self._running().send_signal(number)

    async def kill(self) -> None:
        """SIGKILL, and waits until it is gone. Harmless if it is gone already."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._gone(self._process)

    async def terminate(self) -> int:
        """SIGTERM, and waits for the exit status. A process that does not go is killed and a failure."""
        process = self._running()
        process.terminate()
        try:
            return await while_it_works(self._gone(process), self._progress(process), QUIET_S)
        except TimeoutError:
            await self.kill()
            raise self._failed(f"did not end after SIGTERM, and did nothing for {QUIET_S} s") from None

    async def restart(self, *, kill: bool = False) -> Self:
        """Ends it if it runs, with SIGKILL if `kill`, and starts it again. It picks other ports."""
        if self.running:
            if kill:
                await self.kill()
            else:
                await self.terminate()
        return await self.launch()

    async def wait(self) -> int:
        """Exit status of a process that is about to end for a reason of its own."""
        return await self._gone(self._running())

    async def __aenter__(self) -> Self:
        return self if self.running else await self.launch()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            await self.kill()
            sys.stderr.write(self._tail() + "\n")
        elif self.running:
            await self.terminate()

    async def _read_ready_line(self, process: asyncio.subprocess.Process) -> dict[str, str]:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            word, *parts = line.decode(errors="replace").split()
            if word == "ready":
                return dict(part.split("=", 1) for part in parts)
        status = await self._gone(process)
        raise self._failed(f"ended with status {status} before it was ready")

    def _progress(self, process: asyncio.subprocess.Process) -> Callable[[], object]:
        """Its processor time and the size of its log. An idle loop uses some too: pytest's own limit ends that."""

        def progress() -> object:
            try:
                fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                fields = []
            return fields[11:13], self._log_path.stat().st_size

        return progress

    async def _gone(self, process: asyncio.subprocess.Process) -> int:
        status = await process.wait()
        if self._stdout_drain is not None:
            await self._stdout_drain
            self._stdout_drain = None
        return status

    def _running(self) -> asyncio.subprocess.Process:
        assert self._process is not None, "not started"
        return self._process

    def _failed(self, what: str) -> ProcessFailed:
        return ProcessFailed(f"{' '.join(self._command)} {what}\n{self._tail()}")

    def _tail(self) -> str:
        return f"--- end of {self._log_path.name}:\n{self.log[-_SHOWN_LOG_BYTES:]}"


async def free_port() -> int:
    """A port that nobody uses now, for what has to be found again where it was."""
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port: int = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    return port


def _inherited_environment() -> dict[str, str]:
    """Ours without its CURSUS_* variables: a developer's settings must not decide a test."""
    return {name: value for name, value in os.environ.items() if not name.startswith("CURSUS_")}


async def _drain(process: asyncio.subprocess.Process) -> None:
    """Reads on after the ready line, so that a process that prints never blocks on a full pipe."""
    assert process.stdout is not None
    while await process.stdout.read(_MAX_LINE_BYTES):
        pass


class BrokerProcess(ServiceProcess):
    """A broker on its own data directory. `async with BrokerProcess.start(data_dir=tmp_path) as broker: …`"""

    @classmethod
    def start(cls, data_dir: Path, *args: str, env: Mapping[str, str] | None = None) -> Self:
        """Prepares a broker; entering the context, `launch()` or `restart()` starts it. `args` are further flags, and
        win over the ones given here because they come later."""
        command = (
            sys.executable,
            *("-m", "cursus_broker"),
            *("--data-dir", str(data_dir), "--host", "127.0.0.1"),
            *("--grpc-port", "0", "--health-port", "0", "--metrics-port", "0"),
            *args,
        )
        log_path = data_dir.with_name(data_dir.name + ".stderr.log")
        return cls(command, log_path, {"PYTHONUNBUFFERED": "1", **(env or {})})

    @property
    def grpc(self) -> str:
        return self.address("grpc")

    @property
    def health(self) -> str:
        return self.address("health")

    @property
    def metrics(self) -> str:
        return self.address("metrics")
