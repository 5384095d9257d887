"""What every measure of the gateway needs around it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from bench.compare import Stopwatch
from bench.processes import Service, Worker
from bench.processes import broker as start_broker
from bench.processes import gateway as start_gateway
from bench.processes import worker as start_worker
from bench.setting import Setting, Topics, topics


@dataclass(frozen=True, slots=True)
class Stage:
    broker: Service
    gateway: Service
    """In front of the broker."""
    client: Worker
    admin: Topics
    """The broker's."""

    def stopwatch(self) -> Stopwatch:
        """Counts gateway and broker together: both serve what goes through the gateway."""
        return Stopwatch(self.gateway, self.broker)


@asynccontextmanager
async def stage(setting: Setting) -> AsyncIterator[Stage]:
    async with (
        start_broker(setting.scratch / "broker") as broker,
        start_gateway(setting.scratch, broker.address) as gateway,
        start_worker(setting.scratch) as client,
        topics(broker.address) as admin,
    ):
        yield Stage(broker, gateway, client, admin)
