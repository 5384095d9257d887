"""What a client library is asked to do; `client` names a module of bench.clients."""

from __future__ import annotations

import importlib
import time
from dataclasses import dataclass
from typing import cast

from bench.clients import Client, Pause
from bench.jobs.publish import Published


@dataclass(frozen=True, slots=True)
class Prepare:
    """Make a topic."""

    client: str
    address: str
    topic: str


@dataclass(frozen=True, slots=True)
class Remove:
    """Delete a topic."""

    client: str
    address: str
    topic: str


@dataclass(frozen=True, slots=True)
class Send:
    """Send records until all are acknowledged."""

    client: str
    address: str
    topic: str
    count: int


@dataclass(frozen=True, slots=True)
class Read:
    """Read the first records of a topic."""

    client: str
    address: str
    topic: str
    count: int


@dataclass(frozen=True, slots=True)
class SendOnSchedule:
    """Send a record, stop, and send `count` stamped ones at `rate` a second when told to go on."""

    client: str
    address: str
    topic: str
    count: int
    rate: int


@dataclass(frozen=True, slots=True)
class Receive:
    """Receive a record, stop, and receive `count` stamped ones when told to go on."""

    client: str
    address: str
    topic: str
    count: int


@dataclass(frozen=True, slots=True)
class Received:
    """How old records were on arrival, in microseconds, as `bench.clients.Age` has it."""

    since_due: list[float]
    since_handed: list[float]
    client_cpu_seconds: float


@dataclass(frozen=True, slots=True)
class Done:
    """Nothing to tell."""


async def prepare(job: Prepare) -> Done:
    await _client(job.client).prepare(job.address, job.topic)
    return Done()


async def remove(job: Remove) -> Done:
    await _client(job.client).remove(job.address, job.topic)
    return Done()


async def send(job: Send) -> Published:
    cpu_started = time.process_time()
    seconds = await _client(job.client).send(job.address, job.topic, job.count)
    return Published(seconds, time.process_time() - cpu_started)


async def read(job: Read) -> Published:
    cpu_started = time.process_time()
    seconds = await _client(job.client).read(job.address, job.topic, job.count)
    return Published(seconds, time.process_time() - cpu_started)


async def send_on_schedule(job: SendOnSchedule, pause: Pause) -> Done:
    await _client(job.client).send_on_schedule(job.address, job.topic, job.count, job.rate, pause)
    return Done()


async def receive(job: Receive, pause: Pause) -> Received:
    cpu_started = time.process_time()
    ages = await _client(job.client).receive(job.address, job.topic, job.count, pause)
    cpu_seconds = time.process_time() - cpu_started
    return Received([age.since_due for age in ages], [age.since_handed for age in ages], cpu_seconds)


def _client(name: str) -> Client:
    return cast("Client", importlib.import_module(f"bench.clients.{name}"))
