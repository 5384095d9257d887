"""Consuming with commits: at the end of a log while it is written, beside the same work on a log that is synced."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from bench import batches
from bench.compare import Round, Series, Side, Stopwatch, take_turns
from bench.jobs.commits import AWAITED, PIPELINED, TIMED, Commit, Committed
from bench.jobs.publish import Publish, Published
from bench.measures.latency import percentile
from bench.processes import Service, Worker
from bench.processes import broker as start_broker
from bench.processes import worker as start_worker
from bench.report import Bound, Figure, Result
from bench.setting import Setting, Topics, topics
from cursus_proto.v1 import publish_service_pb2

BAR: Final = 0.90
SYNCS: Final = "cursus_syncs_total"
SYNCED: Final = "synced"
LINGER_S: Final = 1.0
"""After this the broker has made the background syncs of what was published."""
RATE: Final = 200
"""Batches a second that a reader keeps up with although it waits for every commit."""


@dataclass(frozen=True, slots=True)
class Habit:
    """How a reader commits, and how fast the publisher beside it is."""

    name: str
    commits: str
    rate: int = 0


HABITS: Final = (
    Habit("a commit a second", TIMED),
    Habit("a commit a batch", PIPELINED),
    Habit(f"a commit a batch, awaited, {RATE} batches/s", AWAITED, RATE),
)


@dataclass(slots=True)
class Place:
    """One habit, at the end of the log that is written or on one that is synced."""

    habit: Habit
    at_end: bool
    published: Series
    waited_ms: list[float] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.habit.name}, {'at the end' if self.at_end else 'synced'}"


class Stage:
    def __init__(self, broker: Service, publisher: Worker, reader: Worker, admin: Topics, count: int) -> None:
        self.broker = broker
        self.publisher = publisher
        self.reader = reader
        self.admin = admin
        self.count = count

    async def run(self, place: Place, number: int) -> Round:
        """Publish to a new topic, and read it or the one that is synced, with a new group."""
        habit, address = place.habit, self.broker.address
        async with self.admin.temporary(f"{habit.commits}-{place.at_end}-{number}") as topic:
            job = Commit(address, topic if place.at_end else SYNCED, topic, self.count, habit.commits)
            await self.reader.stall(job)
            watch = Stopwatch(self.broker)
            publishing = self.publisher.run(Publish(address, topic, self.count, rate=habit.rate))
            read, sent = await asyncio.gather(self.reader.resume(), publishing)
        committed, published = Committed(**read), Published(**sent)
        records = self.count * batches.RECORDS_PER_BATCH
        if number >= 0:
            client_cores = published.client_cpu_seconds / published.seconds
            place.published.rounds.append(Round(records / published.seconds, 0.0, client_cores))
            place.waited_ms += committed.waited_ms
        return watch.round(records, committed.seconds, committed.client_cpu_seconds)

    async def syncs_of_catching_up(self) -> float:
        """How many syncs a member starts that reads synced records and commits after each batch."""
        await self.reader.stall(Commit(self.broker.address, SYNCED, "catch-up", self.count, AWAITED))
        before = await self.broker.metric(SYNCS)
        await self.reader.resume()
        return await self.broker.metric(SYNCS) - before


async def measure(setting: Setting) -> Result:
    count = setting.scale.batches // 8
    places = [
        Place(habit, at_end, Series(f"publishing beside {habit.name}", "records/s"))
        for habit in HABITS
        for at_end in (False, True)
    ]
    async with (
        start_broker(setting.scratch / "broker") as broker,
        start_worker(setting.scratch, "publisher") as publisher,
        start_worker(setting.scratch, "reader") as reader,
        topics(broker.address) as admin,
    ):
        stage = Stage(broker, publisher, reader, admin, count)
        await admin.create(SYNCED)
        await publisher.run(Publish(broker.address, SYNCED, count, acks=publish_service_pb2.ACKS_ALL))
        await asyncio.sleep(LINGER_S)
        syncs = await stage.syncs_of_catching_up()
        sides = [Side(place.name, partial(stage.run, place)) for place in places]
        consumed = await take_turns("commits", sides, setting, "records/s")
    kept_up = consumed[-1].median / (RATE * batches.RECORDS_PER_BATCH)
    return Result(
        "commits",
        "Consuming with commits, at the end of a log that is written and on one that is synced",
        [
            Figure("syncs started by a member that catches up", syncs, "syncs", Bound.AT_MOST, 0.0),
            *_ratios("consuming", consumed[:-2]),
            Figure(f"consuming, {HABITS[-1].name}: at the end / published", kept_up, "×", Bound.AT_LEAST, BAR),
            *_ratios("publishing beside it", [place.published for place in places[:-2]]),
            *(figure for place in places if place.habit.commits == AWAITED for figure in _waits(place)),
        ],
        consumed,
        [
            "A publisher and a group member on a Subscribe stream, a process each; 500 records of 100 B a batch, one"
            " partition, acks 1. synced: the member reads another topic than the publisher writes to, so that its"
            " commits wait for no log. The time ends when all is read.",
            f"The publisher is as fast as it can be unless {RATE} batches/s are named. A commit of every batch that is"
            " awaited bounds the reader: it is then compared at a rate that it keeps up with.",
        ],
    )


def _ratios(name: str, series: list[Series]) -> list[Figure]:
    """At the end of the log against synced, for each of the first habits."""
    pairs = zip(HABITS, series[::2], series[1::2], strict=False)
    return [
        Figure(f"{name}, {habit.name}: at the end / synced", at_end.median / synced.median, "×", Bound.AT_LEAST, BAR)
        for habit, synced, at_end in pairs
    ]


def _waits(place: Place) -> list[Figure]:
    return [Figure(f"{place.name}, p{p}", percentile(place.waited_ms, p), "ms") for p in (50, 99)]
