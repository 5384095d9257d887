"""The gateway's memory with as many connections as it serves, all of them idle."""

from __future__ import annotations

from typing import Final

from bench.compare import progress
from bench.jobs.gateway import Idle
from bench.processes import broker as start_broker
from bench.processes import gateway as start_gateway
from bench.processes import worker as start_worker
from bench.report import Bound, Figure, Result
from bench.setting import Setting, topics

BAR_MB: Final = 100.0
CONNECTIONS: Final = 1_000
TOPIC: Final = "idle"
MB: Final = 1e6


async def measure(setting: Setting) -> Result:
    async with (
        start_broker(setting.scratch / "broker") as broker,
        start_gateway(setting.scratch, broker.address) as gateway,
        start_worker(setting.scratch) as client,
        topics(broker.address) as admin,
    ):
        await admin.create(TOPIC)
        before, _ = gateway.memory()
        await client.stall(Idle(gateway.address, TOPIC, CONNECTIONS))
        during, own = gateway.memory()
        progress(f"gateway-memory: {before / MB:.1f} MB before, {during / MB:.1f} MB with {CONNECTIONS:,} connections")
        await client.resume()
    return Result(
        "gateway-memory",
        f"Gateway: resident memory with {CONNECTIONS:,} idle connections",
        [
            Figure("gateway, resident memory", during / MB, "MB", Bound.AT_MOST, BAR_MB),
            Figure("without any connection", before / MB, "MB"),
            Figure("without mapped files", own / MB, "MB"),
            Figure("a connection", (during - before) / CONNECTIONS / 1e3, "kB"),
        ],
        [],
        ["Every connection has published one batch of 500 × 100 B before it fell silent."],
    )
