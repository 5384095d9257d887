"""From sending a record with our Python client to receiving it in another process, beside the peers' clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from bench.compare import Round, Side, take_turns
from bench.jobs.client import Prepare, Receive, Received, Remove, SendOnSchedule
from bench.jobs.latency import Latencies
from bench.measures.latency import RATE, UNIT, latency_round, median_figures, percentile, round_trips, worst
from bench.peers import Contestant, contestants, figures
from bench.processes import Worker
from bench.processes import floor as start_floor
from bench.processes import worker as start_worker
from bench.report import Bound, Result, ratio
from bench.setting import Setting

BAR: Final = 1.0
_BARE: Final = "bare gRPC"


@dataclass(frozen=True, slots=True)
class _Pair:
    """A process that sends and one that receives, through one broker."""

    contestant: Contestant
    sender: Worker
    receiver: Worker
    medians: list[float] = field(default_factory=list)
    handed: list[float] = field(default_factory=list)
    """The p99 of each round from the call of the client on."""

    async def round(self, number: int, count: int) -> Round:
        service = self.contestant.service
        place = self.contestant.client, service.address, f"latency-{number + 1}"
        await self.sender.run(Prepare(*place))
        # Both are connected and at work when a first record has been sent and received.
        await self.sender.stall(SendOnSchedule(*place, count, RATE))
        await self.receiver.stall(Receive(*place, count))
        receiving = asyncio.create_task(self.receiver.resume())
        cpu_started = service.cpu_seconds()
        await self.sender.resume()
        found = Received(**await receiving)
        cpu_seconds = service.cpu_seconds() - cpu_started
        await self.sender.run(Remove(*place))
        self.medians.append(percentile(found.since_due, 50))
        self.handed.append(percentile(found.since_handed, 99))
        return latency_round(Latencies(found.since_due, found.client_cpu_seconds), cpu_seconds, count / RATE)

    def side(self, count: int) -> Side:
        return Side(f"{self.contestant.name}, p99", lambda number: self.round(number, count))


async def measure(setting: Setting) -> Result:
    count = setting.scale.latency_count
    bare_medians: list[float] = []
    async with (
        contestants(setting.scratch) as (found, absent),
        start_floor(setting.scratch) as bare,
        start_worker(setting.scratch) as bare_client,
        AsyncExitStack() as running,
    ):
        pairs = [await running.enter_async_context(_pair(setting, one)) for one in found]
        sides = [pair.side(count) for pair in pairs]
        sides.append(Side(f"{_BARE}, p99", lambda _: round_trips(bare, bare_client, count, bare_medians)))
        *series, bare_series = await take_turns("client-latency", sides, setting, UNIT, setting.scale.short_rounds)
    return Result(
        "client-latency",
        f"Python client: from send to receipt in another process, {RATE:,}/s",
        [
            *figures("send to receipt", series, found, Bound.AT_MOST, BAR),
            ratio("send to receipt", series[0], bare_series),
            *median_figures({pair.contestant.name: pair.medians for pair in pairs} | {_BARE: bare_medians}),
            *median_figures({pair.contestant.name: pair.handed for pair in pairs}, "p99 from the call on"),
            *worst([*series, bare_series]),
        ],
        [*series, bare_series],
        [
            "cursus-grpc: `Producer.send` and `for record in consumer` with a group. redis-py: XADD, and XREAD that"
            " blocks; nats-py: publish_async and a push consumer; confluent-kafka: linger.ms 0 and a group.",
            "The time counts from the moment a record is due, or the sender awakes if that is later. A client that"
            " waits for an answer before it takes the next record (redis-py's XADD does) delays that one; counted from"
            " the call on, its delays would not be seen.",
            "A median over rounds of each round's p99; client cores are the receiver's.",
            "bare gRPC: unary calls at the same rate to a service that does nothing, there and back. A record of ours"
            " takes as many steps through gRPC, one to the broker and one from it.",
            *absent,
        ],
    )


@asynccontextmanager
async def _pair(setting: Setting, contestant: Contestant) -> AsyncIterator[_Pair]:
    async with (
        start_worker(setting.scratch, f"{contestant.client}-sender", plain=True) as sender,
        start_worker(setting.scratch, f"{contestant.client}-receiver", plain=True) as receiver,
    ):
        yield _Pair(contestant, sender, receiver)
