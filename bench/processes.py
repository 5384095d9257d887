"""The processes of a measurement: services known by their ready line, clients that take jobs. Each is ended by the
object that started it."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import psutil

from bench.worker import PLAIN, STALLED

START_DEADLINE_S: Final = 120.0
STOP_DEADLINE_S: Final = 60.0
_MAX_LINE_BYTES: Final = 16 * 1024 * 1024
"""A client's answer may hold a latency for each of many requests."""


_CPU_CLOCK: Final = 2
"""What Linux makes the number of a process's clock of, beside its id: the time the scheduler has counted."""


class BenchFailed(Exception):
    """A process did not do its part; the message holds what it said."""


class BenchSkipped(Exception):
    """What a measure needs is not here; the message says what."""


class Service:
    """A running service."""

    def __init__(self, process: asyncio.subprocess.Process, address: str, metrics_address: str = "") -> None:
        self._process = psutil.Process(process.pid)
        self.address = address
        self._metrics_address = metrics_address

    def cpu_seconds(self) -> float:
        """Of all its threads, those that have ended included, to the nanosecond."""
        return time.clock_gettime(~self._process.pid << 3 | _CPU_CLOCK)

    async def metric(self, name: str) -> float:
        """The value of a metric without labels."""
        exposition = await asyncio.to_thread(self._scrape)
        for line in exposition.splitlines():
            if line.startswith(f"{name} "):
                return float(line.removeprefix(f"{name} "))
        raise BenchFailed(f"there is no metric {name}")

    def _scrape(self) -> str:
        with urllib.request.urlopen(f"http://{self._metrics_address}/metrics", timeout=STOP_DEADLINE_S) as response:
            return str(response.read(), "utf-8")

    def memory(self) -> tuple[int, int]:
        """Resident bytes, and how many of them are the process's own rather than pages of mapped files."""
        info = self._process.memory_info()
        return int(info.rss), int(info.rss - info.shared)


@asynccontextmanager
async def service(
    log: Path, module: str, *arguments: str, port: str = "grpc", environment: Mapping[str, str] | None = None
) -> AsyncIterator[Service]:
    """`python -m module`, ready; its address is that of the port its ready line calls so. Its stderr goes to `log`."""
    async with program(log, sys.executable, "-m", module, *arguments, environment=environment) as process:
        assert process.stdout is not None
        async with asyncio.timeout(START_DEADLINE_S):
            line = (await process.stdout.readline()).decode()
        addresses = dict(part.split("=", 1) for part in line.split()[1:])
        if port not in addresses:
            raise BenchFailed(f"{module} did not start:\n{end_of(log)}")
        yield Service(process, addresses[port], addresses.get("metrics", ""))


@asynccontextmanager
async def broker(
    data_dir: Path, *arguments: str, environment: Mapping[str, str] | None = None
) -> AsyncIterator[Service]:
    """A broker on `data_dir`, on free ports. `environment` is added to ours."""
    ports = ("--grpc-port", "0", "--health-port", "0", "--metrics-port", "0")
    log = data_dir.with_name(data_dir.name + ".log")
    options = ("--data-dir", str(data_dir), *ports, *arguments)
    async with service(log, "cursus_broker", *options, environment=environment) as started:
        yield started


@asynccontextmanager
async def gateway(scratch: Path, broker_address: str) -> AsyncIterator[Service]:
    """A gateway in front of a broker, on free ports."""
    ports = ("--port", "0", "--health-port", "0", "--metrics-port", "0")
    arguments = ("--broker", broker_address, *ports)
    async with service(scratch / "gateway.log", "cursus_gateway", *arguments, port="tcp") as started:
        yield started


@asynccontextmanager
async def floor(scratch: Path) -> AsyncIterator[Service]:
    async with service(scratch / "floor.log", "bench.floor") as started:
        yield started


class Worker:
    """A running client process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._stdin, self._stdout = process.stdin, process.stdout

    async def run(self, job: Any) -> dict[str, Any]:
        """Have a job done, one of the dataclasses of bench.jobs, and return the fields of its result."""
        await self._send({"job": type(job).__name__, "arguments": asdict(job)})
        return await self._result()

    async def stall(self, job: Any) -> None:
        """Begin a job that stops in the middle, and wait until it has."""
        await self._send({"job": type(job).__name__, "arguments": asdict(job)})
        answer = await self._receive()
        if answer.get("event") != STALLED:
            raise BenchFailed(f"{job} did not stop in the middle: {answer}")

    async def resume(self) -> dict[str, Any]:
        """Let the stalled job go on, and return its result."""
        await self._send({})
        return await self._result()

    async def _send(self, message: dict[str, Any]) -> None:
        self._stdin.write(json.dumps(message).encode() + b"\n")
        await self._stdin.drain()

    async def _result(self) -> dict[str, Any]:
        answer = await self._receive()
        if "result" not in answer:
            raise BenchFailed(f"a job failed: {answer.get('error')}")
        result: dict[str, Any] = answer["result"]
        return result

    async def _receive(self) -> dict[str, Any]:
        line = await self._stdout.readline()
        if not line:
            raise BenchFailed("the client process ended")
        answer: dict[str, Any] = json.loads(line)
        return answer


@asynccontextmanager
async def worker(scratch: Path, name: str = "client", *, plain: bool = False) -> AsyncIterator[Worker]:
    """A client process; a plain one has Python's own memory settings, as a user's program has."""
    options = (PLAIN,) if plain else ()
    async with program(scratch / f"{name}.log", sys.executable, "-m", "bench.worker", *options) as process:
        yield Worker(process)


@asynccontextmanager
async def spark_driver(scratch: Path) -> AsyncIterator[Worker]:
    """A Spark driver, its session not started yet."""
    async with program(scratch / "spark.log", sys.executable, "-m", "bench.spark_driver") as process:
        yield Worker(process)


@asynccontextmanager
async def program(
    log: Path, *command: str, talks: bool = True, environment: Mapping[str, str] | None = None
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A running program, ended with the block: asked first, then killed. Its stderr goes to `log`; so does its stdout
    unless it talks to us that way."""
    with log.open("ab") as stderr:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE if talks else stderr,
            stderr=stderr,
            env={**_environment(), **(environment or {})},
            limit=_MAX_LINE_BYTES,
        )
    try:
        yield process
    except BenchFailed as error:
        raise BenchFailed(f"{error}\n--- end of {log.name}:\n{end_of(log)}") from error
    finally:
        await _end(process)


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    assert process.stdin is not None
    process.stdin.close()  # ends a client, which does not listen to signals while it waits for a job
    process.terminate()
    try:
        async with asyncio.timeout(STOP_DEADLINE_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


def _environment() -> dict[str, str]:
    """Ours without CURSUS_* variables: a developer's settings must not change a measurement."""
    return {name: value for name, value in os.environ.items() if not name.startswith("CURSUS_")}


def end_of(log: Path) -> str:
    """The last lines a process wrote."""
    return log.read_text(encoding="utf-8", errors="replace")[-4096:] if log.exists() else ""
