"""Clients of the gateway: batches, batch CONSUME, single commands, and connections that do nothing."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from bench import frames
from bench.jobs.latency import DRAIN_DEADLINE_S, Latencies
from bench.jobs.publish import MIB, Published
from bench.jobs.tcp import Connection
from bench.schedule import schedule

_STORED: Final = b'{"status":"OK"'
_DEADLINE_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class PublishFrames:
    """Publish prebuilt batches to partition 0, shared evenly by the connections."""

    address: str
    topic: str
    batches: int
    connections: int
    mixed_sizes: bool = False
    window_bytes: int = 2 * MIB
    """Unanswered bytes of one connection."""


@dataclass(frozen=True, slots=True)
class ConsumeFrames:
    """Read partition 0 up to this offset. Each connection reads a stretch of its own, one CONSUME after the other."""

    address: str
    topic: str
    end_offset: int
    connections: int


@dataclass(frozen=True, slots=True)
class ConsumedFrames:
    seconds: float
    messages: int
    """A reader's last answer may reach into the stretch of the next."""
    client_cpu_seconds: float


@dataclass(frozen=True, slots=True)
class Commands:
    """Publish single messages, one PUBLISH after the other on each connection."""

    address: str
    topic: str
    count: int
    connections: int


@dataclass(frozen=True, slots=True)
class CommandLatency:
    """Publish single messages at `rate` a second; the connections take turns."""

    address: str
    topic: str
    count: int
    rate: int
    connections: int


@dataclass(frozen=True, slots=True)
class Idle:
    """Open connections, publish one batch on each, and keep them open."""

    address: str
    topic: str
    connections: int


class Failed(Exception):
    """What the gateway answered instead of what was asked for."""


class _Client(ABC):
    """One connection that is done when it has received what it waits for."""

    def __init__(self) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._connection: Connection | None = None

    async def connect(self, address: str) -> None:
        self._connection = await Connection.open(address, self._checked)
        self._connection.lost.add_done_callback(lambda _: self._end(Failed("the gateway closed the connection")))

    @abstractmethod
    def start(self) -> None:
        """Send what can be sent before the first answer."""

    @abstractmethod
    def answered(self, head: bytes) -> None:
        """Takes an answer. Raises Failed."""

    def send(self, frame: bytes) -> None:
        assert self._connection is not None, "connected first"
        self._connection.send(frame)

    def finish(self) -> None:
        self._end(None)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def _checked(self, head: bytes) -> None:
        try:
            self.answered(head)
        except Failed as failure:
            self._end(failure)

    def _end(self, failure: Failed | None) -> None:
        if self.done.done():
            return
        if failure is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(failure)


class _Publisher(_Client):
    """Sends the same frame again and again, as long as no more than a window of them is unanswered."""

    def __init__(self, frame: bytes, count: int, window: int) -> None:
        super().__init__()
        self._frame, self._left, self._unanswered = frame, count, count
        self._window = window

    def start(self) -> None:
        for _ in range(min(self._window, self._left)):
            self._left -= 1
            self.send(self._frame)

    def answered(self, head: bytes) -> None:
        if not head.startswith(_STORED):
            raise Failed(head.decode(errors="replace"))
        self._unanswered -= 1
        if self._left:
            self._left -= 1
            self.send(self._frame)
        elif not self._unanswered:
            self.finish()


class _Reader(_Client):
    """Asks for the next messages when it has the ones before."""

    def __init__(self, topic: str, offset: int, end_offset: int) -> None:
        super().__init__()
        self._topic, self._offset, self._end_offset = topic, offset, end_offset
        self.messages = 0

    def start(self) -> None:
        self.send(frames.consume_command(self._topic, self._offset + self.messages))

    def answered(self, head: bytes) -> None:
        count = frames.count_in(head)
        if not count:
            raise Failed(f"nothing at {self._offset + self.messages}: {head!r}")
        self.messages += count
        if self._offset + self.messages < self._end_offset:
            self.start()
        else:
            self.finish()


class _Scheduled(_Client):
    """Sends when told, and notes how long each answer took."""

    def __init__(self, frame: bytes, count: int) -> None:
        super().__init__()
        self._frame, self._unanswered = frame, count
        self._sent: deque[int] = deque()
        self.microseconds: list[float] = []

    def start(self) -> None:
        self._sent.append(time.perf_counter_ns())
        self.send(self._frame)

    def answered(self, head: bytes) -> None:
        if not head.startswith(_STORED):
            raise Failed(head.decode(errors="replace"))
        self.microseconds.append((time.perf_counter_ns() - self._sent.popleft()) / 1000)
        self._unanswered -= 1
        if not self._unanswered:
            self.finish()


async def publish_frames(job: PublishFrames) -> Published:
    frame = frames.batch_frame(job.topic, mixed_sizes=job.mixed_sizes)
    window = max(1, job.window_bytes // len(frame))
    clients = [_Publisher(frame, job.batches // job.connections, window) for _ in range(job.connections)]
    seconds, cpu_seconds = await _run(job.address, clients)
    return Published(seconds, cpu_seconds)


async def consume_frames(job: ConsumeFrames) -> ConsumedFrames:
    stretch = job.end_offset // job.connections
    clients = [_Reader(job.topic, stretch * index, stretch * (index + 1)) for index in range(job.connections)]
    seconds, cpu_seconds = await _run(job.address, clients)
    return ConsumedFrames(seconds, sum(client.messages for client in clients), cpu_seconds)


async def commands(job: Commands) -> Published:
    frame = frames.publish_command(job.topic)
    clients = [_Publisher(frame, job.count // job.connections, 1) for _ in range(job.connections)]
    seconds, cpu_seconds = await _run(job.address, clients)
    return Published(seconds, cpu_seconds)


async def command_latency(job: CommandLatency) -> Latencies:
    frame = frames.publish_command(job.topic)
    clients = [_Scheduled(frame, job.count // job.connections) for _ in range(job.connections)]
    with _closing(clients):
        await asyncio.gather(*(client.connect(job.address) for client in clients))
        cpu_started = time.process_time()
        async with asyncio.timeout(job.count / job.rate + DRAIN_DEADLINE_S):
            async for tick in schedule(job.count // job.connections * job.connections, job.rate):
                clients[tick.number % job.connections].start()
            await asyncio.gather(*(client.done for client in clients))
    microseconds = [taken for client in clients for taken in client.microseconds]
    return Latencies(microseconds, time.process_time() - cpu_started)


async def idle(job: Idle, pause: Callable[[], Awaitable[None]]) -> Published:
    """`pause` returns when the connections may be closed. The time is that of connecting and publishing."""
    frame = frames.batch_frame(job.topic)
    clients = [_Publisher(frame, 1, 1) for _ in range(job.connections)]
    with _closing(clients):
        started, cpu_started = time.perf_counter(), time.process_time()
        for client in clients:
            await client.connect(job.address)
            client.start()
            await client.done
        seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
        await pause()
    return Published(seconds, cpu_seconds)


async def _run(address: str, clients: Sequence[_Client]) -> tuple[float, float]:
    """Seconds and processor seconds from the first frame sent to the last answer."""
    with _closing(clients):
        await asyncio.gather(*(client.connect(address) for client in clients))
        async with asyncio.timeout(_DEADLINE_S):
            started, cpu_started = time.perf_counter(), time.process_time()
            for client in clients:
                client.start()
            await asyncio.gather(*(client.done for client in clients))
            return time.perf_counter() - started, time.process_time() - cpu_started


@contextmanager
def _closing(clients: Sequence[_Client]) -> Iterator[None]:
    try:
        yield
    finally:
        for client in clients:
            client.close()
