"""Client libraries as their users use them: ours and those of the peers, one module each with the same functions.

`prepare` and `remove` make and delete a topic, `send` and `read` go as fast as they can, `send_on_schedule` and
`receive` measure the way of single records. All are coroutines, so that a client process can call them alike; those of
blocking libraries keep its event loop to themselves, which then has nothing else to do.

The peers' libraries are imported by name: they are optional, and what the checks say must not depend on whether they
are installed.
"""

from __future__ import annotations

import itertools
import random
import struct
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Final, NamedTuple, Protocol

from bench import batches
from bench.schedule import Tick

PIPELINED: Final = 1_000
"""Records that a client sends or asks for together, where its user has to say how many."""

_STAMP: Final = struct.Struct("!qq")
_DIFFERENT_VALUES: Final = 1_000

Pause = Callable[[], Awaitable[None]]
"""Tells that the first record has got there, and returns when the measured ones may."""


class Age(NamedTuple):
    """Of a stamped value, in microseconds."""

    since_due: float
    """A client that waits for an answer before it takes the next record delays that one, and the delay counts."""
    since_handed: float
    """From the moment the client was called."""


class Client(Protocol):
    """What each module of this package offers."""

    async def prepare(self, address: str, topic: str) -> None:
        """Make an empty topic of one partition."""

    async def remove(self, address: str, topic: str) -> None: ...

    async def send(self, address: str, topic: str, count: int) -> float:
        """Send records and wait until all are acknowledged. The seconds this took, once connected. Fails if the topic
        does not hold as many records afterwards."""

    async def read(self, address: str, topic: str, count: int) -> float:
        """Read the first records of a topic one by one and look at each value. The seconds this took, connecting and
        subscribing included."""

    async def send_on_schedule(self, address: str, topic: str, count: int, rate: int, pause: Pause) -> None:
        """Send a first record and wait until it is stored, pause, then send stamped ones at `rate` a second."""

    async def receive(self, address: str, topic: str, count: int, pause: Pause) -> list[Age]:
        """Receive a first record, pause, then receive `count` stamped ones: how old each was on arrival."""


def values(count: int) -> Iterator[bytes]:
    """Of 100 B each, and different enough for nobody to take advantage of equal ones."""
    chance = random.Random(0)
    different = [chance.randbytes(batches.VALUE_BYTES) for _ in range(_DIFFERENT_VALUES)]
    return itertools.islice(itertools.cycle(different), count)


def stamped(tick: Tick) -> bytes:
    """A value that holds when it was due and that it is handed over now."""
    return _STAMP.pack(tick.due, time.perf_counter_ns()) + bytes(batches.VALUE_BYTES - _STAMP.size)


def age(value: bytes) -> Age:
    """How old a stamped value is. The clock counts from the start of the machine, so all processes agree on it."""
    now = time.perf_counter_ns()
    due, handed = _STAMP.unpack_from(value)
    return Age((now - due) / 1000, (now - handed) / 1000)


class Incomplete(Exception):
    """A topic does not hold what was sent to it, or a reader did not get it."""


def check(found: int, expected: int) -> None:
    """Raises Incomplete if a count is not what it has to be."""
    if found != expected:
        raise Incomplete(f"{found:,} records instead of {expected:,}")


def host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)
