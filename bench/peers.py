"""The brokers a Python developer would weigh against ours, started on free ports with durability like that of acks 1:
an acknowledged record survives the death of the broker's process, and may be lost with the power."""

from __future__ import annotations

import asyncio
import base64
import importlib.util
import json
import shutil
import socket
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.compare import Series, progress
from bench.processes import START_DEADLINE_S, BenchFailed, Service, end_of, program
from bench.processes import broker as start_broker
from bench.report import Bound, Figure, ratio

KAFKA_JARS: Final = Path(__file__).parent.parent / "build" / "kafka"

_HOST: Final = "127.0.0.1"
_POLL_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class Contestant:
    """A running broker and the client library that speaks to it."""

    name: str
    client: str
    """A module of bench.clients."""
    service: Service
    sets_bar: bool


@dataclass(frozen=True, slots=True)
class Peer:
    name: str
    client: str
    library: str
    """What has to be importable."""
    program: str
    start: Callable[[Path], AbstractAsyncContextManager[Service]]
    files: Path | None = None
    """A directory that has to have something in it."""
    sets_bar: bool = True
    """Whether our client is judged by it, or it is only shown beside."""

    def missing(self) -> str | None:
        """Why it cannot take part."""
        if importlib.util.find_spec(self.library) is None:
            return f"its client {self.library} is not installed"
        if shutil.which(self.program) is None:
            return f"{self.program} is not installed"
        if self.files is not None and not any(self.files.glob("*")):
            return f"there is nothing in build/{self.files.name}"
        return None


@asynccontextmanager
async def contestants(scratch: Path) -> AsyncIterator[tuple[Sequence[Contestant], Sequence[str]]]:
    """Our broker first, then every peer there is, all running; and a sentence for each that is not there."""
    absent: list[str] = []
    async with AsyncExitStack() as running:
        ours = await running.enter_async_context(start_broker(scratch / "broker"))
        found = [Contestant(OURS, "ours", ours, sets_bar=False)]
        for peer in PEERS:
            reason = peer.missing()
            if reason is not None:
                absent.append(f"{peer.name} is not compared: {reason}.")
                progress(absent[-1])
                continue
            directory = scratch / peer.client
            directory.mkdir()
            service = await running.enter_async_context(peer.start(directory))
            found.append(Contestant(peer.name, peer.client, service, peer.sets_bar))
        yield found, absent


def figures(name: str, series: Sequence[Series], found: Sequence[Contestant], bound: Bound, bar: float) -> list[Figure]:
    """Our series, the first, against each other one; the bar is that against the best of those that set it."""
    rivals = [one for one, contestant in zip(series, found, strict=True) if contestant.sets_bar]
    pick = max if bound is Bound.AT_LEAST else min
    best = pick(rivals, key=lambda one: one.median, default=None)
    return [
        ratio(name, series[0], one, bound, bar) if one is best else ratio(name, series[0], one) for one in series[1:]
    ]


@asynccontextmanager
async def redis(directory: Path) -> AsyncIterator[Service]:
    """Appends every command to a file and syncs it every second. Neither snapshots nor rewrites disturb it."""
    port, log = _free_port(), directory / "redis.log"
    settings = {
        "bind": _HOST,
        "port": str(port),
        "dir": str(directory),
        "appendonly": "yes",
        "appendfsync": "everysec",
        "auto-aof-rewrite-percentage": "0",
        "save": "",
    }
    options = [word for name, value in settings.items() for word in (f"--{name}", value)]
    async with program(log, "redis-server", *options, talks=False) as process:
        await _reachable(process, port, log)
        yield Service(process, f"{_HOST}:{port}")


@asynccontextmanager
async def nats(directory: Path) -> AsyncIterator[Service]:
    """JetStream; streams are made with file storage."""
    log = directory / "nats.log"
    options = ("--addr", _HOST, "--port", "-1", "--jetstream", "--store_dir", str(directory))
    async with program(log, "nats-server", *options, "--ports_file_dir", str(directory), talks=False) as process:
        path = directory / f"nats-server_{process.pid}.ports"

        async def port_is_told() -> bool:
            return path.exists() and path.stat().st_size > 0

        await _until(port_is_told, process, log)
        address = json.loads(path.read_text(encoding="utf-8"))["nats"][0].removeprefix("nats://")
        await _reachable(process, int(address.rpartition(":")[2]), log)
        yield Service(process, address)


@asynccontextmanager
async def kafka(directory: Path, partitions: int = 1) -> AsyncIterator[Service]:
    """One node that is broker and controller. Topics that are written to before they are made get so many
    partitions."""
    port, controller_port, log = _free_port(), _free_port(), directory / "kafka.log"
    settings = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@{_HOST}:{controller_port}",
        "listeners": f"PLAINTEXT://{_HOST}:{port},CONTROLLER://{_HOST}:{controller_port}",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": str(directory / "data"),
        "num.partitions": str(partitions),
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "group.initial.rebalance.delay.ms": "0",
    }
    properties = directory / "server.properties"
    properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()), encoding="utf-8")
    java = ("java", "-cp", f"{KAFKA_JARS}/*")
    cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    formatting = ("kafka.tools.StorageTool", "format", f"--cluster-id={cluster_id}", "--config", str(properties))
    async with program(log, *java, *formatting, talks=False) as process:
        if await process.wait() != 0:
            raise BenchFailed(f"Kafka's directory could not be made:\n{end_of(log)}")
    async with program(log, *java, "-Xmx2g", "kafka.Kafka", str(properties), talks=False) as process:
        await _reachable(process, port, log)
        yield Service(process, f"{_HOST}:{port}")


def _free_port() -> int:
    """A port nobody uses; for servers that cannot pick one and say which."""
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        return int(probe.getsockname()[1])


async def _reachable(process: asyncio.subprocess.Process, port: int, log: Path) -> None:
    async def accepts() -> bool:
        try:
            _, writer = await asyncio.open_connection(_HOST, port)
        except OSError:
            return False
        writer.close()
        return True

    await _until(accepts, process, log)


async def _until(ready: Callable[[], Awaitable[bool]], process: asyncio.subprocess.Process, log: Path) -> None:
    deadline = time.monotonic() + START_DEADLINE_S
    while not await ready():
        if process.returncode is not None or time.monotonic() > deadline:
            raise BenchFailed(f"a peer did not start:\n{end_of(log)}")
        await asyncio.sleep(_POLL_S)


OURS: Final = "cursus-grpc"
PEERS: Final = (
    Peer("redis-py", "redis_py", "redis", "redis-server", redis),
    Peer("nats-py", "nats_py", "nats", "nats-server", nats),
    Peer("confluent-kafka", "confluent", "confluent_kafka", "java", kafka, KAFKA_JARS, sets_bar=False),
)
