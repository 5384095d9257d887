"""Fair comparison: sides take turns, round by round, so that whatever else the machine does meets all of them."""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from bench.processes import Service
from bench.setting import Setting


@dataclass(frozen=True, slots=True)
class Round:
    """One run of one side."""

    value: float
    server_cores: float
    """Processor seconds the services of this side used in each second. Close to 1 for one service: its event loop is
    what bounds the run."""
    client_cores: float


@dataclass(slots=True)
class Series:
    """All rounds of one side."""

    side: str
    unit: str
    rounds: list[Round] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(one.value for one in self.rounds)

    @property
    def server_cores(self) -> float:
        return statistics.median(one.server_cores for one in self.rounds)

    @property
    def client_cores(self) -> float:
        return statistics.median(one.client_cores for one in self.rounds)

    @property
    def spread(self) -> float:
        """Distance between the slowest and the fastest round, in parts of the median."""
        values = [one.value for one in self.rounds]
        return (max(values) - min(values)) / self.median


@dataclass(frozen=True, slots=True)
class Side:
    """What is measured under a name. `run` does one round; its argument tells rounds apart, warm-ups below 0."""

    name: str
    run: Callable[[int], Awaitable[Round]]


async def take_turns(
    measure: str, sides: Sequence[Side], setting: Setting, unit: str, rounds: int | None = None
) -> list[Series]:
    """One warm-up each, then as many rounds each as are asked for (by default by the scale), in turn. Series in the
    order of the sides.

    What a round left for the disk to write or to free is done, and the page cache full again, before the next begins.
    """
    series = [Series(side.name, unit) for side in sides]
    for number in range(-1, setting.scale.rounds if rounds is None else rounds):
        for side, collected in zip(sides, series, strict=True):
            await asyncio.to_thread(_settle, setting)
            one = await side.run(number)
            progress(
                f"{measure}: {side.name} {'warm-up' if number < 0 else number + 1}: {one.value:,.0f} {unit}"
                f" (server {one.server_cores:.2f}, client {one.client_cores:.2f} cores)"
            )
            if number >= 0:
                collected.rounds.append(one)
    return series


class Stopwatch:
    """Processor time of a service beside the wall clock; of several, if they do the work together."""

    def __init__(self, *services: Service) -> None:
        self._services = services
        self._cpu_started = self._cpu_seconds()

    def round(self, work: float, seconds: float, client_cpu_seconds: float) -> Round:
        """The round that did `work` in the `seconds` its client measured, as work a second."""
        server_cpu_seconds = self._cpu_seconds() - self._cpu_started
        return Round(work / seconds, server_cpu_seconds / seconds, client_cpu_seconds / seconds)

    def _cpu_seconds(self) -> float:
        return sum(service.cpu_seconds() for service in self._services)


def _settle(setting: Setting) -> None:
    os.sync()
    setting.ballast.load(setting.scale.top_up_bytes)


_started = time.monotonic()


def progress(text: str) -> None:
    print(f"[{time.monotonic() - _started:6.1f} s] {text}", file=sys.stderr, flush=True)
