"""A log that is cut under legacy clients: each is told, or goes on, as its generation understands it, and none skips
what was stored behind the cut. The log has always grown past them again before the gateway reaches the broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from cursus_grpc import Admin, Producer
from cursus_grpc.testing import Broker
from tests.harness.damage import cut_log
from tests.harness.gateway import GatewayProcess, LegacyClient, envelope, read_batch

OLD = [b"old %d" % number for number in range(25)]
NEW = [b"new %d" % number for number in range(40)]
CUT = 5
THIRD_GENERATION = "isolation_level=read_uncommitted"


def publish(address: str, values: list[bytes]) -> None:
    """Each a batch of its own, so that the log can be cut at any of them."""
    with Producer(address, acks="all") as producer:
        for value in values:
            producer.send("t", value).result()


@dataclass(frozen=True)
class Stack:
    broker: Broker
    gateway: GatewayProcess
    directory: Path

    async def cut(self) -> None:
        """The broker dies, its disk forgets the end of the log, and the log grows again, unseen by the gateway."""
        await asyncio.to_thread(self._die, cut=True)

    async def die(self) -> None:
        """The same, and nothing is forgotten."""
        await asyncio.to_thread(self._die, cut=False)

    def _die(self, *, cut: bool) -> None:
        self.broker.kill()
        if cut:
            cut_log(self.directory, "t", CUT)
        with Broker(data_dir=self.directory) as elsewhere:
            publish(elsewhere.address, NEW)
        self.broker.start()


@pytest_asyncio.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Stack]:
    """A topic `t` with 25 records."""
    with Broker(data_dir=tmp_path) as broker:
        with Admin(broker.address) as admin:
            admin.create_topic("t", 1)
        await asyncio.to_thread(publish, broker.address, OLD)
        async with GatewayProcess.start(broker.address, tmp_path) as gateway:
            yield Stack(broker, gateway, tmp_path)


@asynccontextmanager
async def connected(stack: Stack) -> AsyncIterator[LegacyClient]:
    async with LegacyClient.connect(stack.gateway.tcp) as client:
        yield client


async def pushed(client: LegacyClient, count: int) -> list[tuple[int, bytes]]:
    """Offsets and payloads that a STREAM pushes; keepalives are passed over."""
    found: list[tuple[int, bytes]] = []
    while len(found) < count:
        body = await client.receive()
        assert body is not None, f"the stream ended after {len(found)} messages"
        if body:
            found += [(message["offset"], message["payload"]) for message in read_batch(body)]
    return found


@pytest.mark.parametrize("raw", [False, True], ids=["second generation", "Java"])
async def test_a_stream_goes_on_at_the_cut(stack: Stack, raw: bool) -> None:
    async with connected(stack) as client:
        command = "STREAM topic=t partition=0 group=g offset=0"
        client.send(command.encode() if raw else envelope(command))
        assert await pushed(client, 25) == list(enumerate(OLD))
        await stack.cut()
        assert await pushed(client, 40) == list(enumerate(NEW, CUT))


async def test_a_stream_of_the_third_generation_ends_with_the_range(stack: Stack) -> None:
    async with connected(stack) as client:
        client.send(envelope(f"STREAM topic=t partition=0 group=g offset=0 {THIRD_GENERATION}"))
        assert await pushed(client, 25) == list(enumerate(OLD))
        await stack.cut()
        while not (body := await client.receive()):
            assert body is not None
        told = b"STREAM_CONTROL type=CLOSE reason=offset_out_of_range offset=5 requested=25 earliest=0 latest=45"
        assert body == told
        assert await client.closed()


async def test_polling_of_the_second_generation_goes_on_at_the_cut(stack: Stack) -> None:
    """It would ask for the same offset for ever if it were told."""
    async with connected(stack) as client:
        assert [message["payload"] for message in read_batch(await client.consume("t"))] == OLD
        await stack.cut()
        found = read_batch(await client.consume("t", offset=25))
        assert [(message["offset"], message["payload"]) for message in found] == list(enumerate(NEW, CUT))
        assert read_batch(await client.consume("t", offset=45)) == []


async def test_polling_of_the_third_generation_is_told_the_range_once(stack: Stack) -> None:
    async with connected(stack) as client:
        assert len(read_batch(await client.consume("t", more=THIRD_GENERATION))) == 25
        await stack.cut()
        refused = await client.consume("t", offset=25, more=THIRD_GENERATION)
        assert refused == b"ERROR: OFFSET_OUT_OF_RANGE requested=25 earliest=0 latest=45"
        # What it asks for now is its own choice.
        found = read_batch(await client.consume("t", offset=25, more=THIRD_GENERATION))
        assert [message["payload"] for message in found] == NEW[20:]


@pytest.mark.parametrize(
    "command",
    ["COMMIT_OFFSET topic=t partition=0 group=g offset=25", "BATCH_COMMIT topic=t group=g member=m generation=0 0:25"],
)
async def test_a_commit_of_what_the_connection_read_before_the_cut_is_refused(stack: Stack, command: str) -> None:
    """The group would go on at 25 and skip twenty new records."""
    async with connected(stack) as client:
        assert len(read_batch(await client.consume("t"))) == 25
        await stack.cut()
        refused = await client.ask(command)
        assert refused == "ERROR: OFFSET_OUT_OF_RANGE requested=25 earliest=0 latest=45"
        assert await client.ask(command.replace("25", "5")) in ("OK", "OK batched=1")
    async with connected(stack) as another:
        # Nobody knows where this one has its offset from.
        assert await another.ask(command) in ("OK", "OK batched=1")


async def test_a_subscriber_goes_on_where_its_group_was_moved(stack: Stack) -> None:
    async with connected(stack) as client:
        await client.ask("SUBSCRIBE t g")
        await asyncio.to_thread(publish, stack.broker.address, [b"last"])
        assert await client.receive() == b"last"
        await stack.cut()
        found = [await client.receive() for _ in NEW]
        assert found == NEW


async def test_a_subscriber_that_has_received_nothing_yet_skips_nothing(stack: Stack) -> None:
    """Its group begins at the end of the log, which is somewhere else when the broker is back."""
    async with connected(stack) as client:
        await client.ask("SUBSCRIBE t g")
        await stack.die()
        assert [await client.receive() for _ in NEW] == NEW
