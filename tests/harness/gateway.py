"""A real gateway process, and a client that writes and reads the legacy wire byte by byte."""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tests.harness.processes import BrokerProcess, ServiceProcess
from tests.harness.waiting import DEADLINE_S

ANSWER_DEADLINE_S = DEADLINE_S


class GatewayProcess(ServiceProcess):
    """A gateway in front of some brokers."""

    @classmethod
    def start(cls, broker: str, log_dir: Path, *args: str, name: str = "gateway") -> Self:
        """Prepares a gateway; entering the context or `launch()` starts it."""
        command = (
            sys.executable,
            *("-m", "cursus_gateway"),
            *("--broker", broker, "--host", "127.0.0.1"),
            *("--port", "0", "--health-port", "0", "--metrics-port", "0"),
            *args,
        )
        return cls(command, log_dir / f"{name}.stderr.log", {"PYTHONUNBUFFERED": "1"})

    @property
    def tcp(self) -> str:
        return self.address("tcp")

    @property
    def health(self) -> str:
        return self.address("health")


@dataclass(frozen=True)
class Stack:
    """A broker and a gateway in front of it."""

    broker: BrokerProcess
    gateway: GatewayProcess

    def connect(self, name: str = "tcp") -> Any:
        return LegacyClient.connect(self.gateway.address(name))

    async def ask(self, text: str, **how: Any) -> str:
        """One command on a connection of its own."""
        async with self.connect() as client:
            return str(await client.ask(text, **how))


@asynccontextmanager
async def running_stack(directory: Path, *gateway_args: str, broker_args: tuple[str, ...] = ()) -> AsyncIterator[Stack]:
    async with (
        BrokerProcess.start(directory / "data", *broker_args) as broker,
        GatewayProcess.start(broker.grpc, directory, *gateway_args) as gateway,
    ):
        yield Stack(broker, gateway)


def created(topic: str, partitions: int, hours: int = 0, size: int = 0, more: str = "") -> str:
    """The answer to a key=value CREATE. A retention of 0 is that of the broker."""
    kept = "cleanup_policy=delete partitioner=hash_key auth_policy=open read_acl= write_acl="
    return f"OK topic={topic} partitions={partitions} {kept} retention_hours={hours} retention_bytes={size}{more}"


def envelope(text: str | bytes, topic: str = "") -> bytes:
    payload = text.encode() if isinstance(text, str) else text
    return len(topic.encode()).to_bytes(2, "big") + topic.encode() + payload


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


class LegacyClient:
    """One TCP connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    @asynccontextmanager
    async def connect(cls, address: str, tls: ssl.SSLContext | None = None) -> AsyncIterator[Self]:
        client = await cls.open(address, tls)
        try:
            yield client
        finally:
            client.abort()

    @classmethod
    async def open(cls, address: str, tls: ssl.SSLContext | None = None) -> Self:
        host, _, port = address.rpartition(":")
        async with asyncio.timeout(ANSWER_DEADLINE_S):
            reader, writer = await asyncio.open_connection(host, int(port), ssl=tls, limit=2**20)
        return cls(reader, writer)

    def send(self, *bodies: bytes) -> None:
        """Frames, in one write."""
        self.writer.write(b"".join(map(framed, bodies)))

    async def receive(self) -> bytes | None:
        """The next frame's body; None at the end of the connection."""
        async with asyncio.timeout(ANSWER_DEADLINE_S):
            try:
                size = int.from_bytes(await self.reader.readexactly(4), "big")
                return await self.reader.readexactly(size)
            except (asyncio.IncompleteReadError, ConnectionError):
                return None

    async def receive_all(self) -> list[bytes]:
        """Frames up to the end of the connection."""
        bodies: list[bytes] = []
        while (body := await self.receive()) is not None:
            bodies.append(body)
        return bodies

    async def ask(self, text: str | bytes, *, topic: str = "", raw: bool = False) -> str:
        """A command and its answer."""
        payload = text.encode() if isinstance(text, str) else text
        self.send(payload if raw else envelope(payload, topic))
        answer = await self.receive()
        assert answer is not None, f"no answer to {text!r}"
        return answer.decode(errors="replace")

    async def publish(self, body: bytes) -> Mapping[str, Any]:
        """A batch and its acknowledgement."""
        self.send(body)
        answer = await self.receive()
        assert answer is not None, "no answer to a batch"
        assert answer.startswith(b"{"), answer
        acknowledgement: Mapping[str, Any] = json.loads(answer)
        return acknowledgement

    async def consume(self, topic: str, partition: int = 0, offset: int = 0, more: str = "") -> bytes:
        self.send(envelope(f"CONSUME topic={topic} partition={partition} offset={offset} member=m {more}"))
        answer = await self.receive()
        assert answer is not None
        return answer

    async def payloads(self, topic: str, partition: int = 0, offset: int = 0) -> list[bytes]:
        """All payloads of a partition from an offset on."""
        found: list[bytes] = []
        while batch := read_batch(await self.consume(topic, partition, offset + len(found))):
            found += [message["payload"] for message in batch]
        return found

    async def closed(self) -> bool:
        """Waits for the other end to close the connection."""
        async with asyncio.timeout(ANSWER_DEADLINE_S):
            try:
                return not await self.reader.read(1)
            except ConnectionError:
                return True

    def abort(self) -> None:
        self.writer.transport.abort()


def read_batch(body: bytes) -> list[dict[str, Any]]:
    """The messages of a batch in layout S, read independently of the gateway's own code."""
    assert body[:2] == b"\xba\x7c", body[:200]
    place = 4 + int.from_bytes(body[2:4], "big") + 4
    place += 1 + body[place] + 1 + 16
    count = int.from_bytes(body[place : place + 4], "big")
    place += 4

    def number(size: int, signed: bool = False) -> int:
        nonlocal place
        place += size
        return int.from_bytes(body[place - size : place], "big", signed=signed)

    def text(size_bytes: int = 2) -> bytes:
        nonlocal place
        size = number(size_bytes)
        place += size
        return body[place - size : place]

    messages = [
        {
            "offset": number(8),
            "sequence": number(8),
            "producer_id": text(),
            "key": text(),
            "epoch": number(8, signed=True),
            "payload": text(4),
            "event_type": text(),
            "schema_version": number(4),
            "aggregate_version": number(8),
            "metadata": text(),
        }
        for _ in range(count)
    ]
    assert place == len(body)
    return messages
