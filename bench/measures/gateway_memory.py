"""The gateway's memory with as many connections as it serves, all of them idle."""

from __future__ import annotations

from typing import Final

from bench.compare import progress
from bench.jobs.gateway import Idle
from bench.measures.gateway_stage import stage
from bench.report import Bound, Figure, Result
from bench.setting import Setting

BAR_MB: Final = 100.0
CONNECTIONS: Final = 1_000
TOPIC: Final = "idle"
MB: Final = 1e6


async def measure(setting: Setting) -> Result:
    async with stage(setting) as on:
        await on.admin.create(TOPIC)
        before, _ = on.gateway.memory()
        await on.client.stall(Idle(on.gateway.address, TOPIC, CONNECTIONS))
        during, own = on.gateway.memory()
        progress(f"gateway-memory: {before / MB:.1f} MB before, {during / MB:.1f} MB with {CONNECTIONS:,} connections")
        await on.client.resume()
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
