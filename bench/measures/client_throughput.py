"""Our Python client beside those of the peers: sending and reading as fast as one process can."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from bench.compare import Round, Side, Stopwatch, take_turns
from bench.jobs.client import Prepare, Read, Remove, Send
from bench.jobs.publish import Published
from bench.peers import Contestant, contestants, figures
from bench.processes import Worker
from bench.processes import worker as start_worker
from bench.report import Bound, Result
from bench.setting import Setting

BAR: Final = 5.0
UNIT: Final = "records/s"
TOPIC: Final = "bench"


async def measure_send(setting: Setting) -> Result:
    async with contestants(setting.scratch) as (found, absent), _workers(setting, found) as workers:

        def side(contestant: Contestant) -> Side:
            async def run(number: int) -> Round:
                worker, topic = workers[contestant.name], f"{TOPIC}-{number + 1}"
                place = contestant.client, contestant.service.address, topic
                await worker.run(Prepare(*place))
                watch = Stopwatch(contestant.service)
                count = _count(setting, contestant)
                done = Published(**await worker.run(Send(*place, count)))
                one = watch.round(count, done.seconds, done.client_cpu_seconds)
                await worker.run(Remove(*place))
                return one

            return Side(contestant.name, run)

        series = await take_turns("client-send", [side(one) for one in found], setting, UNIT)
    return Result(
        "client-send",
        "Python client: `Producer.send` of 100 B in a loop, acks 1, until all are acknowledged",
        figures("send", series, found, Bound.AT_LEAST, BAR),
        series,
        [
            "One process, one partition, default settings. redis-py: XADD, 1,000 a pipeline, with hiredis;"
            " nats-py: publish_async to file storage; confluent-kafka: acks 1.",
            _sizes(setting),
            *absent,
        ],
    )


async def measure_consume(setting: Setting) -> Result:
    async with contestants(setting.scratch) as (found, absent), _workers(setting, found) as workers:
        for contestant in found:
            place = contestant.client, contestant.service.address, TOPIC
            await workers[contestant.name].run(Prepare(*place))
            await workers[contestant.name].run(Send(*place, _count(setting, contestant)))

        def side(contestant: Contestant) -> Side:
            async def run(_: int) -> Round:
                watch, count = Stopwatch(contestant.service), _count(setting, contestant)
                job = Read(contestant.client, contestant.service.address, TOPIC, count)
                done = Published(**await workers[contestant.name].run(job))
                return watch.round(count, done.seconds, done.client_cpu_seconds)

            return Side(contestant.name, run)

        series = await take_turns("client-consume", [side(one) for one in found], setting, UNIT)
    return Result(
        "client-consume",
        "Python client: `for record in consumer`, every value looked at",
        figures("consume", series, found, Bound.AT_LEAST, BAR),
        series,
        [
            "cursus-grpc and confluent-kafka as the only member of a new group; redis-py: XREAD, 1,000 a call, with"
            " hiredis; nats-py: a push consumer with a callback and no acknowledgements. Joining counts.",
            _sizes(setting),
            *absent,
        ],
    )


@asynccontextmanager
async def _workers(setting: Setting, found: Sequence[Contestant]) -> AsyncIterator[Mapping[str, Worker]]:
    """A process each, so that no library pays for what another left behind."""
    async with AsyncExitStack() as running:
        workers: dict[str, Worker] = {}
        for one in found:
            starting = start_worker(setting.scratch, f"{one.client}-client", plain=True)
            workers[one.name] = await running.enter_async_context(starting)
        yield workers


def _count(setting: Setting, contestant: Contestant) -> int:
    """Fewer where a round would otherwise take ten times as long as the others'."""
    return setting.scale.peer_records if contestant.sets_bar else setting.scale.sent_records


def _sizes(setting: Setting) -> str:
    scale = setting.scale
    return (
        f"A round is {scale.peer_records:,} records for redis-py and nats-py and {scale.sent_records:,} for the others."
    )
