"""Consumer groups whose members are processes: one of three is killed, the others take over and nothing is skipped."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

from cursus_grpc import AsyncAdmin, AsyncProducer
from cursus_grpc.testing import Broker
from tests.harness.waiting import eventually

TOPIC = "jobs"
PARTITIONS = 6
ROUND = 600


class Worker:
    """A consumer process, and what it has said so far."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.seen: list[tuple[int, int, str]] = []
        self._listening = asyncio.create_task(self._listen())

    @classmethod
    @asynccontextmanager
    async def start(cls, address: str, database: str) -> AsyncIterator[Worker]:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "tests.e2e.client.worker", address, "workers", TOPIC, database),
            stdout=asyncio.subprocess.PIPE,
        )
        worker = cls(process)
        try:
            yield worker
        finally:
            await worker.kill()

    async def _listen(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            if line.endswith(b"\n"):
                partition, offset, value = line.decode().split()
                self.seen.append((int(partition), int(offset), value))

    async def kill(self) -> None:
        """SIGKILL: it says no more, and leaves no group."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        await self._listening


async def publish(producer: AsyncProducer, first: int) -> set[str]:
    deliveries = [
        await producer.send(TOPIC, f"{number}", partition=number % PARTITIONS) for number in range(first, first + ROUND)
    ]
    for delivery in deliveries:
        await delivery
    return {f"{number}" for number in range(first, first + ROUND)}


def stored(path: Path) -> list[str]:
    with closing(sqlite3.connect(path, timeout=30.0)) as connection:
        return [row[0] for row in connection.execute("SELECT value FROM results")]


@pytest.mark.parametrize("mode", ["group", "database"])
async def test_a_killed_member_is_replaced_and_nothing_is_skipped(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "results.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE results (value TEXT)")
        connection.execute("CREATE TABLE offsets (partition INTEGER PRIMARY KEY, next INTEGER)")
    database = "-" if mode == "group" else str(path)
    with Broker() as broker:
        async with (
            AsyncAdmin(broker.address) as admin,
            AsyncProducer(broker.address) as producer,
            Worker.start(broker.address, database) as one,
            Worker.start(broker.address, database) as two,
            Worker.start(broker.address, database) as three,
        ):
            workers = (one, two, three)
            await admin.create_topic(TOPIC, PARTITIONS)

            async def owners(count: int) -> bool:
                described = await admin.describe_group("workers")
                owned = [len(member.partitions) for member in described.members]
                return described.summary.state == "stable" and owned == [PARTITIONS // count] * count

            async def shared_by(count: int) -> None:
                shared: bool = await eventually(lambda: owners(count), ignoring=(Exception,))
                assert shared

            await shared_by(3)
            expected = await publish(producer, 0)
            await eventually(lambda: all(worker.seen for worker in workers))
            # In the middle of its work: it has processed something, and the rest of the round waits.
            await two.kill()
            expected |= await publish(producer, ROUND)
            await shared_by(2)
            expected |= await publish(producer, 2 * ROUND)

            def everything_was_processed() -> bool:
                # With a database it is what that holds: a worker may be killed before it could say so.
                if mode == "database":
                    return set(stored(path)) == expected
                return {value for worker in workers for _, _, value in worker.seen} == expected

            await eventually(everything_was_processed)
    for worker in workers:
        for partition in range(PARTITIONS):
            offsets = [offset for number, offset, _ in worker.seen if number == partition]
            assert offsets == sorted(offsets)
    if mode == "database":
        results = stored(path)
        assert len(results) == len(expected)
