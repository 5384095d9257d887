"""Asks where records go: for the topics that records wait for at once, for the others now and then.

One question is under way at a time, for all topics, however many records wait.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from itertools import islice
from typing import Any, Final

from cursus_grpc._accumulator import Accumulator
from cursus_grpc._many import Portion, RefusedRows
from cursus_grpc._metadata import ClusterView, TopicView, no_partition, no_topic
from cursus_grpc._retry import Backoff
from cursus_grpc._routes import Waiting
from cursus_grpc.errors import (
    BrokerUnreachable,
    ClientClosed,
    CursusError,
    DeliveryTimeout,
    PartitionerFailed,
    RecordTooLarge,
    TlsFailed,
)

# Waiting records that are let go, or failed, before others on the event loop have their turn: about a millisecond's.
_PIECE: Final = 500


class Router:
    """Keeps the routes of a producer up to date. Lives on one event loop; only `ask` may be called from elsewhere."""

    def __init__(self, cluster: ClusterView, max_age_s: float, loop: asyncio.AbstractEventLoop) -> None:
        self._cluster = cluster
        self._max_age_s = max_age_s
        self._loop = loop
        self._wrong = False
        self._stirred = asyncio.Event()
        self._gone = asyncio.Event()
        self._accumulator: Accumulator[Any]
        self._wake: Callable[[], None]

    def start(self, accumulator: Accumulator[Any], wake: Callable[[], None]) -> None:
        """`wake` is called when lanes may have something to send."""
        self._accumulator = accumulator
        self._wake = wake

    def ask(self) -> None:
        """Records wait for a topic."""
        self._loop.call_soon_threadsafe(self._stirred.set)

    def doubt(self) -> None:
        """Routes may be wrong."""
        self._wrong = True
        self._stirred.set()

    async def run(self) -> None:
        """Runs until cancelled."""
        backoff = Backoff()
        while True:
            await self._stirred_or_old()
            if self._wrong or self._accumulator.backlog.queues:
                self._wrong = False
                if await self._ask():
                    backoff.reset()
                else:
                    await asyncio.sleep(backoff.next_s())

    async def _stirred_or_old(self) -> None:
        if not self._accumulator.backlog.queues:
            try:
                async with asyncio.timeout(self._max_age_s):
                    await self._stirred.wait()
            except TimeoutError:
                self._wrong = True
        self._stirred.clear()

    async def _ask(self) -> bool:
        """Ask for everything that is routed or waited for. False if there was no answer."""
        accumulator = self._accumulator
        topics = accumulator.topics()
        if not topics:
            return True
        asked_at = time.monotonic()
        try:
            # Without patience: the pause is made here, and those who wait are told the reason if their time is over.
            await self._cluster.refresh(topics, patient=False)
            accumulator.limit(await self._cluster.max_batch_bytes(patient=False))
        except (CursusError, OSError) as failure:
            error = failure if isinstance(failure, CursusError) else TlsFailed(f"no certificates: {failure}")
            if error.retriable:
                with accumulator.lock:
                    accumulator.backlog.last_failure = error
            else:
                for topic in topics:
                    await self._refuse(topic, asked_at, error)
            return False
        with accumulator.lock:
            accumulator.backlog.last_failure = None
        for topic in topics:
            view = self._cluster.known(topic)
            if view is None:
                accumulator.forget(topic)
                await self._refuse(topic, asked_at, no_topic(topic))
            else:
                await self._let_go(view, asked_at)
        self._wake()
        return True

    async def _let_go(self, view: TopicView, asked_at: float) -> None:
        """Tell the accumulator, and let the records that wait for the topic join the batches of its partitions.

        A partition that is not there fails the records that were sent before the question. For a later one the answer
        may be too old, so that it waits for the next, and those behind it with it.
        """
        accumulator, topic = self._accumulator, view.name
        accumulator.route(topic, view.leaders)
        more = topic in accumulator.backlog.queues
        while more:
            refused: list[tuple[Waiting | RefusedRows, CursusError]] = []
            self._let_choose(topic, view.partition_count)
            with accumulator.lock:
                more = self._let_piece_go(topic, asked_at, refused)
                accumulator.released(more=more)
            self._wake()
            for record, error in refused:
                accumulator.fail_waiting([record], error)
            await self._breathe()

    def _let_choose(self, topic: str, partition_count: int) -> None:
        """Ask the application's partitioner for those that are let go next, without the lock: it may do anything."""
        partitioner = self._accumulator.partitioner
        if partitioner is None:
            return
        with self._accumulator.lock:
            queue = self._accumulator.backlog.queues.get(topic)
            waiting = [] if queue is None else list(islice(queue.records, _PIECE))
        for record in waiting:
            try:
                record.choose(partitioner, topic, partition_count)
            except PartitionerFailed as error:
                record.failure = error

    def _let_piece_go(
        self, topic: str, asked_at: float, refused: list[tuple[Waiting | RefusedRows, CursusError]]
    ) -> bool:
        """Whether to go on. The caller holds the accumulator's lock."""
        accumulator = self._accumulator
        queue = accumulator.backlog.queues.get(topic)
        if queue is None or queue.route is None:
            return False
        route, records = queue.route, queue.records
        left = min(_PIECE, len(records))
        while left > 0 and records:
            record = records[0]
            left -= record.count
            if record.failure is not None:
                refused.append((record, record.failure))
            elif isinstance(record, Portion):
                if record.sent_at >= asked_at and record.highest_partition() >= len(route.lanes):
                    queue.route = None
                    return False
                refused += accumulator.join_many(record, route)
            elif record.partition is not None and record.partition >= len(route.lanes):
                if record.sent_at >= asked_at:
                    queue.route = None
                    return False
                refused.append((record, no_partition(topic, record.partition, len(route.lanes))))
            else:
                try:
                    accumulator.join(record, route)
                except RecordTooLarge as error:
                    refused.append((record, error))
            records.popleft()
        if not records:
            accumulator.open_route(topic, route)
        return bool(records)

    async def _refuse(self, topic: str, asked_at: float, error: CursusError) -> None:
        """Fail the records that waited for the topic when the question was asked."""
        while await self._fail_piece(topic, lambda record: record.sent_at < asked_at, error):
            pass

    async def _fail_piece(self, topic: str, due: Callable[[Waiting], bool], error: CursusError) -> bool:
        with self._accumulator.lock:
            records = self._accumulator.backlog.take(topic, _PIECE, due)
        if records:
            self._accumulator.fail_waiting(records, error)
            await self._breathe()
        return bool(records)

    async def _breathe(self) -> None:
        """Some records are gone: tell those who wait for that, and let them and others have their turn."""
        gone, self._gone = self._gone, asyncio.Event()
        gone.set()
        await asyncio.sleep(0)

    async def expire(self, now: float) -> float | None:
        """Fail the records whose time is over. Answers when to look again."""
        accumulator = self._accumulator
        for topic in accumulator.waiting_topics():
            while await self._fail_piece(topic, lambda record: record.deadline <= now, self._timed_out(topic)):
                pass
        with accumulator.lock:
            return accumulator.backlog.next_deadline()

    def _timed_out(self, topic: str) -> DeliveryTimeout:
        cause = self._accumulator.backlog.last_failure or BrokerUnreachable("no broker has answered yet")
        error = DeliveryTimeout(
            f"the partitions of {topic!r} were not known within the delivery timeout; it was not stored: {cause}",
            maybe_stored=False,
        )
        error.__cause__ = cause
        return error

    async def caught_up(self) -> None:
        """Wait until the records that wait now have gone to their partitions, or failed."""
        with self._accumulator.lock:
            youngest = self._accumulator.backlog.youngest()
        while not all(record.gone for record in youngest):
            await self._gone.wait()

    async def abandon(self, error: ClientClosed) -> None:
        """Fail everything that waits."""
        for topic in self._accumulator.waiting_topics():
            while await self._fail_piece(topic, lambda _: True, error):
                pass
